"""Gymnasium's own vector environments, made to keep a game's promises.

They take one seed for all copies and restart a game by themselves. Here each game's start is drawn from its own seed as
the single environment draws it, and a finished game stands still until its reset, so that a vector of n plays
exactly what n single environments play. That needs to know where such an environment keeps its state, so each is
listed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparring.errors import Refused
from sparring.games.moves import discrete_moves
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Actions, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array

FEWEST = 4  # games from which on one call for all is faster than a call for each

Start = Callable[[Any, int], Array]  # the library and a seed → the state [numbers] of a game that begins


def _cartpole(library: Any, seed: int) -> Array:
    generator, _ = library.utils.seeding.np_random(seed)
    return np.asarray(generator.uniform(low=-0.05, high=0.05, size=(4,)))


STARTS: Mapping[str, Start] = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _cartpole}


def find(library: Any, env_id: str, n: int) -> tuple[Any, Any, Start] | None:
    """The library, a vector environment of n games and how one starts; None where single ones have to do."""
    known = library.registry.get(env_id)
    entry = str(known.vector_entry_point) if known else ""
    if n < FEWEST or entry not in STARTS:
        return None
    return library, library.make_vec(env_id, num_envs=n, vectorization_mode="vector_entry_point"), STARTS[entry]


class Vector:
    """A vector environment whose `state` is [numbers, n], as those of Gymnasium's classic control are."""

    def __init__(self, spec: GameSpec, native: tuple[Any, Any, Start], n: int, seeds: int) -> None:
        self.spec, self.n, self._seeds = spec, n, seeds
        self._library, made, self._start = native
        self._env = made.unwrapped
        observation, _ = self._env.reset(seed=0)
        (leaf,) = spec.seats[0].observation
        self._name, self._shown = leaf.name, np.zeros_like(observation)
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)  # nothing runs before its first reset
        self._score = np.zeros(n)

    def reset(self, seeds: Array, which: Array) -> View:
        """Start anew the games of `which`, each from its own seed."""
        for i in np.flatnonzero(which).tolist():
            state = self._start(self._library, int(seeds[i]) % self._seeds)
            self._env.state[:, i], self._shown[i] = state, state
        self._tick[which], self._score[which], self._ending[which] = 0, 0.0, RUNNING
        return self._view(np.zeros(self.n, np.float32))

    def step(self, actions: Actions) -> View:
        """Step every running game at once."""
        running, env = self._ending == RUNNING, self._env
        moves = discrete_moves(self.spec, 0, np.asarray(actions[0]), running)
        still = None if running.all() else (~running, env.state[:, ~running])
        env.prev_done[:] = False  # or it would start finished games anew
        env.steps[:] = 0  # the limit is ours, like the clock
        observation, reward, terminated, truncated, _ = env.step(moves)
        self._tick += running
        late = truncated | (self._tick >= self.spec.max_ticks)
        ending = np.where(terminated, TERMINATED, np.where(late, TRUNCATED, RUNNING)).astype(np.uint8)
        if still is None:
            self._shown, self._ending = observation, ending
        else:
            env.state[:, still[0]] = still[1]
            self._shown = np.where(running[:, None], observation, self._shown)
            self._ending = np.where(running, ending, self._ending)
            reward = reward * running
        self._score += reward
        return self._view(reward.astype(np.float32))

    def save(self) -> bytes:
        """Refused, as for any other environment of Gymnasium."""
        raise self._refused()

    def restore(self, state: bytes) -> None:
        """Refused, as for any other environment of Gymnasium."""
        raise self._refused()

    def _view(self, reward: Array) -> View:
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=({self._name: self._shown.copy()},),
            legal=(None,),
            reward=reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, self._score, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )

    def _refused(self) -> Refused:
        do = "Use a game whose spec says resimulates = true"
        return Refused("its state cannot be saved and restored", where=f"game {self.spec.id}", do=do)
