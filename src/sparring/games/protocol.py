"""The interface of games, n at once, and the View that they give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2  # an ending, as a number; truncated means cut short: bootstrap
ENDINGS = ("running", "terminated", "truncated")

Columns = dict[str, Array]  # leaf name → [n, *shape]
Actions = Sequence[Array]  # one array [n, *action shape] per seat; rows of seats that do not act are ignored


@dataclass(frozen=True, slots=True)
class View:
    """What n games show after a reset or a step. Arrays belong to the caller: a game never writes into them again."""

    to_act: Array  # bool [n, seats]; false for every seat of a game that is over
    observation: tuple[Columns, ...]  # per seat; the last observation of a seat that has ended
    legal: tuple[Array | None, ...]  # per seat: bool [n, choices], or None where every action always is
    reward: Array  # float32 [n, seats], earned since the previous view
    ending: Array  # uint8 [n, seats]: RUNNING, TERMINATED, TRUNCATED
    outcome: Array  # float32 [n, seats]: the score, once a game is over; 0 before
    tick: Array  # int64 [n], the game's clock

    @property
    def over(self) -> Array:
        """bool [n]: every seat has ended, the game waits for its reset."""
        over = [column != RUNNING for column in self.ending.T]  # NumPy is slow along an axis of few seats
        return np.asarray(np.logical_and.reduce(over))


class Game(Protocol):
    """n games of one kind, stepped together. A single game is n = 1."""

    spec: GameSpec
    n: int

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games where `which` (bool [n]) is true, from `seeds` (uint64 [n])."""

    def step(self, actions: Actions) -> View:
        """Every running game goes on by one decision; a finished one stands still, with reward 0."""

    def save(self) -> bytes:
        """All n games, exactly (where `spec.resimulates`)."""

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave; the next step gives the same View bit for bit."""


@runtime_checkable
class SearchableGame(Game, Protocol):
    """A game that a search may step ahead of the real one, each of its n rows from a state of its own.

    Every game that is made of BaseGame or VectorGame has these verbs; `searchable` says whether they may be used. A
    game whose observation shows the whole state may also have `row_of(seat, observation) -> bytes`, the state in
    which that seat is to move and sees that (leaves without a batch axis), Refused where there is no such state. A game
    of two teams, where a move can win at once all that can be won, may have `move_outcomes() -> int8 [n, choices]`: 1
    for such a move of who is to move, -1 where the other team has one after it, 0 elsewhere; a search knows more by it.
    """

    searchable: bool  # nothing is hidden, one seat moves at a time, no chance after the start, and `spec.resimulates`

    def save_rows(self) -> list[bytes]:
        """Each game by itself."""

    def restore_rows(self, rows: Sequence[bytes]) -> None:
        """Game i becomes rows[i], in a game that was reset before; those beyond the last row stand still."""
