"""One seat as it is played over the socket, turned into chunks. No I/O.

A step's reward comes with the next view, so a step is whole only then; a chunk is cut when its last
step is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparring.errors import ChunkRefused
from sparring.games.spec import GameSpec
from sparring.gateway.inference import Decision
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_STEPS, Array, Chunk, Ending, Header
from sparring.wire.ids import PlayerId
from sparring.wire.messages import Start


@dataclass(slots=True)
class _Step:
    observation: Mapping[str, Array]
    legal: Array | None
    tick: int
    decision: Decision
    reward: float = 0.0

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Steps of one chunk share their actor and their columns."""
        return self.decision.actor, self.legal is not None, self.decision.logp is not None


class SeatRecorder:
    """An open seat. Give it what was seen, chosen and earned; it gives back chunks that are ready to be kept."""

    def __init__(self, spec: GameSpec, start: Start, sample_rate: float, recorded: bool) -> None:
        self.spec, self.start, self.recorded = spec, start, recorded
        self._rate = sample_rate
        self._steps: list[_Step] = []
        self._first = 0  # of the steps held, counted in the seat's decisions
        self._tick = -1
        size = sum(
            int(np.prod(leaf.shape, dtype=int)) * np.dtype(leaf.dtype).itemsize
            for leaf in spec.seats[start.seat].observation
        )
        self._most = max(1, min(MAX_STEPS, MAX_ENCODED_BYTES // 2 // max(1, size)))

    def earned(self, reward: float, tick: int) -> None:
        """What came since the last decision; ChunkRefused where there was none to earn it, or time ran backwards."""
        if tick <= self._tick:
            raise _refused("tick", tick, self._tick, "the game's clock did not rise")
        self._earn(reward)
        self._tick = tick

    def chose(self, observation: Mapping[str, Array], legal: Array | None, decision: Decision) -> list[Chunk]:
        """The seat's next step; the steps before it, where they make a whole chunk."""
        if not self.recorded:
            return []
        step = _Step(observation, legal, self._tick, decision)
        ready = []
        if self._steps and (len(self._steps) >= self._most or self._steps[0].kind != step.kind):
            ready.append(self._cut("running", None, {}))
        self._steps.append(step)
        return ready

    def end(self, final: Mapping[str, Array], reward: float, terminated: bool, outcome: float | None) -> list[Chunk]:
        """The last chunk."""
        self._earn(reward)
        if not self._steps or not self.recorded:
            return []
        last = {f"final_{name}": value for name, value in final.items()}
        return [self._cut("terminated" if terminated else "truncated", outcome, last)]

    def leave(self) -> list[Chunk]:
        """The socket closed: what is whole is kept, and the episode stays without an end."""
        self._steps = self._steps[:-1]  # nobody knows what its last decision earned
        return [self._cut("running", None, {})] if self._steps and self.recorded else []

    def _earn(self, reward: float) -> None:
        if not np.isfinite(reward):
            raise _refused("reward", str(reward), "a finite number", "it is no number")
        if self._tick < 0 and reward:
            raise _refused("reward", reward, 0, "nothing was decided yet that could earn it")
        if self._steps:
            self._steps[-1].reward = reward

    def _cut(self, ending: Ending, outcome: float | None, final: Mapping[str, Array]) -> Chunk:
        steps, self._steps = self._steps, []
        seat, start = self.spec.seats[self.start.seat], self.start
        columns: dict[str, Array] = {
            leaf.name: np.stack([step.observation[leaf.name] for step in steps]) for leaf in seat.observation
        }
        columns["action"] = np.array([step.decision.action for step in steps], seat.action.dtype)
        columns["reward"] = np.array([step.reward for step in steps], np.float32)
        columns["tick"] = np.array([step.tick for step in steps], np.int64)
        if (masks := [step.legal for step in steps if step.legal is not None]) and len(masks) == len(steps):
            columns["legal"] = np.stack(masks)
        if (logps := [step.decision.logp for step in steps if step.decision.logp is not None]) and len(logps) == len(
            steps
        ):
            columns["behaviour_logp"] = np.array(logps, np.float32)
        if (state := steps[0].decision.before) is not None:
            columns["state/state"] = state
        header = Header(
            game=self.spec.id,
            version=self.spec.version,
            spec=self.spec.hash,
            episode=start.episode,
            seat=start.seat,
            first_step=self._first,
            steps=len(steps),
            player=None if start.player is None else PlayerId(start.player),
            actor=steps[0].decision.actor,
            source="play",
            sample_rate=self._rate,
            ending=ending,
            outcome=outcome,
            seed=start.seed,
        )
        self._first += len(steps)
        return Chunk(header, {**columns, **final})


def _refused(field: str, value: object, limit: object, wrong: str) -> ChunkRefused:
    do = "Mend the message and send it again"
    return ChunkRefused(wrong, where=f"play, {field}", do=do, field=field, value=value, limit=limit)
