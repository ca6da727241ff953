"""A rollout: the steps of every stream between two updates, side by side as [time, stream]."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparring.games.protocol import RUNNING, TRUNCATED
from sparring.games.spec import SeatSpec
from sparring.nets.shapes import state_width
from sparring.replay.steps import Batch, Steps
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec

Layout = dict[str, tuple[str, tuple[int, ...]]]  # column name → dtype and shape
STATES = ("state", "next_state")  # columns with one row for each stream, where there is a memory
FINAL = "final/"  # what was seen where a step was cut short: the leaf's name behind this


def rollout_layout(
    seat: SeatSpec,
    ticks: int,
    streams: int,
    *,
    masks: bool,
    frame_stack: int = 1,
    network: NetworkSpec,
    searches: bool = False,
) -> Layout:
    """The columns of a rollout, for those who allocate them (in shared memory).

    With a recurrent `network` come STATES; with one that has no value, by which a step that is cut short would be
    valued, comes what was seen then; where the actor `searches`, what the search made of the policy.
    """
    size = (ticks, streams)
    layout: Layout = {leaf.name: (leaf.dtype, (*size, *leaf.stacked(frame_stack))) for leaf in seat.observation}
    layout["action"] = (seat.action.dtype, (*size, *seat.action.shape))
    layout |= dict.fromkeys(("reward", "behaviour_logp", "value", "truncation_value"), ("float32", size))
    layout["ending"] = ("uint8", size)
    if masks:
        layout["legal"] = ("bool", (*size, seat.action.masks))
    if searches:
        layout["policy_target"] = ("float32", (*size, seat.action.masks))
    if memory := state_width(network):
        layout |= dict.fromkeys(STATES, ("float32", (streams, memory)))
    if not any(head.name == "value" for head in network.heads):
        layout |= {FINAL + leaf.name: layout[leaf.name] for leaf in seat.observation}
    return layout


def new_columns(layout: Layout) -> dict[str, Array]:
    """Columns of that layout: zeros, and everything legal."""
    columns = {name: np.zeros(shape, dtype) for name, (dtype, shape) in layout.items()}
    if "legal" in columns:
        columns["legal"].fill(True)
    return columns


class Rollout:
    """Columns that fill from the top, each stream at its own pace: who moves seldom has padding at the end.

    `columns` are those of a `rollout_layout`; where they are `used`, they may hold an older rollout.
    """

    def __init__(self, seat: SeatSpec, columns: Mapping[str, Array], *, used: bool) -> None:
        self._used = used
        seen = {leaf.name for leaf in seat.observation}
        self._observation = {name: column for name, column in columns.items() if name in seen}
        self._states = {name: columns[name] for name in STATES if name in columns}
        for column in self._states.values():
            column.fill(0.0)
        self._final = {name: columns[FINAL + name] for name in seen if FINAL + name in columns}
        apart = {*seen, *STATES, *(FINAL + name for name in seen)}
        self._columns = {name: column for name, column in columns.items() if name not in apart}
        self._columns["truncation_value"].fill(0.0)
        self._next = np.zeros(columns["reward"].shape[1], np.int64)  # where each stream goes on
        self._level: int | None = 0  # the same, where it is one place for all
        self._version: int | None = None  # of the first step

    def write(self, steps: Steps, truncation_value: Array | None) -> None:
        """Take the steps in. `truncation_value` is 0 for all but steps that were cut short; None: none was."""
        if self._version is None:
            self._version = steps.version
        if steps.state is not None and self._states:
            first = np.flatnonzero(self._next[steps.stream] == 0)
            self._states["state"][steps.stream[first]] = steps.state[first]
        place: Any = self._level
        if place is not None and len(steps) == len(self._next):  # a step of every stream, in their order: whole rows
            self._level = place + 1
            self._next += 1
        else:
            self._level, place = None, (self._next[steps.stream], steps.stream)
            self._next[steps.stream] += 1
        for name, column in self._observation.items():
            column[place] = steps.observation[name]
        for name, column in self._columns.items():
            given = truncation_value if name == "truncation_value" else getattr(steps, name)
            if given is not None:
                column[place] = given
        if self._final and len(steps.final):
            streams = steps.stream[steps.final]
            for name, column in self._final.items():
                column[self._next[streams] - 1, streams] = steps.final_observation[name]

    def cut(self, streams: Array, value: Array) -> None:
        """What those streams do next follows nothing: the last step of each was cut short, `value` being lost."""
        last = self._next[streams] - 1
        broken = (last >= 0) & (self._columns["ending"][last, streams] == RUNNING)
        place = (last[broken], streams[broken])
        self._columns["ending"][place] = TRUNCATED
        self._columns["truncation_value"][place] = value[broken]
        for name, column in self._final.items():
            column[place] = self._observation[name][place]  # what followed is lost: its last view stands for it

    def batch(self, next_observation: Mapping[str, Array], next_state: Array | None = None) -> Batch:
        """What was written, with what each stream sees next and what it remembers then."""
        if next_state is not None:
            self._states["next_state"][:] = next_state
        length = max(1, int(self._next.max()))
        if self._used:
            self._clear_padding()
        columns = {name: column[:length] for name, column in self._columns.items()}
        return Batch(
            observation={name: column[:length] for name, column in self._observation.items()},
            action=columns["action"],
            reward=columns["reward"],
            ending=columns["ending"],
            next_observation=next_observation,
            legal=columns.get("legal"),
            behaviour_logp=columns["behaviour_logp"],
            value=columns["value"],
            truncation_value=columns["truncation_value"],
            policy_target=columns.get("policy_target"),
            mask=np.arange(length)[:, None] < self._next,
            state=self._states.get("state"),
            next_state=self._states.get("next_state"),
            final_observation={name: column[:length] for name, column in self._final.items()} or None,
            version=np.full(len(self._next), self._version or 0, np.int64),
        )

    def _clear_padding(self) -> None:
        """As new columns have it: zeros, and everything legal."""
        ticks = len(self._columns["reward"])
        for stream in np.flatnonzero(self._next < ticks):
            for name, column in (*self._observation.items(), *self._columns.items()):
                column[self._next[stream] :, stream] = name == "legal"
