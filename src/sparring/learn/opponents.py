"""Past selves to play against, so that a policy does not forget how to beat what it used to be."""

import numpy as np
from numpy.random import Generator

from sparring.learn.forward import Forward
from sparring.learn.protocol import Weights
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec
from sparring.wire.tree import Tree

SELF = -1


class PastSelves:
    """At most `keep` earlier weights. A newcomer takes the place of a random one, so old ones thin out slowly."""

    def __init__(self, network: NetworkSpec, keep: int, share: float) -> None:
        self._network, self._keep, self._share = network, keep, share
        self._weights: list[Weights] = []
        self.forwards: list[Forward] = []

    def add(self, weights: Weights, rng: Generator) -> None:
        """Keep these weights. Games under way against the one replaced go on against the newcomer."""
        if self._keep < 1:
            return
        forward = Forward(self._network, weights)
        if len(self.forwards) < self._keep:
            self._weights.append(weights)
            self.forwards.append(forward)
        else:
            place = int(rng.integers(self._keep))
            self._weights[place], self.forwards[place] = weights, forward

    def draw(self, games: int, rng: Generator) -> Array:
        """int64 [games]: whom each new game is played against, a place in `forwards` or SELF."""
        if not self.forwards:
            return np.full(games, SELF, np.int64)
        place = rng.integers(0, len(self.forwards), games)
        return np.where(rng.random(games) < self._share, place, SELF)

    def save(self) -> Tree:
        """Their weights."""
        return list(self._weights)

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._weights = list(state)
        self.forwards = [Forward(self._network, weights) for weights in self._weights]
