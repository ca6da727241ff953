"""`gym:<id>`: any environment of Gymnasium as a game of one seat, n at once.

Where Gymnasium has a vector environment whose state can be set from outside it is used (`NativeVector`); any other
environment is stepped one by one, without the wrappers that only guard against wrong callers
(docs/decisions/0150-native-vectors.md).
"""

import importlib.util
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparring.errors import Missing
from sparring.games import gym_spaces
from sparring.games.game_state import OneSeatGame, not_installed
from sparring.games.protocol import RUNNING, Actions, Columns, Game, View
from sparring.games.spec import GameSpec, SeatSpec, checked
from sparring.user_code import import_from_current_folder
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MOST_TICKS = 1_000_000  # where an environment sets no limit of its own
REWARD_BOUND = 1e6  # Gymnasium does not say what a step may earn
NATIVE_FROM = 4  # games from which on one call for all is faster than a call for each
SEEDS = 1 << 31  # some environments keep a seed in 32 bits, with a sign


def open_game(env_id: str, n: int) -> Game:
    """n environments of that id, or Missing."""
    library = _library()
    native = _native_vector(library, env_id, n)
    envs, limit = _envs(library, env_id, n if native is None else 1)
    where = f"game 'gym:{env_id}'"
    reader = gym_spaces.observation(envs[0].observation_space, where)
    action, to_env = gym_spaces.action(envs[0].action_space, where)
    bounds = (-REWARD_BOUND, REWARD_BOUND)
    seat = SeatSpec(name="player", observation=reader.leaves, action=action, reward_bounds=bounds)
    spec = GameSpec(id=GameId(f"gym:{env_id}"), turns="simultaneous", seats=(seat,), max_ticks=limit or MOST_TICKS)
    spec = checked(spec, where)
    if native is not None:
        return NativeVector(spec, library, *native)
    return Environments(spec, envs, reader, to_env)


class Environments(OneSeatGame):
    """n environments, stepped one by one."""

    def __init__(
        self, spec: GameSpec, envs: list[Any], reader: gym_spaces.Reader, to_env: Callable[[Array], Any]
    ) -> None:
        super().__init__(len(envs))
        self.spec, self._envs, self._reader, self._to_env = spec, envs, reader, to_env
        self._steps = [env.step for env in envs]
        self._observation = {leaf.name: np.zeros((self.n, *leaf.shape), leaf.dtype) for leaf in reader.leaves}
        self._legal: Array | None = None  # until an environment's info has a mask, every action is legal

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`, each from its own seed."""
        rows = np.flatnonzero(which)
        shown = [self._envs[i].reset(seed=int(seeds[i]) % SEEDS) for i in rows.tolist()]
        self._start(which)
        self._show(rows, [one[0] for one in shown], [one[1] for one in shown])
        return self._copied_view()

    def step(self, actions: Actions) -> View:
        """Step each running game in turn."""
        running = self._ending == RUNNING
        moves, rows = self._checked_actions(0, actions[0], running, self._legal), np.flatnonzero(running)
        to_env, steps = self._to_env, self._steps
        results = [steps[i](to_env(moves[i])) for i in rows.tolist()]
        reward, terminated, truncated = np.zeros(self.n), np.zeros(self.n, bool), np.zeros(self.n, bool)
        observations: Any = ()
        infos: Any = ()
        if results:
            observations, reward[rows], terminated[rows], truncated[rows], infos = zip(*results, strict=True)
        earned = self._advance(running, reward, terminated, truncated)
        self._show(rows, observations, infos)
        return self._copied_view(earned)

    def _show(self, rows: Array, observations: Any, infos: Any) -> None:
        if self._reader.plain and len(rows):
            ((_, column),) = self._observation.items()
            column[rows] = np.array(observations).reshape(len(rows), *column.shape[1:])
        else:
            for i, one in zip(rows.tolist(), observations, strict=True):
                for name, array in self._reader.read(one).items():
                    self._observation[name][i] = array
        for i, info in zip(rows.tolist(), infos, strict=True):
            mask = info.get("action_mask") if info else None  # Taxi's convention; an environment gives one or never
            if mask is not None and self.spec.seats[0].action.kind == "discrete":
                if self._legal is None:
                    self._legal = np.ones((self.n, self.spec.seats[0].action.masks), bool)
                # All true where a seat is not asked, so that a softmax over it stays finite.
                self._legal[i] = np.asarray(mask, bool) if self._ending[i] == RUNNING else True

    def _copied_view(self, reward: Array | None = None) -> View:
        observation = {name: column.copy() for name, column in self._observation.items()}
        return self._view(observation, reward, None if self._legal is None else self._legal.copy())


Start = Callable[[Any, int], Array]  # the library and a seed → the state [numbers] of a game that begins


def _cartpole_start(library: Any, seed: int) -> Array:
    generator, _ = library.utils.seeding.np_random(seed)
    return np.asarray(generator.uniform(low=-0.05, high=0.05, size=(4,)))


STARTS: Mapping[str, Start] = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _cartpole_start}


class NativeVector(OneSeatGame):
    """One of Gymnasium's own vector environments, whose `state` is [numbers, n], as in its classic control.

    They take one seed for all copies and restart a game by themselves. Here each game's start is drawn from its own
    seed as the single environment draws it, and a finished game stands still until its reset, so that a vector of n
    plays exactly what n single environments play. That needs to know how an environment starts: STARTS lists them.
    """

    def __init__(self, spec: GameSpec, library: Any, env: Any, start: Start) -> None:
        super().__init__(env.num_envs)
        self.spec, self._library, self._env, self._start_state = spec, library, env.unwrapped, start
        observation, _ = self._env.reset(seed=0)
        self._shown = np.zeros_like(observation)

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`, each from its own seed."""
        for i in np.flatnonzero(which).tolist():
            state = self._start_state(self._library, int(seeds[i]) % SEEDS)
            self._env.state[:, i], self._shown[i] = state, state
        self._start(which)
        return self._view(self._observation())

    def step(self, actions: Actions) -> View:
        """Step every running game at once."""
        running, env = self._ending == RUNNING, self._env
        moves = self._checked_actions(0, actions[0], running)
        finished = None if running.all() else env.state[:, ~running]
        env.prev_done[:] = False  # or it would restart finished games
        env.steps[:] = 0  # this class counts ticks and applies the limit
        observation, reward, terminated, truncated, _ = env.step(moves)
        if finished is not None:
            env.state[:, ~running] = finished
            observation = np.where(running[:, None], observation, self._shown)
        self._shown = observation
        earned = self._advance(running, reward, terminated, truncated)
        return self._view(self._observation(), earned)

    def _observation(self) -> Columns:
        return {self.spec.seats[0].observation[0].name: self._shown.copy()}


def _native_vector(library: Any, env_id: str, n: int) -> tuple[Any, Start] | None:
    """A vector environment of n games and how one starts; None where single environments are used."""
    known = library.registry.get(env_id)
    entry = str(known.vector_entry_point) if known else ""
    if n < NATIVE_FROM or entry not in STARTS:
        return None
    return library.make_vec(env_id, num_envs=n, vectorization_mode="vector_entry_point"), STARTS[entry]


def _library() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would end up in --json
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise not_installed("gymnasium", "games gym:…") from None
    return gymnasium


def _envs(library: Any, env_id: str, n: int) -> tuple[list[Any], int | None]:
    """n environments, and after how many steps Gymnasium cuts an episode short.

    Made without the wrappers that check a caller's order and count steps: `Environments` does both itself.
    """
    if env_id.startswith("ALE/") and importlib.util.find_spec("ale_py"):
        import ale_py

        library.register_envs(ale_py)
    if ":" in env_id:  # module:id of the user's own, which registers itself when it is imported
        import_from_current_folder()
    try:
        with warnings.catch_warnings():  # what a library thinks of its parts, which Box2D's import dies of as errors
            warnings.simplefilter("ignore", DeprecationWarning)
            first = library.make(env_id, disable_env_checker=True)
            limit = first.spec.max_episode_steps
            bare = replace(first.spec, max_episode_steps=None, order_enforce=False)
            return [library.make(bare, disable_env_checker=True) for _ in range(n)], limit
    except (library.error.Error, ModuleNotFoundError) as error:
        do = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` lists what there is"
        wrong = str(error).rstrip(".?").replace("\n", " ")
        raise Missing(wrong, where=f"game 'gym:{env_id}'", do=do) from None
