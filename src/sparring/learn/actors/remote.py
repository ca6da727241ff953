"""Actors as services of a host: each call plays one rollout or block, and a few calls are pending for each actor.

    learner ─ publish ─────► topic "weights/main" ─► every actor
            ─ play(version) ► actor i, AHEAD calls each ─► its answers, in order

The number of pending calls is the back-pressure: an actor whose answers are not taken has nothing left to do. When an
actor dies its calls are lost; the learner calls its successor, and what that plays follows nothing. `spar services
scale actor=6` may change their number meanwhile: `tend` calls those that came, and forgets those that left.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from sparring.errors import TrainingStopped, Unreachable
from sparring.hosts.open import open_host
from sparring.hosts.protocol import Event, Handle, Pending, Resources
from sparring.learn.actors.actor_service import ActorService
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.rollout_slots import PlayedRollout, played, side_by_side
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weights import NONE, TopicWeights, WeightPublisher
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.tree import Tree

SERVICE = "actor"
AHEAD = 2  # pending calls of each actor
PUBLISH_EVERY_S = 0.1  # at most, where actors play blocks: updates are many for each
RETRY_S = 0.25  # before a lost call is made again
ANSWER_S = 30.0

Played = TypeVar("Played", PlayedRollout, StepBlock)


class HostedActors:
    """A host with services that play, and the weights that they subscribe to."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        self.host = open_host(plan.on, seen=plan.discovery)
        self._plan, self._spec = plan, spec
        every_s = PUBLISH_EVERY_S if spec.feeds == "steps" else 0.0
        self._weights = TopicWeights(self.host.discovery, spec.past, every_s)
        self._publisher = WeightPublisher(plan.algorithm, plan.seed, spec.past, self._weights)
        self._first_generation = 0
        self.restarts = 0

    @property
    def generation(self) -> int:
        return self._first_generation + 1 + max((handle.generation for handle in self._running()), default=-1)

    def save(self) -> Tree:
        return {"past": self._publisher.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._publisher.load(state["past"])
        self._first_generation = state["generation"]

    def close(self) -> None:
        self._weights.close()
        self.host.close()

    def _running(self) -> list[Handle]:
        return []


def keeps_ending(event: Event) -> TrainingStopped:
    """The error for a service that its host gave up."""
    return TrainingStopped(
        f"it keeps ending: {event.why}",
        where=f"{event.service} {event.index}",
        do="Mend the game, or look at it with --topology single; --resume goes on from the last checkpoint",
    )


@dataclass(slots=True)
class _ActorCalls:
    """One actor, its pending calls, and their answers."""

    handle: Handle
    calls: deque[Pending] = field(default_factory=deque)
    answers: deque[dict[str, Any]] = field(default_factory=deque)  # read, not yet taken
    not_before_s: float = 0.0
    answered: bool = False  # since it was started last


class _RemoteActors(HostedActors):
    def __init__(self, plan: Plan, spec: ActorSpec, ahead: int, *, reads: bool = True) -> None:
        """`reads`: answers are read here, and not forwarded."""
        super().__init__(plan, spec)
        self._ahead, self._reads = ahead, reads
        self._handles: list[Handle] = []  # of the service, as last looked at
        self._actors: list[_ActorCalls] = []
        self._states = list[bytes]()
        self._most = 0  # actors there ever were
        self._broken_off: list[int] = []

    @property
    def actors(self) -> int:
        return len(self._actors) if self._handles else self._plan.actors

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._publisher.publish(learner, env_steps)
        if not self._handles:
            needs = Resources(cpus=self._plan.cpus_per_actor, place="spread", least=1)
            self.host.start(ActorService, SERVICE, self._plan.actors, needs, self._given)
            self._match_service()
            self._states = []

    def tend(self) -> None:
        for event in self.host.watch():
            actor = event.index if event.service == SERVICE else None
            if actor is not None and actor >= len(self._actors):
                continue  # it has left
            if event.kind == "gave up" and (actor is None or not self._actors[actor].answered):
                raise keeps_ending(event)
            if actor is not None and event.kind == "gave up":  # though it played: it was killed, and did not fail
                self.replace(actor)
            if actor is not None and event.kind == "restarted":
                self.restarts += 1
        if self._handles:
            self._match_service()
        for actor_calls in self._actors:
            self._call(actor_calls)

    def wait(self, timeout_s: float) -> None:
        pending = [call for actor in self._actors for call in actor.calls if not call.done()]
        if pending:
            self.host.wait(pending, timeout_s)
        else:
            time.sleep(min(timeout_s, RETRY_S))

    def replace(self, actor: int) -> None:
        self.restarts += 1
        self.host.renew(SERVICE, actor)

    def close(self) -> None:
        self._actors = []
        super().close()

    def _running(self) -> list[Handle]:
        return [actor.handle for actor in self._actors]

    def _match_service(self) -> None:
        """Take in actors that came and drop those that left: others may scale the service."""
        there = self.host.handles(SERVICE)
        self._broken_off.extend(range(len(there), len(self._actors)))
        del self._actors[len(there) :]
        for actor, handle in enumerate(there):
            if actor >= len(self._actors):
                self._actors.append(_ActorCalls(handle))
            elif handle is not self._handles[actor]:
                self._broken_off.append(actor)
                self._actors[actor] = _ActorCalls(handle)
        self._handles = there

    def _call(self, actor: _ActorCalls) -> None:
        """Make the calls that are due."""
        now = time.monotonic()
        while len(actor.calls) < self._due(actor) and now >= actor.not_before_s:
            call = actor.handle.ask("play", self._weights.version)
            call.here = self._reads
            actor.calls.append(call)

    def _due(self, actor: _ActorCalls) -> int:
        return self._ahead

    def _answer(self, actor: int) -> dict[str, Any] | None:
        """Of its oldest call; None where that was lost. Later calls may have reached the successor."""
        calls = self._actors[actor]
        try:
            answer: dict[str, Any] = calls.calls[0].result(ANSWER_S)
        except Unreachable:
            calls.calls.popleft()
            calls.not_before_s = time.monotonic() + RETRY_S
            self._broken_off.append(actor)
            return None
        calls.answered = True
        return answer

    def _given(self, actor: int, actors: int) -> dict[str, Any]:
        """What the host passes to an actor that it starts, also when others scale, in their thread."""
        if actor < self._most:
            self._first_generation = self.generation  # another had this number, and its random numbers
        self._most = max(self._most, actor + 1)
        return {"actor_spec": self._spec_of(actor, actors).encode()}

    def _spec_of(self, actor: int, actors: int) -> ActorSpec:
        state = self._states[actor] if actor < len(self._states) else b""
        return replace(self._spec, actor=actor, generation=self._first_generation, state=state)


class RemoteAsyncActors(_RemoteActors, Generic[Played]):
    """Actors that are asked for the next rollout or block before the last was taken.

    With `forward` what they play goes on to replay shards, and is never read here.
    """

    def __init__(
        self, plan: Plan, spec: ActorSpec, epsilon: Callable[[int, int], float] | None = None, *, forward: bool = False
    ) -> None:
        super().__init__(plan, spec, AHEAD, reads=not forward)
        self._epsilon = epsilon

    def waiting(self, actor: int) -> int:
        if actor >= len(self._actors):
            return 0
        calls = self._actors[actor].calls
        if calls and calls[0].done() and self._reads and self._read(actor) is None:
            return 0
        there = 0
        while there < len(calls) and calls[there].done():
            there += 1
        return there

    def version(self, actor: int) -> int:
        answer = self._read(actor)
        return NONE if answer is None else int(answer["columns"]["head"].reshape(-1)[0])

    def take(self, actor: int) -> Played:
        answer = self._read(actor)
        assert answer is not None
        return cast(Played, self._spec.read(answer["columns"]))

    def hand_over(self, actor: int) -> Pending:
        calls = self._actors[actor]
        pending = calls.calls.popleft()
        self._call(calls)
        return pending

    def lost(self, actor: int) -> None:
        """The actor died, or the shard."""
        if actor < len(self._actors):
            self._actors[actor].not_before_s = time.monotonic() + RETRY_S

    def release(self, actor: int) -> None:
        if actor >= len(self._actors):
            return  # it has left
        calls = self._actors[actor]
        calls.answered = True
        if calls.answers:
            calls.answers.popleft()
            calls.calls.popleft()
        self._call(calls)

    def broken_off(self) -> list[int]:
        found, self._broken_off = self._broken_off, []
        return found

    def _read(self, actor: int) -> dict[str, Any] | None:
        calls = self._actors[actor]
        if not calls.answers:
            answer = self._answer(actor)
            if answer is None:
                return None
            calls.answers.append(answer)
        return calls.answers[0]

    def _spec_of(self, actor: int, actors: int) -> ActorSpec:
        epsilon = None if self._epsilon is None else self._epsilon(actor, actors)
        return replace(super()._spec_of(actor, actors), epsilon=epsilon)


class RemoteSyncActors(_RemoteActors):
    """Each actor is called once for each version."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        super().__init__(plan, replace(spec, writers=1), 1)

    def tend(self) -> None:
        super().tend()
        for actor, calls in enumerate(self._actors):
            if calls.calls and calls.calls[0].done() and (answer := self._answer(actor)) is not None:
                calls.answers.append(answer)
                calls.calls.popleft()

    def missing(self) -> list[int]:
        return [actor for actor, calls in enumerate(self._actors) if not calls.answers]

    def take_all(self) -> PlayedRollout:
        whole = side_by_side([calls.answers[0]["columns"] for calls in self._actors])
        return played(whole, self._spec.spec.seats[0])

    def release_all(self) -> None:
        """What was taken has arrays of its own."""

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        for calls in self._actors:
            calls.answers.clear()
            self._call(calls)

    def save(self) -> Tree:
        states = self._states
        if self._actors:
            pending = [calls.handle.ask("state") for calls in self._actors]
            states = [_state(one) for one in pending]
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def _due(self, actor: _ActorCalls) -> int:
        return 0 if actor.answers else 1


def _state(pending: Pending) -> bytes:
    """What an actor answers; nothing where it died."""
    try:
        return bytes(pending.result(ANSWER_S))
    except Unreachable:
        return b""
