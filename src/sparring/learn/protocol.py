"""All the platform knows of an algorithm: what it begins with, what it is fed, what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparring.games.spec import GameSpec, Leaf
from sparring.replay.batch import Batch as Batch
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec

Weights = dict[str, Array]  # parameter name → float32


@dataclass(frozen=True, slots=True)
class Update:
    """The explicit result of one update; the caller goes on with `learner` and nothing else."""

    learner: "Learner"
    priorities: Array | None = None  # float32 [batch]; None says "replay is uniform"
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """What an algorithm learns with: network, optimiser, counters. Goes into bytes and back whole."""

    network: NetworkSpec
    updates: int

    def weights(self) -> Weights:
        """A copy of the acting network's parameters, by the names of `wire/network.py`."""
        ...

    def save(self) -> bytes:
        """Everything needed to go on as if nothing had happened, without a pickle."""
        ...

    def load(self, state: bytes) -> None:
        """Back to what `save` gave."""
        ...


class Algorithm(Protocol):
    """One file each. `feeds` says what it is fed; `policy` how its outputs choose (see wire/model.py)."""

    name: str
    feeds: str  # "transitions" or "sequences" of a replay table, "records" of the store alone, fresh "trajectories"
    policy: str  # where actions are discrete; `policy_for` says it for any
    settings: type  # the frozen dataclass that `config` is one of; what feeds it is in learn/feeding.py

    def begin(self, game: GameSpec, config: Any, seed: int) -> Learner:
        """A fresh learner for a seat of `game`; ConfigError where its spaces do not suit the algorithm."""
        ...

    def update(self, learner: Learner, batch: Batch) -> Update:
        """Learn from the batch, which is never changed."""
        ...

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """ε of a greedy policy once that many steps were played; 0 where the policy samples."""
        ...


def policy_for(algorithm: Algorithm, action: Leaf) -> str:
    """How the outputs of its networks choose such actions: a box has one Gaussian, whatever the algorithm."""
    return algorithm.policy if action.choices else "gaussian"
