"""`pz:<name>`: a game of PettingZoo, such as pz:connect_four_v3 or pz:multiwalker_v9(n_walkers=2), one seat per agent;
the MPE games (pz:simple_spread_v3) come from the package mpe2, pz:module:mine_v0 is registered by that module.

Where there is a parallel version (all agents at once) it is played, else the one in which agents take turns.
An "action_mask", in the observation or beside it, becomes the legal mask. Images are scaled down as those of
Gymnasium; `pz:<name>(images=full)` leaves them as they are. `teams=…` says who plays together (`_teams`), and with
`identity=true` each seat sees its own number, so that one network can give its seats different parts.
"""

import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from sparring.errors import ConfigError, Missing
from sparring.games.game_state import (
    REWARD_BOUND,
    SEEDS,
    check_option,
    did_you_mean,
    id_with_options,
    library,
    name_and_options,
)
from sparring.games.gymnasium import FULL_IMAGES, IMAGES, Reader, action_leaf, observation_reader, wrong_options
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, Game
from sparring.games.spec import GameSpec, SeatSpec, checked, discrete
from sparring.games.vectorize import SingleGame, SingleView, VectorGame
from sparring.user_code import import_code
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MOST_TICKS = 1_000_000  # of a game that does not say when it ends at the latest (max_cycles)
DRAWN = {"render_mode": "rgb_array"}
# Games in which a seat does not see all that others know or do; PettingZoo does not say so itself.
HIDDEN = {"gin_rummy", "hanabi", "leduc_holdem", "rps", "texas_holdem", "texas_holdem_no_limit"}


# The option `teams` of games whose agents are not each alone. Where PettingZoo leaves it open, as in Joust, they are.
TEAMS, ALL, KIND, EACH = "teams", "all", "kind", "each"
IDENTITY = "identity"
_PAIRS = "first-third/second-fourth"  # of the Atari games for two against two
DEFAULT_TEAMS = {
    **dict.fromkeys(("cooperative_pong", "knights_archers_zombies", "pistonball"), ALL),
    **dict.fromkeys(("multiwalker", "pursuit", "waterworld", "hanabi", "entombed_cooperative"), ALL),
    **dict.fromkeys(("simple_spread", "simple_reference", "simple_speaker_listener"), ALL),
    **dict.fromkeys(("simple_formation", "simple_line", "collect_treasure"), ALL),
    **dict.fromkeys(("simple_tag", "simple_adversary", "simple_push"), KIND),
    **dict.fromkeys(("foozpong", "quadrapong", "volleyball_pong"), _PAIRS),
    "simple_world_comm": "leadadversary-adversary/agent",
    "simple_crypto": "eve/bob-alice",
}
STATE_FAILS = {"multiwalker"}  # once a walker has fallen, PettingZoo's raises an error
MPE = ("simple_", "collect_treasure_")  # how the names of mpe2's games begin


def open_game(text: str, n: int, *, rendered: bool = False) -> Game:
    """n games of that name, or Missing; `rendered`: they draw pictures (`_PettingZooGame.render`)."""
    name, options = name_and_options(text, f"game 'pz:{text}'")
    given = {key: value for key, value in options.items() if key not in (IMAGES, TEAMS, IDENTITY)}
    check_option(options, IMAGES, ("full",), f"game 'pz:{text}'")
    check_option(options, IDENTITY, (True, False), f"game 'pz:{text}'")
    teams = str(options.get(TEAMS, DEFAULT_TEAMS.get(re.sub(r"_v\d+$", "", name), EACH)))
    entry, parallel, package = _found(name)
    name = id_with_options(name, options)

    def make(mode: dict[str, str]) -> _PettingZooGame:
        env = _make(entry, package, name, given | mode)
        return _PettingZooGame(env, parallel, name, teams, identity=options.get(IDENTITY) is True)

    # Some games that show their screen draw it only where they render: without a mode players would see it black.
    seen = () if rendered else make({}).spec.seats[0].observation
    mode = DRAWN if rendered or any(leaf.kind == "image" for leaf in seen) else {}
    return VectorGame(lambda: make(mode), n)


class _Seat:
    """How one agent sees and acts."""

    def __init__(self, env: Any, agent: Any, where: str, identity: bool) -> None:
        space = env.observation_space(agent)
        inner = getattr(space, "spaces", None)
        self.masked = isinstance(inner, dict) and "action_mask" in inner
        # By PettingZoo's custom a masked observation is {"observation": …, "action_mask": …}.
        seen = inner["observation"] if self.masked and inner else space
        self.reader = observation_reader(seen, where, full_images=FULL_IMAGES in where)
        self.leaf, self.act = action_leaf(env.action_space(agent), where)
        self.leaves, self._always = self.reader.leaves, Columns()
        if identity:
            agents = list(env.possible_agents)
            self.leaves = (*self.leaves, discrete(len(agents), "observation/seat"))
            self._always = {"observation/seat": np.array(agents.index(agent), np.int32)}
        self.seen: Columns = {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in self.leaves} | self._always
        self.legal: Array | None = None

    def look(self, observation: Any, info: dict[str, Any]) -> None:
        """Keep what the agent sees now; an agent that is gone keeps what it saw last."""
        mask = observation["action_mask"] if self.masked else info.get("action_mask")
        self.legal = None if mask is None or self.leaf.kind != "discrete" else np.asarray(mask, bool)
        self.seen = self.reader.read(observation["observation"] if self.masked else observation) | self._always


class _PettingZooGame(SingleGame):
    """One game."""

    def __init__(self, env: Any, parallel: bool, name: str, teams: str, *, identity: bool = False) -> None:
        self._env, self._parallel = env, parallel
        self._agents = list(env.possible_agents)
        where = f"game 'pz:{name}'"
        self._seats = {agent: _Seat(env, agent, where, identity) for agent in self._agents}
        self._ending = dict.fromkeys(self._agents, RUNNING)
        self._score = dict.fromkeys(self._agents, 0.0)
        seats = tuple(
            SeatSpec(
                name=str(agent),
                team=team,
                observation=seat.leaves,
                action=seat.leaf,
                reward_bounds=(-REWARD_BOUND, REWARD_BOUND),
            )
            for team, (agent, seat) in zip(_teams(self._agents, teams, where), self._seats.items(), strict=True)
        )
        turns: Any = "simultaneous" if parallel else "alternating"
        cycles = getattr(env.unwrapped, "max_cycles", 0) if parallel else 0
        ticks = cycles if isinstance(cycles, int) and cycles > 0 else MOST_TICKS
        self._state = None if name.partition("_v")[0] in STATE_FAILS else _state_reader(env, where)
        self.spec = checked(
            GameSpec(
                id=GameId(f"pz:{name}"),
                turns=turns,
                seats=seats,
                max_ticks=ticks,
                hidden_information=name.partition("_v")[0] in HIDDEN,
                state=self._state.leaves[0] if self._state else None,
            ),
            where,
        )

    def reset(self, seed: int) -> SingleView:
        self._ending = dict.fromkeys(self._agents, RUNNING)
        self._score = dict.fromkeys(self._agents, 0.0)
        started = self._env.reset(seed=seed % SEEDS)
        if self._parallel:
            self._look(*started)
        else:
            self._look_at_all()
        return self._show({})

    def step(self, actions: Sequence[Array]) -> SingleView:
        chosen = dict(zip(self._agents, actions, strict=True))
        if self._parallel:
            moves = {agent: self._seats[agent].act(chosen[agent]) for agent in self._env.agents}
            observations, rewards, terminated, truncated, infos = self._env.step(moves)
            self._look(observations, infos)
        else:
            mover = self._env.agent_selection
            self._env.step(self._seats[mover].act(chosen[mover]))
            self._look_at_all()
            rewards, terminated, truncated = self._env.rewards, self._env.terminations, self._env.truncations
        # A seat that has ended earns nothing more, whatever its environment goes on to say of it.
        rewards = {agent: float(one) for agent, one in rewards.items() if self._ending[agent] == RUNNING}
        for agent in self._agents:
            if self._ending[agent] == RUNNING:
                self._score[agent] += rewards.get(agent, 0.0)
                ended = TERMINATED if terminated.get(agent) else TRUNCATED if truncated.get(agent) else RUNNING
                self._ending[agent] = ended
        if not self._parallel:
            self._step_ended_agents()
        return self._show(rewards)

    def state(self) -> Array:
        """What PettingZoo says of the whole game."""
        assert self._state is not None
        (whole,) = self._state.read(self._env.state()).values()
        return whole

    def render(self) -> tuple[Any, float]:
        """A picture of the game, as PettingZoo draws it, and how many it shows in a second."""
        return self._env.render(), float(self._env.metadata.get("render_fps") or 0)

    def _look(self, observations: dict[Any, Any], infos: dict[Any, Any]) -> None:
        for agent, observation in observations.items():
            if self._ending[agent] == RUNNING:
                self._seats[agent].look(observation, infos.get(agent, {}))

    def _look_at_all(self) -> None:
        agents = self._env.agents
        self._look({agent: self._env.observe(agent) for agent in agents}, self._env.infos)

    def _step_ended_agents(self) -> None:
        """PettingZoo wants a step without an action for each agent that has ended, before the others go on."""
        while self._env.agents and self._ending[self._env.agent_selection] != RUNNING:
            self._env.step(None)

    def _show(self, rewards: dict[Any, float]) -> SingleView:
        live = set(self._env.agents) if self._parallel else {self._env.agent_selection} & set(self._env.agents)
        if not live:  # no agent is left, whatever the flags say
            self._ending = {agent: ending or TERMINATED for agent, ending in self._ending.items()}
        return SingleView(
            observation=tuple(seat.seen for seat in self._seats.values()),
            to_act=tuple(agent in live for agent in self._agents),
            reward=tuple(rewards.get(agent, 0.0) for agent in self._agents),
            ending=tuple(self._ending.values()),
            outcome=tuple(self._score.values()),
            legal=tuple(seat.legal for seat in self._seats.values()),
        )


def _teams(agents: Sequence[Any], rule: str, where: str) -> list[int]:
    """The team of each agent. The rule is "all" (one team), "each" (alone), "kind" (by name, without its number), or
    the teams, separated by /, each of agents or kinds of agents, separated by -: leadadversary-adversary/agent."""
    names = [str(agent) for agent in agents]
    kinds = [re.sub(r"_?\d+$", "", name) for name in names]
    if rule in (ALL, EACH):
        return [0 if rule == ALL else place for place in range(len(names))]
    if rule == KIND:
        return [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]
    named = [(word, team) for team, words in enumerate(rule.split("/")) for word in words.split("-")]
    team_of = dict(named)
    used = [name if name in team_of else kind for name, kind in zip(names, kinds, strict=True)]
    words = [word for word, _ in named]
    wrong = [f"there is no agent {word!r}" for word in words if word not in (*names, *kinds)]
    wrong += [f"{word!r} is named twice" for word in words if words.count(word) > 1]
    wrong += [f"{name!r} has no team" for name, word in zip(names, used, strict=True) if word not in team_of]
    wrong += [f"no agent is left for {word!r}" for word in words if word not in used]
    if wrong:
        do = f"Write all, each, kind, or teams such as a-b/c of its agents: {', '.join(names)}"
        raise ConfigError(f"teams={rule}: {wrong[0]}", where=where, do=do)
    return [team_of[word] for word in used]


def _state_reader(env: Any, where: str) -> Reader | None:
    """Of what PettingZoo says of the whole game; None where that is a screen, or no more than what all see (MPE)."""
    space = getattr(env, "state_space", None)
    if space is None or not np.issubdtype(space.dtype, np.floating):
        return None
    seen = sum(math.prod(env.observation_space(agent).shape or ()) for agent in env.possible_agents)
    return None if math.prod(space.shape) == seen else observation_reader(space, where)


def _found(name: str) -> tuple[Callable[..., Any], bool, str]:
    """What makes an environment of that name, whether all agents act at once in it, and the package that it needs
    ("": it is a user's own); Missing where there is none."""
    where = f"game 'pz:{name}'"
    pettingzoo = library("pettingzoo", "pettingzoo", where)
    module, colon, name = name.rpartition(":")
    if colon:
        import_code(module, "environment", where)
    registered = pettingzoo.aec_registry | pettingzoo.parallel_registry
    known = {re.sub(r"-v(?=\d+$)", "_v", env_id.rpartition("/")[2]): env_id for env_id in registered}
    if name in known:
        env_id, parallel = known[name], known[name] in pettingzoo.parallel_registry
        entry = partial(pettingzoo.make, "parallel" if parallel else "aec", env_id)
        return entry, parallel, "" if module else f"pettingzoo[{env_id.partition('/')[0]}]"
    modules: dict[str, Any] = {}
    if name.startswith(MPE):
        found = library("mpe2.all_modules", "mpe2", where).mpe_environments
        modules = {path.rpartition("/")[2]: module for path, module in found.items()}
    if name not in modules:
        do = did_you_mean(name, [*known, *modules], "pettingzoo.pprint_registry() lists them", f"pz:{module}{colon}")
        raise Missing("PettingZoo has no such game", where=where, do=do)
    return modules[name].parallel_env, True, "mpe2"


def _make(entry: Callable[..., Any], package: str, name: str, options: dict[str, Any]) -> Any:
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError

    try:
        with warnings.catch_warnings():  # what a library thinks of its parts, which Box2D's import dies of as errors
            warnings.simplefilter("ignore", DeprecationWarning)
            return entry(**options)
    except (PettingZooRegistryError, ImportError) as error:
        if not package:
            raise
        cause = error.__cause__ or error
        do = f'Install what it needs: pip install "{package}"'
        raise Missing(f"it does not load: {cause}", where=f"game 'pz:{name}'", do=do) from None
    except Exception as error:  # an environment may refuse its arguments in any way
        if not options:
            raise
        raise wrong_options(error, f"game 'pz:{name}'") from None
