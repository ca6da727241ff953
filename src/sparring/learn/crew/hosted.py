"""Actors as services of a host: each plays a rollout or block for each call, and a few calls are under way.

    learner ─ share(edition) ─► once for each machine
            ─ play(edition) ──► actor i, AHEAD calls each ─► its answer, in order

So many calls under way are the back-pressure: whoever is not taken from has nothing left to do. When an actor dies its
calls are lost; its successor is asked anew, and what it then plays follows nothing.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from sparring.errors import TrainingStopped, Unreachable
from sparring.hosts.opening import open_host
from sparring.hosts.protocol import Handle, Host, Pending, Resources, Shared
from sparring.learn.crew.acting import Acting
from sparring.learn.crew.blocks import Block
from sparring.learn.crew.leader import Leader
from sparring.learn.crew.part import Part
from sparring.learn.crew.rollouts import Played, played, side_by_side
from sparring.learn.crew.weights import NONE
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner, Weights
from sparring.wire.tree import Tree

SERVICE = "actor"
AHEAD = 2  # calls under way for each actor
SHOW_EVERY_S = 0.1  # between two editions, where updates are many for each block
AGAIN_S = 0.25  # before a lost call is made again
ANSWER_S = 30.0

What = TypeVar("What", Played, Block)


class Editions:
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


class _Hosted:
    """Handles, the calls that are under way for each, and what came back of them."""

    def __init__(self, plan: Plan, part: Part, every_s: float, ahead: int) -> None:
        self.host = open_host(plan.on)
        self._plan, self._part, self._ahead = plan, part, ahead
        self._editions = Editions(self.host, part.past, every_s)
        self._leader = Leader(plan, self._editions)
        self._handles: list[Handle] = []
        self._calls: list[deque[Pending]] = [deque() for _ in range(plan.actors)]
        self._not_before_s = [0.0] * plan.actors
        self._first_generation, self._states = 0, [b""] * plan.actors
        self._broken_off: list[int] = []
        self._served = [False] * plan.actors  # whether anything came of each since it was started last
        self._successors: dict[str, int] = {}  # services of one instance each, for actors that the host gave up
        self.restarts = 0

    @property
    def generation(self) -> int:
        return self._first_generation + 1 + max((handle.generation for handle in self._handles), default=-1)

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._leader.publish(learner, env_steps)
        if not self._handles:
            needs = Resources(cpus=self._plan.cpus_per_actor, place="spread")
            given = [{"part": self._told(actor)} for actor in range(self._plan.actors)]
            self._handles = self.host.start(Acting, SERVICE, self._plan.actors, needs, given)
            self._states = [b""] * self._plan.actors

    def tend(self) -> None:
        for event in self.host.watch():
            actor = event.index if event.service == SERVICE else self._successors.get(event.service)
            if event.kind == "gave up" and (actor is None or not self._served[actor]):
                raise TrainingStopped(
                    f"it keeps ending: {event.why}",
                    where=f"{event.service} {event.index}",
                    do="Mend the game, or look at it with --topology single; --resume goes on from the last checkpoint",
                )
            if actor is not None and event.kind == "gave up":
                self._succeed(actor)
            if actor is not None and event.kind in ("restarted", "gave up"):
                self.restarts += 1
        for actor in range(len(self._handles)):
            self._tend_one(actor)

    def wait(self, timeout_s: float) -> None:
        pending = [one for calls in self._calls for one in calls if not one.done()]
        if pending:
            self.host.wait(pending, timeout_s)
        else:
            time.sleep(min(timeout_s, AGAIN_S))

    def replace(self, actor: int) -> None:
        """A host ends what has died, and leaves alone what is slow."""

    def save(self) -> Tree:
        return {"leader": self._leader.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._leader.load(state["leader"])
        self._first_generation = state["generation"]

    def close(self) -> None:
        for calls in self._calls:
            calls.clear()
        self._leader.close()
        self.host.close()

    def _tend_one(self, actor: int) -> None:
        """Make the calls that are due."""
        calls, now = self._calls[actor], time.monotonic()
        while len(calls) < self._due(actor) and now >= self._not_before_s[actor]:
            calls.append(self._handles[actor].ask("play", *self._editions.arguments()))

    def _succeed(self, actor: int) -> None:
        """Start another for one that was given up though it played: it was killed, and did not fail by itself."""
        name = f"{SERVICE}-{actor}-{len(self._successors)}"
        self._first_generation = self.generation
        self._successors[name] = actor
        self._served[actor] = False
        needs = Resources(cpus=self._plan.cpus_per_actor, place="spread")
        (self._handles[actor],) = self.host.start(Acting, name, 1, needs, {"part": self._told(actor)})

    def _due(self, actor: int) -> int:
        return self._ahead

    def _result(self, actor: int) -> dict[str, Any] | None:
        """The answer of its oldest call; None where that was lost. Those after it speak for themselves: they may have
        reached the successor."""
        try:
            answer: dict[str, Any] = self._calls[actor][0].result(ANSWER_S)
        except Unreachable:
            self._calls[actor].popleft()
            self._not_before_s[actor] = time.monotonic() + AGAIN_S
            self._broken_off.append(actor)
            return None
        self._served[actor] = True
        return answer

    def _told(self, actor: int) -> bytes:
        part = replace(self._part, actor=actor, generation=self._first_generation, state=self._states[actor])
        return part.told()


class Calls(_Hosted, Generic[What]):
    """Players who are asked for the next rollout or block before the last was taken.

    With `passing` what they play is handed over to others, and never read here.
    """

    def __init__(
        self, plan: Plan, part: Part, boldness: Callable[[int], float] | None = None, *, passing: bool = False
    ) -> None:
        super().__init__(plan, part, SHOW_EVERY_S if part.feeds == "steps" else 0.0, AHEAD)
        self._boldness, self._passing = boldness, passing
        self._answers: list[deque[Any]] = [deque() for _ in range(plan.actors)]  # read, not yet taken

    def waiting(self, actor: int) -> int:
        calls = self._calls[actor]
        if calls and calls[0].done() and not self._passing and self._read(actor) is None:
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
        pending = self._calls[actor].popleft()
        self._tend_one(actor)
        return pending

    def lost(self, actor: int) -> None:
        """What was handed over never came: the actor died, or who was to take it in."""
        self._not_before_s[actor] = time.monotonic() + AGAIN_S

    def release(self, actor: int) -> None:
        self._served[actor] = True
        if self._answers[actor]:
            self._answers[actor].popleft()
            self._calls[actor].popleft()
        self._tend_one(actor)

    def broken_off(self) -> list[int]:
        found, self._broken_off = self._broken_off, []
        return found

    def _read(self, actor: int) -> dict[str, Any] | None:
        if not self._answers[actor]:
            answer = self._result(actor)
            if answer is None:
                return None
            self._answers[actor].append(answer)
        return self._answers[actor][0]  # type: ignore[no-any-return]

    def _told(self, actor: int) -> bytes:
        part = replace(self._part, actor=actor, generation=self._first_generation)
        if self._boldness is not None:
            part = replace(part, epsilon=self._boldness(actor))
        return part.told()


class Rounds(_Hosted):
    """Players in step: each is asked once for each version."""

    def __init__(self, plan: Plan, part: Part) -> None:
        super().__init__(plan, replace(part, lanes=1), 0.0, 1)
        self._round: list[dict[str, Any] | None] = [None] * plan.actors

    def tend(self) -> None:
        super().tend()
        for actor, calls in enumerate(self._calls):
            if calls and calls[0].done() and (answer := self._result(actor)) is not None:
                self._round[actor] = answer
                calls.popleft()

    def missing(self) -> list[int]:
        return [actor for actor, answer in enumerate(self._round) if answer is None]

    def take_all(self) -> Played:
        whole = side_by_side([answer["columns"] for answer in self._round if answer is not None])
        return played(whole, self._part.spec.seats[0])

    def release_all(self) -> None:
        """What was taken is in arrays of its own."""

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        self._round = [None] * self._plan.actors
        for actor in range(len(self._handles)):
            self._tend_one(actor)

    def save(self) -> Tree:
        states = self._states
        if self._handles:
            asked = [handle.ask("state") for handle in self._handles]
            states = [_state(one) for one in asked]
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def _due(self, actor: int) -> int:
        return 0 if self._round[actor] is not None else 1


def _state(asked: Pending) -> bytes:
    """What an actor answers; nothing where it died."""
    try:
        return bytes(asked.result(ANSWER_S))
    except Unreachable:
        return b""
