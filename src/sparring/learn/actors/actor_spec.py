"""All that an actor is told at its start, as JSON. It holds no code and nothing that needs torch to be read."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.random import Generator

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.games.catalogue import open_game
from sparring.games.protocol import Game
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.learn.actors import rollout_slots as rollouts
from sparring.learn.actors import step_blocks as blocks
from sparring.learn.actors.initial_priorities import PriorityEstimator
from sparring.learn.actors.weights import SharedWeights
from sparring.nets.forward import Forward, forward_without_torch
from sparring.nets.policies import Policy
from sparring.nets.shapes import state_width
from sparring.nets.user_code import open_policy
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights

ACTING = 1  # of the random streams that a seed has; 2 samples, 3 feeds

Ring = rollouts.RolloutRing | blocks.StepBlockRing


class ActorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to play, how, where to put it, and by which descriptors."""

    game: str
    spec: GameSpec
    network: NetworkSpec
    policy: str
    envs: int
    seed: int
    feeds: Literal["rollouts", "steps"]
    ticks: int  # of one rollout, or of one block of steps
    slots: int
    actor: int = 0
    generation: int = 0  # how many actors had this number before
    writer: int = 0  # of the ring buffer's
    writers: int = 1
    synchronous: bool = False  # the actor waits for each version of the weights, and plays it once
    epsilon: float | None = None  # its own; None: the learner's
    n_steps: int = 0  # over which an actor estimates the first priority of its steps; 0: it does not
    discount: float = 1.0  # of those
    reward_clip: float = 0.0
    opponents: int = 0
    opponent_share: float = 0.0
    script_share: float = 0.0
    state: bytes = b""  # of an actor that was saved; empty: a new one
    weights_descriptor: int = -1
    ring_descriptor: int = -1
    wakeup_descriptor: int = -1

    @property
    def streams(self) -> int:
        return self.envs * len(self.spec.seats)

    @property
    def past(self) -> int:
        """How many past selves there may be."""
        return self.opponents if len(self.spec.seats) > 1 else 0

    def open_weights(self, descriptor: int | None = None) -> SharedWeights:
        return SharedWeights(self.network, self.past, descriptor)

    def open_ring(self, descriptor: int | None = None) -> Ring:
        """The ring buffer that the actor writes into, of rollouts or of blocks of steps."""
        seat, memory = self.spec.seats[0], state_width(self.network)
        if self.feeds == "steps":
            return blocks.StepBlockRing(
                blocks.BlockShape(seat, self.ticks, self.streams, memory, self.slots), descriptor
            )
        shape = rollouts.RolloutShape(
            seat=seat,
            ticks=self.ticks,
            streams=self.streams,
            frame_stack=self.spec.frame_stack,
            memory=memory,
            slots=self.slots,
            writers=self.writers,
        )
        return rollouts.RolloutRing(shape, descriptor)

    def read(self, columns: Mapping[str, Array]) -> rollouts.PlayedRollout | blocks.StepBlock:
        """What an actor played, from the columns of a slot."""
        seat = self.spec.seats[0]
        return rollouts.played(columns, seat) if self.feeds == "rollouts" else blocks.joined(columns, seat)

    def rng(self) -> Generator:
        """This actor's own: another for every actor, and for every one that replaces a dead one."""
        return np.random.default_rng([self.seed, ACTING, self.actor, self.generation])

    def open_actor(
        self,
        weights: Weights,
        policy: Policy | None = None,
        game: Game | None = None,
        forward: Callable[[NetworkSpec, Weights], Forward] = forward_without_torch,
    ) -> tuple[Actor, Opponents]:
        """The actor with its games, and its opponents. `policy` and `game` are the spec's own where none are given."""
        opponents = Opponents(self.network, self.opponent_share, _scripts(self.spec), self.script_share)
        games = open_game(self.game, self.envs) if game is None else game
        network = forward(self.network, weights)
        return Actor(games, network, policy or self.policy, self.rng(), opponents, self.reward_clip), opponents

    def open_estimator(self) -> PriorityEstimator | None:
        """What estimates first priorities, where the learner wants them."""
        if not self.n_steps:
            return None
        return PriorityEstimator(open_policy(self.policy, self.spec.seats[0].action), self.streams)

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def read_actor_spec(text: bytes) -> ActorSpec:
    """The spec in a JSON text."""
    return msgspec.json.decode(text, type=ActorSpec)


def actor_spec(plan: Any, network: NetworkSpec, **more: Any) -> ActorSpec:
    """What every actor of a plan is told; `more` says what it hands over: feeds, ticks, slots …"""
    shared = ("game", "spec", "policy", "envs", "seed", "reward_clip", "opponents", "opponent_share", "script_share")
    return ActorSpec(network=network, **{name: getattr(plan, name) for name in shared}, **more)


def _scripts(spec: GameSpec) -> list[Script]:
    """The game's scripts that know something of it; random play teaches nothing."""
    if len(spec.seats) < 2:
        return []
    return [script_for(spec, name) for name in scripts_for(spec.id) if name != "random"]
