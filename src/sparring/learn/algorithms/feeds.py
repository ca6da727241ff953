"""What an algorithm is fed from replay, the seat that it learns to play, and the network that its settings ask for.

An algorithm fed with trajectories has the settings `rollout_ticks` (of every game between two updates) and `discount`;
for --from mix also `records_steps` (of the store beside one rollout) and `records_n_steps` (that each of them spans).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec, SeatSpec
from sparring.learn.protocol import Algorithm
from sparring.nets.torch_network import default_network
from sparring.nets.user_code import own_network
from sparring.replay.gather import Window
from sparring.replay.steps import Batch
from sparring.replay.table import Table
from sparring.wire.chunk import Array
from sparring.wire.network import Conv, Gru, Head, Lstm, Memory, NetworkSpec


@dataclass(frozen=True, slots=True)
class Draw:
    """What one update is fed from a replay table."""

    steps: int  # that it learns from, as the rate limiter counts them
    count: int  # of transitions or sequences
    sample: Callable[[Table, Generator], tuple[Batch, Array]]  # a batch, and its rows for `Table.learned`


def draw_for(algorithm: Algorithm, settings: Any) -> Draw:
    """Sequences where the algorithm is fed with them: `batch_sequences` of `sequence_steps` behind `burn_in_steps`, of
    which neighbours share `overlap_steps`. Otherwise transitions: `batch_steps` that span `n_steps` decisions; of the
    records beside a rollout `records_steps` that span `records_n_steps`."""
    if algorithm.feeds == "sequences":
        window = Window(settings.sequence_steps, settings.burn_in_steps, settings.overlap_steps)
        count: int = settings.batch_sequences
        return Draw(count * window.length, count, lambda table, rng: table.sample_windows(count, rng, window))
    beside = algorithm.feeds == "trajectories"
    steps: int = settings.records_steps if beside else settings.batch_steps
    spans, discount = settings.records_n_steps if beside else settings.n_steps, settings.discount
    return Draw(steps, steps, lambda table, rng: table.sample(steps, rng, n_steps=spans, discount=discount))


ANY_ACTION = ("discrete", "multi-discrete", "box")  # what a policy with a probability can choose
WHO_TAKES = {  # kinds of actions that some algorithms cannot take → those that can
    "discrete": "ppo, mappo, dqn, impala, a3c, mmd or r2d2",
    "box": "ppo, mappo, impala, a3c, sac, bc, cql or iql",
    "multi-discrete": "ppo, mappo, impala, a3c or bc",
}


def one_seat(game: GameSpec, algorithm: str, kinds: tuple[str, ...] = ("discrete",)) -> SeatSpec:
    """The seat that one network plays in all its places; ConfigError where the game has no such seat.

    `kinds` of actions are those that the algorithm knows to choose.
    """
    first = game.seats[0]
    if first.action.kind not in kinds:
        others = WHO_TAKES.get(first.action.kind, "another algorithm")
        wrong = f"its actions are {first.action.kind}, and {algorithm} chooses among {' or '.join(kinds)} ones"
        do = f"Use {others} (docs/algorithms), or train a game with {' or '.join(kinds)} actions"
        raise ConfigError(wrong, where=f"game {game.id}", do=do)
    for seat in game.seats[1:]:
        if (seat.observation, seat.action) != (first.observation, first.action):
            wrong = (
                f"seats {first.name!r} and {seat.name!r} see or do different things, and one network plays all seats"
            )
            do = "Use `spar train`, which learns a network for each kind of seats, or give the seats the same spaces"
            raise ConfigError(wrong, where=f"game {game.id}", do=do)
    return first


def network_for(
    game: GameSpec,
    seat: SeatSpec,
    settings: Any,
    heads: tuple[Head, ...],
    *,
    separate_value: bool = False,
    memory: str = "",
) -> NetworkSpec:
    """The network with these heads that an algorithm's settings ask for: the user's own where `network` names one, else
    the default with their `hidden_units`, `activation`, `image_layers` and `normalise_observations`."""
    if settings.network:
        return own_network(
            settings.network, seat, heads, memory=hasattr(settings, "memory"), frame_stack=game.frame_stack
        )
    spec = default_network(
        seat,
        frame_stack=game.frame_stack,
        hidden=settings.hidden_units,
        activation=settings.activation,
        heads=heads,
        separate_value=separate_value,
        memory=memory_for(memory),
        normalise=getattr(settings, "normalise_observations", False),
    )
    return with_image_layers(spec, settings.image_layers)


def memory_for(text: str) -> Memory | None:
    """ "gru:128" or "lstm:128" as a memory; "" is none."""
    if not text:
        return None
    found = re.fullmatch(r"(gru|lstm):([1-9]\d{0,4})", text)
    if found is None:
        raise ConfigError(f"memory holds {text!r}", where="algorithm settings", do='Write "gru:128", "lstm:128" or ""')
    kind, units = found.groups()
    return Gru(int(units)) if kind == "gru" else Lstm(int(units))


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
