"""The steps that go into a table, and the batches that come out of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparring.wire.chunk import Array

SOURCES = ("selfplay", "play", "collect", "node", "import")  # of wire/chunk.py, in a fixed order


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps whose reward is known, of any streams; those of one stream are in their order.

    A stream is a seat of a game that an actor plays, or one chunk of the store, numbered from 0. `final` lists
    those of the steps that ended or whose successor is not inserted; `final_observation` what was seen after each.
    """

    stream: Array  # int64 [m]
    observation: Mapping[str, Array]  # [m, …]
    action: Array
    reward: Array  # float32 [m]
    ending: Array  # uint8 [m]
    legal: Array | None
    behaviour_logp: Array | None
    value: Array | None
    final: Array  # int64 [k]
    final_observation: Mapping[str, Array]  # [k, …]
    final_legal: Array | None = None
    final_state: Array | None = None  # float32 [k, numbers]: the recurrent state then
    state: Array | None = None  # float32 [m, numbers]: the recurrent state when each step was decided
    policy_target: Array | None = None  # float32 [m, choices]: what a search made of the policy
    priority: Array | None = None  # float32 [m]: the actor's own estimate; None: the sampler's initial priority
    version: int = 0  # the learner's updates behind the weights that played them
    source: int = 0  # an index into SOURCES
    uploader: int = 0  # who sent them, numbered from 1; 0: played by this run
    episode: int | None = None  # its number, not negative; None: the table counts
    position: Array | None = None  # int64 [m], decisions since the episode began; given with `episode`

    def __len__(self) -> int:
        return len(self.reward)


@dataclass(frozen=True, slots=True)
class Batch:
    """What an algorithm learns from. Leading axes: [batch] for transitions, [time, batch] for trajectories.

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
    value: Array | None = None  # of the actor's own value head, trajectories only
    policy_target: Array | None = None  # float32 [time, batch, choices]: what a search made of the policy; trajectories
    truncation_value: Array | None = None  # [time, batch]: value of the view at which a step was cut short
    final_observation: Mapping[str, Array] | None = None  # [time, batch, …]: what was seen where a step was cut short,
    # whatever stands in other rows; trajectories of a network without a value
    n_steps: Array | None = None
    weight: Array | None = None  # importance of each sample; None: all the same
    mask: Array | None = None  # False: padding
    state: Array | None = None  # float32 [batch, numbers]: the recurrent state at the first step of each sequence
    next_state: Array | None = None  # float32 [batch, numbers]: the same when `next_observation` was seen; trajectories
    version: Array | None = None  # int64 [batch]: the learner's updates when each was played; None: all are fresh
    records: "Batch | None" = None  # transitions from the store, beside trajectories


def machine_bytes() -> int:
    """The memory of this machine, or of the container that this process runs in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 33
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdigit() else whole
