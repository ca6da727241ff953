"""Actors as services of a host: each plays a rollout or block for each call, and a few calls are under way.

    learner ─ share(edition) ─► once for each machine
            ─ play(edition) ──► actor i, AHEAD calls each ─► its answer, in order

So many calls under way are the back-pressure: whoever is not taken from has nothing left to do. When an actor dies its
calls are lost; its successor is asked anew, and what it then plays follows nothing. Others may scale the service
"actor" meanwhile: who came is asked from the next look on, and who left is waited for no more.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from sparring.errors import TrainingStopped, Unreachable
from sparring.hosts.open import open_host
from sparring.hosts.protocol import Handle, Host, Pending, Resources, Shared
from sparring.learn.actors.actor_service import ActorService
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.rollout_slots import PlayedRollout, played, side_by_side
from sparring.learn.actors.shared_weights import NONE
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weight_publisher import WeightPublisher
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.network import Weights
from sparring.wire.tree import Tree

SERVICE = "actor"
AHEAD = 2  # calls under way for each actor
SHOW_EVERY_S = 0.1  # between two editions, where updates are many for each block
AGAIN_S = 0.25  # before a lost call is made again
ANSWER_S = 30.0

What = TypeVar("What", PlayedRollout, StepBlock)


class RemoteWeights:
    """The newest weights, and past selves, each put once."""

    def __init__(self, host: Host, past: int, every_s: float) -> None:
        self._host, self.past, self._every_s = host, past, every_s
        self.version = NONE
        self._newest: Shared | None = None
        self._shown_s = 0.0
        self._past: dict[int, tuple[int, Shared]] = {}
        self._stamps = 0

    def wants(self, version: int) -> bool:
        if self.version == NONE:
            return True
        return version != self.version and time.monotonic() - self._shown_s >= self._every_s

    def publish(self, weights: Weights, version: int, epsilon: float = 0.0) -> None:
        self._newest = self._host.share({"version": version, "epsilon": epsilon, "weights": weights})
        self.version, self._shown_s = version, time.monotonic()

    def remember(self, place: int, weights: Weights, version: int) -> None:
        self._stamps += 1
        self._past[place] = (self._stamps, self._host.share(weights))

    def arguments(self) -> tuple[Any, ...]:
        """Of a call to play: the edition, the stamps of past selves, and those."""
        kept = [self._past[place] for place in range(len(self._past))]
        return (self._newest, [stamp for stamp, _ in kept], *(value for _, value in kept))

    def close(self) -> None:
        self._newest = None
        self._past = {}


@dataclass(slots=True)
class _Seat:
    """One actor, the calls that are under way for it, and what came back of them."""

    handle: Handle
    calls: deque[Pending] = field(default_factory=deque)
    answers: deque[dict[str, Any]] = field(default_factory=deque)  # read, not yet taken
    not_before_s: float = 0.0
    served: bool = False  # whether anything came of it since it was started last


class _Hosted:
    """The seats of those who play now."""

    def __init__(self, plan: Plan, part: ActorSpec, every_s: float, ahead: int, *, reads: bool = True) -> None:
        """`reads`: what they play is read here, and not handed on."""
        self.host = open_host(plan.on, seen=plan.discovery)
        self._plan, self._part, self._ahead, self._reads = plan, part, ahead, reads
        self._editions = RemoteWeights(self.host, part.past, every_s)
        self._leader = WeightPublisher(plan, self._editions)
        self._handles: list[Handle] = []  # of the service, as last looked at
        self._seats: list[_Seat] = []
        self._first_generation, self._states = 0, list[bytes]()
        self._most = 0  # actors there ever were
        self._broken_off: list[int] = []
        self.restarts = 0

    @property
    def actors(self) -> int:
        return len(self._seats) if self._handles else self._plan.actors

    @property
    def generation(self) -> int:
        return self._first_generation + 1 + max((seat.handle.generation for seat in self._seats), default=-1)

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._leader.publish(learner, env_steps)
        if not self._handles:
            needs = Resources(cpus=self._plan.cpus_per_actor, place="spread", least=1)
            self.host.start(ActorService, SERVICE, self._plan.actors, needs, self._given)
            self._look_round()
            self._states = []

    def tend(self) -> None:
        for event in self.host.watch():
            actor = event.index if event.service == SERVICE else None
            if actor is not None and actor >= len(self._seats):
                continue  # it has left
            if event.kind == "gave up" and (actor is None or not self._seats[actor].served):
                raise TrainingStopped(
                    f"it keeps ending: {event.why}",
                    where=f"{event.service} {event.index}",
                    do="Mend the game, or look at it with --topology single; --resume goes on from the last checkpoint",
                )
            if actor is not None and event.kind == "gave up":  # though it played: it was killed, and did not fail
                self.replace(actor)
            if actor is not None and event.kind == "restarted":
                self.restarts += 1
        if self._handles:
            self._look_round()
        for seat in self._seats:
            self._tend_one(seat)

    def wait(self, timeout_s: float) -> None:
        pending = [one for seat in self._seats for one in seat.calls if not one.done()]
        if pending:
            self.host.wait(pending, timeout_s)
        else:
            time.sleep(min(timeout_s, AGAIN_S))

    def replace(self, actor: int) -> None:
        self.restarts += 1
        self.host.renew(SERVICE, actor)

    def save(self) -> Tree:
        return {"leader": self._leader.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._leader.load(state["leader"])
        self._first_generation = state["generation"]

    def close(self) -> None:
        self._seats = []
        self._leader.close()
        self.host.close()

    def _look_round(self) -> None:
        """Seat those who came, and let go of those who left, since others may scale the service."""
        there = self.host.handles(SERVICE)
        for actor in range(len(there), len(self._seats)):
            self._broken_off.append(actor)
        del self._seats[len(there) :]
        for actor, handle in enumerate(there):
            if actor >= len(self._seats):
                self._seats.append(_Seat(handle))
            elif handle is not self._handles[actor]:
                self._broken_off.append(actor)
                self._seats[actor] = _Seat(handle)
        self._handles = there

    def _tend_one(self, seat: _Seat) -> None:
        """Make the calls that are due."""
        now = time.monotonic()
        while len(seat.calls) < self._due(seat) and now >= seat.not_before_s:
            call = seat.handle.ask("play", *self._editions.arguments())
            call.here = self._reads
            seat.calls.append(call)

    def _due(self, seat: _Seat) -> int:
        return self._ahead

    def _result(self, actor: int) -> dict[str, Any] | None:
        """The answer of its oldest call; None where that was lost. Those after it speak for themselves: they may have
        reached the successor."""
        seat = self._seats[actor]
        try:
            answer: dict[str, Any] = seat.calls[0].result(ANSWER_S)
        except Unreachable:
            seat.calls.popleft()
            seat.not_before_s = time.monotonic() + AGAIN_S
            self._broken_off.append(actor)
            return None
        seat.served = True
        return answer

    def _given(self, actor: int, actors: int) -> dict[str, Any]:
        """What the host gives one that it starts, also when others scale, in their thread."""
        if actor < self._most:
            self._first_generation = self.generation  # there was one of that number: it has played by its chance
        self._most = max(self._most, actor + 1)
        return {"part": self._told(actor, actors)}

    def _told(self, actor: int, actors: int) -> bytes:
        state = self._states[actor] if actor < len(self._states) else b""
        return replace(self._part, actor=actor, generation=self._first_generation, state=state).told()


class RemoteAsyncActors(_Hosted, Generic[What]):
    """Players who are asked for the next rollout or block before the last was taken.

    With `passing` what they play is handed over to others, and never read here.
    """

    def __init__(
        self, plan: Plan, part: ActorSpec, boldness: Callable[[int, int], float] | None = None, *, passing: bool = False
    ) -> None:
        super().__init__(plan, part, SHOW_EVERY_S if part.feeds == "steps" else 0.0, AHEAD, reads=not passing)
        self._boldness = boldness

    def waiting(self, actor: int) -> int:
        if actor >= len(self._seats):
            return 0
        calls = self._seats[actor].calls
        if calls and calls[0].done() and self._reads and self._read(actor) is None:
            return 0
        there = 0
        while there < len(calls) and calls[there].done():
            there += 1
        return there

    def version(self, actor: int) -> int:
        answer = self._read(actor)
        return NONE if answer is None else int(answer["columns"]["head"].reshape(-1)[0])

    def take(self, actor: int) -> What:
        answer = self._read(actor)
        assert answer is not None
        return cast(What, self._part.taken(answer["columns"]))

    def hand_over(self, actor: int) -> Pending:
        seat = self._seats[actor]
        pending = seat.calls.popleft()
        self._tend_one(seat)
        return pending

    def lost(self, actor: int) -> None:
        """What was handed over never came: the actor died, or who was to take it in."""
        if actor < len(self._seats):
            self._seats[actor].not_before_s = time.monotonic() + AGAIN_S

    def release(self, actor: int) -> None:
        if actor >= len(self._seats):
            return  # it has left
        seat = self._seats[actor]
        seat.served = True
        if seat.answers:
            seat.answers.popleft()
            seat.calls.popleft()
        self._tend_one(seat)

    def broken_off(self) -> list[int]:
        found, self._broken_off = self._broken_off, []
        return found

    def _read(self, actor: int) -> dict[str, Any] | None:
        seat = self._seats[actor]
        if not seat.answers:
            answer = self._result(actor)
            if answer is None:
                return None
            seat.answers.append(answer)
        return seat.answers[0]

    def _told(self, actor: int, actors: int) -> bytes:
        part = replace(self._part, actor=actor, generation=self._first_generation)
        if self._boldness is not None:
            part = replace(part, epsilon=self._boldness(actor, actors))
        return part.told()


class RemoteSyncActors(_Hosted):
    """Players in step: each is asked once for each version."""

    def __init__(self, plan: Plan, part: ActorSpec) -> None:
        super().__init__(plan, replace(part, lanes=1), 0.0, 1)

    def tend(self) -> None:
        super().tend()
        for actor, seat in enumerate(self._seats):
            if seat.calls and seat.calls[0].done() and (answer := self._result(actor)) is not None:
                seat.answers.append(answer)
                seat.calls.popleft()

    def missing(self) -> list[int]:
        return [actor for actor, seat in enumerate(self._seats) if not seat.answers]

    def take_all(self) -> PlayedRollout:
        whole = side_by_side([seat.answers[0]["columns"] for seat in self._seats])
        return played(whole, self._part.spec.seats[0])

    def release_all(self) -> None:
        """What was taken is in arrays of its own."""

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        for seat in self._seats:
            seat.answers.clear()
            self._tend_one(seat)

    def save(self) -> Tree:
        states = self._states
        if self._seats:
            asked = [seat.handle.ask("state") for seat in self._seats]
            states = [_state(one) for one in asked]
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def _due(self, seat: _Seat) -> int:
        return 0 if seat.answers else 1


def _state(asked: Pending) -> bytes:
    """What an actor answers; nothing where it died."""
    try:
        return bytes(asked.result(ANSWER_S))
    except Unreachable:
        return b""
