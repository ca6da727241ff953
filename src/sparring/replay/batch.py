"""What a learner is fed."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparring.wire.chunk import Array


@dataclass(frozen=True, slots=True)
class Batch:
    """What a learner is fed. Leading axes: [batch] for transitions, [time, batch] for trajectories.

    Transitions: `next_observation` is what the seat saw `n_steps` decisions later, `reward` their
    discounted sum. Trajectories: `next_observation` has one row per sequence, the view after its last step.
    A missing column is None, never zeros.
    """

    observation: Mapping[str, Array]
    action: Array
    reward: Array  # float32
    ending: Array  # uint8: RUNNING, TERMINATED, TRUNCATED after this step (of the last, in an n-step one)
    next_observation: Mapping[str, Array]
    legal: Array | None = None
    next_legal: Array | None = None
    behaviour_logp: Array | None = None
    value: Array | None = None  # what the actor's own value head said, trajectories only
    truncation_value: Array | None = None  # [time, batch]: value of the view at which a step was cut short
    n_steps: Array | None = None
    weight: Array | None = None  # importance of each sample; None: all the same
    mask: Array | None = None  # False: padding
    state: Array | None = None  # float32 [batch, numbers]: what a memory held at the first step of each sequence
    next_state: Array | None = None  # float32 [batch, numbers]: the same when `next_observation` was seen; trajectories
    version: Array | None = None  # int64 [batch]: the learner's updates when each was played; None: all are fresh
    records: "Batch | None" = None  # transitions from the store, beside trajectories
