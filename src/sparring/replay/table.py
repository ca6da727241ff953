"""A ring of steps in preallocated columns, from which n-step transitions are made when they are sampled.

Steps of many streams (a seat of a game, a chunk of the store) arrive interleaved. Each row knows the row of its
stream's next step, so a transition is a walk along those links. A row can be sampled once its successor is known:
the next step's row, a *final* row that holds nothing but the view at which an episode was cut, or none at all after
a true end. A row is older than its successor, so the ring never overwrites a successor first.
"""

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import SeatSpec
from sparring.replay.batch import Batch
from sparring.replay.sampler import Sampler, Uniform
from sparring.replay.steps import Steps
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

_NONE = -1


class Table:
    """First in, first out, by a capacity in steps. Not thread-safe."""

    def __init__(
        self, seat: SeatSpec, capacity_steps: int, *, streams: int, masks: bool, sampler: Sampler | None = None
    ) -> None:
        self.capacity = capacity_steps
        self.sampler: Sampler = Uniform(capacity_steps) if sampler is None else sampler
        self._columns: dict[str, Array] = {
            leaf.name: np.zeros((capacity_steps, *leaf.shape), leaf.dtype) for leaf in (*seat.observation, seat.action)
        }
        self._leaves = tuple(leaf.name for leaf in seat.observation)
        self._columns["reward"] = np.zeros(capacity_steps, np.float32)
        self._columns["ending"] = np.zeros(capacity_steps, np.uint8)
        self._columns["next"] = np.full(capacity_steps, _NONE, np.int64)
        self._columns["complete"] = np.zeros(capacity_steps, bool)  # may be sampled, and walked over
        if masks:
            self._columns["legal"] = np.zeros((capacity_steps, seat.action.masks), bool)
        self._masks = masks
        self.written = 0  # rows ever written; row = serial number mod capacity
        self.steps = 0  # steps ever inserted, without final rows
        self._tail = np.full(streams, _NONE, np.int64)  # serial number of the step that waits for its successor

    def insert(self, steps: Steps) -> None:
        """Take the steps in; a step becomes ready when its successor is in."""
        count = len(steps)
        if 2 * count > self.capacity:
            raise ConfigError(
                f"{count} steps at once do not fit a table of {self.capacity}",
                where="[replay]",
                do=f"Set capacity_steps to {2 * count} or more",
            )
        serial = self._claim(count)
        rows = serial % self.capacity
        for leaf in self._leaves:
            self._columns[leaf][rows] = steps.observation[leaf]
        self._columns["action"][rows] = steps.action
        self._columns["reward"][rows] = steps.reward
        self._columns["ending"][rows] = steps.ending
        if self._masks:
            self._columns["legal"][rows] = True if steps.legal is None else steps.legal
        self._link(steps.stream, serial)
        self._finish(steps, serial)
        self.steps += count

    def break_off(self, stream: int) -> None:
        """What comes next in `stream` does not follow what came last."""
        self._tail[stream] = _NONE

    def sample(self, count: int, rng: Generator, *, n_steps: int, discount: float) -> tuple[Batch, Array]:
        """A batch of transitions over up to `n_steps` decisions, and its rows for `learned`.

        reward = Σ_{k<m} γ^k r_{t+k}, where m = n_steps, or fewer where the episode ends or its next step has
        not arrived. The batch's `ending` is that of the last step walked over, `n_steps` holds m.
        """
        if not self.ready:
            raise TrainingStopped("no step of it can be sampled yet", where="replay table", do="Insert more steps")
        drawn = self.sampler.draw(count, rng)
        last, reward, walked = self._walk(drawn.rows, n_steps, discount)
        ending, after = self._columns["ending"][last], self._columns["next"][last]
        after = np.where(after == _NONE, last, after)  # after a true end nobody asks what was seen
        legal = self._columns.get("legal")
        batch = Batch(
            observation={leaf: self._columns[leaf][drawn.rows] for leaf in self._leaves},
            action=self._columns["action"][drawn.rows],
            reward=reward,
            ending=ending,
            next_observation={leaf: self._columns[leaf][after] for leaf in self._leaves},
            legal=None if legal is None else legal[drawn.rows],
            next_legal=None if legal is None else legal[after],
            n_steps=walked,
            weight=drawn.weight,
        )
        return batch, drawn.rows

    def learned(self, rows: Array, priorities: Array | None) -> None:
        """Pass on what the learner said of sampled rows; None says that replay is uniform."""
        if priorities is not None:
            self.sampler.learned(rows, priorities)

    @property
    def ready(self) -> bool:
        """Whether anything can be sampled."""
        return len(self.sampler) > 0

    def flow(self) -> dict[str, float]:
        """How full the ring is."""
        return {"rows": min(self.written, self.capacity), "capacity": self.capacity, "inserted": self.steps}

    def save(self) -> Tree:
        """Everything, for a checkpoint."""
        held = min(self.written, self.capacity)
        columns = {name: column[:held] for name, column in self._columns.items()}
        return {
            "columns": columns,
            "written": self.written,
            "steps": self.steps,
            "tail": self._tail,
            "sampler": self.sampler.save(),
        }

    def load(self, state: Tree) -> None:
        """Back to what `save` gave, in a table of the same capacity."""
        for name, column in self._columns.items():
            saved = state["columns"][name]
            column[: len(saved)] = saved
        self.written, self.steps = state["written"], state["steps"]
        self._tail[:] = state["tail"]
        self.sampler.load(state["sampler"])

    def _claim(self, count: int) -> Array:
        """Serial numbers for `count` new rows; what stood there is forgotten."""
        serial = np.arange(self.written, self.written + count)
        self.written += count
        rows = serial % self.capacity
        self.sampler.gone(rows)
        self._columns["next"][rows] = _NONE
        self._columns["complete"][rows] = False
        return serial

    def _link(self, stream: Array, serial: Array) -> None:
        """Join each step to the one before it of the same stream, where that still is in the ring."""
        before = self._tail[stream]
        if len(stream) > 1 and stream[0] == stream[-1]:  # consecutive steps of a single stream
            before[1:] = serial[:-1]
        self._tail[stream] = serial
        known = (before != _NONE) & (before >= self.written - self.capacity)
        rows = before[known] % self.capacity
        self._columns["next"][rows] = serial[known] % self.capacity
        self._complete(rows)

    def _finish(self, steps: Steps, serial: Array) -> None:
        """Close what has no successor step: after a true end nothing follows, after any other a final row."""
        rows = serial % self.capacity
        self._complete(rows[steps.ending == TERMINATED])
        cut = steps.ending[steps.final] != TERMINATED
        if cut.any():
            which = steps.final[cut]
            final_rows = self._claim(len(which)) % self.capacity
            for leaf in self._leaves:
                self._columns[leaf][final_rows] = steps.final_observation[leaf][cut]
            if self._masks:
                self._columns["legal"][final_rows] = True if steps.final_legal is None else steps.final_legal[cut]
            self._columns["next"][rows[which]] = final_rows
            self._complete(rows[which])
        self._tail[steps.stream[steps.ending != RUNNING]] = _NONE
        self._tail[steps.stream[steps.final]] = _NONE

    def _complete(self, rows: Array) -> None:
        if len(rows):
            self._columns["complete"][rows] = True
            self.sampler.ready(rows)

    def _walk(self, rows: Array, n_steps: int, discount: float) -> tuple[Array, Array, Array]:
        """The last row of each n-step transition, its discounted reward, and how many steps it covers."""
        column = self._columns
        reward = column["reward"][rows].copy()
        walked = np.ones(len(rows), np.int32)
        last = rows
        for _ in range(n_steps - 1):
            after = column["next"][last]
            goes_on = (column["ending"][last] == RUNNING) & (after != _NONE) & column["complete"][after]
            if not goes_on.any():
                break
            last = np.where(goes_on, after, last)
            reward += np.where(goes_on, discount**walked * column["reward"][last], 0.0).astype(np.float32)
            walked += goes_on
        return last, reward, walked
