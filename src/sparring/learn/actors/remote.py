"""Actors as services of a host. RemoteActors: each call plays one rollout or block, and a few calls are pending for
each actor. CentralActors: environments, and the inference service that decides for them.

    learner ─ publish ─────► topic "weights/main" ─► every actor
            ─ play(version) ► actor i, AHEAD calls each ─► its answers, in order

    learner ─ play() ───────► environments i, ENV_AHEAD calls each, so that they always have something to do
            ─ publish ──────► topic "weights/main" ─► inference, when take(version) says that there is a newer one
            ─ take(version) ► inference, the next rollout or block before the last was learned from

The number of pending calls is the back-pressure: an actor whose answers are not taken has nothing left to do. When an
actor dies its calls are lost; the learner calls its successor, and what that plays follows nothing. `spar services
scale actor=6` may change their number meanwhile: `tend` calls those that came, and forgets those that left.

Environments and inference find each other by name (SPARRING_DISCOVERY, as the host sets it). The host restarts those
that die: environments begin new episodes, inference takes the newest weights and begins with an empty rollout.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sparring.errors import TrainingStopped, Unreachable
from sparring.hosts.protocol import Event, Handle, Pending, Resources, open_host
from sparring.learn.actors.actor_process import ActorService
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.inference_service import SERVICE as INFERENCE
from sparring.learn.actors.inference_service import EnvService, InferenceService
from sparring.learn.actors.protocol import Epsilon, PublishingActors
from sparring.learn.actors.weights import NONE, TopicWeights
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.chunk import Array

SERVICE = "actor"
AHEAD = 2  # pending calls of each actor
PUBLISH_EVERY_S = 0.1  # at most, where actors play blocks: updates are many for each
RETRY_S = 0.25  # before a lost call is made again
ANSWER_S = 30.0
ENVIRONMENTS = "environments"
ENV_AHEAD = 8  # pending calls of each worker: together two seconds of play
POLL_S = 0.005  # between two requests for a rollout
LEAST_S = 0.001  # of a sleep


class HostedActors(PublishingActors):
    """A host with services that play, and the weights that they subscribe to."""

    restarts = 0

    def __init__(self, plan: Plan, spec: ActorSpec, epsilon: Epsilon | None = None) -> None:
        self.host = open_host(plan.on, seen=plan.discovery)
        every_s = PUBLISH_EVERY_S if spec.feeds == "steps" else 0.0
        super().__init__(plan, spec, TopicWeights(self.host.discovery, spec.past, every_s), epsilon)

    @property
    def generation(self) -> int:
        return self._first_generation + 1 + max((handle.generation for handle in self._running()), default=-1)

    def close(self) -> None:
        self._weights.close()
        self.host.close()

    def _running(self) -> list[Handle]:
        return []


def keeps_ending(event: Event, do: str = "Correct the game, or look at it with --topology single") -> TrainingStopped:
    """The error for a service that its host gave up."""
    return TrainingStopped(
        f"it keeps ending: {event.why}",
        where=f"{event.service} {event.index}",
        do=f"{do}; --resume goes on from the last checkpoint",
    )


def answer_of(call: Pending) -> Any:
    """What a service answers; None where it died."""
    try:
        return call.result(ANSWER_S)
    except Unreachable:
        return None


@dataclass(slots=True)
class _ActorCalls:
    """One actor, its pending calls, and the answer to the oldest, once it was read."""

    handle: Handle
    calls: deque[Pending] = field(default_factory=deque)
    answer: dict[str, Any] | None = None
    version: int = NONE  # that it was last called for
    not_before_s: float = 0.0
    answered: bool = False  # since it was started last


class RemoteActors(HostedActors):
    """Services that are asked for the next rollout or block before the last was taken; synchronous ones, once for each
    version. With `forward` what they play goes on to replay shards, and is never read here."""

    def __init__(self, plan: Plan, spec: ActorSpec, epsilon: Epsilon | None = None, *, forward: bool = False) -> None:
        super().__init__(plan, spec, epsilon)
        self._reads = not forward
        self._handles: list[Handle] = []  # of the service, as last looked at
        self._actors: list[_ActorCalls] = []
        self._most = 0  # actors there ever were

    @property
    def actors(self) -> int:
        return len(self._actors) if self._handles else self._plan.actors

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        if not self._handles:
            needs = Resources(cpus=self._plan.cpus_per_actor, place="spread", least=1)
            self.host.start(ActorService, SERVICE, self._plan.actors, needs, self._given)
            self._match_service()
            self._states = []
        for calls in self._actors:
            self._call(calls)

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

    def waiting(self, actor: int) -> int:
        if actor >= len(self._actors):
            return 0
        calls = self._actors[actor].calls
        if calls and calls[0].done() and self._reads and not self._read(actor):
            return 0
        there = 0
        while there < len(calls) and calls[there].done():
            there += 1
        return there

    def version(self, actor: int) -> int:
        return int(self._read(actor)["columns"]["head"].flat[0])

    def take(self, actor: int) -> dict[str, Array]:
        columns: dict[str, Array] = self._read(actor)["columns"]
        return columns

    def release(self, actor: int) -> None:
        if actor >= len(self._actors):
            return  # it has left
        calls = self._actors[actor]
        calls.answered = True
        if calls.answer is not None:
            calls.answer = None
            calls.calls.popleft()
        self._call(calls)

    def hand_over(self, actor: int) -> Pending:
        calls = self._actors[actor]
        pending = calls.calls.popleft()
        self._call(calls)
        return pending

    def lost(self, actor: int) -> None:
        """The actor died, or the shard."""
        if actor < len(self._actors):
            self._actors[actor].not_before_s = time.monotonic() + RETRY_S

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
        self._broken_off.update(range(len(there), len(self._actors)))
        del self._actors[len(there) :]
        for actor, handle in enumerate(there):
            if actor >= len(self._actors):
                self._actors.append(_ActorCalls(handle))
            elif handle is not self._handles[actor]:
                self._broken_off.add(actor)
                self._actors[actor] = _ActorCalls(handle)
        self._handles = there

    def _call(self, actor: _ActorCalls) -> None:
        """Make the calls that are due."""
        version, now = self._weights.version, time.monotonic()
        most = int(actor.version < version) if self._spec.synchronous else AHEAD
        while len(actor.calls) < most and now >= actor.not_before_s:
            call = actor.handle.ask("play", version)
            call.here, actor.version = self._reads, version
            actor.calls.append(call)

    def _read(self, actor: int) -> dict[str, Any]:
        """The answer to its oldest call; empty where that was lost. Later calls may have reached the successor."""
        calls = self._actors[actor]
        if calls.answer is None:
            calls.answer = answer_of(calls.calls[0])
            calls.answered = calls.answered or calls.answer is not None
        if calls.answer is None:
            calls.calls.popleft()
            calls.version, calls.not_before_s = NONE, time.monotonic() + RETRY_S
            self._broken_off.add(actor)
            return {}
        return calls.answer

    def _given(self, actor: int, actors: int) -> dict[str, Any]:
        """What the host passes to an actor that it starts, also when others scale, in their thread."""
        if actor < self._most:
            self._first_generation = self.generation  # another had this number, and its random numbers
        self._most = max(self._most, actor + 1)
        return {"actor_spec": self._spec_of(actor, actors, self._first_generation).encode()}

    def _saved_actors(self) -> list[bytes]:
        if not self._actors or not self._spec.synchronous:
            return self._states
        asked = [calls.handle.ask("state") for calls in self._actors]
        return [bytes(answer_of(one) or b"") for one in asked]


class CentralActors(HostedActors):
    """One inference service, and `plan.actors` workers with `plan.envs` environments each: actor 0."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        """`spec` is that of one worker."""
        super().__init__(plan, spec)
        self._workers: list[_ActorCalls] = []
        self._inference: _ActorCalls | None = None
        self._taking: Pending | None = None  # the next rollout or block
        self._take_s = 0.0  # when to ask for it
        self._columns: dict[str, Any] | None = None  # of a rollout or block that waits here
        self.served = 0.0  # environments that one forward decided for, lately
        self.inference_restarts = 0

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        if self._inference is None:
            self._start()

    def tend(self) -> None:
        for event in self.host.watch():
            if event.kind == "gave up":
                self._renew(event)
            elif event.kind == "restarted" and event.service == INFERENCE:
                self.inference_restarts += 1
            elif event.kind == "restarted":
                self.restarts += 1
        for worker in self._workers:
            self._keep_playing(worker)
        self._fetch()

    def wait(self, timeout_s: float) -> None:
        if self._taking is not None and self._columns is None:
            self.host.wait([self._taking], timeout_s)
        else:
            time.sleep(max(LEAST_S, min(timeout_s, self._take_s - time.monotonic())))

    def waiting(self, actor: int) -> int:
        """Whether a rollout is there; a block that follows nothing only after `broken_off` was asked."""
        blocked = self._broken_off and self._spec.feeds == "steps"
        return int(self._columns is not None and not blocked)

    def version(self, actor: int) -> int:
        return NONE if self._columns is None else int(self._columns["head"].flat[0])

    def take(self, actor: int) -> dict[str, Array]:
        """The arrays are the caller's."""
        columns, self._columns = self._columns, None
        assert columns is not None
        self._fetch()
        return columns

    def flow(self) -> dict[str, float]:
        return {
            "actors": self._plan.actors,
            "actor_restarts": self.restarts,
            "inference_restarts": self.inference_restarts,
            "environments_per_forward": self.served,
        }

    def close(self) -> None:
        self._workers = []
        self._taking = self._columns = self._inference = None
        super().close()

    def _running(self) -> list[Handle]:
        return [one.handle for one in (*self._workers, self._inference) if one is not None]

    def _start(self) -> None:
        workers = self._plan.actors
        (handle,) = self.host.start(InferenceService, INFERENCE, 1, self._needs(1), self._for_inference)
        self._inference = _ActorCalls(handle)
        started = self.host.start(EnvService, ENVIRONMENTS, workers, self._needs(workers), self._for_environments)
        self._workers = [_ActorCalls(handle) for handle in started]

    def _for_inference(self, index: int, count: int) -> dict[str, Any]:
        workers = self._plan.actors
        whole = replace(self._spec, generation=self._first_generation, envs=workers * self._spec.envs)
        return {"actor_spec": whole.encode(), "workers": workers}

    def _for_environments(self, index: int, count: int) -> dict[str, Any]:
        return {"actor_spec": replace(self._spec, generation=self._first_generation).encode(), "worker": index}

    def _renew(self, event: Event) -> None:
        """Start another for one that was given up though it worked: it was killed, and did not fail by itself."""
        ended = self._inference if event.service == INFERENCE else self._workers[event.index]
        if ended is None or not ended.answered:
            raise keeps_ending(event)
        self._first_generation = self.generation
        renewed = _ActorCalls(self.host.renew(event.service, event.index))
        if event.service == INFERENCE:
            self._inference, self._taking = renewed, None
            self._broken_off.add(0)
            self.inference_restarts += 1
        else:
            self._workers[event.index] = renewed
            self.restarts += 1

    def _needs(self, count: int) -> Resources:
        """Inference has room for the workers that it began with: their number is fixed."""
        return Resources(cpus=self._plan.cpus_per_actor, place="spread", least=count, most=count)

    def _keep_playing(self, worker: _ActorCalls) -> None:
        """Make the calls that are due; what a game raises is raised here."""
        while worker.calls and worker.calls[0].done():
            if answer_of(worker.calls.popleft()) is None:
                worker.calls.clear()
                worker.not_before_s = time.monotonic() + RETRY_S
            else:
                worker.answered = True
        while len(worker.calls) < ENV_AHEAD and time.monotonic() >= worker.not_before_s:
            worker.calls.append(worker.handle.ask("play"))

    def _fetch(self) -> None:
        """Read the answer to the last `take`, and ask for the next."""
        if self._inference is None:
            return
        if self._taking is not None and self._columns is None and self._taking.done():
            taking, self._taking = self._taking, None
            if (answer := answer_of(taking)) is None:
                self._broken_off.add(0)
                self._take_s = time.monotonic() + RETRY_S
                return
            self._columns = answer["columns"]
            if answer["broken"]:
                self._broken_off.add(0)
            if self._columns is None:
                self._take_s = time.monotonic() + POLL_S
            else:
                self.served = float(answer["served"])
                self._inference.answered = True
        if self._taking is None and time.monotonic() >= self._take_s:
            self._taking = self._inference.handle.ask("take", self._weights.version)
