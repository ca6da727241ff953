"""Scripted players, which need no model: opponents to measure against, mock players, teachers.

A script sees what its seat sees and nothing else, and draws from the generator it is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.errors import Missing
from sparring.games import connect_four, duel
from sparring.games.game_state import did_you_mean
from sparring.games.protocol import Columns
from sparring.games.spec import GameSpec, Leaf
from sparring.wire.chunk import Array

Act = Callable[[GameSpec, int, Columns, Array | None, Generator], Array]


@dataclass(frozen=True, slots=True)
class Script:
    """A named way to play one game, for n rows at once."""

    name: str
    spec: GameSpec
    _act: Act

    def act(self, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
        """One action for each row: [n, *action shape], legal where `legal` says which are."""
        return self._act(self.spec, seat, observation, legal, rng)


def scripts_for(game_id: str) -> tuple[str, ...]:
    """The names of a game's scripts; every game has "random"."""
    return ("random", *_SCRIPTS.get(game_id, {}))


def script(game_id: str, name: str) -> Script:
    """The script of that name for that game, or Missing."""
    from sparring.games.catalogue import spec_of

    return script_for(spec_of(game_id), name)


def script_for(spec: GameSpec, name: str) -> Script:
    """The script of that name for the game of that spec, or Missing."""
    known: dict[str, Act] = {"random": _random, **_SCRIPTS.get(spec.id, {})}
    if name not in known:
        do = did_you_mean(name, known, f"Use one of {', '.join(known)}")
        raise Missing(f"there is no script {name!r}", where=f"scripts of {spec.id}", do=do)
    return Script(name, spec, known[name])


def _random(spec: GameSpec, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
    """Uniform over what is legal; a box within its bounds, or ±1 where it has none."""
    action = spec.seats[seat].action
    n = len(next(iter(observation.values())))
    if action.kind == "discrete":
        return _uniform(np.ones((n, action.choices[0]), bool) if legal is None else legal, rng, action)
    if action.kind == "multi-discrete":
        masks = np.ones((n, action.masks), bool) if legal is None else legal
        parts = np.split(masks, np.cumsum(action.choices)[:-1], axis=1)
        return np.stack([_uniform(part, rng, action) for part in parts], axis=1).reshape(n, *action.shape)
    low = -1.0 if action.low is None else action.low
    high = 1.0 if action.high is None else action.high
    return (low + (high - low) * rng.random((n, *action.shape))).astype(action.dtype)


def _uniform(legal: Array, rng: Generator, action: Leaf) -> Array:
    keys = np.where(legal, rng.random(legal.shape), -1.0)
    return np.asarray(keys.argmax(axis=1).astype(action.dtype))


def _balance(spec: GameSpec, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
    """Push under the pole: a linear rule on all four numbers, strong enough to last the 500 ticks."""
    x, x_dot, theta, theta_dot = observation["observation/state"].T
    return np.asarray((0.1 * x + 0.3 * x_dot + 3.0 * theta + theta_dot > 0).astype(np.int32))


def _tactical(spec: GameSpec, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
    """Win when a drop wins, else stop the other's win, else any legal column."""
    stones = connect_four.stones_of(observation["observation/board"])
    drops = np.stack([connect_four.dropped(stones, column) for column in range(connect_four.COLUMNS)], axis=1)
    open_columns = drops != 0
    wins = connect_four.has_four(stones[:, :1] | drops) & open_columns
    blocks = connect_four.has_four(stones[:, 1:] | drops) & open_columns
    chosen = np.where(wins.any(axis=1, keepdims=True), wins, np.where(blocks.any(axis=1, keepdims=True), blocks, True))
    return _uniform(chosen & open_columns, rng, spec.seats[seat].action)


def _tracker(spec: GameSpec, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
    """Follow the ball, and meet it off the middle of the paddle so that it flies away from the other."""
    own, other, _, ball_y, ball_vx, *_ = observation["observation/field"].T
    aim = np.where(other > 0, 1, -1) * (0.6 * duel.PADDLE_HALF / 4096)  # below the middle sends it down
    target = np.where(ball_vx < 0, ball_y + aim, 0.0)  # home while it flies away
    gap = target - own
    dead = duel.PADDLE_SPEED / 4096 / 2
    return np.asarray(np.where(gap > dead, 2, np.where(gap < -dead, 0, 1)).astype(np.int32))


_SCRIPTS: dict[str, dict[str, Act]] = {
    "cartpole": {"balance": _balance},
    "connect-four": {"tactical": _tactical},
    "duel": {"tracker": _tracker},
}
