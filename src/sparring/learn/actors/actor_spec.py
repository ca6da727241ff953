"""All that an actor is told at its start, as JSON. It holds no code and nothing that needs torch to be read."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.acting.rollout import rollout_layout
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.joint_view import JointView, joint_spec
from sparring.games.protocol import Game
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.learn.actors.experience import RolloutRing, StepBlockRing
from sparring.learn.actors.weights import SharedWeights
from sparring.nets.forward import Forward, forward_for_matches, forward_without_torch
from sparring.nets.policies import Policy
from sparring.nets.tree_search import SearchSpec
from sparring.replay.steps import machine_bytes
from sparring.wire.network import NetworkSpec, Weights

if TYPE_CHECKING:
    from sparring.nets.batch_search import BatchSearch

ACTING = 1  # of the random streams that a seed has; 2 samples, 3 feeds

Ring = RolloutRing | StepBlockRing


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
    synchronous: bool = False  # the actor waits for each version of the weights, and plays it once
    epsilon: float | None = None  # its own; None: the learner's
    n_steps: int = 0  # over which an actor estimates the first priority of its steps; 0: it does not
    discount: float = 1.0  # of those
    reward_clip: float = 0.0
    repeat: bool = False  # what ε explores, in a game of one seat
    joint: bool = False  # seats are shown the joint view, too
    search: SearchSpec | None = None  # how the learning policy looks ahead before it decides
    opponents: int = 0
    opponent_share: float = 0.0
    script_share: float = 0.0
    league: str = ""  # the learner whose opponents a league says, DISCOVERY#NAME/GENERATION; "": those above
    state: bytes = b""  # of an actor that was saved; empty: a new one
    weights_descriptor: int = -1
    ring_descriptor: int = -1
    wakeup_descriptor: int = -1

    @property
    def streams(self) -> int:
        return self.envs * len(self.spec.seats)

    @property
    def played(self) -> GameSpec:
        """What the actor's seats are shown: the game's spec, with the joint view where that is asked for."""
        return joint_spec(self.spec) if self.joint else self.spec

    @property
    def past(self) -> int:
        """How many past selves there may be: none in a game without another team."""
        return self.opponents if self.spec.has_rivals else 0

    def open_weights(self, descriptor: int | None = None) -> SharedWeights:
        return SharedWeights(self.network, self.past, descriptor)

    def open_ring(self, descriptor: int | None = None) -> Ring:
        """The ring buffer that the actor writes into, of rollouts or of blocks of steps."""
        return (RolloutRing if self.feeds == "rollouts" else StepBlockRing)(self, descriptor)

    def rng(self) -> Generator:
        """This actor's own: another for every actor, and for every one that replaces a dead one."""
        return np.random.default_rng([self.seed, ACTING, self.actor, self.generation])

    def open_actor(
        self,
        weights: Weights,
        policy: Policy | None = None,
        game: Game | None = None,
        forward: Callable[[NetworkSpec, Weights], Forward] | None = None,
    ) -> tuple[Actor, Opponents]:
        """The actor with its games, and its opponents. `policy` and `game` are the spec's own where none are given."""
        opponents = self._open_opponents()
        games = self.open_games() if game is None else game
        network = self.forward(weights) if forward is None else forward(self.network, weights)
        chosen, search = policy or self.policy, self.open_search()
        return Actor(games, network, chosen, self.rng(), opponents, self.reward_clip, self.repeat, search), opponents

    def forward(self, weights: Weights) -> Forward:
        """The network with these weights; a search asks it about many small boards."""
        return (forward_without_torch if self.search is None else forward_for_matches)(self.network, weights)

    def open_search(self) -> "BatchSearch | None":
        """What looks ahead; ConfigError where the game cannot be searched."""
        if self.search is None:
            return None
        from sparring.nets.batch_search import BatchSearch  # is compiled: other actors start without numba

        return BatchSearch(open_game(self.game, self.envs), self.search)

    def open_games(self) -> Game:
        """What the actor plays."""
        games = open_game(self.game, self.envs)
        return JointView(games) if self.joint else games

    def _open_opponents(self) -> Opponents:
        if self.league:
            from sparring.league.opponents import LeagueOpponents  # other runs need no sockets

            return LeagueOpponents(self.spec, self.network, self.league)
        return Opponents(self.network, self.opponent_share, _scripts(self.spec), self.script_share)

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def read_actor_spec(text: bytes) -> ActorSpec:
    """The spec in a JSON text."""
    return msgspec.json.decode(text, type=ActorSpec)


def actor_spec(plan: Any, network: NetworkSpec, **more: Any) -> ActorSpec:
    """What every actor of a plan is told; `more` says what it hands over: feeds, ticks, slots …"""
    shared = (
        "game",
        "spec",
        "policy",
        "envs",
        "seed",
        "reward_clip",
        "opponents",
        "opponent_share",
        "script_share",
        "league",
    )
    repeatable = plan.policy in ("greedy", "gaussian") and len(plan.spec.seats) == 1
    repeat = repeatable and getattr(plan.settings, "repeat_exploration", False)
    joint = getattr(plan.algorithm, "joint", False) and not plan.kind  # a part of a game has it already
    given = {name: getattr(plan, name) for name in shared}
    search = plan.algorithm.search(plan.settings) if hasattr(plan.algorithm, "search") else None
    spec = ActorSpec(network=network, repeat=repeat, joint=joint, search=search, **given, **more)
    if spec.search is not None:
        replace(spec, envs=1).open_search()  # refused now, not by each actor
    if spec.feeds == "rollouts":
        _check_rollout(spec, getattr(plan, "actors", 1) if spec.synchronous else 1)
    return spec


def _check_rollout(spec: ActorSpec, actors: int) -> None:
    """ConfigError where what is played between two updates takes more than a quarter of this machine's memory."""
    seat, stack = spec.played.seats[0], spec.spec.frame_stack
    searches = spec.search is not None
    layout = rollout_layout(seat, 1, 1, masks=True, frame_stack=stack, network=spec.network, searches=searches)
    step = sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in layout.values())
    if (size := step * spec.ticks * spec.streams * actors) > machine_bytes() // 4:
        wrong = f"a rollout of {spec.ticks} ticks of {spec.streams * actors} streams takes {size / 1e9:.1f} GB"
        raise ConfigError(wrong, where=f"game {spec.game}", do="Lower rollout_ticks or --envs, or use smaller images")


def _scripts(spec: GameSpec) -> list[Script]:
    """The game's scripts that know something of it. Where rivals take turns and there is none, random play: against
    itself alone a policy soon sees one line of play, and knows nothing of any other."""
    if len({seat.team for seat in spec.seats}) == 1:
        return []
    rivals = spec.turns == "alternating"
    names = [name for name in scripts_for(spec.id) if name != "random"] or (["random"] if rivals else [])
    return [script_for(spec, name) for name in names]
