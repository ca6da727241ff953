"""Steps in preallocated columns, from which n-step transitions and windows are made when they are sampled.

Steps of many streams (a seat of a game, a chunk of the store) arrive interleaved. Each row knows the rows before and
after it in its stream, so a transition is a walk along those links. A row can be sampled once its successor is known:
the next step's row, a *final* row that holds nothing but the view at which an episode was cut, or none at all after
a true end. When a row goes, the one before it has no successor any more and can be sampled no longer.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.games.spec import SeatSpec
from sparring.replay.batch import Batch
from sparring.replay.remover import Fifo, Remover
from sparring.replay.sampler import Drawn, Prioritised, Sampler, Uniform
from sparring.replay.snapshot import Snapshot
from sparring.replay.steps import Steps
from sparring.replay.walks import NONE, Window, frames, n_step, whole_stacks, windows
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

REDRAWS = 4  # of what one uploader has too much of in a batch


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
        self._rows = np.zeros(capacity_steps, row_layout(seat, masks=masks, state_numbers=state_numbers))
        self._bytes = self._rows.view(np.uint8).reshape(capacity_steps, -1)
        self._columns: dict[str, Array] = {name: self._rows[name] for name in self._rows.dtype.names or ()}
        for name in ("next", "previous", "waits"):
            self._columns[name][:] = NONE
        self._blank = self._bytes[:1].copy()
        self._masks, self._states = masks, state_numbers > 0
        self.written = 0  # rows ever written
        self.steps = 0  # steps ever inserted, without final rows
        self._episodes = 0  # ever begun by streams that do not number them
        self._tail = np.full(streams, NONE, np.int64)  # row of the step that waits for its successor
        self._lock = threading.RLock()
        self._saving = threading.Lock()  # one snapshot at a time
        self._snapshot: Snapshot | None = None

    def insert(self, steps: Steps) -> None:
        """Take the steps in; a step becomes ready when its successor is in."""
        count = len(steps)
        if 2 * count > self.capacity:
            raise ConfigError(
                f"{count} steps at once do not fit a table of {self.capacity}",
                where="[replay]",
                do=f"Set capacity_steps to {2 * count} or more",
            )
        with self._lock:
            rows = self._claim(count)
            columns = self._columns
            for leaf in self._leaves:
                columns[leaf][rows] = steps.observation[leaf]
            columns["action"][rows] = steps.action
            columns["reward"][rows] = steps.reward
            columns["ending"][rows] = steps.ending
            columns["source"][rows] = steps.source
            columns["uploader"][rows] = steps.uploader
            columns["version"][rows] = steps.version
            columns["behaviour_logp"][rows] = np.nan if steps.behaviour_logp is None else steps.behaviour_logp
            if self._states:
                columns["state"][rows] = 0.0 if steps.state is None else steps.state
            if steps.priority is not None:
                self.sampler.expect(rows, steps.priority)
            if self._masks:
                columns["legal"][rows] = True if steps.legal is None else steps.legal
            self._link(steps, rows)
            self._finish(steps, rows)
            self.steps += count

    def break_off(self, stream: int) -> None:
        """What comes next in `stream` does not follow what came last."""
        with self._lock:
            self._stop_waiting(np.array([stream]))

    def sample(self, count: int, rng: Generator, *, n_steps: int, discount: float) -> tuple[Batch, Array]:
        """A batch of transitions over up to `n_steps` decisions, and its rows for `learned`.

        reward = Σ_{k<m} γ^k r_{t+k}, where m = n_steps, or fewer where the episode ends or its next step has
        not arrived. The batch's `ending` is that of the last step walked over, `n_steps` holds m.
        """
        with self._lock:
            drawn = self._draw(count, rng)
            now = end = self._copies(drawn.rows)
            if n_steps == 1:
                last, reward, walked = drawn.rows, np.ascontiguousarray(now["reward"]), np.ones(count, np.int32)
            else:
                last, reward, walked = n_step(self._columns, drawn.rows, n_steps, discount)
                end = self._copies(last)
            after = np.where(end["next"] == NONE, last, end["next"])  # after a true end nobody asks what was seen
            then = self._copies(after)
            batch = Batch(
                observation=self._views(drawn.rows, now),
                action=np.ascontiguousarray(now["action"]),
                reward=reward,
                ending=np.ascontiguousarray(end["ending"]),
                next_observation=self._views(after, then),
                legal=np.ascontiguousarray(now["legal"]) if self._masks else None,
                next_legal=np.ascontiguousarray(then["legal"]) if self._masks else None,
                behaviour_logp=np.ascontiguousarray(now["behaviour_logp"]),
                n_steps=walked,
                weight=drawn.weight,
                state=np.ascontiguousarray(now["state"]) if self._states else None,
                version=now["version"].astype(np.int64),
            )
        return batch, drawn.rows

    def sample_windows(self, count: int, rng: Generator, window: Window) -> tuple[Batch, Array]:
        """A batch of windows, [burn_in + length, count], and the rows that are learned, [length, count], for `learned`.

        `mask` is False where a window has no such step; `next_observation` [count] is the view after its last.
        Where an episode began within the burn-in, the places before its first step are masked and the last of them
        ends (TRUNCATED), so that a memory is empty at that step. `state` and `version` are those of the first step.
        """
        with self._lock:
            drawn = self._draw(count, rng)
            rows, mask = windows(self._columns, drawn.rows, window)
            after = self._columns["next"][rows[-1]]
            after = np.where(after == NONE, rows[-1], after)
            legal, flat = self._columns.get("legal"), rows.reshape(-1)
            held = self._copies(flat)
            seen, ending = self._views(flat, held), self._columns["ending"][rows]
            ending[: window.burn_in][~mask[: window.burn_in]] = TRUNCATED
            batch = Batch(
                observation={leaf: column.reshape(*rows.shape, *column.shape[1:]) for leaf, column in seen.items()},
                action=self._columns["action"][rows],
                reward=self._columns["reward"][rows],
                ending=ending,
                next_observation=self._views(after, self._copies(after)),
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
        with self._lock:
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
            with self._lock:
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
                    with self._lock:
                        going_on = snapshot.copy_on()
            finally:
                self._snapshot = None
            return state

    def load(self, state: Tree) -> None:
        """Back to what `save` gave, in a table of the same capacity and parts."""
        with self._lock:
            for name, column in self._columns.items():
                saved = state["columns"][name]
                column[: len(saved)] = saved
            self.written, self.steps, self._episodes = state["written"], state["steps"], state["episodes"]
            self._tail[:] = state["tail"]
            self.sampler.load(state["sampler"])
            self.remover.load(state["remover"])

    def _claim(self, count: int) -> Array:
        """Rows for `count` new steps; what stood there is forgotten."""
        rows = self.remover.claim(count, self._worth)
        full = self.written + count > self.capacity
        self.written += count
        self._about_to_change(rows)
        if full:
            self._forget(rows)
        return rows

    def _worth(self) -> Array:
        """Of each row to a remover: its priority; without limit where something depends on it."""
        columns, sampler = self._columns, self.sampler
        assert isinstance(sampler, Prioritised)
        needed = (columns["waits"] != NONE) | (columns["final"] & (columns["previous"] != NONE))
        return np.where(needed, np.inf, sampler.priorities())

    def _forget(self, rows: Array) -> None:
        columns = self._columns
        held = self._copies(rows)
        before, after, waiting = (held[name][held[name] != NONE] for name in ("previous", "next", "waits"))
        self.sampler.gone(rows)
        if len(before):  # only where rows do not go in the order in which they came
            self._about_to_change(before)
            columns["next"][before] = NONE
            columns["complete"][before] = False
            self.sampler.gone(before)
        if len(after):
            self._about_to_change(after)
            columns["previous"][after] = NONE
        for _ in range(self._frames - 1):  # their stacks lack a frame now
            self.sampler.gone(after)
            after = columns["next"][after]
            after = after[after != NONE]
        self._tail[waiting] = NONE
        self._bytes[rows] = self._blank

    def _link(self, steps: Steps, rows: Array) -> None:
        """Join each step to the one before it of the same stream, where that still is in the table."""
        columns, stream = self._columns, steps.stream
        before = self._tail[stream]
        self._stop_waiting(stream)
        self._tail[stream] = rows
        if len(stream) > 1 and stream[0] == stream[-1]:  # consecutive steps of a single stream
            before[1:] = rows[:-1]
            columns["waits"][rows[-1]] = stream[-1]
        else:
            columns["waits"][rows] = stream
        self._number(steps, rows, before)
        known = before != NONE
        earlier = before if known.all() else before[known]
        self._about_to_change(earlier)
        columns["next"][earlier] = rows[known]
        columns["previous"][rows] = before
        self._complete(earlier)

    def _number(self, steps: Steps, rows: Array, before: Array) -> None:
        """Which episode each step is of, and where it stands in it."""
        columns, first = self._columns, before == NONE
        if len(steps) > 1 and steps.stream[0] == steps.stream[-1]:
            position = np.arange(len(rows)) + (0 if first[0] else columns["position"][before[0]] + 1)
            episode = np.full(len(rows), self._episodes if first[0] else columns["episode"][before[0]])
        elif not first.any():
            position, episode = columns["position"][before] + 1, columns["episode"][before]
        else:
            position = np.where(first, 0, columns["position"][before] + 1)
            episode = np.where(first, self._episodes + np.cumsum(first) - 1, columns["episode"][before])
        self._episodes += int(first.sum())
        columns["position"][rows] = position if steps.position is None else steps.position
        columns["episode"][rows] = episode if steps.episode is None else steps.episode

    def _finish(self, steps: Steps, rows: Array) -> None:
        """Close what has no successor step: after a true end nothing follows, after any other a final row."""
        if not steps.ending.any() and not len(steps.final):
            return
        columns = self._columns
        self._complete(rows[steps.ending == TERMINATED])
        cut = steps.ending[steps.final] != TERMINATED
        if cut.any():
            last = rows[steps.final[cut]]
            final_rows = self._claim(len(last))
            for leaf in self._leaves:
                columns[leaf][final_rows] = steps.final_observation[leaf][cut]
            if self._masks:
                columns["legal"][final_rows] = True if steps.final_legal is None else steps.final_legal[cut]
            columns["final"][final_rows] = True
            columns["previous"][final_rows] = last
            columns["position"][final_rows] = columns["position"][last] + 1
            columns["next"][last] = final_rows
            self._complete(last)
        self._stop_waiting(steps.stream[steps.ending != RUNNING])
        self._stop_waiting(steps.stream[steps.final])

    def _stop_waiting(self, stream: Array) -> None:
        waiting = self._tail[stream]
        waiting = waiting[waiting != NONE]
        self._about_to_change(waiting)
        self._columns["waits"][waiting] = NONE
        self._tail[stream] = NONE

    def _complete(self, rows: Array) -> None:
        if not len(rows):
            return
        self._columns["complete"][rows] = True
        if self._frames > 1:
            rows = rows[whole_stacks(self._columns, rows, self._frames)]
        by = self.sampler.by
        self.sampler.ready(rows, None if by is None else self._columns[by][rows])

    def _about_to_change(self, rows: Array) -> None:
        if self._snapshot is not None:
            self._snapshot.about_to_change(rows)

    def _draw(self, count: int, rng: Generator) -> Drawn:
        if not self.ready:
            raise TrainingStopped("no step of it can be sampled yet", where="replay table", do="Insert more steps")
        drawn = self.sampler.draw(count, rng)
        return drawn if self._uploader_share >= 1.0 else self._capped(drawn, rng)

    def _capped(self, drawn: Drawn, rng: Generator) -> Drawn:
        """No uploader has more than its share: what is too much is drawn again, and in the end weighs nothing."""
        rows, most = drawn.rows, max(1, int(self._uploader_share * len(drawn.rows)))
        weight = np.ones(len(rows), np.float32) if drawn.weight is None else drawn.weight
        excess = beyond(self._columns["uploader"][rows], most)
        for _ in range(REDRAWS):
            if not len(excess):
                return Drawn(rows, drawn.weight)
            again = self.sampler.draw(len(rows), rng)
            rows[excess] = again.rows[: len(excess)]
            if again.weight is not None:
                weight[excess] = again.weight[: len(excess)]
            excess = beyond(self._columns["uploader"][rows], most)
        weight[excess] = 0.0
        return Drawn(rows, weight)

    def _copies(self, rows: Array) -> Array:
        """Whole rows, as bytes: one visit to memory for all columns, and none of NumPy's loops over fields."""
        copied: Array = self._bytes.take(rows, axis=0).view(self._rows.dtype)[:, 0]
        return copied

    def _views(self, rows: Array, held: Array) -> Mapping[str, Array]:
        """What was seen at rows, of which `held` is a copy; in stacks where the game shows single frames."""
        if self._frames == 1:
            return {leaf: np.ascontiguousarray(held[leaf]) for leaf in self._leaves}
        found = frames(self._columns, rows, self._frames).T
        return {
            leaf.name: self._columns[leaf.name][found].reshape(len(rows), *leaf.stacked(self._frames))
            for leaf in self._seat.observation
        }


def row_layout(seat: SeatSpec, *, masks: bool, state_numbers: int = 0) -> np.dtype[Any]:
    """One step as it lies in memory: all its columns together, so that reading a small one is one cache miss."""
    kept: list[tuple[Any, ...]] = [
        ("episode", np.int64),
        ("next", np.int32),
        ("previous", np.int32),
        ("waits", np.int32),
        ("position", np.int32),
        ("uploader", np.int32),
        ("version", np.int32),
        ("source", np.uint8),
        ("ending", np.uint8),
        ("complete", np.bool_),  # may be walked over
        ("final", np.bool_),
        ("reward", np.float32),
        ("behaviour_logp", np.float32),  # not a number where nobody knows it
        *((leaf.name, leaf.dtype, leaf.shape) for leaf in (seat.action, *seat.observation)),
    ]
    if state_numbers:
        kept.append(("state", np.float32, (state_numbers,)))
    if masks:
        kept.append(("legal", np.bool_, (seat.action.masks,)))
    return np.dtype(kept, align=True)


def beyond(owner: Array, most: int) -> Array:
    """Places of all but the first `most` of each owner; owner 0 may have any number."""
    order = np.argsort(owner, kind="stable")
    there = owner[order]
    rank = np.arange(len(owner)) - np.searchsorted(there, there)
    found: Array = order[(rank >= most) & (there > 0)]
    return found
