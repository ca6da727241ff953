"""`pz:<name>`: a game of PettingZoo, such as pz:connect_four_v3 or pz:multiwalker_v9(n_walkers=2), one seat per agent.

Where there is a parallel version (all agents at once) it is played, else the one in which agents take turns.
An "action_mask", in the observation or beside it, becomes the legal mask. Images are scaled down as those of
Gymnasium; `pz:<name>(images=full)` leaves them as they are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.errors import Missing
from sparring.games.game_state import REWARD_BOUND, SEEDS, did_you_mean, id_with_options, library, name_and_options
from sparring.games.gymnasium import FULL_IMAGES, IMAGES, action_leaf, observation_reader, wrong_options
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, Game
from sparring.games.spec import GameSpec, SeatSpec, checked
from sparring.games.vectorize import SingleGame, SingleView, VectorGame
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MOST_TICKS = 1_000_000  # PettingZoo does not say when a game ends at the latest
DRAWN = {"render_mode": "rgb_array"}


def open_game(text: str, n: int, *, rendered: bool = False) -> Game:
    """n games of that name, or Missing; `rendered`: they draw pictures (`_PettingZooGame.render`)."""
    name, options = name_and_options(text, f"game 'pz:{text}'")
    given = {key: value for key, value in options.items() if key != IMAGES}
    pettingzoo, env_id = _found(name)
    parallel, name = env_id in pettingzoo.parallel_registry, id_with_options(name, options)

    def make(mode: dict[str, str]) -> _PettingZooGame:
        return _PettingZooGame(_make(pettingzoo, env_id, parallel, name, given | mode), parallel, name)

    # Some games that show their screen draw it only where they render: without a mode players would see it black.
    seen = () if rendered else make({}).spec.seats[0].observation
    mode = DRAWN if rendered or any(leaf.kind == "image" for leaf in seen) else {}
    return VectorGame(lambda: make(mode), n)


class _Seat:
    """How one agent sees and acts."""

    def __init__(self, env: Any, agent: Any, where: str) -> None:
        space = env.observation_space(agent)
        inner = getattr(space, "spaces", None)
        self.masked = isinstance(inner, dict) and "action_mask" in inner
        # By PettingZoo's custom a masked observation is {"observation": …, "action_mask": …}.
        seen = inner["observation"] if self.masked and inner else space
        self.reader = observation_reader(seen, where, full_images=FULL_IMAGES in where)
        self.leaf, self.act = action_leaf(env.action_space(agent), where)
        self.seen: Columns = {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in self.reader.leaves}
        self.legal: Array | None = None

    def look(self, observation: Any, info: dict[str, Any]) -> None:
        """Keep what the agent sees now; an agent that is gone keeps what it saw last."""
        mask = observation["action_mask"] if self.masked else info.get("action_mask")
        self.legal = None if mask is None or self.leaf.kind != "discrete" else np.asarray(mask, bool)
        self.seen = self.reader.read(observation["observation"] if self.masked else observation)


class _PettingZooGame(SingleGame):
    """One game."""

    def __init__(self, env: Any, parallel: bool, name: str) -> None:
        self._env, self._parallel = env, parallel
        self._agents = list(env.possible_agents)
        where = f"game 'pz:{name}'"
        self._seats = {agent: _Seat(env, agent, where) for agent in self._agents}
        self._ending = dict.fromkeys(self._agents, RUNNING)
        self._score = dict.fromkeys(self._agents, 0.0)
        seats = tuple(
            SeatSpec(
                name=str(agent),
                team=place,
                observation=seat.reader.leaves,
                action=seat.leaf,
                reward_bounds=(-REWARD_BOUND, REWARD_BOUND),
            )
            for place, (agent, seat) in enumerate(self._seats.items())
        )
        turns: Any = "simultaneous" if parallel else "alternating"
        self.spec = checked(GameSpec(id=GameId(f"pz:{name}"), turns=turns, seats=seats, max_ticks=MOST_TICKS), where)

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
        rewards = {agent: float(reward) for agent, reward in rewards.items()}
        for agent in self._agents:
            if self._ending[agent] == RUNNING:
                self._score[agent] += rewards.get(agent, 0.0)
                ended = TERMINATED if terminated.get(agent) else TRUNCATED if truncated.get(agent) else RUNNING
                self._ending[agent] = ended
        if not self._parallel:
            self._step_ended_agents()
        return self._show(rewards)

    def render(self) -> tuple[Any, float]:
        """A picture of the game, as PettingZoo draws it, and how many it shows in a second."""
        return self._env.render(), float(self._env.metadata.get("render_fps") or 0)

    def _look(self, observations: dict[Any, Any], infos: dict[Any, Any]) -> None:
        for agent, observation in observations.items():
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


def _found(name: str) -> tuple[Any, str]:
    where = f"game 'pz:{name}'"
    pettingzoo = library("pettingzoo", "pettingzoo", where)
    known = {f"{spec.name}_v{spec.version}": env_id for env_id, spec in pettingzoo.aec_registry.items()}
    if name not in known:
        do = did_you_mean(name, known, "pettingzoo.pprint_registry() lists them", "pz:")
        raise Missing("PettingZoo has no such game", where=where, do=do)
    return pettingzoo, known[name]


def _make(pettingzoo: Any, env_id: str, parallel: bool, name: str, options: dict[str, Any]) -> Any:
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError

    try:
        return pettingzoo.make("parallel" if parallel else "aec", env_id, **options)
    except (PettingZooRegistryError, ImportError) as error:
        cause = error.__cause__ or error
        do = f'Install what it needs: pip install "pettingzoo[{env_id.partition("/")[0]}]"'
        raise Missing(f"it does not load: {cause}", where=f"game 'pz:{name}'", do=do) from None
    except Exception as error:  # an environment may refuse its arguments in any way
        if not options:
            raise
        raise wrong_options(error, f"game 'pz:{name}'") from None
