"""What actors played, in the slots of a ring buffer: rollouts, or blocks of steps for a replay table.

A rollout is what one actor played with one version of the weights. A block is what its games closed in some ticks, each
tick's steps together, as `Actor.step` gave them (single frames, at most one step of each stream). Both come with the
games that ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.acting.actor import NO_EPISODES, Actor, Episodes
from sparring.acting.rollout import FINAL, STATES, rollout_layout
from sparring.games.spec import SeatSpec
from sparring.learn.actors.shared_memory import RingBuffer
from sparring.nets.shapes import state_width
from sparring.replay.steps import Batch, Steps
from sparring.wire.chunk import Array

if TYPE_CHECKING:
    from sparring.learn.actors.actor_spec import ActorSpec

_NEXT = "next/"
_ROLLOUT_HEAD = ("version", "env_steps", "games", "ended", "masks")
_BY_ACTOR = ("head", "returns", "against")
_BY_STREAM = ("length", *STATES)  # beside what is seen next; every other column of a rollout is [time, stream, …]
_OPTIONAL = ("legal", "behaviour_logp", "value", "state", "priority", "final_legal", "final_state")
_BLOCK_HEAD = ("version", "env_steps", "games", "ended", "ticks", *_OPTIONAL)


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """What was taken out of slots."""

    batch: Batch
    episodes: Episodes
    env_steps: int
    games: int  # that ended
    version: int  # the oldest of the actors'


def joined_episodes(parts: Iterable[Episodes]) -> Episodes:
    """The games of all parts, in their order."""
    all_parts = [NO_EPISODES, *parts]
    return Episodes(*(np.concatenate([getattr(one, name) for one in all_parts]) for name in Episodes.__slots__))


@dataclass(frozen=True, slots=True)
class StepBlock:
    """What was taken out of a slot; it looks at shared memory, and is good until the slot is released."""

    steps: Steps  # of all ticks
    episodes: Episodes
    env_steps: int
    games: int  # that ended
    version: int


class RolloutRing(RingBuffer):
    """The writer's and the reader's side of a ring of rollouts."""

    def __init__(self, spec: "ActorSpec", descriptor: int | None = None) -> None:
        seat, self._ticks, streams = spec.played.seats[0], spec.ticks, spec.streams
        stack, most = spec.spec.frame_stack, spec.ticks * spec.streams  # games cannot end more often
        layout = rollout_layout(
            seat,
            spec.ticks,
            streams,
            masks=seat.action.masks > 0,
            frame_stack=stack,
            network=spec.network,
            searches=spec.search is not None,
        )
        for leaf in seat.observation:
            layout[_NEXT + leaf.name] = (leaf.dtype, (streams, *leaf.stacked(stack)))
        layout["length"] = ("int64", (streams,))
        layout["head"] = ("int64", (1, len(_ROLLOUT_HEAD)))
        layout["returns"], layout["against"] = ("float32", (1, most)), ("bool", (1, most))
        super().__init__(layout, spec.slots, descriptor)

    def play(self, actor: Actor, version: int, epsilon: float) -> None:
        """Let the actor write one rollout, with the games that ended, and hand it over. There must be room."""
        before = (actor.env_steps, actor.episodes)
        self.hand_over(actor, actor.rollout(self._ticks, self.places(actor), epsilon), version, before)

    def places(self, actor: Actor) -> dict[str, Array]:
        """Where the actor's next rollout is written. There must be room."""
        beside = {*_BY_ACTOR, "length"} | (set() if actor.masks else {"legal"})
        return {
            name: column
            for name, column in self.to_write().items()
            if name not in beside and not name.startswith(_NEXT)
        }

    def hand_over(self, actor: Actor, batch: Batch, version: int, before: tuple[int, int]) -> None:
        """Commit the batch, which was written into its places; `before` it the actor had so many steps and games."""
        columns, mask = self.to_write(), batch.mask
        for name, seen in batch.next_observation.items():
            columns[_NEXT + name][:] = seen
        columns["length"][:] = self._ticks if mask is None else mask.sum(axis=0)
        ended = actor.ended()
        count = len(ended.returns)
        columns["returns"][0, :count], columns["against"][0, :count] = ended.returns, ended.against_others
        env_steps, games = actor.env_steps - before[0], actor.episodes - before[1]
        columns["head"][0] = (version, env_steps, games, count, actor.masks)
        self.commit()

    def take_columns(self) -> dict[str, Array]:
        """The oldest rollout that waits, as `played` reads it, in arrays of its own; its slot is released."""
        taken = {name: column.copy() for name, column in self.to_read().items()}
        self.release()
        return taken


def played(columns: Mapping[str, Array]) -> PlayedRollout:
    """What the columns of a slot hold, of one actor, or of several side by side."""
    head = {name: columns["head"][:, i] for i, name in enumerate(_ROLLOUT_HEAD)}
    length = columns["length"]
    most = max(1, int(length.max()))
    returns, against = (
        np.concatenate([column[:ended] for column, ended in zip(columns[name], head["ended"], strict=True)])
        for name in ("returns", "against")
    )
    seen = [name for name in columns if name.startswith("observation/")]
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
        policy_target=columns["policy_target"][:most] if "policy_target" in columns else None,
        final_observation={name: columns[FINAL + name][:most] for name in seen if FINAL + name in columns} or None,
        mask=np.ones((most, len(length)), bool) if full else np.arange(most)[:, None] < length,
        state=columns.get("state"),
        next_state=columns.get("next_state"),
        version=np.repeat(head["version"], len(length) // len(columns["head"])),
    )
    return PlayedRollout(
        batch,
        Episodes(returns, against),
        int(head["env_steps"].sum()),
        int(head["games"].sum()),
        int(head["version"].min()),
    )


def side_by_side(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The rollouts of several actors as one, along the stream axis."""
    whole: dict[str, Array] = {}
    for name in parts[0]:
        by_row = name in _BY_ACTOR or name in _BY_STREAM or name.startswith(_NEXT)
        whole[name] = np.concatenate([part[name] for part in parts], axis=0 if by_row else 1)
    return whole


class StepBlockRing(RingBuffer):
    """The writer's and the reader's side of a ring of blocks."""

    def __init__(self, spec: "ActorSpec", descriptor: int | None = None) -> None:
        seat, memory, rows = spec.played.seats[0], state_width(spec.network), spec.ticks * spec.streams
        layout: dict[str, tuple[str, tuple[int, ...]]] = {
            "head": ("int64", (len(_BLOCK_HEAD),)),
            "counts": ("int64", (2, spec.ticks)),  # steps and final ones of each tick
            **dict.fromkeys(("stream", "final"), ("int64", (rows,))),
            "action": (seat.action.dtype, (rows, *seat.action.shape)),
            "ending": ("uint8", (rows,)),
            "against": ("bool", (rows,)),
            **dict.fromkeys(("returns", "reward", "behaviour_logp", "value", "priority"), ("float32", (rows,))),
            **dict.fromkeys(("legal", "final_legal"), ("bool", (rows, seat.action.masks))),
            **dict.fromkeys(("state", "final_state"), ("float32", (rows, memory))),
        }
        for leaf in seat.observation:
            layout[leaf.name] = layout[FINAL + leaf.name] = (leaf.dtype, (rows, *leaf.shape))
        super().__init__(layout, spec.slots, descriptor)

    def write(self, ticks: Iterable[Steps], ended: Episodes, *, version: int, env_steps: int, games: int) -> None:
        """Hand over what the ticks of a block closed, or fewer, and the games that ended. There must be room."""
        columns = self.to_write()
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
                columns[FINAL + name][finals] = column
            row, final_row = rows.stop, finals.stop
        count = len(ended.returns)
        columns["returns"][:count], columns["against"][:count] = ended.returns, ended.against_others
        columns["head"][:] = (version, env_steps, games, count, tick, *(there[name] for name in _OPTIONAL))
        self.commit()

    def take_columns(self) -> dict[str, Array]:
        """The oldest block that waits as `joined` reads it, in arrays no longer than need be; its slot is released."""
        columns = self.to_read()
        head = dict(zip(_BLOCK_HEAD, columns["head"].tolist(), strict=True))
        rows, finals = columns["counts"][:, : head["ticks"]].sum(axis=1).tolist()
        taken = {name: columns[name].copy() for name in ("head", "counts")}
        for name, column in columns.items():
            if name in ("returns", "against"):
                taken[name] = column[: head["ended"]].copy()
            elif name not in taken and head.get(name, 1):
                taken[name] = column[: finals if name.startswith("final") else rows].copy()
        self.release()
        return taken


def joined(columns: Mapping[str, Array], seat: SeatSpec) -> StepBlock:
    """The block in a slot's columns, the steps of all ticks as one."""
    head = dict(zip(_BLOCK_HEAD, columns["head"].tolist(), strict=True))
    counts, final_counts = columns["counts"][:, : head["ticks"]]
    rows, finals = slice(0, int(counts.sum())), slice(0, int(final_counts.sum()))
    first = np.cumsum(counts) - counts  # of each tick
    seen = [leaf.name for leaf in seat.observation]
    optional: dict[str, Any] = {
        name: columns[name][finals if name.startswith("final") else rows] if head[name] else None for name in _OPTIONAL
    }
    steps = Steps(
        stream=columns["stream"][rows],
        observation={name: columns[name][rows] for name in seen},
        action=columns["action"][rows],
        reward=columns["reward"][rows],
        ending=columns["ending"][rows],
        final=columns["final"][finals] + np.repeat(first, final_counts),
        final_observation={name: columns[FINAL + name][finals] for name in seen},
        version=head["version"],
        **optional,
    )
    ended = Episodes(columns["returns"][: head["ended"]], columns["against"][: head["ended"]])
    return StepBlock(steps, ended, head["env_steps"], head["games"], head["version"])
