"""Environments and the inference service that decides for them, on a host.

    learner ─ play() ───────► environments i, AHEAD calls each, so that they always have something to do
            ─ publish ──────► topic "weights/main" ─► inference, when use(version) says that there is a newer one
            ─ take() ───────► inference, the next rollout or block before the last was learned from

The services find each other by name (SPARRING_DISCOVERY, as the host sets it). The host restarts those that die:
environments begin new episodes, inference takes the newest weights and begins with an empty rollout.
"""

import time
from collections import deque
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.protocol import Event, Handle, Pending, Resources
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.env_service import EnvService
from sparring.learn.actors.inference_service import SERVICE as INFERENCE
from sparring.learn.actors.inference_service import InferenceService
from sparring.learn.actors.remote import ANSWER_S, RETRY_S, HostedActors, keeps_ending
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weights import NONE
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner

ENVIRONMENTS = "environments"
AHEAD = 8  # pending calls of each worker: together two seconds of play
POLL_S = 0.005  # between two requests for a rollout
LEAST_S = 0.001  # of a sleep

Played = TypeVar("Played", PlayedRollout, StepBlock)


class CentralActors(HostedActors, Generic[Played]):
    """One inference service, and `plan.actors` workers with `plan.envs` environments each."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        """`spec` is that of one worker."""
        super().__init__(plan, spec)
        self._workers: list[Handle] = []
        self._inference: Handle | None = None
        self._plays: list[deque[Pending]] = [deque() for _ in range(plan.actors)]
        self._not_before_s = [0.0] * plan.actors
        self._using: Pending | None = None
        self._used = NONE  # the version that inference was told last
        self._taking: Pending | None = None  # the next rollout or block
        self._take_s = 0.0  # when to ask for it
        self._columns: dict[str, Any] | None = None  # of a rollout or block that waits here
        self._broken = False  # it does not follow the last, and `broken_off` was not asked yet
        self._answered: set[tuple[str, int]] = set()  # services and numbers of those that did what they were asked
        self.served = 0.0  # environments that one forward decided for, lately
        self.inference_restarts = 0

    @property
    def actors(self) -> int:
        """For a replay table all environments are one actor; for a run each worker is one."""
        return 1 if self._spec.feeds == "steps" else self._plan.actors

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._publisher.publish(learner, env_steps)
        if self._inference is None:
            self._start()
        self._announce()

    def tend(self) -> None:
        for event in self.host.watch():
            if event.kind == "gave up":
                self._renew(event)
            elif event.kind == "restarted" and event.service == INFERENCE:
                self.inference_restarts += 1
                self._used = NONE
            elif event.kind == "restarted":
                self.restarts += 1
        for worker in range(len(self._workers)):
            self._keep_playing(worker)
        self._announce()
        self._fetch()

    def wait(self, timeout_s: float) -> None:
        if self._taking is not None and self._columns is None:
            self.host.wait([self._taking], timeout_s)
        else:
            time.sleep(max(LEAST_S, min(timeout_s, self._take_s - time.monotonic())))

    def waiting(self, actor: int = 0) -> int:
        """Whether a rollout is there; a block that follows nothing only after `broken_off` was asked."""
        blocked = self._broken and self._spec.feeds == "steps"
        return int(self._columns is not None and not blocked)

    def take(self, actor: int = 0) -> Played:
        """The rollout or block that waits; its arrays are the caller's."""
        columns, self._columns = self._columns, None
        assert columns is not None
        self._fetch()
        return cast(Played, self._spec.read(columns))

    # For a table in the learner's process all environments are actor 0.

    def version(self, actor: int) -> int:
        return NONE if self._columns is None else int(self._columns["head"].reshape(-1)[0])

    def hand_over(self, actor: int) -> Any:
        raise ConfigError("inference hands steps to the learner alone", where="central", do="Set replay.shards to 0")

    def lost(self, actor: int) -> None:
        """Nothing is handed over."""

    def release(self, actor: int) -> None:
        """What was taken has arrays of its own."""

    def broken_off(self) -> list[int]:
        broken, self._broken = self._broken, False
        return [0] if broken else []

    def close(self) -> None:
        for calls in self._plays:
            calls.clear()
        self._using = self._taking = self._columns = None
        super().close()

    def _running(self) -> list[Handle]:
        return [*self._workers, *([] if self._inference is None else [self._inference])]

    def _start(self) -> None:
        workers = self._plan.actors
        (self._inference,) = self.host.start(InferenceService, INFERENCE, 1, self._needs(1), self._for_inference)
        needs = self._needs(workers)
        self._workers = self.host.start(EnvService, ENVIRONMENTS, workers, needs, self._for_environments)

    def _for_inference(self, index: int, count: int) -> dict[str, Any]:
        workers = self._plan.actors
        whole = replace(self._spec, generation=self._first_generation, envs=workers * self._spec.envs)
        return {"actor_spec": whole.encode(), "workers": workers}

    def _for_environments(self, index: int, count: int) -> dict[str, Any]:
        return {"actor_spec": replace(self._spec, generation=self._first_generation).encode(), "worker": index}

    def _renew(self, event: Event) -> None:
        """Start another for one that was given up though it worked: it was killed, and did not fail by itself."""
        who = (event.service, event.index)
        if who not in self._answered:
            raise keeps_ending(event)
        self._answered.remove(who)
        self._first_generation = self.generation
        handle = self.host.renew(*who)
        if event.service == INFERENCE:
            self._inference, self._using, self._taking, self._used = handle, None, None, NONE
            self._broken = True
            self.inference_restarts += 1
        else:
            self._workers[event.index] = handle
            self._plays[event.index].clear()
            self.restarts += 1

    def _needs(self, count: int) -> Resources:
        """Inference has room for the workers that it began with: their number is fixed."""
        return Resources(cpus=self._plan.cpus_per_actor, place="spread", least=count, most=count)

    def _keep_playing(self, worker: int) -> None:
        """Make the calls that are due; what a game raises is raised here."""
        calls = self._plays[worker]
        while calls and calls[0].done():
            try:
                calls.popleft().result(ANSWER_S)
                self._answered.add((ENVIRONMENTS, worker))
            except Unreachable:
                calls.clear()
                self._not_before_s[worker] = time.monotonic() + RETRY_S
        if time.monotonic() >= self._not_before_s[worker]:
            while len(calls) < AHEAD:
                calls.append(self._workers[worker].ask("play"))

    def _announce(self) -> None:
        """Tell inference the newest version, once it uses the last one or that call is lost."""
        if self._using is not None and self._using.done():
            try:
                self._using.result(ANSWER_S)
            except Unreachable:
                self._used = NONE
            self._using = None
        if self._using is None and self._inference is not None and self._used != self._weights.version:
            self._used = self._weights.version
            self._using = self._inference.ask("use", self._used)

    def _fetch(self) -> None:
        """Read the answer to the last `take`, and ask for the next."""
        if self._taking is not None and self._columns is None and self._taking.done():
            taking, self._taking = self._taking, None
            try:
                answer = taking.result(ANSWER_S)
            except Unreachable:
                self._broken = True
                self._take_s = time.monotonic() + RETRY_S
                return
            self._columns = answer["columns"]
            self._broken = self._broken or bool(answer["broken"])
            if self._columns is None:
                self._take_s = time.monotonic() + POLL_S
            else:
                self.served = float(answer["served"])
                self._answered.add((INFERENCE, 0))
            if answer["version"] == NONE:
                self._used = NONE  # it was restarted
        if self._taking is None and self._inference is not None and time.monotonic() >= self._take_s:
            self._taking = self._inference.ask("take")
