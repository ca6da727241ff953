"""The joint view: what all seats of a game see together, beside what each sees itself. For critics, which exist in
training alone; no model that is published takes it, and it is never recorded.

It is the game's own state where the spec has one, else what every other seat sees: first those of the seat's own kind
(GameSpec.kinds), beginning with the one behind it, then those of other kinds. So seats of one kind have leaves of equal
names and shapes, and share what a critic learns. With it come which seats are still in the game, the seat itself and
then the others in that order (what a seat that is gone would see is zeros), and which seat looks.
"""

from collections.abc import Callable
from dataclasses import replace as replace_view

import msgspec
import numpy as np
from msgspec.structs import replace

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED, TRUNCATED, Actions, Columns, Game, View
from sparring.games.spec import GameSpec, Leaf, discrete, vector
from sparring.wire.chunk import Array

JOINT = "observation/joint/"
STATE, ALIVE, SEAT = JOINT + "state", JOINT + "alive", JOINT + "seat"
_OWN = "observation/"
_NOW, _BEFORE = 1, 2  # in the newest view, where the seat still is; in an earlier one


def joint_spec(spec: GameSpec) -> GameSpec:
    """The spec with the leaves of the joint view in every seat."""
    count, order = len(spec.seats), _others(spec)

    def shown(place: int) -> tuple[Leaf, ...]:
        if spec.state is not None:
            return (replace(spec.state, name=STATE),)
        return tuple(
            replace(leaf, name=_joint_name(behind, leaf.name))
            for behind, other in enumerate(order[place], 1)
            for leaf in spec.seats[other].observation
        )

    beside = (vector(ALIVE, count, 0.0, 1.0), discrete(count, SEAT))
    seats = (
        replace(seat, observation=(*seat.observation, *shown(place), *beside)) for place, seat in enumerate(spec.seats)
    )
    return replace(spec, seats=tuple(seats))


class JointView:
    """A game whose every seat is shown the joint view, too."""

    def __init__(self, game: Game) -> None:
        self._game, self.n = game, game.n
        self.spec, self._order = joint_spec(game.spec), _others(game.spec)
        # A state, as pictures, is a thing that a game may have: others need no such method.
        self._state: Callable[[], Array] | None = None if game.spec.state is None else getattr(game, "state", None)
        if game.spec.state is not None and self._state is None:
            do = "Give it a method `state`, or leave the state out of its spec"
            raise ConfigError("its spec has a state, and it does not show one", where=f"game {game.spec.id}", do=do)
        self._cut = np.zeros((game.n, len(game.spec.seats)), np.uint8)  # seats that were cut short: _NOW or _BEFORE

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`."""
        view = self._game.reset(seeds, which)
        self._cut[which] = 0
        return self._shown(view)

    def step(self, actions: Actions) -> View:
        """Every running game goes on by one decision."""
        view = self._game.step(actions)
        self._cut[self._cut == _NOW] = _BEFORE
        return self._shown(view)

    def save(self) -> bytes:
        """All n games exactly."""
        return msgspec.msgpack.encode((self._game.save(), self._cut.tobytes()))

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave."""
        game, cut = msgspec.msgpack.decode(state, type=tuple[bytes, bytes])
        self._game.restore(game)
        self._cut = np.frombuffer(cut, np.uint8).reshape(self._cut.shape).copy()

    def _shown(self, view: View) -> View:
        # A seat that is cut short now is still there: the value of this very view is asked for.
        self._cut[(view.ending == TRUNCATED) & ~view.over[:, None] & (self._cut == 0)] = _NOW
        gone = (view.ending == TERMINATED) | (self._cut == _BEFORE)
        alive = (~gone).astype(np.float32)
        state: Columns = {} if self._state is None else {STATE: self._state()}
        there = [
            {name: _where(~gone[:, place], column) for name, column in seen.items()}
            for place, seen in enumerate(view.observation if self._state is None else ())
        ]
        seats = []
        for place, (seen, others) in enumerate(zip(view.observation, self._order, strict=True)):
            joint = dict(seen) | state
            for behind, other in enumerate(others if there else (), 1):
                joint |= {_joint_name(behind, name): column for name, column in there[other].items()}
            joint[ALIVE] = np.take(alive, (place, *others), axis=1)
            joint[SEAT] = np.full(self.n, place, np.int32)
            seats.append(joint)
        return replace_view(view, observation=tuple(seats))


def _others(spec: GameSpec) -> tuple[tuple[int, ...], ...]:
    """For each seat the others, in the order of its joint view."""
    found = []
    for place in range(len(spec.seats)):
        kind = next(seats for seats in spec.kinds if place in seats)
        behind = kind.index(place) + 1
        elsewhere = (seat for seat in range(len(spec.seats)) if seat not in kind)
        found.append((*kind[behind:], *kind[: behind - 1], *elsewhere))
    return tuple(found)


def _where(there: Array, column: Array) -> Array:
    """The rows of the column that are there, and zeros."""
    return np.where(there.reshape(-1, *(1,) * (column.ndim - 1)), column, np.zeros((), column.dtype))


def _joint_name(behind: int, leaf: str) -> str:
    return f"{JOINT}{behind}/{leaf.removeprefix(_OWN)}"
