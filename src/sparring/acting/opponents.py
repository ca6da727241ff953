"""Whom a learner meets beside itself: past selves, so that it does not forget, and scripts, so that it is not lost
in a circle of its own kind."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from sparring.games.scripts import Script
from sparring.nets.forward import Forward
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree

SELF = -1
FIRST_SCRIPT = -2  # the k-th script is FIRST_SCRIPT - k


class Opponents:
    """At most `keep` earlier weights. A newcomer takes the place of a random one, so old ones thin out slowly."""

    def __init__(
        self,
        network: NetworkSpec,
        keep: int,
        share: float,
        scripts: Sequence[Script] = (),
        script_share: float = 0.0,
    ) -> None:
        self._network, self._keep, self._share = network, keep, share
        self.scripts = tuple(scripts)
        self._script_share = script_share if self.scripts else 0.0
        self._weights: list[Weights] = []
        self.forwards: list[Forward] = []

    @property
    def any(self) -> bool:
        """Whether somebody else can be met."""
        return bool(self.forwards) or self._script_share > 0

    def add(self, weights: Weights, rng: Generator) -> None:
        """Keep these weights. Games under way against the one replaced go on against the newcomer."""
        if self._keep < 1:
            return
        forward = NumpyForward(self._network, weights)
        if len(self.forwards) < self._keep:
            self._weights.append(weights)
            self.forwards.append(forward)
        else:
            place = int(rng.integers(self._keep))
            self._weights[place], self.forwards[place] = weights, forward

    def put(self, place: int, weights: Weights) -> None:
        """Keep these weights in that place, the next free one at most: where another process has drawn it."""
        self._weights[place : place + 1] = [weights]
        self.forwards[place : place + 1] = [NumpyForward(self._network, weights)]

    def draw(self, games: int, rng: Generator) -> Array:
        """int64 [games]: whom each new game is played against: SELF, a place in `forwards`, or a script."""
        drawn = rng.random(games)
        met = np.full(games, SELF, np.int64)
        if self.forwards:
            met = np.where(drawn < self._share, rng.integers(0, len(self.forwards), games), met)
        if self._script_share > 0:
            script = FIRST_SCRIPT - rng.integers(0, len(self.scripts), games)
            met = np.where(drawn >= 1.0 - self._script_share, script, met)
        return met

    def save(self) -> Tree:
        """The past selves' weights."""
        return list(self._weights)

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._weights = list(state)
        self.forwards = [NumpyForward(self._network, weights) for weights in self._weights]
