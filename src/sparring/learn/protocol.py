"""The interfaces between the platform and an algorithm: Algorithm, Learner, Update; and that of a topology."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparring.acting.actor import Episodes
from sparring.games.spec import GameSpec, Leaf
from sparring.replay.steps import Batch as Batch
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree


@dataclass(frozen=True, slots=True)
class Update:
    """The result of one update; the caller continues with `learner`, which may be the one that it gave."""

    learner: "Learner"
    priorities: Array | None = None  # float32 [batch]; None says "replay is uniform"
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """What an algorithm learns with: network, optimiser, counters. Goes into bytes and back whole."""

    network: NetworkSpec
    updates: int
    steps: int  # of the run, as its plan counts them: the topology sets them before each update, for schedules

    def weights(self) -> Weights:
        """A copy of the acting network's parameters, by the names of `wire/network.py`."""

    def save(self) -> bytes:
        """Everything needed to go on as if nothing had happened, without a pickle."""

    def load(self, state: bytes) -> None:
        """Back to what `save` gave."""


def published_weights(learner: Learner) -> Weights:
    """The parameters that a model gets: `learner.published()` where the learner has one (an average of what it was,
    say), else those that its actors play with."""
    published: Callable[[], Weights] = getattr(learner, "published", learner.weights)
    return published()


class Algorithm(Protocol):
    """One file each. `feeds` says what it is fed; `policy` how its outputs choose (see wire/model.py)."""

    name: str
    feeds: str  # "transitions" or "sequences" of a replay table, "records" of the store alone, fresh "trajectories"
    policy: str  # where actions are discrete; `policy_for` gives it for any
    settings: type  # the frozen dataclass of its settings, of which `config` is one
    # joint: bool, where it is there and true: what is seen has the joint view (games/joint_view.py), too. `begin` is
    # then given `shown`, the seats' spec with that view, where they are one kind of the seats of a game.

    def begin(self, game: GameSpec, config: Any, seed: int) -> Learner:
        """A fresh learner for a seat of `game`; ConfigError where its spaces do not suit the algorithm."""

    def update(self, learner: Learner, batch: Batch) -> Update:
        """Learn from the batch, which is never changed."""

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """ε of a greedy policy once that many steps were played; 0 where the policy samples."""


def policy_for(algorithm: Algorithm, action: Leaf) -> str:
    """How the outputs of its networks choose such actions: a box has one Gaussian, whatever the algorithm."""
    return algorithm.policy if action.choices else "gaussian"


@dataclass(frozen=True, slots=True)
class Iteration:
    """The result of one iteration of a topology. No update: the replay table is still filling."""

    update: Update | None
    batch: Batch | None
    episodes: Episodes | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Sources:
    """What was learned from, for a model's lineage."""

    steps: Mapping[str, int]  # by source
    store_until_ms: int | None  # None: the store was not read


class Topology(Protocol):
    """Actors, replay and learner, wired together and running."""

    @property
    def learner(self) -> Learner: ...
    @property
    def env_steps(self) -> int: ...  # ticks of all games together; 0 where no actor plays
    @property
    def position(self) -> int: ...  # progress, in the steps that the run's plan counts
    @property
    def episodes(self) -> int: ...

    def iterate(self) -> Iteration:
        """Play and learn a little: at most one update."""

    def sources(self) -> Sources:
        """What was learned from so far."""

    def close(self) -> None:
        """Stop all processes and threads that it started; it is not used afterwards."""

    def save(self) -> Tree:
        """Everything needed to go on as if nothing had happened."""

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
