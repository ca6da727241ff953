"""`gym:<id>`: any environment of Gymnasium as a game of one seat, n at once.

Where Gymnasium has a vector environment of its own that can keep our promises it is used (gym_vectors.py); any other
environment is stepped one by one, without the wrappers that only guard against wrong callers
(docs/decisions/0150-native-vectors.md).
"""

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sparring.errors import Missing, Refused
from sparring.games import gym_spaces as spaces
from sparring.games import gym_vector as gym_vectors
from sparring.games.moves import discrete_moves
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Actions, Game, View
from sparring.games.spec import GameSpec, SeatSpec, checked
from sparring.user_code import import_from_current_folder
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MOST_TICKS = 1_000_000  # where an environment sets no limit of its own
REWARD_BOUND = 1e6  # Gymnasium does not say what a step may earn
SEEDS = 1 << 31  # some environments keep a seed in 32 bits, with a sign


def open_game(env_id: str, n: int) -> Game:
    """n environments of that id, or Missing."""
    library = _library()
    native = gym_vectors.find(library, env_id, n)
    envs, limit = _envs(library, env_id, n if native is None else 1)
    where = f"game 'gym:{env_id}'"
    seen = spaces.observation(envs[0].observation_space, where)
    action, act = spaces.action(envs[0].action_space, where)
    bounds = (-REWARD_BOUND, REWARD_BOUND)
    seat = SeatSpec(name="player", observation=seen.leaves, action=action, reward_bounds=bounds)
    spec = GameSpec(id=GameId(f"gym:{env_id}"), turns="simultaneous", seats=(seat,), max_ticks=limit or MOST_TICKS)
    spec = checked(spec, where)
    if native is not None:
        return gym_vectors.Vector(spec, native, n, SEEDS)
    return Environments(spec, envs, seen, act)


class Environments:
    """n environments in turn. A finished one stands still until its reset."""

    def __init__(self, spec: GameSpec, envs: list[Any], seen: spaces.Reading, act: Callable[[Array], Any]) -> None:
        self.spec, self.n = spec, len(envs)
        self._envs, self._seen, self._act = envs, seen, act
        self._steps = [env.step for env in envs]
        self._observation = {leaf.name: np.zeros((self.n, *leaf.shape), leaf.dtype) for leaf in seen.leaves}
        self._tick = np.zeros(self.n, np.int64)
        self._ending = np.full(self.n, TERMINATED, np.uint8)  # nothing runs before its first reset
        self._score = np.zeros(self.n)
        self._legal: Array | None = None  # until an environment's info has a mask, every action is legal

    def reset(self, seeds: Array, which: Array) -> View:
        """Start anew the games of `which`, each from its own seed."""
        rows = np.flatnonzero(which)
        shown = [self._envs[i].reset(seed=int(seeds[i]) % SEEDS) for i in rows.tolist()]
        self._tick[rows], self._score[rows], self._ending[rows] = 0, 0.0, RUNNING
        self._show(rows, [one[0] for one in shown], [one[1] for one in shown])
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """Step each running game in turn."""
        running = self._ending == RUNNING
        moves, rows = self._moves(np.asarray(actions[0]), running), np.flatnonzero(running)
        act, steps = self._act, self._steps
        told = [steps[i](act(moves[i])) for i in rows.tolist()]
        reward = np.zeros(self.n, np.float32)
        if told:
            observations, earned, terminated, truncated, infos = zip(*told, strict=True)
            self._tick[rows] += 1
            late = np.array(truncated, bool) | (self._tick[rows] >= self.spec.max_ticks)
            self._ending[rows] = np.where(np.array(terminated, bool), TERMINATED, np.where(late, TRUNCATED, RUNNING))
            self._score[rows] += np.array(earned, np.float64)
            reward[rows] = earned
            self._show(rows, observations, infos)
        return self._view(reward)

    def save(self) -> bytes:
        """Refused: Gymnasium's environments have no such thing."""
        raise self._refused()

    def restore(self, state: bytes) -> None:
        """Refused: Gymnasium's environments have no such thing."""
        raise self._refused()

    def _moves(self, action: Array, running: Array) -> Array:
        leaf = self.spec.seats[0].action
        if leaf.kind == "discrete":
            return discrete_moves(self.spec, 0, action, running, self._legal)
        if action.shape != (self.n, *leaf.shape):
            do = f"Give {(self.n, *leaf.shape)}"
            raise Refused(f"actions of shape {action.shape}", where=f"{self.spec.id}, seat 0", do=do)
        return action

    def _show(self, rows: Array, observations: Any, infos: Any) -> None:
        if self._seen.plain and len(rows):
            ((name, column),) = self._observation.items()
            column[rows] = np.array(observations).reshape(len(rows), *column.shape[1:])
        else:
            for i, one in zip(rows.tolist(), observations, strict=True):
                for name, array in self._seen.read(one).items():
                    self._observation[name][i] = array
        for i, info in zip(rows.tolist(), infos, strict=True):
            mask = info.get("action_mask") if info else None  # Taxi's convention; an environment gives one or never
            if mask is not None and self.spec.seats[0].action.kind == "discrete":
                if self._legal is None:
                    self._legal = np.ones((self.n, self.spec.seats[0].action.masks), bool)
                # All true where nobody is asked, so that a softmax over it stays finite.
                self._legal[i] = np.asarray(mask, bool) if self._ending[i] == RUNNING else True

    def _view(self, reward: Array) -> View:
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({name: column.copy() for name, column in self._observation.items()},),
            legal=(None if self._legal is None else self._legal.copy(),),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, self._score, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )

    def _refused(self) -> Refused:
        do = "Use a game whose spec says resimulates = true"
        return Refused("its state cannot be saved and restored", where=f"game {self.spec.id}", do=do)


def _library() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would end up in --json
    try:
        import gymnasium
    except ModuleNotFoundError:
        do = 'Install it with: pip install "sparring[games]"'
        raise Missing("gymnasium is not installed", where="games gym:…", do=do) from None
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
