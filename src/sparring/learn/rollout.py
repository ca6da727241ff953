"""A rollout: the steps of every stream between two updates, side by side as [time, stream]."""

from collections.abc import Mapping

import numpy as np

from sparring.games.spec import SeatSpec
from sparring.learn.protocol import Batch
from sparring.replay.steps import Steps
from sparring.wire.chunk import Array


class Rollout:
    """Columns that fill from the top, each stream at its own pace: who moves seldom has padding at the end."""

    def __init__(self, seat: SeatSpec, ticks: int, streams: int, *, masks: bool, frame_stack: int = 1) -> None:
        size = (ticks, streams)
        self._observation = {
            leaf.name: np.zeros((*size, *leaf.stacked(frame_stack)), leaf.dtype) for leaf in seat.observation
        }
        self._columns: dict[str, Array] = {
            "action": np.zeros((*size, *seat.action.shape), seat.action.dtype),
            "reward": np.zeros(size, np.float32),
            "ending": np.zeros(size, np.uint8),
            "behaviour_logp": np.zeros(size, np.float32),
            "value": np.zeros(size, np.float32),
            "truncation_value": np.zeros(size, np.float32),
        }
        if masks:
            self._columns["legal"] = np.ones((*size, seat.action.masks), bool)
        self._next = np.zeros(streams, np.int64)  # where each stream goes on

    def write(self, steps: Steps, truncation_value: Array | None) -> None:
        """Take the steps in. `truncation_value` is 0 for all but steps that were cut short; None: none was."""
        place = (self._next[steps.stream], steps.stream)
        for name, column in self._observation.items():
            column[place] = steps.observation[name]
        for name, column in self._columns.items():
            given = truncation_value if name == "truncation_value" else getattr(steps, name)
            if given is not None:
                column[place] = given
        self._next[steps.stream] += 1

    def batch(self, next_observation: Mapping[str, Array]) -> Batch:
        """What was written, with what each stream sees next."""
        length = max(1, int(self._next.max()))
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
            mask=np.arange(length)[:, None] < self._next,
        )
