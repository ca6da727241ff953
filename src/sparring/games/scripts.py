"""Scripted players, which need no model: opponents to measure against, mock players, teachers.

A script sees what its seat sees and nothing else, and draws from the generator it is given. `play` plays whole episodes
of n games by scripts and cuts them into chunks: `reward[t]` of a seat is all that it earned after its action t and
before its next decision, or the end: what comes while others move is added to the last step recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.errors import Missing
from sparring.games import connect_four, duel
from sparring.games.cutter import cut
from sparring.games.game_state import did_you_mean
from sparring.games.protocol import TERMINATED, Columns, Game, View
from sparring.games.spec import GameSpec, Leaf
from sparring.games.step_buffer import Behaviour, StepBuffer, layout_of
from sparring.wire.chunk import Array, Chunk, Source
from sparring.wire.ids import new_episode

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


def play(
    game: Game, players: Sequence[Script], seeds: Sequence[int], rng: Generator, source: Source = "collect"
) -> list[list[Chunk]]:
    """One episode for each seed, in the order of the seeds: the chunks of all its seats. `players` has one per seat.

    ChunkRefused where the game shows what its spec does not allow.
    """
    layouts = [layout_of(game.spec, seat) for seat in range(len(players))]
    by = [Behaviour(f"script:{player.name}") for player in players]
    waiting = list(enumerate(seeds))[::-1]
    running: dict[int, tuple[int, list[StepBuffer]]] = {}  # row → index of its seed, and a buffer for each seat
    done: list[list[Chunk]] = [[] for _ in seeds]
    rows = list(range(game.n))
    while running or waiting:
        starts, which = np.zeros(game.n, np.uint64), np.zeros(game.n, bool)
        for i in rows[: len(waiting)]:
            index, seed = waiting.pop()
            name = new_episode()
            running[i] = index, [StepBuffer(one.header(name, source, seed=seed), one) for one in layouts]
            starts[i], which[i] = seed, True
        view = game.reset(starts, which)
        while running and not (over := [i for i in running if view.over[i]]):
            actions = [player.act(s, view.observation[s], view.legal[s], rng) for s, player in enumerate(players)]
            for i, (_, seats) in running.items():
                _write_decisions(view, i, actions, seats, by)
            view = game.step(actions)
            for i, (_, seats) in running.items():
                _add_rewards(view, i, seats)
        for i in over:
            index, seats = running.pop(i)
            done[index] = _finish(view, i, seats)
        rows = over
    return done


def _write_decisions(
    view: View, i: int, actions: Sequence[Array], seats: list[StepBuffer], by: list[Behaviour]
) -> None:
    for s in np.flatnonzero(view.to_act[i]).tolist():
        legal = view.legal[s]
        seen = {name: array[i] for name, array in view.observation[s].items()}
        mask = None if legal is None else legal[i]
        seats[s].write(seen, actions[s][i], 0.0, tick=int(view.tick[i]), legal=mask, by=by[s])


def _add_rewards(view: View, i: int, seats: list[StepBuffer]) -> None:
    for s in np.flatnonzero(view.reward[i]).tolist():
        if seats[s].steps:  # a seat that has not moved yet has no step to carry it
            seats[s].earn(float(view.reward[i, s]))


def _finish(view: View, i: int, seats: list[StepBuffer]) -> list[Chunk]:
    """The chunks of an episode that is over; a seat that never moved has none."""
    for s, buffer in enumerate(seats):
        final = {name: array[i] for name, array in view.observation[s].items()}
        buffer.end(final, terminated=bool(view.ending[i, s] == TERMINATED), outcome=float(view.outcome[i, s]))
    return [chunk for buffer in seats for chunk in cut(buffer, due=True)]
