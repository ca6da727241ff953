"""`gym:<id>`: any environment of Gymnasium as a game of one seat, n of them stepped in turn.

Gymnasium's own vector environments take one seed for all and restart a game before its end was seen;
here each game has its own seed and stands still until its reset (docs/decisions/0011-gym-by-single-envs.md).
"""

import importlib.util
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.errors import Missing
from sparring.games import spaces
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Game
from sparring.games.single import Many, Seen
from sparring.games.spec import GameSpec, SeatSpec, checked
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MOST_TICKS = 1_000_000  # where an environment sets no limit of its own
REWARD_BOUND = 1e6  # Gymnasium does not say what a step may earn
_SEEDS = 1 << 31  # some environments keep a seed in 32 bits, with a sign


def open_game(env_id: str, n: int) -> Game:
    """n environments of that id, or Missing."""
    library = _library()
    return Many(lambda: _Env(library, env_id), n)


class _Env:
    """One environment."""

    def __init__(self, library: Any, env_id: str) -> None:
        self._env = _make(library, env_id)
        where = f"game 'gym:{env_id}'"
        self._seen = spaces.observation(self._env.observation_space, where)
        action, self._act = spaces.action(self._env.action_space, where)
        seat = SeatSpec(
            name="player",
            observation=self._seen.leaves,
            action=action,
            reward_bounds=(-REWARD_BOUND, REWARD_BOUND),
        )
        limit = self._env.spec.max_episode_steps if self._env.spec else None
        self.spec = checked(
            GameSpec(id=GameId(f"gym:{env_id}"), turns="simultaneous", seats=(seat,), max_ticks=limit or MOST_TICKS),
            where,
        )
        self._score = 0.0

    def reset(self, seed: int) -> Seen:
        observation, info = self._env.reset(seed=seed % _SEEDS)
        self._score = 0.0
        return self._show(observation, 0.0, RUNNING, info)

    def step(self, actions: Sequence[Array]) -> Seen:
        observation, reward, terminated, truncated, info = self._env.step(self._act(actions[0]))
        self._score += float(reward)
        ending = TERMINATED if terminated else TRUNCATED if truncated else RUNNING
        return self._show(observation, float(reward), ending, info)

    def save(self) -> bytes:
        raise NotImplementedError("Many asks only games that resimulate")

    def restore(self, state: bytes) -> None:
        raise NotImplementedError("Many asks only games that resimulate")

    def _show(self, observation: Any, reward: float, ending: int, info: dict[str, Any]) -> Seen:
        mask = info.get("action_mask")  # Taxi's convention; an environment either always gives one or never
        legal = None if mask is None or self.spec.seats[0].action.kind != "discrete" else np.asarray(mask, bool)
        return Seen((self._seen.read(observation),), (True,), (reward,), (ending,), (self._score,), (legal,))


def _library() -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would end up in --json
    try:
        import gymnasium
    except ModuleNotFoundError:
        do = 'Install it with: pip install "sparring[games]"'
        raise Missing("gymnasium is not installed", where="games gym:…", do=do) from None
    return gymnasium


def _make(library: Any, env_id: str) -> Any:
    if env_id.startswith("ALE/") and importlib.util.find_spec("ale_py"):
        import ale_py

        library.register_envs(ale_py)
    try:
        with (
            warnings.catch_warnings()
        ):  # what a library thinks of its own parts, which Box2D's import dies of as errors
            warnings.simplefilter("ignore", DeprecationWarning)
            return library.make(env_id, disable_env_checker=True)
    except (library.error.Error, ModuleNotFoundError) as error:
        do = "`python -c 'import gymnasium; gymnasium.pprint_registry()'` lists what there is"
        wrong = str(error).rstrip(".?").replace("\n", " ")
        raise Missing(wrong, where=f"game 'gym:{env_id}'", do=do) from None
