"""Rollouts in the slots of a ring buffer: what each actor played with one version of the weights, and games that ended.

The slots of all writers lie side by side along the stream axis: writer k writes streams [k · streams, (k + 1) ·
streams), so that what n synchronous actors played is one batch without a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparring.acting.actor import Actor, Episodes
from sparring.acting.rollout import STATES, rollout_layout
from sparring.games.spec import SeatSpec
from sparring.learn.actors.shared_memory import RingBuffer
from sparring.learn.protocol import Batch
from sparring.wire.chunk import Array

_NEXT = "next/"
_HEAD = ("version", "env_steps", "games", "ended", "masks")
_BY_WRITER = ("head", "returns", "against")
_BY_STREAM = ("length", *STATES)  # beside what is seen next; every other column is [time, stream, …]


@dataclass(frozen=True, slots=True)
class RolloutShape:
    """What both sides must know to see the same columns."""

    seat: SeatSpec
    ticks: int
    streams: int  # of one writer
    frame_stack: int = 1
    memory: int = 0  # numbers of a recurrent network's state
    slots: int = 2
    writers: int = 1


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """What was taken out of a slot. The batch looks at shared memory: it is good until the slot is released."""

    batch: Batch
    episodes: Episodes
    env_steps: int
    games: int  # that ended
    version: int  # the oldest of the writers'


class RolloutRing:
    """The writer's and the reader's side of a ring of rollouts."""

    def __init__(self, shape: RolloutShape, descriptor: int | None = None) -> None:
        self.shape = shape
        all_streams, seat = shape.streams * shape.writers, shape.seat
        most = shape.ticks * shape.streams  # games cannot end more often
        masks = seat.action.masks > 0
        layout = rollout_layout(
            seat, shape.ticks, all_streams, masks=masks, frame_stack=shape.frame_stack, memory=shape.memory
        )
        layout |= {
            _NEXT + leaf.name: (leaf.dtype, (all_streams, *leaf.stacked(shape.frame_stack)))
            for leaf in seat.observation
        }
        layout["length"] = ("int64", (all_streams,))
        layout["head"] = ("int64", (shape.writers, len(_HEAD)))
        layout["returns"] = ("float32", (shape.writers, most))
        layout["against"] = ("bool", (shape.writers, most))
        self.ring = RingBuffer(layout, shape.slots, shape.writers, descriptor)

    def play(self, actor: Actor, version: int, writer: int = 0) -> None:
        """Let the actor write one rollout, with the games that ended, and hand it over. There must be room."""
        slot = self.open_slot(actor, writer)
        slot.commit(actor.rollout(self.shape.ticks, slot.places), version)

    def open_slot(self, actor: Actor, writer: int = 0) -> "RolloutSlot":
        """Where the actor's next rollout is written. There must be room."""
        return RolloutSlot(self, self._columns_of(self.ring.to_write(writer), writer), actor, writer)

    def take(self, writer: int = 0) -> PlayedRollout:
        """The oldest rollout of one writer that waits."""
        return played(self._columns_of(self.ring.to_read(writer), writer, keep_axis=True), self.shape.seat)

    def take_columns(self) -> dict[str, Array]:
        """The oldest rollout that waits in a ring of one writer, as `played` reads it, in arrays of its own."""
        return {name: column.copy() for name, column in self.ring.to_read().items()}

    def take_all(self) -> PlayedRollout:
        """The oldest rollouts of all writers, which must all have one, as one batch along the stream axis."""
        return played(self.ring.to_read(), self.shape.seat)

    def _columns_of(self, columns: dict[str, Array], writer: int, *, keep_axis: bool = False) -> dict[str, Array]:
        if self.shape.writers == 1 and keep_axis:
            return columns
        first = writer * self.shape.streams
        streams = slice(first, first + self.shape.streams)
        mine: dict[str, Array] = {}
        for name, column in columns.items():
            if name in _BY_WRITER:
                mine[name] = column[writer : writer + 1] if keep_axis else column[writer]
            elif name in _BY_STREAM or name.startswith(_NEXT):
                mine[name] = column[streams]
            else:
                mine[name] = column[:, streams]
        return mine


class RolloutSlot:
    """A rollout on its way into a ring."""

    def __init__(self, rollouts: RolloutRing, columns: dict[str, Array], actor: Actor, writer: int) -> None:
        self._rollouts, self._columns, self._actor, self._writer = rollouts, columns, actor, writer
        self._env_steps, self._games = actor.env_steps, actor.episodes
        self.places = {name: column for name, column in columns.items() if _is_rollout(name)}
        if not actor.masks:
            self.places.pop("legal", None)

    def commit(self, batch: Batch, version: int) -> None:
        """Hand it over: `batch` was written into its places."""
        columns, actor, mask = self._columns, self._actor, batch.mask
        for name, seen in batch.next_observation.items():
            columns[_NEXT + name][:] = seen
        columns["length"][:] = self._rollouts.shape.ticks if mask is None else mask.sum(axis=0)
        ended = actor.ended()
        count = len(ended.returns)
        columns["returns"][:count], columns["against"][:count] = ended.returns, ended.against_others
        env_steps, games = actor.env_steps - self._env_steps, actor.episodes - self._games
        columns["head"][:] = (version, env_steps, games, count, actor.masks)
        self._rollouts.ring.commit(self._writer)


def played(columns: Mapping[str, Array], seat: SeatSpec) -> PlayedRollout:
    """What the columns of a slot hold, all writers side by side."""
    head = {name: columns["head"][:, i] for i, name in enumerate(_HEAD)}
    length = columns["length"]
    most = max(1, int(length.max()))
    writers = range(len(columns["head"]))
    returns = [columns["returns"][writer, : head["ended"][writer]] for writer in writers]
    against = [columns["against"][writer, : head["ended"][writer]] for writer in writers]
    seen = [leaf.name for leaf in seat.observation]
    full = int(length.min()) == most  # every stream has every step: there is no padding
    batch = Batch(
        observation={name: columns[name][:most] for name in seen},
        action=columns["action"][:most],
        reward=columns["reward"][:most],
        ending=columns["ending"][:most],
        next_observation={name: columns[_NEXT + name] for name in seen},
        legal=columns["legal"][:most] if head["masks"].all() else None,
        behaviour_logp=columns["behaviour_logp"][:most],
        value=columns["value"][:most],
        truncation_value=columns["truncation_value"][:most],
        mask=np.ones((most, len(length)), bool) if full else np.arange(most)[:, None] < length,
        state=columns.get("state"),
        next_state=columns.get("next_state"),
        version=np.repeat(head["version"], len(length) // len(writers)),
    )
    return PlayedRollout(
        batch,
        Episodes(np.concatenate(returns), np.concatenate(against)),
        int(head["env_steps"].sum()),
        int(head["games"].sum()),
        int(head["version"].min()),
    )


def side_by_side(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Slots of one writer each as one slot of as many writers."""
    whole: dict[str, Array] = {}
    for name in parts[0]:
        by_row = name in _BY_WRITER or name in _BY_STREAM or name.startswith(_NEXT)
        whole[name] = np.concatenate([part[name] for part in parts], axis=0 if by_row else 1)
    return whole


def _is_rollout(name: str) -> bool:
    return not name.startswith(_NEXT) and name not in _BY_WRITER and name != "length"
