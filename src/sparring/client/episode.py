"""One seat of an episode: act, record, earn, end."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sparring.errors import Refused
from sparring.games.frame_stack import FrameStacks
from sparring.games.step_buffer import Behaviour, Rows, StepBuffer
from sparring.games.step_layout import StepLayout
from sparring.nets.chooser import Chooser, Decision
from sparring.wire.chunk import Array, Header

if TYPE_CHECKING:
    from sparring.client.connection import Connection


class Episode:
    """One seat of one episode. Its calls come from one thread at a time; episodes may live in several threads.

    `id` and `sample_rate` are what another connection needs to record another seat of the same episode.
    """

    def __init__(
        self,
        connection: "Connection",
        layout: StepLayout,
        header: Header,
        actor: str,
        buffer: StepBuffer | None,
        chooser: Chooser | None,
    ) -> None:
        """`buffer` is None where the steps are not recorded, `chooser` where this process holds no model."""
        self.id, self.sample_rate, self.seat = header.episode, header.sample_rate, header.seat
        self.steps = 0  # decisions given to record()
        self._connection, self._layout, self._buffer, self._chooser = connection, layout, buffer, chooser
        self._actor = actor
        self._decision: Decision | None = None
        self._last: Decision | None = None  # the last one by a recurrent model, whose state goes on
        self._legal: Any = None
        self._stacks = FrameStacks(layout.seat, layout.frame_stack, 1)  # of this seat's decisions
        self._ended = False

    @property
    def recorded(self) -> bool:
        """Whether the steps of this episode are kept: the gateway asked for it, and memory sufficed."""
        return self._buffer is not None and not self._buffer.lost

    def act(self, observation: Any, legal: Any = None) -> Any:
        """An action for `observation`, by the model that this episode began with; random where there is none yet.

        A recurrent model's state and stacks of frames advance with each call: ask once for each decision.
        """
        seen = self._stacks.push(self._read(observation))
        leaves = {name: row[0] for name, row in seen.items()}
        mask = None if legal is None else self._layout.checked_legal(legal)
        self._decision = self._connection.decide(self.seat, self._layout.seat, self._chooser, leaves, mask, self._last)
        if self._decision.state_after is not None:
            self._last = self._decision
        self._legal = mask
        return self._decision.action

    def record(
        self,
        observation: Any,
        action: Any,
        reward: float = 0.0,
        *,
        tick: int | None = None,
        legal: Any = None,
        logp: float | None = None,
    ) -> None:
        """One decision: what the seat saw, what it did, and what it has earned by it so far.

        Returns at once; ChunkRefused where the step breaks the game's spec, and then nothing was recorded.
        An action equal to the one that act() just chose is the model's, with its log-probability.
        """
        decision, actor, state = self._decision, self._actor, None
        if legal is None:
            legal = self._legal
        if decision is not None and _same(decision.action, action):
            actor, state = decision.actor, decision.state_before
            if logp is None:
                logp = decision.logp
        if self._ended:
            raise self._over("record")
        buffer = self._buffer
        if buffer is not None:
            buffer.write(observation, action, reward, tick=tick, legal=legal, by=Behaviour(actor, logp, state))
        if decision is None and self._stacks.frames > 1:
            self._stacks.push(self._read(observation))  # the model sees a person's decisions, too
        self.steps += 1
        self._decision = self._legal = None

    def record_rows(self, rows: Rows) -> None:
        """Many decisions at once, which `record_many` has checked."""
        if self._buffer is not None:
            self._buffer.write_rows(rows, self._actor)
        self.steps += len(rows.reward)

    def earn(self, reward: float) -> None:
        """Add to the last step what its player earned since, while others moved."""
        if self._ended:
            raise self._over("earn")
        if self._buffer is not None:
            self._buffer.earn(reward)

    def end(self, final_observation: Any, *, terminated: bool = True, outcome: float | None = None) -> None:
        """The episode is over for this seat; `terminated=False` where it was cut short. `outcome` is its score."""
        if self._ended:
            raise self._over("end")
        if self._buffer is not None:
            self._buffer.end(final_observation, terminated=terminated, outcome=outcome)
        self._close()

    def leave(self) -> None:
        """Left before the end: truncated at the last observation seen, and the decision taken on it falls away."""
        if not self._ended:
            if self._buffer is not None:
                self._buffer.leave()
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def _read(self, observation: Any) -> dict[str, Array]:
        """By leaf, [1, *shape]; ChunkRefused where it is not what this seat sees."""
        rows = [np.empty((1, *slot.shape), slot.dtype) for slot in self._layout.slots]
        self._layout.put_observation(rows, 0, observation)
        return {slot.name: row for slot, row in zip(self._layout.slots, rows, strict=True)}

    def _close(self) -> None:
        self._ended = True
        self._connection.ended(self, self._buffer)

    def _over(self, verb: str) -> Refused:
        return Refused("the episode has ended", where=verb, do="Open the next one with episode()")


def _same(chosen: Any, action: Any) -> bool:
    if type(chosen) is int:
        return bool(chosen == action)
    return bool(np.array_equal(chosen, action))
