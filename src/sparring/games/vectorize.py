"""From one game to n: a `SingleGame` plays one, and `VectorGame` plays n of them.

The adapters of PettingZoo and OpenSpiel are written so, and your own game may be (docs/games.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from sparring.errors import WireError
from sparring.games.game_state import BaseGame
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Actions, Columns, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class SingleView:
    """What one game shows; each tuple has one entry per seat."""

    observation: tuple[Columns, ...]  # leaf name → array of the leaf's shape and dtype
    to_act: tuple[bool, ...]
    reward: tuple[float, ...]  # earned since what was shown before
    ending: tuple[int, ...]  # RUNNING, TERMINATED, TRUNCATED
    outcome: tuple[float, ...]  # the score so far; counts once the game is over
    legal: tuple[Array | None, ...]  # bool [choices] where the seat is to act


class SingleGame(Protocol):
    """One game. Its chance comes from the seed alone. One that a search may step ahead also says `searchable = True`
    (see SearchableGame)."""

    spec: GameSpec

    def reset(self, seed: int) -> SingleView:
        """Start a new game."""

    def step(self, actions: Sequence[Array]) -> SingleView:
        """Go on by one decision; one action per seat, those of seats that do not act mean nothing."""

    def save(self) -> bytes:
        """The game exactly, where `spec.resimulates`; never called otherwise."""
        raise AssertionError("resimulates is false")

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave."""
        raise AssertionError("resimulates is false")


class VectorGame(BaseGame):
    """n single games as one `Game`. It counts ticks, and cuts a game short at `spec.max_ticks`."""

    def __init__(self, make: Callable[[], SingleGame], n: int) -> None:
        super().__init__(n)
        self._games = [make() for _ in range(n)]
        self.spec = self._games[0].spec
        self.searchable = bool(getattr(self._games[0], "searchable", False))
        seats = len(self.spec.seats)
        self._to_act = np.zeros((n, seats), bool)
        self._ending = np.full((n, seats), TERMINATED, np.uint8)  # [n, seats] here
        self._outcome = np.zeros((n, seats), np.float32)
        self._observation = tuple(
            {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in seat.observation} for seat in self.spec.seats
        )
        # Whether a seat has masks is known from what it shows; until then every action is legal.
        self._legal: list[Array | None] = [None] * seats

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games of `which`."""
        self._tick[which] = 0
        rows = np.flatnonzero(which)
        self._note(rows, [self._games[i].reset(int(seeds[i])) for i in rows.tolist()])
        return self._view(np.zeros(self._ending.shape, np.float32))

    def step(self, actions: Actions) -> View:
        """Step each running game in turn."""
        running = (self._ending == RUNNING).any(axis=1)
        moves = [
            self._checked_actions(s, action, self._to_act[:, s], self._legal[s]) for s, action in enumerate(actions)
        ]
        reward = np.zeros(self._ending.shape, np.float32)
        rows = np.flatnonzero(running)
        seen = [self._games[i].step([move[i] for move in moves]) for i in rows.tolist()]
        self._tick[rows] += 1
        self._note(rows, seen)
        if seen:
            reward[rows] = [one.reward for one in seen]
        return self._view(reward)

    def render(self) -> tuple[Any, float]:
        """A picture of the first game and how many make a second, as it draws them; (None, 0) where it draws none."""
        render = getattr(self._games[0], "render", None)
        return (None, 0.0) if render is None else render()

    def state(self) -> Array:
        """[n, …]: the whole of each game as `spec.state` says; each game has a `state` where that is not None."""
        games: Sequence[Any] = self._games
        return np.stack([game.state() for game in games])

    def save(self) -> bytes:
        """All n games exactly; Refused where the game cannot."""
        arrays = super().save()
        return msgspec.msgpack.encode(([game.save() for game in self._games], arrays))

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave; Refused where the game cannot."""
        self._require_resimulation()
        try:
            games, arrays = msgspec.msgpack.decode(state, type=tuple[list[bytes], bytes])
        except msgspec.DecodeError as error:
            raise WireError(str(error), where=f"state of {self.spec.id}", do="Restore what save() gave") from None
        super().restore(arrays)
        for game, saved in zip(self._games, games, strict=True):
            game.restore(saved)

    def save_rows(self) -> list[bytes]:
        """Each game by itself; Refused where the game cannot."""
        rows = super().save_rows()
        return [msgspec.msgpack.encode((game.save(), row)) for game, row in zip(self._games, rows, strict=True)]

    def restore_rows(self, rows: Sequence[bytes]) -> None:
        """Game i becomes rows[i]; those beyond the last row stand still. Refused where the game cannot."""
        self._require_resimulation()
        try:
            parts = [msgspec.msgpack.decode(row, type=tuple[bytes, bytes]) for row in rows]
        except msgspec.DecodeError as error:
            raise WireError(str(error), where=f"state of {self.spec.id}", do="Restore what save_rows() gave") from None
        super().restore_rows([row for _, row in parts])
        self._to_act[len(rows) :] = False
        for game, (saved, _) in zip(self._games, parts, strict=False):
            game.restore(saved)

    def _note(self, rows: Array, seen: list[SingleView]) -> None:
        """Keep what the games of `rows` show, column by column: a row at a time costs several times as much."""
        if not seen:
            return
        ending = np.array([one.ending for one in seen], np.uint8)
        ending[(self._tick[rows] >= self.spec.max_ticks)[:, None] & (ending == RUNNING)] = TRUNCATED
        self._ending[rows] = ending
        self._to_act[rows] = to_act = np.array([one.to_act for one in seen]) & (ending == RUNNING)
        self._outcome[rows] = [one.outcome for one in seen]
        for s, columns in enumerate(self._observation):
            for name, column in columns.items():
                column[rows] = [one.observation[s][name] for one in seen]
            masks = [one.legal[s] for one in seen]
            if self._legal[s] is None and any(mask is not None for mask in masks):
                self._legal[s] = np.ones((self.n, self.spec.seats[s].action.masks), bool)
            if (legal := self._legal[s]) is not None:
                # All true where a seat is not asked, so that a softmax over it stays finite.
                every = np.ones(legal.shape[1:], bool)
                legal[rows] = [every if mask is None else mask for mask in masks] | ~to_act[:, s, None]

    def _view(self, reward: Array) -> View:
        over = (self._ending != RUNNING).all(axis=1, keepdims=True)
        return View(
            to_act=self._to_act.copy(),
            observation=tuple({name: a.copy() for name, a in seat.items()} for seat in self._observation),
            legal=tuple(None if mask is None else mask.copy() for mask in self._legal),
            reward=reward,
            ending=self._ending.copy(),
            outcome=np.where(over, self._outcome, 0).astype(np.float32),
            tick=self._tick.copy(),
        )

    def _arrays(self) -> dict[str, Array]:
        arrays = {"tick": self._tick, "to_act": self._to_act, "ending": self._ending, "outcome": self._outcome}
        for s, seat in enumerate(self._observation):
            arrays |= {f"{s}/{name}": array for name, array in seat.items()}
            legal = self._legal[s]
            arrays |= {} if legal is None else {f"{s}/legal": legal}
        return arrays
