"""Whom a learner plays against beside itself: past selves, so that it does not forget, and scripts, so that it does not
only know its own kind."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from sparring.games.scripts import Script
from sparring.nets.forward import Forward, forward_without_torch
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree, rng_state, set_rng_state

SELF = -1
FIRST_SCRIPT = -2  # the k-th script is FIRST_SCRIPT - k
PAST_EVERY_STEPS = 100_000  # ticks of all games between two past selves


class PastSelves:
    """The learner's side: at most `size` of its earlier weights. Once full, a new one replaces a random one, so that
    old ones become rare slowly."""

    def __init__(self, size: int, rng: Generator) -> None:
        self.size, self._rng = size, rng
        self.weights: list[Weights] = []
        self._periods = 0  # of PAST_EVERY_STEPS that have passed

    def due(self, env_steps: int) -> bool:
        """Whether the current weights should become a past self."""
        return self.size > 0 and env_steps // PAST_EVERY_STEPS > self._periods

    def add(self, weights: Weights, env_steps: int = 0) -> int:
        """Keep these weights; the place that they take."""
        self._periods = env_steps // PAST_EVERY_STEPS
        place = len(self.weights) if len(self.weights) < self.size else int(self._rng.integers(self.size))
        self.weights[place : place + 1] = [weights]
        return place

    def save(self) -> Tree:
        return {"weights": list(self.weights), "periods": self._periods, "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        self.weights, self._periods = list(state["weights"]), state["periods"]
        set_rng_state(self._rng, state["rng"])


class Opponents:
    """The actor's side: networks of past selves by place, and scripts, and how often each is met."""

    lasting = True  # whether a place means the same opponent in an actor that is loaded from a checkpoint

    def __init__(
        self, network: NetworkSpec, share: float, scripts: Sequence[Script] = (), script_share: float = 0.0
    ) -> None:
        self._network, self._share = network, share
        self.scripts = tuple(scripts)
        self._script_share = script_share if self.scripts else 0.0
        self.forwards: list[Forward] = []
        self.playing: Array | None = None  # int64 [streams]: who plays each, as the actor says

    @property
    def any(self) -> bool:
        """Whether there is an opponent other than the learner itself."""
        return bool(self.forwards) or self._script_share > 0

    def put(self, place: int, weights: Weights) -> None:
        """A past self in that place, the next free one at most. Games against the one it replaces go on against it."""
        self.forwards[place : place + 1] = [forward_without_torch(self._network, weights)]

    def draw(self, games: int, rng: Generator) -> Array:
        """int64 [games]: the opponent of each new game: SELF, a place in `forwards`, or a script."""
        drawn = rng.random(games)
        met = np.full(games, SELF, np.int64)
        if self.forwards:
            met = np.where(drawn < self._share, rng.integers(0, len(self.forwards), games), met)
        if self._script_share > 0:
            script = FIRST_SCRIPT - rng.integers(0, len(self.scripts), games)
            met = np.where(drawn >= 1.0 - self._script_share, script, met)
        return met

    def note(self, rivals: Array, scores: Array) -> None:
        """Games that ended: who was met in each, and what the learner scored: 1, 0.5 or 0. Only a league counts them
        (league/opponents.py)."""

    def close(self) -> None:
        """Give back what it holds."""
