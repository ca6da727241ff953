"""Actions between RLlib and a game. Choices are the same in both; numbers are not.

A policy of RLlib draws a plain Gaussian, and the game gets it squashed between its bounds: so our own policies do it,
and the mean means the same in both. RLlib's critics of actions squash by themselves, to −1 … 1.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from sparring.errors import ConfigError
from sparring.games.spec import Leaf
from sparring.learn.rllib.names import Offer
from sparring.nets.policies import bounds_of, squashed
from sparring.wire.chunk import Array

NEARLY = 1.0 - 1e-6  # a recorded action at its bound has no finite raw number


@dataclass(frozen=True, slots=True)
class Actions:
    """How one seat's actions are told."""

    leaf: Leaf
    squashes: bool  # RLlib gives −1 … 1 itself

    @property
    def space(self) -> gymnasium.Space[Any]:
        """What RLlib believes that it chooses from."""
        if self.leaf.choices:
            return gymnasium.spaces.Discrete(self.leaf.choices[0])
        size = int(np.prod(self.leaf.shape))
        limit = 1.0 if self.squashes else np.inf
        return gymnasium.spaces.Box(-limit, limit, (size,), np.float32)

    def to_game(self, chosen: Array) -> Array:
        """[n, *shape] in the game's own units."""
        leaf = self.leaf
        if leaf.choices:
            return chosen.astype(leaf.dtype)
        bounds = bounds_of(leaf)
        if self.squashes and bounds is not None:
            low, high = bounds
            done = np.clip(low + (high - low) * 0.5 * (chosen + 1.0), low, high)
        else:
            done = squashed(chosen, bounds)
        return np.asarray(done.reshape(len(chosen), *leaf.shape), leaf.dtype)

    def from_game(self, done: Array) -> Array:
        """What RLlib would have chosen for actions of the game [n, *shape]."""
        leaf = self.leaf
        if leaf.choices:
            return done.astype(np.int64)
        flat = done.reshape(len(done), -1).astype(np.float32)
        bounds = bounds_of(leaf)
        if bounds is None:
            return flat
        low, high = bounds
        unit = np.clip(2.0 * (flat - low) / (high - low) - 1.0, -NEARLY, NEARLY)
        return np.asarray(unit if self.squashes else np.arctanh(unit), np.float32)


def actions_of(leaf: Leaf, offer: Offer) -> Actions:
    """How `offer` chooses such actions; ConfigError where RLlib would squash what has no bounds."""
    squashes = offer.kind == "soft" and not leaf.choices
    if squashes and bounds_of(leaf) is None:
        raise ConfigError(
            f"its actions have no bounds, and RLlib's {offer.name} squashes them between two",
            where="action",
            do="Give the spec low and high, or use rllib:PPO",
        )
    return Actions(leaf, squashes)
