"""A part: all that an actor's process is told, as JSON. It holds no code and nothing that needs torch to be read."""

from typing import Literal

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
from sparring.learn.actors.shared_weights import SharedWeights
from sparring.nets.forward import forward_without_torch
from sparring.nets.policies import Policy
from sparring.nets.shapes import state_width
from sparring.nets.user_code import open_policy
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights

ACTING = 1  # of the streams of chance that a seed has; 2 samples, 3 feeds


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
    generation: int = 0  # how many played this part before
    lane: int = 0
    lanes: int = 1
    in_step: bool = False  # each version is waited for, and played once
    epsilon: float | None = None  # its own; None: the board's
    n_steps: int = 0  # over which an actor estimates the first priority of its steps; 0: it does not
    discount: float = 1.0  # of those
    reward_clip: float = 0.0
    opponents: int = 0
    opponent_share: float = 0.0
    script_share: float = 0.0
    state: bytes = b""  # of an actor that was saved; empty: a new one
    board: int = -1  # descriptors
    ring: int = -1
    bell: int = -1

    @property
    def streams(self) -> int:
        return self.envs * len(self.spec.seats)

    @property
    def past(self) -> int:
        """How many past selves the board has places for."""
        return self.opponents if len(self.spec.seats) > 1 else 0

    def open_board(self, descriptor: int | None = None) -> SharedWeights:
        return SharedWeights(self.network, self.past, descriptor)

    def open_rollouts(self, descriptor: int | None = None) -> rollouts.RolloutRing:
        shape = rollouts.RolloutShape(
            seat=self.spec.seats[0],
            ticks=self.ticks,
            streams=self.streams,
            frame_stack=self.spec.frame_stack,
            memory=state_width(self.network),
            slots=self.slots,
            lanes=self.lanes,
        )
        return rollouts.RolloutRing(shape, descriptor)

    def open_blocks(self, descriptor: int | None = None) -> blocks.StepBlockRing:
        shape = blocks.BlockShape(self.spec.seats[0], self.ticks, self.streams, state_width(self.network), self.slots)
        return blocks.StepBlockRing(shape, descriptor)

    def taken(self, columns: dict[str, Array]) -> rollouts.PlayedRollout | blocks.StepBlock:
        """What an actor played, from the columns in which it came here."""
        seat = self.spec.seats[0]
        return rollouts.played(columns, seat) if self.feeds == "rollouts" else blocks.joined(columns, seat)

    def chance(self) -> Generator:
        """This actor's own: another for every actor, and for every one that takes a dead one's place."""
        return np.random.default_rng([self.seed, ACTING, self.actor, self.generation])

    def open_actor(
        self, weights: Weights, policy: Policy | None = None, game: Game | None = None
    ) -> tuple[Actor, Opponents]:
        """The games opened, and whoever is met beside oneself. Policy and games are the part's own where none are
        given."""
        partners = Opponents(self.network, self.opponents, self.opponent_share, _scripts(self.spec), self.script_share)
        forward = forward_without_torch(self.network, weights)
        games = open_game(self.game, self.envs) if game is None else game
        return Actor(games, forward, policy or self.policy, self.chance(), partners, self.reward_clip), partners

    def open_estimates(self) -> PriorityEstimator | None:
        """What estimates first priorities, where that is asked for."""
        if not self.n_steps:
            return None
        return PriorityEstimator(open_policy(self.policy, self.spec.seats[0].action), self.streams)

    def told(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def read_actor_spec(text: bytes) -> ActorSpec:
    """The part in a JSON text."""
    return msgspec.json.decode(text, type=ActorSpec)


def _scripts(spec: GameSpec) -> list[Script]:
    """The game's scripts that know something of it; chance alone teaches nothing."""
    if len(spec.seats) < 2:
        return []
    return [script_for(spec, name) for name in scripts_for(spec.id) if name != "random"]
