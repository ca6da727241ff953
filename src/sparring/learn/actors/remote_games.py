"""Games that others step: what each worker's environments show at one tick, and all of them as one view.

    worker 0 ─ Shown ─┐
    worker 2 ─ Shown ─┴─ joined ─► RemoteGames: rows of workers 0 and 2 are new and to act, all others wait

Whoever decides sees n = workers · environments games, of which a batch of callers brings some forward. A game that
ended began anew in its worker: what is shown is its first view, and its last one comes beside it (`finals`).
"""

from typing import Any

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING, Actions, Columns, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array
from sparring.wire.tree import pack, unpack


def shown_by(stepped: View, now: View) -> dict[str, Any]:
    """One worker's tick as plain data, of one shape whatever ended: after the step, and after what began anew."""
    over, finals = np.flatnonzero(stepped.over), b""
    if len(over):
        finals = pack({"rows": over, "seen": [_rows(seen, over) for seen in stepped.observation]})
    return {
        "to_act": now.to_act,
        "seen": list(now.observation),
        "legal": [] if any(one is None for one in now.legal) else list(now.legal),
        "reward": stepped.reward,
        "ending": stepped.ending,
        "tick": stepped.tick,
        "finals": finals,
    }


class RemoteGames:
    """Behind the verbs of a Game, for an Actor whose view is given to it. `shown` is what its reset answers."""

    def __init__(self, spec: GameSpec, workers: int, envs: int, *, masks: bool) -> None:
        self.spec, self.n = spec, workers * envs
        self._size, seats = (workers, envs), len(spec.seats)
        self.shown = View(
            to_act=np.zeros((self.n, seats), bool),
            observation=tuple(
                {leaf.name: np.zeros((self.n, *leaf.shape), leaf.dtype) for leaf in seat.observation}
                for seat in spec.seats
            ),
            legal=tuple(np.ones((self.n, seat.action.masks), bool) if masks else None for seat in spec.seats),
            reward=np.zeros((self.n, seats), np.float32),
            ending=np.full((self.n, seats), RUNNING, np.uint8),
            outcome=np.zeros((self.n, seats), np.float32),
            tick=np.zeros(self.n, np.int64),
        )

    def come(self, workers: Array, fresh: Array, shown: dict[str, Any]) -> View:
        """Take in the joined ticks of those workers; what their games showed after the step, as one view.

        A worker of `fresh` (bool, for each) stepped nothing: its games have just begun.
        """
        before, still = self.shown, ~fresh
        rows = np.zeros(self._size, bool)
        rows[workers] = True
        to_act = self._spread(np.zeros_like(before.to_act), workers, shown["to_act"])
        stepping = workers[still]
        ending = self._spread(np.full_like(before.ending, RUNNING), stepping, shown["ending"][still])
        seen = tuple(
            {leaf: self._spread(column.copy(), workers, now[leaf]) for leaf, column in then.items()}
            for then, now in zip(before.observation, shown["seen"], strict=True)
        )
        legal = tuple(
            None if then is None else self._spread(then.copy(), workers, now)
            for then, now in zip(before.legal, shown["legal"] or before.legal, strict=True)
        )
        tick = self._spread(before.tick.copy(), workers, shown["tick"])
        nothing = np.zeros_like(before.reward)
        self.shown = View(to_act, seen, legal, nothing, np.full_like(ending, RUNNING), before.outcome, tick)
        reward = self._spread(nothing.copy(), stepping, shown["reward"][still])
        over = (ending != RUNNING).all(axis=1)
        waits = np.tile(over[:, None], (1, to_act.shape[1]))
        new = self._spread(np.zeros_like(waits), workers[fresh], True)
        last = self._with_finals(seen, stepping, [shown["finals"][i] for i in np.flatnonzero(still)])
        return View(to_act & ~waits & ~new, last, legal, reward, ending, before.outcome, tick)

    def reset(self, seeds: Array, which: Array) -> View:
        """They have begun already, where they are."""
        return self.shown

    def step(self, actions: Actions) -> View:
        raise _elsewhere()

    def save(self) -> bytes:
        raise _elsewhere()

    def restore(self, state: bytes) -> None:
        raise _elsewhere()

    def _spread(self, column: Array, workers: Array, given: Any) -> Array:
        """The column [n, …] with the rows of those workers as given [workers, envs, …]."""
        column.reshape(*self._size, *column.shape[1:])[workers] = given
        return column

    def _with_finals(self, seen: tuple[Columns, ...], workers: Array, finals: list[bytes]) -> tuple[Columns, ...]:
        """With the last views of games that ended, where any did."""
        if not any(finals):
            return seen
        last = tuple({leaf: column.copy() for leaf, column in one.items()} for one in seen)
        for worker, packed in zip(workers, finals, strict=True):
            if packed:
                told = unpack(packed)
                rows = worker * self._size[1] + told["rows"]
                for columns, final in zip(last, told["seen"], strict=True):
                    for leaf, column in columns.items():
                        column[rows] = final[leaf]
        return last


def _rows(seen: Columns, rows: Array) -> Columns:
    return {leaf: column[rows] for leaf, column in seen.items()}


def _elsewhere() -> ConfigError:
    do = "Ask the worker that has the games"
    return ConfigError("these games are stepped by others", where="central", do=do)
