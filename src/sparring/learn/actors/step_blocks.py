"""Blocks of steps in the slots of a ring buffer: what one actor's games closed in some ticks, for a replay table.

Each tick's steps stay together, as `Actor.step` gave them (single frames, at most one step of each stream).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sparring.acting.actor import Episodes
from sparring.games.spec import SeatSpec
from sparring.learn.actors.shared_memory import RingBuffer
from sparring.replay.steps import Steps
from sparring.wire.chunk import Array

_FINAL = "final/"
_OPTIONAL = ("legal", "behaviour_logp", "value", "state", "priority", "final_legal", "final_state")
_HEAD = ("version", "env_steps", "games", "ended", "ticks", *_OPTIONAL)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What both sides must know to see the same columns."""

    seat: SeatSpec
    ticks: int  # of one block
    streams: int
    memory: int = 0
    slots: int = 4


@dataclass(frozen=True, slots=True)
class StepBlock:
    """What was taken out of a slot; it looks at shared memory, and is good until the slot is released."""

    steps: Steps  # of all ticks
    episodes: Episodes
    env_steps: int
    games: int  # that ended
    version: int


class StepBlockRing:
    """The writer's and the reader's side of a ring of blocks."""

    def __init__(self, shape: BlockShape, descriptor: int | None = None) -> None:
        self.shape, seat = shape, shape.seat
        rows = shape.ticks * shape.streams
        layout: dict[str, tuple[str, tuple[int, ...]]] = {
            "head": ("int64", (len(_HEAD),)),
            "counts": ("int64", (2, shape.ticks)),  # steps and final ones of each tick
            "stream": ("int64", (rows,)),
            "final": ("int64", (rows,)),
            "action": (seat.action.dtype, (rows, *seat.action.shape)),
            "ending": ("uint8", (rows,)),
            "returns": ("float32", (rows,)),
            "against": ("bool", (rows,)),
            **dict.fromkeys(("reward", "behaviour_logp", "value", "priority"), ("float32", (rows,))),
            **dict.fromkeys(("legal", "final_legal"), ("bool", (rows, seat.action.masks))),
            **dict.fromkeys(("state", "final_state"), ("float32", (rows, shape.memory))),
        }
        for leaf in seat.observation:
            layout[leaf.name] = layout[_FINAL + leaf.name] = (leaf.dtype, (rows, *leaf.shape))
        self.ring = RingBuffer(layout, shape.slots, descriptor=descriptor)

    def write(self, ticks: Iterable[Steps], ended: Episodes, *, version: int, env_steps: int, games: int) -> None:
        """Hand over what `shape.ticks` ticks at most closed, and the games that ended. There must be room."""
        columns = self.ring.to_write()
        counts, row, final_row, tick = columns["counts"], 0, 0, 0
        there = dict.fromkeys(_OPTIONAL, False)
        for tick, steps in enumerate(ticks, 1):
            rows = slice(row, row + len(steps))
            finals = slice(final_row, final_row + len(steps.final))
            counts[:, tick - 1] = len(steps), len(steps.final)
            columns["final"][finals] = steps.final
            for name in ("stream", "action", "reward", "ending", *_OPTIONAL):
                column = getattr(steps, name)
                if column is not None and len(steps):
                    there[name] = True
                    columns[name][finals if name.startswith("final") else rows] = column
            for name, column in steps.observation.items():
                columns[name][rows] = column
            for name, column in steps.final_observation.items():
                columns[_FINAL + name][finals] = column
            row, final_row = rows.stop, finals.stop
        count = len(ended.returns)
        columns["returns"][:count], columns["against"][:count] = ended.returns, ended.against_others
        columns["head"][:] = (version, env_steps, games, count, tick, *(there[name] for name in _OPTIONAL))
        self.ring.commit()

    def take(self) -> StepBlock:
        """The oldest block that waits."""
        return joined(self.ring.to_read(), self.shape.seat)

    def take_columns(self) -> dict[str, Array]:
        """The oldest block that waits as `joined` reads it, in arrays of its own and no longer than need be."""
        columns = self.ring.to_read()
        head = dict(zip(_HEAD, columns["head"].tolist(), strict=True))
        rows, finals = columns["counts"][:, : head["ticks"]].sum(axis=1).tolist()
        taken = {name: columns[name].copy() for name in ("head", "counts")}
        for name, column in columns.items():
            if name in ("returns", "against"):
                taken[name] = column[: head["ended"]].copy()
            elif name not in taken and head.get(name, 1):
                taken[name] = column[: finals if name.startswith("final") else rows].copy()
        return taken


def joined(columns: Mapping[str, Array], seat: SeatSpec) -> StepBlock:
    """The block in a slot's columns, the steps of all ticks as one."""
    head = dict(zip(_HEAD, columns["head"].tolist(), strict=True))
    counts, final_counts = columns["counts"][:, : head["ticks"]]
    rows, finals = slice(0, int(counts.sum())), slice(0, int(final_counts.sum()))
    first = np.cumsum(counts) - counts  # of each tick
    seen = [leaf.name for leaf in seat.observation]
    optional = {name: columns[name][finals if name.startswith("final") else rows] for name in _OPTIONAL if head[name]}
    steps = Steps(
        stream=columns["stream"][rows],
        observation={name: columns[name][rows] for name in seen},
        action=columns["action"][rows],
        reward=columns["reward"][rows],
        ending=columns["ending"][rows],
        final=columns["final"][finals] + np.repeat(first, final_counts),
        final_observation={name: columns[_FINAL + name][finals] for name in seen},
        version=head["version"],
        legal=optional.get("legal"),
        behaviour_logp=optional.get("behaviour_logp"),
        value=optional.get("value"),
        final_legal=optional.get("final_legal"),
        final_state=optional.get("final_state"),
        state=optional.get("state"),
        priority=optional.get("priority"),
    )
    ended = Episodes(columns["returns"][: head["ended"]], columns["against"][: head["ended"]])
    return StepBlock(steps, ended, head["env_steps"], head["games"], head["version"])
