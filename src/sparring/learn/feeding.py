"""What a topology must know of an algorithm's settings to feed it, and the seat that it learns to play."""

import re
from typing import Protocol

from msgspec.structs import replace

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec, SeatSpec
from sparring.wire.network import Conv, NetworkSpec


class TransitionFeed(Protocol):
    """Settings of an algorithm fed with transitions."""

    @property
    def batch_steps(self) -> int: ...  # of one update
    @property
    def n_steps(self) -> int: ...  # decisions that a transition spans
    @property
    def discount(self) -> float: ...


class TrajectoryFeed(Protocol):
    """Settings of an algorithm fed with trajectories."""

    @property
    def rollout_ticks(self) -> int: ...  # of every game between two updates
    @property
    def discount(self) -> float: ...
    @property
    def records_steps(self) -> int: ...  # from the store beside one rollout, with --from mix
    @property
    def records_n_steps(self) -> int: ...  # decisions that each of them spans


def one_seat(game: GameSpec, algorithm: str) -> SeatSpec:
    """The seat that one network plays in all its places; ConfigError where the game has no such seat."""
    first = game.seats[0]
    if first.action.kind != "discrete":
        raise ConfigError(
            f"its actions are {first.action.kind}, and {algorithm} chooses among discrete ones",
            where=f"game {game.id}",
            do="Train a game with discrete actions, or give a discrete version of this one",
        )
    for seat in game.seats[1:]:
        if (seat.observation, seat.action) != (first.observation, first.action):
            raise ConfigError(
                f"seats {first.name!r} and {seat.name!r} see or do different things, and one network plays all seats",
                where=f"game {game.id}",
                do="Give the seats the same spaces",
            )
    return first


def with_image_layers(spec: NetworkSpec, layers: tuple[str, ...]) -> NetworkSpec:
    """The network with other layers for what it sees as images.

    "64x4" or "64x3/2+1" is channels x kernel / stride + padding; ("flat",) does without convolutions, which is
    faster on a CPU; () leaves the default.
    """
    if not layers or not any(leaf.image for leaf in spec.inputs):
        return spec
    if layers == ("flat",):
        return replace(spec, image=(), inputs=tuple(replace(leaf, image=False) for leaf in spec.inputs))
    return replace(spec, image=tuple(_conv(text) for text in layers))


def _conv(text: str) -> Conv:
    found = re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?(?:\+(\d+))?", text)
    if found is None:
        raise ConfigError(
            f"image_layers holds {text!r}", where="algorithm settings", do='Write "64x4", "64x3/2+1", or "flat" alone'
        )
    channels, kernel, stride, padding = found.groups()
    return Conv(int(channels), int(kernel), int(stride or 1), int(padding or 0))
