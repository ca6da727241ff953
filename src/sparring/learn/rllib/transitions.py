"""What players did, as the rows that RLlib learns from: one for each step, with what was seen after it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.games.protocol import Columns
from sparring.learn.rllib.actions import Actions
from sparring.learn.rllib.flat_observation import Packing
from sparring.replay.steps import SOURCES
from sparring.wire.chunk import Array, Chunk

BLOCK_STEPS = 8_192
_FINAL = "final_"
# RLlib's names of its columns.
OBS, NEXT_OBS, ACTIONS, REWARDS, TERMINATEDS, TARGETS = (
    "obs",
    "new_obs",
    "actions",
    "rewards",
    "terminateds",
    "value_targets",
)
SOURCE, RECEIVED = "source", "received_at_ms"  # ours, for a model's lineage


@dataclass(frozen=True, slots=True)
class Telling:
    """How the records of one game are told to one algorithm; Ray's processes call it with a part's chunks."""

    spec: str  # the hash: a spec that was pickled has another, since msgspec leaves out defaults by identity
    frame_stack: int
    packing: Packing
    actions: Actions
    discount: float
    whole: bool  # only episodes that are there from their first step to their end
    reward_clip: float = 0.0

    def __call__(self, chunks: Iterator[Chunk]) -> Iterator[Any]:
        from ray.data.block import BlockAccessor

        held: list[Columns] = []
        count = 0
        for run in runs_of(chunks, self.spec):
            if (rows := self.rows(run)) is None:
                continue
            held.append(rows)
            count += len(rows[REWARDS])
            if count >= BLOCK_STEPS:
                yield BlockAccessor.batch_to_block(_joined(held))
                held, count = [], 0
        if held:
            yield BlockAccessor.batch_to_block(_joined(held))

    def rows(self, run: list[Chunk]) -> Columns | None:
        """The steps of consecutive chunks of one seat; None where nothing can be learned from them."""
        last = run[-1]
        ended, final = last.header.ending != "running", any(name.startswith(_FINAL) for name in last.columns)
        if self.whole and not (ended and run[0].header.first_step == 0):
            return None
        seen = {leaf: _column(run, leaf) for leaf in self.packing.names}
        legal = None if not self.packing.masks else _legal(run, self.packing.masks)
        after = {leaf: _after(last, leaf, column) for leaf, column in seen.items()}
        stacked = {leaf: _stacked(after[leaf], self.frame_stack) for leaf in seen}
        steps = len(legal) if legal is not None else len(next(iter(seen.values())))
        told = None if legal is None else np.concatenate([legal, np.ones_like(legal[:1])])
        rows = self.packing.packed(stacked, told)
        reward = _column(run, "reward").astype(np.float32)
        reward = np.clip(reward, -self.reward_clip, self.reward_clip) if self.reward_clip else reward
        terminated = np.zeros(steps, bool)
        terminated[-1] = last.header.ending == "terminated"
        columns = {
            OBS: rows[:-1],
            NEXT_OBS: rows[1:],
            ACTIONS: self.actions.from_game(_column(run, "action")),
            REWARDS: reward,
            TERMINATEDS: terminated,
            TARGETS: returns(reward, self.discount),
            SOURCE: np.concatenate([_said(chunk, SOURCES.index(chunk.header.source), np.uint8) for chunk in run]),
            RECEIVED: np.concatenate([_said(chunk, chunk.header.received_at_ms, np.int64) for chunk in run]),
        }
        if ended or final:
            return columns
        # What followed the last step was not recorded.
        return {name: column[:-1] for name, column in columns.items()} if steps > 1 else None


def runs_of(chunks: Iterable[Chunk], spec: str) -> Iterator[list[Chunk]]:
    """The chunks of each seat in each episode, in order, cut where one is missing; those of another spec left out."""
    by_seat: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in chunks:
        if chunk.header.spec == spec:
            by_seat.setdefault((chunk.header.episode, chunk.header.seat), []).append(chunk)
    for key in sorted(by_seat):
        run: list[Chunk] = []
        for chunk in sorted(by_seat[key], key=lambda chunk: chunk.header.first_step):
            if run and chunk.header.first_step != run[-1].header.first_step + run[-1].header.steps:
                yield run
                run = []
            run.append(chunk)
        yield run


def returns(reward: Array, discount: float) -> Array:
    """float32: what each step and all after it came to, discounted."""
    found = np.empty(len(reward), np.float64)
    later = 0.0
    for step in range(len(reward) - 1, -1, -1):
        later = float(reward[step]) + discount * later
        found[step] = later
    return found.astype(np.float32)


def _column(run: list[Chunk], name: str) -> Array:
    return np.concatenate([chunk.columns[name] for chunk in run])


def _legal(run: list[Chunk], choices: int) -> Array:
    return np.concatenate(
        [np.asarray(chunk.columns.get("legal", np.ones((chunk.header.steps, choices), np.uint8))) for chunk in run]
    )


def _after(last: Chunk, leaf: str, column: Array) -> Array:
    """The column with what was seen after its last step; nobody asks for that after a true end."""
    final = last.columns.get(f"{_FINAL}{leaf}", column[-1])
    return np.concatenate([column, np.asarray(final)[None]])


def _stacked(frames: Array, stack: int) -> Array:
    """[n, stack, …] as `Leaf.stacked` shapes it once flattened; the first frame is repeated before the first."""
    if stack == 1:
        return frames
    places = np.arange(len(frames))[:, None] + np.arange(-stack + 1, 1)
    return np.asarray(frames[np.maximum(places, 0)])


def _said(chunk: Chunk, value: int, dtype: type) -> Array:
    return np.full(chunk.header.steps, value, dtype)


def _joined(held: list[Columns]) -> Columns:
    return {name: np.concatenate([rows[name] for rows in held]) for name in held[0]}
