"""A game that a person wrote in one file (the example of docs/games.md), and ways to get one wrong."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from sparring.games.protocol import RUNNING, TERMINATED, Game, View
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.vectorize import SingleView, VectorGame
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

SPEC = GameSpec(
    id=GameId("own_game:countdown"),
    turns="alternating",
    seats=tuple(
        SeatSpec(
            name=name,
            team=team,
            observation=(vector("observation/left", 1, 0, 21),),
            action=discrete(3),
            reward_bounds=(-1, 1),
        )
        for team, name in enumerate(("first", "second"))
    ),
    max_ticks=21,
    resimulates=True,
)


class Countdown:
    """Take one, two or three of up to 21 matches; who takes the last one wins."""

    spec = SPEC

    def __init__(self) -> None:
        self.left, self.mover = 0, 0

    def reset(self, seed: int) -> SingleView:
        self.left, self.mover = 15 + seed % 7, 0
        return self.seen((0.0, 0.0))

    def step(self, actions: Sequence[np.ndarray]) -> SingleView:
        self.left -= int(actions[self.mover]) + 1
        won = self.left == 0
        winner, self.mover = self.mover, 1 - self.mover
        return self.seen(((1.0, -1.0), (-1.0, 1.0))[winner] if won else (0.0, 0.0))

    def seen(self, reward: tuple[float, float]) -> SingleView:
        over = self.left == 0
        matches = {"observation/left": np.array([self.left], np.float32)}
        return SingleView(
            observation=(matches, matches),
            to_act=(self.mover == 0 and not over, self.mover == 1 and not over),
            reward=reward,
            ending=(TERMINATED,) * 2 if over else (RUNNING,) * 2,
            outcome=reward,
            legal=(np.arange(1, 4) <= self.left,) * 2,
        )

    def save(self) -> bytes:
        return bytes([self.left, self.mover])

    def restore(self, state: bytes) -> None:
        self.left, self.mover = state


def countdown(n: int) -> Game:
    """n games, for `own_game:countdown`."""
    return VectorGame(Countdown, n)


def without_bounds(n: int) -> Game:
    """A spec that cannot be."""
    seats = tuple(msgspec.structs.replace(seat, reward_bounds=(1, -1)) for seat in SPEC.seats)
    game = VectorGame(Countdown, n)
    game.spec = msgspec.structs.replace(SPEC, seats=seats)
    return game


class Broken(VectorGame):
    """The same with one promise broken."""

    def __init__(self, fault: str, n: int) -> None:
        super().__init__(Countdown, n)
        self.fault = fault
        if fault == "greedy":
            seats = tuple(msgspec.structs.replace(seat, reward_bounds=(0, 0.5)) for seat in SPEC.seats)
            self.spec = msgspec.structs.replace(SPEC, seats=seats)
        if fault == "endless":
            self.spec = msgspec.structs.replace(SPEC, max_ticks=2)

    def reset(self, seeds: np.ndarray, which: np.ndarray) -> View:
        if self.fault == "chance":
            seeds = seeds + np.uint64(self.n)
        return super().reset(seeds, which)

    def restore(self, state: bytes) -> None:
        super().restore(state)
        if self.fault == "forgetful":
            self._games[0].left -= 1  # type: ignore[attr-defined]

    def _note(self, rows: Array, seen: list[SingleView]) -> None:
        super()._note(rows, seen)
        if self.fault == "endless":
            for i, one in zip(rows, seen, strict=True):
                self._ending[i], self._to_act[i] = one.ending, one.to_act

    def _view(self, reward: np.ndarray) -> View:
        view = super()._view(reward)
        if self.fault == "restless" and view.over.all():
            self._tick += 1
            return replace(view, tick=self._tick.copy())
        return replace(view, tick=self._tick) if self.fault == "shared" else view


def broken(fault: str, n: int) -> Game:
    """n games with that fault."""
    return Broken(fault, n)


def greedy(n: int) -> Game:
    """n games that pay more than their spec says."""
    return Broken("greedy", n)
