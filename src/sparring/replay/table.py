"""Steps in preallocated columns, from which n-step transitions and windows are made when they are sampled.

Steps of many streams (a seat of a game, a chunk of the store) arrive interleaved. Each row knows the rows before and
after it in its stream, so a transition is a walk along those links. A row can be sampled once its successor is known:
the next step's row, a *final* row that holds nothing but the view at which an episode was cut, or none at all after
a true end. When a row goes, the one before it has no successor any more and can be sampled no longer.
"""

import importlib
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import TERMINATED, TRUNCATED
from sparring.games.spec import SeatSpec
from sparring.replay.batch import Batch
from sparring.replay.remover import Fifo, Remover
from sparring.replay.rows import NONE, Rows, row_layout
from sparring.replay.sampler import Drawn, Prioritised, Sampler, Uniform
from sparring.replay.sequences import Window, frames, windows
from sparring.replay.snapshot import Snapshot
from sparring.replay.steps import Steps
from sparring.replay.uploader_cap import capped
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

if TYPE_CHECKING:
    from sparring.replay.gather import Taking

_NEXT = "next/"  # before the name of a column: as it was after the transition
PENDING = 64  # inserts that wait for whoever holds the lock; the next one waits itself


class _Held:
    """A table's lock: what others inserted meanwhile is taken in when it is acquired, and again when it is released."""

    __slots__ = ("_lock", "_pending", "_table")

    def __init__(self, table: "Table") -> None:
        self._table, self._lock, self._pending = table, table._lock, table._pending

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._pending:
            self._table.take_in()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        if self._pending:
            self._table.work_off()


class Table:
    """A sampler and a remover around rows of a fixed number. Threads may call it; each call holds its lock briefly."""

    def __init__(  # noqa: PLR0913  (its parts; open_table chooses them by name)
        self,
        seat: SeatSpec,
        capacity_steps: int,
        *,
        streams: int,
        masks: bool,
        sampler: Sampler | None = None,
        remover: Remover | None = None,
        frame_stack: int = 1,
        uploader_share: float = 1.0,
        state_numbers: int = 0,
    ) -> None:
        self.capacity = capacity_steps
        self.sampler: Sampler = Uniform(capacity_steps) if sampler is None else sampler
        self.remover: Remover = Fifo(capacity_steps) if remover is None else remover
        self._seat, self._frames, self._uploader_share = seat, frame_stack, uploader_share
        self._leaves = tuple(leaf.name for leaf in seat.observation)
        self._next_leaves = tuple((leaf, _NEXT + leaf) for leaf in self._leaves)
        self._rows = Rows(capacity_steps, row_layout(seat, masks=masks, state_numbers=state_numbers))
        self._columns = self._rows.columns
        self._taking: Taking | None = None  # compiles: made when it is first asked for
        self._masks, self._states = masks, state_numbers > 0
        self.written = self.steps = 0  # rows ever written; steps ever inserted, without final rows
        self.streams = streams  # that there are places for
        self._episodes = 0  # ever begun by streams that do not number them
        self._tail = np.full(streams, NONE, np.int64)  # row of the step that waits for its successor
        self._lock = threading.RLock()
        self._pending: deque[Steps] = deque()  # of who found the lock taken; PENDING of them at most
        self._held, self._saving = _Held(self), threading.Lock()  # one snapshot at a time
        self._snapshot: Snapshot | None = None

    def insert(self, steps: Steps, *, lent: bool = False) -> None:
        """Take the steps in; a step becomes ready when its successor is in.

        Where another thread holds the table it takes them in for us, a little later; so their arrays must not change
        afterwards, unless they are said to be `lent`: then they are copied on return.
        """
        count = len(steps)
        if not count:
            return
        if 2 * count > self.capacity:
            raise ConfigError(
                f"{count} steps at once do not fit a table of {self.capacity}",
                where="[replay]",
                do=f"Set capacity_steps to {2 * count} or more",
            )
        self._pending.append(steps)
        if lent or len(self._pending) > PENDING:
            with self._held:
                return
        self.work_off()

    def work_off(self) -> None:
        """Insert what others left, unless somebody is at it: who holds the lock does it for all before it goes on.

        So whoever inserts and whoever samples never sleep for one another, and a sample's slowest cost is its own and
        an insert's, not that of two changes of thread.
        """
        while self._pending and self._lock.acquire(blocking=False):
            try:
                self.take_in()
            finally:
                self._lock.release()

    def take_in(self) -> None:
        """Insert all that waits. The caller holds the lock."""
        while self._pending:
            self._insert(self._pending.popleft())

    def _insert(self, steps: Steps) -> None:
        count = len(steps)
        cut = steps.final[steps.ending[steps.final] != TERMINATED] if len(steps.final) else steps.final
        rows = self._claim(count + len(cut), steps.stream)
        self._write(steps, rows[:count])
        if steps.priority is not None:
            self.sampler.expect(rows[:count], steps.priority)
        if len(cut):
            self._write_finals(steps, rows[count:])
        self._link(steps, rows[:count], cut, rows[count:])
        self.steps += count

    def widen(self, streams: int) -> None:
        """Have places for so many streams, or for more."""
        with self._held:
            self._tail = np.append(self._tail, np.full(max(0, streams - self.streams), NONE, np.int64))
            self.streams = len(self._tail)

    def break_off(self, stream: int) -> None:
        """What comes next in `stream` does not follow what came last."""
        with self._held:
            row = self._tail[stream]
            if row != NONE:
                if self._snapshot is not None:
                    self._snapshot.about_to_change(self._tail[[stream]])
                self._columns["waits"][row] = NONE
                self._tail[stream] = NONE

    def sample(self, count: int, rng: Generator, *, n_steps: int, discount: float) -> tuple[Batch, Array]:
        """A batch of transitions over up to `n_steps` decisions, and its rows for `learned`.

        reward = Σ_{k<m} γ^k r_{t+k}, where m = n_steps, or fewer where the episode ends or its next step has
        not arrived. The batch's `ending` is that of the last step walked over, `n_steps` holds m.
        """
        with self._held:
            drawn = self._draw(count, rng)
            taken = self._takes().take(drawn.rows, n_steps, discount)
        batch = Batch(
            observation={leaf: taken[leaf] for leaf in self._leaves},
            action=taken["action"],
            reward=taken["reward"],
            ending=taken["ending"],
            next_observation={leaf: taken[key] for leaf, key in self._next_leaves},
            legal=taken["legal"] if self._masks else None,
            next_legal=taken[_NEXT + "legal"] if self._masks else None,
            behaviour_logp=taken["behaviour_logp"],
            n_steps=taken["n_steps"],
            weight=drawn.weight,
            state=taken["state"] if self._states else None,
            version=taken["version"],
        )
        return batch, drawn.rows

    def sample_windows(self, count: int, rng: Generator, window: Window) -> tuple[Batch, Array]:
        """A batch of windows, [burn_in + length, count], and the rows that are learned, [length, count], for `learned`.

        `mask` is False where a window has no such step; `next_observation` [count] is the view after its last.
        Where an episode began within the burn-in, the places before its first step are masked and the last of them
        ends (TRUNCATED), so that a memory is empty at that step. `state` and `version` are those of the first step.
        """
        with self._held:
            drawn = self._draw(count, rng)
            rows, mask = windows(self._columns, drawn.rows, window)
            after = self._columns["next"][rows[-1]]
            after = np.where(after == NONE, rows[-1], after)
            legal, flat = self._columns.get("legal"), rows.reshape(-1)
            seen, ending = self._views(flat), self._columns["ending"][rows]
            ending[: window.burn_in][~mask[: window.burn_in]] = TRUNCATED
            batch = Batch(
                observation={leaf: column.reshape(*rows.shape, *column.shape[1:]) for leaf, column in seen.items()},
                action=self._columns["action"][rows],
                reward=self._columns["reward"][rows],
                ending=ending,
                next_observation=self._views(after),
                legal=None if legal is None else legal[rows],
                next_legal=None if legal is None else legal[after],
                behaviour_logp=self._columns["behaviour_logp"][rows],
                weight=drawn.weight,
                mask=mask,
                state=self._columns["state"][rows[0]] if self._states else None,
                version=self._columns["version"][rows[0]].astype(np.int64),
            )
        return batch, np.where(mask, rows, NONE)[window.burn_in :]

    def learned(self, rows: Array, priorities: Array | None) -> None:
        """Pass on what the learner said of sampled rows; None says that replay is uniform.

        Of windows it says one number each, which all steps learned in it get.
        """
        if priorities is None:
            return
        if rows.ndim == 2:
            there = rows != NONE
            rows, priorities = rows[there], np.broadcast_to(priorities, rows.shape)[there]
        with self._held:
            self.sampler.learned(rows, priorities)

    @property
    def ready(self) -> bool:
        """Whether anything can be sampled."""
        return len(self.sampler) > 0

    def flow(self) -> dict[str, float]:
        """How full the table is."""
        return {"rows": min(self.written, self.capacity), "capacity": self.capacity, "inserted": self.steps}

    def save(self) -> Tree:
        """Everything as it stands now, for a checkpoint. Others go on meanwhile: the lock is held for a slice."""
        with self._saving:
            with self._held:
                held = min(self.written, self.capacity)
                snapshot = self._snapshot = Snapshot(self._columns, held)
                state: dict[str, Any] = {
                    "columns": snapshot.columns,
                    "written": self.written,
                    "steps": self.steps,
                    "episodes": self._episodes,
                    "tail": self._tail.copy(),
                    "sampler": self.sampler.save(),
                    "remover": self.remover.save(),
                }
            try:
                going_on = True
                while going_on:
                    with self._held:
                        going_on = snapshot.copy_on()
            finally:
                self._snapshot = None
            return state

    def load(self, state: Tree) -> None:
        """Back to what `save` gave, in a table of the same capacity and parts."""
        with self._held:
            for name, column in self._columns.items():
                saved = state["columns"][name]
                column[: len(saved)] = saved
            self.written, self.steps, self._episodes = state["written"], state["steps"], state["episodes"]
            self.widen(len(state["tail"]))
            self._tail[: len(state["tail"])] = state["tail"]
            self.sampler.load(state["sampler"])
            self.remover.load(state["remover"])

    def _claim(self, count: int, streams: Array) -> Array:
        """Rows for `count` new steps of these streams; what stood there is forgotten."""
        rows = self.remover.claim(count, self._worth)
        full = self.written + count > self.capacity
        self.written += count
        if self._snapshot is not None:
            self._snapshot.about_to_change(self._touched(rows, streams))
        if full:
            held = self._rows
            gone = _linking().forget(held.words, held.bytes, self._tail, rows, self._frames)
            self.sampler.gone(gone if len(gone) == len(rows) else np.unique(gone))
        return rows

    def _touched(self, rows: Array, streams: Array) -> Array:
        """These rows, and every other that changes when new steps of these streams are written there."""
        columns, reached = self._columns, [rows, self._tail[streams]]
        for name in ("previous", "next"):
            reached.append(columns[name][rows])
        found: Array = np.concatenate(reached)
        there: Array = found[found != NONE]
        return there

    def _worth(self) -> Array:
        """Of each row to a remover: its priority; without limit where something depends on it."""
        columns, sampler = self._columns, self.sampler
        assert isinstance(sampler, Prioritised)
        needed = (columns["waits"] != NONE) | (columns["final"] & (columns["previous"] != NONE))
        return np.where(needed, np.inf, sampler.priorities())

    def _write(self, steps: Steps, rows: Array) -> None:
        """What was seen and done; what `_link` needs is written there."""
        columns = self._columns
        where: Any = slice(rows[0], rows[-1] + 1) if self.remover.side_by_side else rows
        for leaf in self._leaves:
            columns[leaf][where] = steps.observation[leaf]
        columns["action"][where] = steps.action
        if self._masks:
            columns["legal"][where] = True if steps.legal is None else steps.legal
        if self._states:
            columns["state"][where] = 0.0 if steps.state is None else steps.state

    def _write_finals(self, steps: Steps, rows: Array) -> None:
        """What was seen after the steps that were cut."""
        columns, cut = self._columns, steps.ending[steps.final] != TERMINATED
        for leaf in self._leaves:
            columns[leaf][rows] = steps.final_observation[leaf][cut]
        if self._masks:
            columns["legal"][rows] = True if steps.final_legal is None else steps.final_legal[cut]
        if self._states:
            columns["state"][rows] = 0.0 if steps.final_state is None else steps.final_state[cut]

    def _link(self, steps: Steps, rows: Array, cut: Array, final_rows: Array) -> None:
        """Join each step to the one before it of the same stream, where that still is in the table."""
        finals, held = _NO_ROWS, self._rows
        if len(cut):
            finals = np.full(len(rows), NONE, np.int64)
            finals[cut] = final_rows
        episode = NONE if steps.episode is None else steps.episode
        ready, begun = _linking().link(
            held.words,
            held.floats,
            held.bytes,
            self._tail,
            rows,
            finals,
            np.ascontiguousarray(steps.stream, np.int64),
            np.ascontiguousarray(steps.reward, np.float32),
            np.ascontiguousarray(steps.ending, np.uint8),
            _NO_NUMBERS if steps.behaviour_logp is None else np.ascontiguousarray(steps.behaviour_logp, np.float32),
            _NO_ROWS if steps.position is None else np.ascontiguousarray(steps.position, np.int64),
            (self._episodes, episode, steps.uploader, steps.version, steps.source),
            self._frames,
        )
        self._episodes += begun
        if len(ready):
            by = self.sampler.by
            self.sampler.ready(ready, None if by is None else self._columns[by][ready])

    def _draw(self, count: int, rng: Generator) -> Drawn:
        if not len(self.sampler):
            raise TrainingStopped("no step of it can be sampled yet", where="replay table", do="Insert more steps")
        drawn = self.sampler.draw(count, rng)
        if self._uploader_share >= 1.0:
            return drawn
        return capped(self.sampler, drawn, self._columns["uploader"], self._uploader_share, rng)

    def _takes(self) -> "Taking":
        if self._taking is None:
            from sparring.replay.gather import END, NOW, THEN, Taking, Wanted

            def wanted(name: str, moment: int) -> Wanted:
                kind = self._rows.layout[name]
                return Wanted(_NEXT + name if moment == THEN else name, name, moment, kind.shape, kind.base)

            def views(moment: int) -> list[Wanted]:
                return [
                    replace(wanted(leaf.name, moment), shape=leaf.stacked(self._frames), stacked=self._frames > 1)
                    for leaf in self._seat.observation
                ]

            columns = [wanted("action", NOW), wanted("ending", END), wanted("behaviour_logp", NOW)]
            columns += views(NOW) + views(THEN)
            columns += [wanted("legal", NOW), wanted("legal", THEN)] if self._masks else []
            columns += [wanted("state", NOW)] if self._states else []
            self._taking = Taking(self._rows, columns, self._frames)
        return self._taking

    def _views(self, rows: Array) -> Mapping[str, Array]:
        """What was seen at rows; in stacks where the game shows single frames."""
        if self._frames == 1:
            return {leaf: self._columns[leaf][rows] for leaf in self._leaves}
        found = frames(self._columns, rows, self._frames).T
        return {
            leaf.name: self._columns[leaf.name][found].reshape(len(rows), *leaf.stacked(self._frames))
            for leaf in self._seat.observation
        }


@cache
def _linking() -> ModuleType:
    """Compiled when it is first asked for: whoever inserts nothing need not wait."""
    return importlib.import_module("sparring.replay.insert_rows")


_NO_ROWS, _NO_NUMBERS = np.zeros(0, np.int64), np.zeros(0, np.float32)
