"""A part: all that an actor's process is told, as JSON. It holds no code and nothing that needs torch to be read."""

from typing import Literal

import msgspec
import numpy as np
from numpy.random import Generator

from sparring.games.catalogue import open_game
from sparring.games.protocol import Game
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.learn.actor import Actor
from sparring.learn.crew import blocks, rollouts
from sparring.learn.crew.estimates import Estimates
from sparring.learn.crew.weights import Board
from sparring.learn.layout import state_width
from sparring.learn.onnx_forward import without_torch
from sparring.learn.opponents import Partners
from sparring.learn.own_policy import open_policy
from sparring.learn.policies import Policy
from sparring.learn.protocol import Weights
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec

ACTING = 1  # of the streams of chance that a seed has; 2 samples, 3 feeds


class Part(msgspec.Struct, frozen=True, kw_only=True):
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

    def open_board(self, descriptor: int | None = None) -> Board:
        return Board(self.network, self.past, descriptor)

    def open_rollouts(self, descriptor: int | None = None) -> rollouts.Rollouts:
        shape = rollouts.Shape(
            seat=self.spec.seats[0],
            ticks=self.ticks,
            streams=self.streams,
            frame_stack=self.spec.frame_stack,
            memory=state_width(self.network),
            slots=self.slots,
            lanes=self.lanes,
        )
        return rollouts.Rollouts(shape, descriptor)

    def open_blocks(self, descriptor: int | None = None) -> blocks.Blocks:
        shape = blocks.Shape(self.spec.seats[0], self.ticks, self.streams, state_width(self.network), self.slots)
        return blocks.Blocks(shape, descriptor)

    def taken(self, columns: dict[str, Array]) -> rollouts.Played | blocks.Block:
        """What an actor played, from the columns in which it came here."""
        seat = self.spec.seats[0]
        return rollouts.played(columns, seat) if self.feeds == "rollouts" else blocks.joined(columns, seat)

    def chance(self) -> Generator:
        """This actor's own: another for every actor, and for every one that takes a dead one's place."""
        return np.random.default_rng([self.seed, ACTING, self.actor, self.generation])

    def open_actor(
        self, weights: Weights, policy: Policy | None = None, game: Game | None = None
    ) -> tuple[Actor, Partners]:
        """The games opened, and whoever is met beside oneself. Policy and games are the part's own where none are
        given."""
        partners = Partners(self.network, self.opponents, self.opponent_share, _scripts(self.spec), self.script_share)
        forward = without_torch(self.network, weights)
        games = open_game(self.game, self.envs) if game is None else game
        return Actor(games, forward, policy or self.policy, self.chance(), partners, self.reward_clip), partners

    def open_estimates(self) -> Estimates | None:
        """What estimates first priorities, where that is asked for."""
        if not self.n_steps:
            return None
        return Estimates(open_policy(self.policy, self.spec.seats[0].action), self.streams)

    def told(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def read_part(text: bytes) -> Part:
    """The part in a JSON text."""
    return msgspec.json.decode(text, type=Part)


def _scripts(spec: GameSpec) -> list[Script]:
    """The game's scripts that know something of it; chance alone teaches nothing."""
    if len(spec.seats) < 2:
        return []
    return [script_for(spec, name) for name in scripts_for(spec.id) if name != "random"]
