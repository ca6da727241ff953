"""Steps on their way from whoever played them to whoever learns from them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparring.wire.chunk import Array

SOURCES = ("selfplay", "play", "collect", "node", "import")  # of wire/chunk.py, in a fixed order


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps whose reward is known by now, of any streams; those of one stream follow one another in their order.

    A stream is a seat of a game that an actor plays, or one chunk of the store, numbered from 0. `final` says
    which of these steps ended or have their successor elsewhere; `final_observation` what was seen after each.
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
    final_state: Array | None = None  # float32 [k, numbers]: what a memory held then
    state: Array | None = None  # float32 [m, numbers]: what a memory held when each step was decided
    priority: Array | None = None  # float32 [m]: the actor's own estimate; None: as the sampler begins
    version: int = 0  # the learner's updates that whoever played them knew of
    source: int = 0  # a place in SOURCES
    uploader: int = 0  # whoever sent them, numbered from 1; 0: played here
    episode: int | None = None  # its number, not negative; None: the table counts
    position: Array | None = None  # int64 [m], decisions since the episode began; None: the table counts

    def __len__(self) -> int:
        return len(self.reward)
