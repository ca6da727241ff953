"""Environments and the inference that decides for them, as services of a host.

    learner ─ play() ────► environments i, AHEAD calls each, so that they always have something to do
            ─ use(…) ────► inference, whenever there are newer weights and the last have arrived
            ─ kept() ────► inference, the next one before the last was learned from

The services find each other by name (SPARRING_DISCOVERY, as the host sets it). Whoever dies is started again by the
host: environments begin new episodes, inference is given the newest weights and begins with an empty rollout.
"""

import time
from collections import deque
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from sparring.errors import ConfigError, TrainingStopped, Unreachable
from sparring.hosts.open import open_host
from sparring.hosts.protocol import Event, Handle, Pending, Resources
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.env_service import EnvService
from sparring.learn.actors.inference_service import SERVICE as INFERENCE
from sparring.learn.actors.inference_service import InferenceService
from sparring.learn.actors.remote import SHOW_EVERY_S, RemoteWeights
from sparring.learn.actors.rollout_slots import PlayedRollout
from sparring.learn.actors.shared_weights import NONE
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weight_publisher import WeightPublisher
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.tree import Tree

ENVIRONMENTS = "environments"
AHEAD = 8  # calls under way to each worker: together two seconds of play
AGAIN_S = 0.25  # before a lost call is made again
ASK_S = 0.005  # between two looks for a rollout
LEAST_S = 0.001  # of a rest
ANSWER_S = 30.0

What = TypeVar("What", PlayedRollout, StepBlock)


class CentralActors(Generic[What]):
    """One inference service, and `plan.actors` workers with `plan.envs` environments each."""

    def __init__(self, plan: Plan, part: ActorSpec) -> None:
        """`part` is that of one worker."""
        self.host = open_host(plan.on, seen=plan.discovery)
        self._plan, self._part = plan, part
        self._editions = RemoteWeights(self.host, part.past, SHOW_EVERY_S if part.feeds == "steps" else 0.0)
        self._leader = WeightPublisher(plan, self._editions)
        self._workers: list[Handle] = []
        self._inference: Handle | None = None
        self._plays: list[deque[Pending]] = [deque() for _ in range(plan.actors)]
        self._not_before_s = [0.0] * plan.actors
        self._using: Pending | None = None
        self._used = NONE  # the version that was sent last
        self._asked: Pending | None = None  # for what was kept
        self._ask_s = 0.0  # when to ask next
        self._columns: dict[str, Any] | None = None  # of a rollout or block that waits
        self._broken = False  # it does not follow the last, and nobody was told yet
        self._worked: set[tuple[str, int]] = set()  # services and numbers of those who did what they were asked
        self._first_generation = 0
        self.served = 0.0  # environments that one forward decided for, lately
        self.restarts = self.inference_restarts = 0

    @property
    def actors(self) -> int:
        """Of a table's players they are one; of a run all its workers."""
        return 1 if self._part.feeds == "steps" else self._plan.actors

    @property
    def generation(self) -> int:
        handles = [*self._workers, *([] if self._inference is None else [self._inference])]
        return self._first_generation + 1 + max((handle.generation for handle in handles), default=-1)

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._leader.publish(learner, env_steps)
        if self._inference is None:
            self._start()
        self._show()

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
        self._show()
        self._look()

    def wait(self, timeout_s: float) -> None:
        pause = self._ask_s - time.monotonic()
        if self._asked is not None and self._columns is None:
            self.host.wait([self._asked], timeout_s)
        else:
            time.sleep(max(LEAST_S, min(timeout_s, pause)))

    def waiting(self, actor: int = 0) -> int:
        """Whether a rollout is there; a block that follows nothing only after `broken_off` was asked."""
        blocked = self._broken and self._part.feeds == "steps"
        return int(self._columns is not None and not blocked)

    def take(self, actor: int = 0) -> What:
        """The rollout or block that waits; its arrays are the caller's."""
        columns, self._columns = self._columns, None
        assert columns is not None
        self._look()
        return cast(What, self._part.taken(columns))

    # What a table in the learner's process asks of players, all environments being one.

    def version(self, actor: int) -> int:
        return NONE if self._columns is None else int(self._columns["head"].reshape(-1)[0])

    def hand_over(self, actor: int) -> Any:
        raise ConfigError(
            "what inference keeps goes to the learner alone", where="central", do="Set replay.shards to 0"
        )

    def lost(self, actor: int) -> None:
        """Nothing is handed over."""

    def release(self, actor: int) -> None:
        """What was taken is in arrays of its own."""

    def broken_off(self) -> list[int]:
        broken, self._broken = self._broken, False
        return [0] if broken else []

    def save(self) -> Tree:
        return {"leader": self._leader.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._leader.load(state["leader"])
        self._first_generation = state["generation"]

    def close(self) -> None:
        for calls in self._plays:
            calls.clear()
        self._using = self._asked = self._columns = None
        self._leader.close()
        self.host.close()

    def _start(self) -> None:
        workers = self._plan.actors
        (self._inference,) = self.host.start(InferenceService, INFERENCE, 1, self._needs(1), self._for_inference)
        needs = self._needs(workers)
        self._workers = self.host.start(EnvService, ENVIRONMENTS, workers, needs, self._for_environments)

    def _for_inference(self, index: int, count: int) -> dict[str, Any]:
        workers = self._plan.actors
        whole = replace(self._part, generation=self._first_generation, envs=workers * self._part.envs)
        return {"part": whole.told(), "workers": workers}

    def _for_environments(self, index: int, count: int) -> dict[str, Any]:
        return {"part": replace(self._part, generation=self._first_generation).told(), "worker": index}

    def _renew(self, event: Event) -> None:
        """Start another for one that was given up though it worked: it was killed, and did not fail by itself."""
        who = (event.service, event.index)
        if who not in self._worked:
            raise TrainingStopped(
                f"it keeps ending: {event.why}",
                where=f"{event.service} {event.index}",
                do="Mend the game, or look at it with --topology single; --resume goes on from the last checkpoint",
            )
        self._worked.remove(who)
        self._first_generation = self.generation
        handle = self.host.renew(*who)
        if event.service == INFERENCE:
            self._inference, self._using, self._asked, self._used = handle, None, None, NONE
            self._broken = True
            self.inference_restarts += 1
        else:
            self._workers[event.index] = handle
            self._plays[event.index].clear()
            self.restarts += 1

    def _needs(self, count: int) -> Resources:
        """Inference has places for those workers that it began with, so nobody scales them."""
        return Resources(cpus=self._plan.cpus_per_actor, place="spread", least=count, most=count)

    def _keep_playing(self, worker: int) -> None:
        """Make the calls that are due; what a game raises is raised here."""
        calls = self._plays[worker]
        while calls and calls[0].done():
            try:
                calls.popleft().result(ANSWER_S)
                self._worked.add((ENVIRONMENTS, worker))
            except Unreachable:
                calls.clear()
                self._not_before_s[worker] = time.monotonic() + AGAIN_S
        if time.monotonic() >= self._not_before_s[worker]:
            while len(calls) < AHEAD:
                calls.append(self._workers[worker].ask("play"))

    def _show(self) -> None:
        """Send the newest weights, once the last have arrived or are lost."""
        if self._using is not None and self._using.done():
            try:
                self._using.result(ANSWER_S)
            except Unreachable:
                self._used = NONE
            self._using = None
        if self._using is None and self._inference is not None and self._used != self._editions.version:
            self._used = self._editions.version
            self._using = self._inference.ask("use", *self._editions.arguments())

    def _look(self) -> None:
        """Take the answer for a rollout in, and ask for the next."""
        if self._asked is not None and self._columns is None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                answer = asked.result(ANSWER_S)
            except Unreachable:
                self._broken = True
                self._ask_s = time.monotonic() + AGAIN_S
                return
            self._columns = answer["columns"]
            self._broken = self._broken or bool(answer["broken"])
            if self._columns is None:
                self._ask_s = time.monotonic() + ASK_S
            else:
                self.served = float(answer["served"])
                self._worked.add((INFERENCE, 0))
            if answer["version"] == NONE:
                self._used = NONE  # it began anew
        if self._asked is None and self._inference is not None and time.monotonic() >= self._ask_s:
            self._asked = self._inference.ask("kept")
