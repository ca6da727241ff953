"""`sparring.make`: our games as environments of Gymnasium and PettingZoo.

A Gymnasium environment is one seat of a game: in games with several, the others are played by `opponent`. What is
legal stands in `info["action_mask"]`. Observations are arrays where a seat sees one leaf, else dictionaries by the
leaf's name, in stacks where the game's spec says so: what `LoadedModel.predict` takes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from sparring.acting.players import NetworkPlayer, acting, check_has_others, decide
from sparring.api.models import LoadedModel, check_arguments, player_of
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.frame_stack import FrameStacks
from sparring.games.gymnasium import Environments
from sparring.games.pictures import FRAMES_PER_S, Draw, open_rendered
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, Game, View
from sparring.games.scripts import Script
from sparring.games.spec import Leaf, SeatSpec
from sparring.wire.chunk import Array

Opponent = LoadedModel | str | Path | None  # None: the script "random"
RENDERED = "rgb_array"  # the only render mode


@check_arguments
def make(
    game: str,
    *,
    api: str = "gymnasium",
    n: int | None = None,
    seat: int = 0,
    opponent: Opponent = None,
    render_mode: str | None = None,
    data: str | Path | None = None,
) -> Any:
    """The game as an environment: `gymnasium.Env`, with `n` a `gymnasium.vector.VectorEnv` of n games.

    With `render_mode="rgb_array"` its `render()` is a picture, uint8 [height, width, 3]; of a vector one for each game.
    With `api="pettingzoo"` every seat is an agent: an `AECEnv` where seats take turns, else a `ParallelEnv`.
    """
    if api not in ("gymnasium", "pettingzoo"):
        raise ConfigError(f"api = {api!r}", where="sparring.make", do='Use "gymnasium" or "pettingzoo"')
    if render_mode not in (None, RENDERED):
        do = f"Use {RENDERED!r}, and show or write the pictures"
        raise ConfigError(f"render_mode = {render_mode!r}", where="sparring.make", do=do)
    played = open_game(game)
    if api == "pettingzoo":
        if n is not None or opponent is not None or seat or render_mode:
            wrong = "PettingZoo plays one game, in which every seat is an agent, and draws no pictures here"
            raise ConfigError(wrong, where="sparring.make", do="Leave out n, seat, opponent and render_mode")
        from sparring.api.pettingzoo_envs import ParallelEnv, TurnsEnv

        return (TurnsEnv if played.spec.turns == "alternating" else ParallelEnv)(played)
    if not 0 <= seat < len(played.spec.seats):
        do = f"Count from 0 to {len(played.spec.seats) - 1}"
        raise ConfigError(f"seat {seat}", where=f"game {game!r}", do=do)
    if n is not None and n < 1:
        raise ConfigError(f"n = {n}", where="sparring.make", do="Open at least one game")
    if opponent is not None:
        check_has_others(game, "opponent")
    player = "random" if opponent is None else player_of(opponent, data, game).player

    def opened(n: int = 1) -> OneSeat:
        if render_mode is None:
            return OneSeat(one := open_game(game, n), seat, acting(one, game, player))
        one, draw, frames_per_s = open_rendered(game)
        return OneSeat(one, seat, acting(one, game, player), draw, frames_per_s)

    if n is None:
        return SeatEnv(opened(), f"{game}, seat {seat}, {getattr(opponent, 'id', opponent)}")
    if len(played.spec.seats) == 1 and render_mode is None:
        return SeatVectorEnv([opened(n)])
    return SeatVectorEnv([opened() for _ in range(n)])


class OneSeat:
    """Games seen from one seat: each step goes on until that seat is to act again, or has ended.

    n games of one seat, or one game of several: in those, games would wait for their seat at different times.
    """

    def __init__(
        self,
        game: Game,
        seat: int,
        others: NetworkPlayer | Script,
        draw: Draw | None = None,
        frames_per_s: float = FRAMES_PER_S,
    ) -> None:
        self.game, self.seat, self.spec = game, seat, game.spec.seats[seat]
        self._draw, self.frames_per_s = draw, frames_per_s
        self.first = 0  # the first choice of a discrete action, as the environment counts
        if isinstance(game, Environments):
            game.refuses_masked = False  # as in Gymnasium: the environment itself answers them
            self.first = game.to_env(np.zeros((), np.int32)) if self.spec.action.kind == "discrete" else 0
        self._others, self._rng = others, np.random.default_rng(0)
        self._stacks = FrameStacks(self.spec, game.spec.frame_stack, game.n)
        self._seen: Columns = {}
        self._moved = np.zeros(len(game.spec.seats), bool)  # seats that have decided in this episode
        self._earned = np.zeros(game.n)  # before the seat's first decision
        self.view: View

    def reset(self, seeds: Array, which: Array, rng: np.random.Generator) -> None:
        """Start the games of `which`."""
        self._rng = rng
        self._moved[:] = False
        self.view = self.game.reset(seeds, which)
        self._stacks.begin(which)
        self._earned = self._wait()
        self._look(which)

    def step(self, action: Array) -> Array:
        """One decision of the seat in every game that runs; what it earned until its next one."""
        self._check_begun("step()")
        leaf = self.spec.action
        try:
            action = np.asarray(action, leaf.dtype).reshape(self.game.n, *leaf.shape)
        except (TypeError, ValueError):
            do = f"Give {leaf.dtype} of shape {leaf.shape} for each game"
            raise ConfigError(f"action {action!r}", where=f"game {self.game.spec.id}", do=do) from None
        if self.first:
            action = action - self.first
        asked = self.view.to_act[:, self.seat]
        reward = self._earned + self._advance(action) + self._wait()
        self._earned = np.zeros(self.game.n)
        self._look(asked)
        return reward

    @property
    def render_mode(self) -> str | None:
        return None if self._draw is None else RENDERED

    def picture(self) -> Array:
        """The game as it is now, uint8 [height, width, 3]."""
        if self._draw is None:
            do = f"Use sparring.make(game, render_mode={RENDERED!r})"
            raise ConfigError("it was made without pictures", where=f"game {self.game.spec.id}", do=do)
        self._check_begun("render()")
        return self._draw(self.view)

    def _check_begun(self, call: str) -> None:
        if not self._seen:
            raise ConfigError("it has not begun", where=f"game {self.game.spec.id}", do=f"Call reset() before {call}")

    @property
    def terminated(self) -> Array:
        return np.asarray(self.view.ending[:, self.seat] == TERMINATED)

    @property
    def truncated(self) -> Array:
        return np.asarray(self.view.ending[:, self.seat] == TRUNCATED)

    @property
    def legal(self) -> Array:
        """bool [n, choices]."""
        mask = self.view.legal[self.seat]
        return np.ones((self.game.n, self.spec.action.masks), bool) if mask is None else mask

    def observation(self) -> Any:
        """[n, …] of what the seat sees, as its space says."""
        return shaped(self._seen, self.spec)

    def _wait(self) -> Array:
        """Let the others play until the seat acts or has ended; what it earned meanwhile."""
        reward = np.zeros(self.game.n)
        while len(self.game.spec.seats) > 1 and not (self.view.to_act | (self.view.ending != RUNNING))[0, self.seat]:
            reward = reward + self._advance(None)
        return reward

    def _advance(self, action: Array | None) -> Array:
        """Step the games once; the seat's reward."""
        actions = []
        for s, spec in enumerate(self.game.spec.seats):
            chosen = np.zeros((self.game.n, *spec.action.shape), spec.action.dtype)
            if s == self.seat:
                chosen = chosen if action is None else action
            elif self.view.to_act[0, s]:
                begins, seen, legal = ~self._moved[s : s + 1], self.view.observation[s], self.view.legal[s]
                chosen = decide(self._others, s, np.array([0]), begins, seen, legal, self._rng)
                self._moved[s] = True
            actions.append(chosen)
        self.view = self.game.step(actions)
        return np.asarray(self.view.reward[:, self.seat], np.float64)

    def _look(self, which: Array) -> None:
        rows = np.flatnonzero(which)
        seen = self._stacks.push({name: a[rows] for name, a in self.view.observation[self.seat].items()}, rows)
        for name, column in seen.items():
            if name not in self._seen:
                self._seen[name] = np.zeros((self.game.n, *column.shape[1:]), column.dtype)
            self._seen[name][rows] = column


class SeatEnv(gymnasium.Env[Any, Any]):
    """One seat of one game."""

    def __init__(self, one: OneSeat, played: str) -> None:
        """`played`: game, seat and opponent, by which `train` tells such environments apart."""
        self._one, self.played, frames = one, played, one.game.spec.frame_stack
        self.render_mode = one.render_mode
        self.metadata = {"render_modes": [RENDERED], "render_fps": one.frames_per_s}
        self.observation_space = observation_space(one.spec, frames)
        self.action_space = action_space(one.spec.action, one.first)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seeds = self.np_random.integers(0, 2**63, 1, dtype=np.uint64)
        self._one.reset(seeds, np.ones(1, bool), self.np_random)
        return row_of(self._one.observation(), 0), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._one.step(np.asarray(action)[None])
        ended = bool(self._one.terminated[0]), bool(self._one.truncated[0])
        return row_of(self._one.observation(), 0), float(reward[0]), *ended, self._info()

    def render(self) -> Any:
        """A picture of the game; ConfigError where it was made without `render_mode`."""
        return self._one.picture()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._one.legal[0].astype(np.int8)} if self._one.spec.action.choices else {}


class SeatVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """One seat in n games; a game that has ended starts again in the next step, whose action it ignores."""

    def __init__(self, tables: list[OneSeat]) -> None:
        self._tables, game = tables, tables[0].game
        self.num_envs = sum(one.game.n for one in tables)
        self.render_mode = tables[0].render_mode
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "render_modes": [RENDERED],
            "render_fps": tables[0].frames_per_s,
        }
        self.single_observation_space = observation_space(tables[0].spec, game.spec.frame_stack)
        self.single_action_space = action_space(tables[0].spec.action, tables[0].first)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, bool)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = self._seeds() if isinstance(seed, int) or seed is None else self._each(np.asarray(seed, np.uint64))
        self._start(np.ones(self.num_envs, bool), seeds)
        return self._observation(), self._info()

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        again, actions = self._ended, self._each(np.asarray(actions))
        rewards = np.zeros(self.num_envs)
        for one, rows in self._rows():
            if not again[rows].all():
                rewards[rows] = one.step(actions[rows])
        if again.any():
            self._start(again, self._seeds())
        terminated, truncated = (self._joined(lambda one: one.terminated), self._joined(lambda one: one.truncated))
        self._ended = terminated | truncated
        return self._observation(), np.where(again, 0.0, rewards), terminated, truncated, self._info()

    def render(self) -> tuple[Any, ...]:
        """A picture of each game; ConfigError where they were made without `render_mode`."""
        return tuple(one.picture() for one in self._tables)

    def _start(self, which: Array, seeds: Array) -> None:
        for one, rows in self._rows():
            if which[rows].any():
                one.reset(seeds[rows], which[rows], self.np_random)
        self._ended = np.zeros(self.num_envs, bool)

    def _each(self, given: Array) -> Array:
        if len(given) != self.num_envs:
            raise ConfigError(
                f"{len(given)} values", where="sparring.make(n)", do=f"Give one for each of {self.num_envs}"
            )
        return given

    def _seeds(self) -> Array:
        return self.np_random.integers(0, 2**63, self.num_envs, dtype=np.uint64)

    def _rows(self) -> Iterator[tuple[OneSeat, slice]]:
        at = 0
        for one in self._tables:
            yield one, slice(at, at + one.game.n)
            at += one.game.n

    def _joined(self, part: Callable[[OneSeat], Array]) -> Array:
        return np.concatenate([part(one) for one in self._tables])

    def _observation(self) -> Any:
        parts = [one.observation() for one in self._tables]
        if isinstance(parts[0], dict):
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return np.concatenate(parts)

    def _info(self) -> dict[str, Any]:
        if not self._tables[0].spec.action.choices:
            return {}
        return {"action_mask": self._joined(lambda one: one.legal).astype(np.int8)}


def observation_space(seat: SeatSpec, frame_stack: int, *, masked: bool = False) -> spaces.Space[Any]:
    """What a seat sees: one leaf's space, or a Dict of all; `masked`: with the action mask beside it."""
    leaves = {_short(leaf): _space(leaf, leaf.stacked(frame_stack)) for leaf in seat.observation}
    seen = next(iter(leaves.values())) if len(leaves) == 1 else spaces.Dict(leaves)
    if not masked or not seat.action.choices:
        return seen
    mask = spaces.Box(0, 1, (seat.action.masks,), np.int8)
    return spaces.Dict({"observation": seen, "action_mask": mask})


def action_space(leaf: Leaf, first: int = 0) -> spaces.Space[Any]:
    """What a seat does."""
    return _space(leaf, leaf.shape, first)


def _space(leaf: Leaf, shape: tuple[int, ...], first: int = 0) -> spaces.Space[Any]:
    if leaf.kind == "discrete" and shape == ():
        return spaces.Discrete(leaf.choices[0], start=first)
    if leaf.kind == "multi-discrete" and shape == leaf.shape:
        return spaces.MultiDiscrete(np.reshape(leaf.choices, shape))
    dtype = np.dtype(leaf.dtype)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low = leaf.low if leaf.low is not None else -np.inf if limits is None else limits.min
    high = leaf.high if leaf.high is not None else np.inf if limits is None else limits.max
    return spaces.Box(low, high, shape, dtype.type)


def _short(leaf: Leaf) -> str:
    return leaf.name.removeprefix("observation/")


def shaped(columns: Columns, seat: SeatSpec) -> Any:
    if len(seat.observation) == 1:
        return columns[seat.observation[0].name].copy()
    return {_short(leaf): columns[leaf.name].copy() for leaf in seat.observation}


def row_of(observation: Any, row: int) -> Any:
    if isinstance(observation, dict):
        return {name: row_of(column, row) for name, column in observation.items()}
    return observation[row] if observation.ndim > 1 else int(observation[row])  # Discrete
