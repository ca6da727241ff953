"""Steps in preallocated columns, from which n-step transitions and windows are made when they are sampled.

Steps of many streams (a seat of a game, a chunk of the store) arrive interleaved. Each row is linked to the rows before
and after it in its stream, so a transition is a walk along those links. A row can be sampled once its successor is
known: the next step's row, a *final* row that holds nothing but the view at which an episode was cut, or none at all
after a true end. When a row is removed, the one before it has no successor any more and cannot be sampled.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.config import ReplayConfig
from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import TERMINATED, TRUNCATED
from sparring.games.spec import SeatSpec
from sparring.replay.gather import AFTER, TransitionGather, Window, frames, windows
from sparring.replay.rows import (
    FINAL,
    NONE,
    ROW_BITS,
    Fifo,
    LowestPriority,
    Remover,
    Rows,
    Snapshot,
    current_rows,
    link,
    row_layout,
    unlink,
)
from sparring.replay.sampler import ByEpisode, BySource, Drawn, Newest, Prioritised, Sampler, Uniform, limit_uploaders
from sparring.replay.steps import SOURCES, Batch, Steps, machine_bytes
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

log = logging.getLogger(__name__)
_NO_ROWS, _NO_LOGP = np.zeros(0, np.int64), np.zeros(0, np.float32)


class Table:
    """A sampler and a remover around a fixed number of rows. Threads may call it; each call holds its lock briefly."""

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
        self._rows = Rows(capacity_steps, row_layout(seat, masks=masks, state_numbers=state_numbers))
        self._columns = self._rows.columns
        self._transitions = TransitionGather(self._rows, seat, frame_stack)
        self._masks, self._states = masks, state_numbers > 0
        self.written = self.steps = 0  # rows ever written; steps ever inserted, without final rows
        self.streams = streams
        self._episodes = 0  # ever begun by streams that do not number them
        self._tail = np.full(streams, NONE, np.int64)  # of each stream, the row that waits for its successor
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None  # while rows of it are not yet copied

    def insert(self, steps: Steps) -> None:
        """Copy the steps into the table. A step can be sampled when its successor is in."""
        count = len(steps)
        if not count:
            return
        if 2 * count > self.capacity:
            do = f"Set capacity_steps to {2 * count} or more"
            raise ConfigError(f"{count} steps at once do not fit a table of {self.capacity}", where="[replay]", do=do)
        with self._lock:
            ends = steps.final
            cut = ends[steps.ending[ends] != TERMINATED] if len(ends) else ends  # gets a row for what was seen after
            rows = self._claim(count + len(cut), steps.stream)
            self._write_steps(steps, rows[:count])
            if steps.priority is not None:
                self.sampler.set_initial_priorities(rows[:count], steps.priority)
            finals = _NO_ROWS
            if len(cut):
                self._write_finals(steps, rows[count:])
                finals = np.full(count, NONE, np.int64)
                finals[cut] = rows[count:]
            self._link(steps, rows[:count], finals)
            self.steps += count

    def widen(self, streams: int) -> None:
        """Have places for so many streams, or for more."""
        with self._lock:
            self._tail = np.append(self._tail, np.full(max(0, streams - self.streams), NONE, np.int64))
            self.streams = len(self._tail)

    def break_off(self, stream: int) -> None:
        """The next step of `stream` does not follow its last one."""
        with self._lock:
            row = self._tail[stream]
            if row != NONE:
                if self._snapshot is not None:
                    self._about_to_change(self._tail[[stream]])
                self._columns["waits"][row] = NONE
                self._tail[stream] = NONE

    def sample(self, count: int, rng: Generator, *, n_steps: int, discount: float) -> tuple[Batch, Array]:
        """A batch of transitions over up to `n_steps` decisions, and their ids for `update_priorities`.

        reward = Σ_{k<m} γ^k r_{t+k}, where m = n_steps, or fewer where the episode ends or its next step has
        not arrived. The batch's `ending` is that of the last step walked over, `n_steps` holds m.
        """
        with self._lock:
            drawn = self._draw(count, rng)
            found = self._transitions.gather(drawn.rows, n_steps, discount)
        batch = Batch(
            observation={leaf: found[leaf] for leaf in self._leaves},
            action=found["action"],
            reward=found["reward"],
            ending=found["ending"],
            next_observation={leaf: found[AFTER + leaf] for leaf in self._leaves},
            legal=found["legal"] if self._masks else None,
            next_legal=found[AFTER + "legal"] if self._masks else None,
            behaviour_logp=found["behaviour_logp"],
            n_steps=found["n_steps"],
            weight=drawn.weight,
            state=found["state"] if self._states else None,
            version=found["version"],
        )
        return batch, found["id"]

    def sample_windows(self, count: int, rng: Generator, window: Window) -> tuple[Batch, Array]:
        """A batch of windows, [burn_in + length, count], and the ids of the learned steps, [length, count].

        `mask` is False, and the id NONE, where a window has no such step; `next_observation` [count] is the view after
        its last. Where an episode began within the burn-in, the places before its first step are masked and the last
        of them ends (TRUNCATED), so that the recurrent state is reset at that step. `state` and `version` are those of
        the first step.
        """
        with self._lock:
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
            ids = rows | (self._columns["overwrites"][rows].astype(np.int64) << ROW_BITS)
        return batch, np.where(mask, ids, NONE)[window.burn_in :]

    def update_priorities(self, ids: Array, priorities: Array | None) -> None:
        """Give sampled steps the learner's priorities; None: the algorithm has none.

        Of windows there is one number each, for all steps learned in it. A step that was overwritten since it was
        sampled is left out, so that the new step in its row keeps its own priority.
        """
        if priorities is None:
            return
        if ids.ndim == 2:
            there = ids != NONE
            ids, priorities = ids[there], np.broadcast_to(priorities, there.shape)[there]
        with self._lock:
            self.sampler.update_priorities(*current_rows(ids, priorities, self._rows.memory[2]))

    @property
    def ready(self) -> bool:
        """Whether anything can be sampled."""
        return len(self.sampler) > 0

    def flow(self) -> dict[str, float]:
        """How full the table is."""
        return {"rows": min(self.written, self.capacity), "capacity": self.capacity, "inserted": self.steps}

    def save(self) -> Tree:
        """Everything as it is now, for a checkpoint. The rows are copied when the tree is packed, by whichever thread
        packs it; until then the table copies those that it is about to change."""
        with self._lock:
            if self._snapshot is not None:
                np.asarray(self._snapshot)  # one at a time
            self._snapshot = Snapshot(self._rows.memory[2], min(self.written, self.capacity), self._lock)
            return {
                "rows": self._snapshot,
                "layout": str(self._rows.layout),
                "written": self.written,
                "steps": self.steps,
                "episodes": self._episodes,
                "tail": self._tail.copy(),
                "sampler": self.sampler.save(),
                "remover": self.remover.save(),
            }

    def load(self, state: Tree) -> None:
        """Back to what `save` gave, in a table of the same capacity and parts."""
        if state["layout"] != str(self._rows.layout):
            raise ValueError(f"its rows are {state['layout']}, and {self._rows.layout} here")
        rows = np.asarray(state["rows"])
        with self._lock:
            self._rows.memory[2][: len(rows)] = rows
            self.written, self.steps, self._episodes = state["written"], state["steps"], state["episodes"]
            self.widen(len(state["tail"]))
            self._tail[: len(state["tail"])] = state["tail"]
            self.sampler.load(state["sampler"])
            self.remover.load(state["remover"])

    def _claim(self, count: int, streams: Array) -> Array:
        """Rows for `count` new steps of these streams; the steps that were there are removed."""
        rows = self.remover.claim(count, self._removal_priorities)
        if self._snapshot is not None:
            self._about_to_change(self._changed_by(rows, streams))
        if self.written + count > self.capacity:
            gone = unlink(self._rows.memory, self._tail, rows, self._frames)
            self.sampler.remove(gone if len(gone) == len(rows) else np.unique(gone))
        self.written += count
        return rows

    def _about_to_change(self, rows: Array) -> None:
        assert self._snapshot is not None
        self._snapshot.about_to_change(rows)
        if not self._snapshot.rows_left():
            self._snapshot = None

    def _changed_by(self, rows: Array, streams: Array) -> Array:
        """Every row that changes when new steps of these streams are written to `rows`."""
        columns = self._columns
        found = np.concatenate([rows, self._tail[streams], columns["previous"][rows], columns["next"][rows]])
        there: Array = found[found != NONE]
        return there

    def _removal_priorities(self) -> Array:
        """The priority of each row; infinite where another row depends on it."""
        columns, sampler = self._columns, self.sampler
        assert isinstance(sampler, Prioritised)
        needed = (columns["waits"] != NONE) | ((columns["ending"] == FINAL) & (columns["previous"] != NONE))
        return np.where(needed, np.inf, sampler.priorities())

    def _write_steps(self, steps: Steps, rows: Array) -> None:
        """What was seen and done; `_link` writes the rest."""
        values: dict[str, Any] = {leaf: steps.observation[leaf] for leaf in self._leaves}
        values["action"] = steps.action
        if steps.episode is not None:
            values |= {"episode": steps.episode, "position": steps.position}
        self._write(rows, values, steps.legal, steps.state)

    def _write_finals(self, steps: Steps, rows: Array) -> None:
        """What was seen after the steps that were cut."""
        cut = steps.ending[steps.final] != TERMINATED
        legal = None if steps.final_legal is None else steps.final_legal[cut]
        state = None if steps.final_state is None else steps.final_state[cut]
        self._write(rows, {leaf: steps.final_observation[leaf][cut] for leaf in self._leaves}, legal, state)

    def _write(self, rows: Array, values: dict[str, Any], legal: Array | None, state: Array | None) -> None:
        if self._masks:
            values["legal"] = True if legal is None else legal
        if self._states:
            values["state"] = 0.0 if state is None else state
        where: Any = slice(rows[0], rows[-1] + 1) if self.remover.contiguous else rows
        for name, value in values.items():
            self._columns[name][where] = value

    def _link(self, steps: Steps, rows: Array, finals: Array) -> None:
        """Link each step to the one before it in its stream, where that still is in the table."""
        new = (
            np.ascontiguousarray(steps.stream, np.int64),
            np.ascontiguousarray(steps.reward, np.float32),
            np.ascontiguousarray(steps.ending, np.uint8),
            _NO_LOGP if steps.behaviour_logp is None else np.ascontiguousarray(steps.behaviour_logp, np.float32),
            finals,
            steps.uploader,
            steps.version,
            steps.source,
        )
        episode = self._episodes if steps.episode is None else NONE
        ready, episode = link(self._rows.memory, self._tail, rows, new, episode, self._frames)
        if episode != NONE:
            self._episodes = episode
        if len(ready):
            label = self.sampler.label
            self.sampler.add(ready, None if label is None else self._columns[label][ready])

    def _draw(self, count: int, rng: Generator) -> Drawn:
        if not len(self.sampler):
            raise TrainingStopped("no step of it can be sampled yet", where="replay table", do="Insert more steps")
        drawn = self.sampler.draw(count, rng)
        if self._uploader_share >= 1.0:
            return drawn
        return limit_uploaders(self.sampler, drawn, self._columns["uploader"], self._uploader_share, rng)

    def _views(self, rows: Array) -> Mapping[str, Array]:
        """What was seen at rows; in stacks where the game shows single frames."""
        if self._frames == 1:
            return {leaf: self._columns[leaf][rows] for leaf in self._leaves}
        found = frames(self._columns, rows, self._frames).T
        return {
            leaf.name: self._columns[leaf.name][found].reshape(len(rows), *leaf.stacked(self._frames))
            for leaf in self._seat.observation
        }


def open_table(
    seat: SeatSpec, config: ReplayConfig, *, streams: int, masks: bool, frame_stack: int = 1, state_numbers: int = 0
) -> Table:
    """The table that `config` describes; ConfigError where its parts do not go together.

    `state_numbers` is the size of the recurrent state (`wire.network.state_width`), 0 without one.
    """
    _check_numbers(config)
    rows = capacity(seat, config, masks=masks, state_numbers=state_numbers)
    return Table(
        seat,
        rows,
        streams=streams,
        masks=masks,
        sampler=_sampler(config, rows),
        remover=_remover(config, rows),
        frame_stack=frame_stack,
        uploader_share=config.uploader_share,
        state_numbers=state_numbers,
    )


def capacity(seat: SeatSpec, config: ReplayConfig, *, masks: bool, state_numbers: int = 0) -> int:
    """Rows that fit both limits; without a limit in bytes, half of the machine's memory is one."""
    size = row_layout(seat, masks=masks, state_numbers=state_numbers).itemsize
    limit = config.capacity_bytes or machine_bytes() // 2
    if limit < 2 * size:
        wrong = f"capacity_bytes = {limit}, and one step takes {size}"
        do = "Give it room for some thousands of steps, or set 0 for half of the machine's memory"
        raise ConfigError(wrong, where="[replay]", do=do)
    rows = min(config.capacity_steps, limit // size)
    if rows < config.capacity_steps and not config.capacity_bytes:
        log.warning(
            "The replay table holds %d steps instead of %d: a step takes %d bytes, and the table at most half of the "
            "machine's memory. Set replay.capacity_steps or replay.capacity_bytes",
            rows,
            config.capacity_steps,
            size,
        )
    return rows


def _check_numbers(config: ReplayConfig) -> None:
    if not 0.0 < config.uploader_share <= 1.0:
        do = "Set it above 0, and to 1 at most"
        raise ConfigError(f"uploader_share = {config.uploader_share:g}", where="[replay]", do=do)
    if config.capacity_steps < 2 or config.importance_samples < 0:
        wrong = f"capacity_steps = {config.capacity_steps}, importance_samples = {config.importance_samples}"
        do = "Hold at least 2 steps, better some thousands, and count samples from 0"
        raise ConfigError(wrong, where="[replay]", do=do)
    if not (0.0 <= config.priority_exponent <= 1.0 and 0.0 <= config.importance_exponent <= 1.0):
        raise ConfigError(
            f"priority_exponent = {config.priority_exponent:g}, importance_exponent = {config.importance_exponent:g}",
            where="[replay]",
            do="Set both between 0 and 1",
        )


def source_shares(config: ReplayConfig) -> Mapping[int, float]:
    """`replay.source_shares` by the numbers of the sources; all the same where it is empty."""
    if not config.source_shares:
        return dict.fromkeys(range(len(SOURCES)), 1.0)
    shares: dict[int, float] = {}
    for text in config.source_shares:
        name, _, number = text.partition("=")
        try:
            shares[SOURCES.index(name.strip())] = share = float(number)
        except ValueError:
            share = 0.0
        if not 0.0 < share < float("inf"):
            do = f'Write "play=0.5"; the sources are {", ".join(SOURCES)}'
            raise ConfigError(f"source_shares holds {text!r}", where="[replay]", do=do)
    return shares


def check_sources(config: ReplayConfig, *, records: bool) -> None:
    """ConfigError where no inserted step could ever be sampled: the learner would wait for ever.

    `records`: the store feeds the table too. Otherwise all steps are played by the run itself.
    """
    if config.sampler == "by-source" and not records and SOURCES.index("selfplay") not in source_shares(config):
        wrong = f"source_shares = {list(config.source_shares)} leaves out selfplay, and nothing else comes"
        raise ConfigError(wrong, where="[replay]", do="Give selfplay a share, or learn with --from mix")


def _sampler(config: ReplayConfig, rows: int) -> Sampler:
    match config.sampler:
        case "uniform":
            return Uniform(rows)
        case "prioritised":
            return Prioritised(rows, config.priority_exponent, config.importance_exponent, config.importance_samples)
        case "newest":
            return Newest(rows)
        case "by-episode":
            return ByEpisode(rows)
        case "by-source":
            return BySource(rows, source_shares(config))


def _remover(config: ReplayConfig, rows: int) -> Remover:
    if config.remover == "fifo":
        return Fifo(rows)
    if config.sampler != "prioritised":
        wrong = f"remover = 'lowest-priority' with sampler = {config.sampler!r}, which has no priorities"
        raise ConfigError(wrong, where="[replay]", do="Use sampler = 'prioritised', or remover = 'fifo'")
    return LowestPriority(rows)
