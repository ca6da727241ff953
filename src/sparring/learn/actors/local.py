"""Actors on this machine: processes that inherit shared weights and ring buffers, so that nothing is copied or sent."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from sparring.errors import Missing, Refused
from sparring.learn.actors.actor_spec import ActorSpec, Ring
from sparring.learn.actors.process_pool import ProcessPool, ProcessSpec, StartRequest
from sparring.learn.actors.rollout_slots import PlayedRollout, RolloutRing
from sparring.learn.actors.step_blocks import StepBlock
from sparring.learn.actors.weights import WeightPublisher
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.services.errors import CallTimeout
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

SERVICE = "actor"
MAX_ACTORS = 1000
SCALED_S = 50.0  # until the learner has scaled: it may be playing the games of the promotion gate

Played = TypeVar("Played", PlayedRollout, StepBlock)


class ActorScaling:
    """How many actors there should be, as others say while a run goes on (`spar services scale actor=6`).

    Processes that share memory are no services, and only the learner's thread may start and end them. So this answers
    the command as a host of one service does (`runs`, `scale`), and the command waits until the learner's thread has
    called `requested`.
    """

    def __init__(self, plan: Plan) -> None:
        self.actors = plan.actors  # now
        self._plan = plan
        self._wanted = plan.actors
        self._changed = Condition()
        self._open: list[Any] = []

    def open(self) -> None:
        """Let the command find it, where ZeroMQ is installed."""
        if importlib.util.find_spec("zmq") is not None:
            from sparring.hosts.control import HostControl, private_folder

            folder = private_folder(self._plan.discovery)
            self._open = [folder, HostControl(self, folder.path, self._plan.discovery)]

    @contextmanager
    def requested(self) -> Iterator[int | None]:
        """How many there should be, if that has changed; there are so many when the block ends."""
        with self._changed:
            wanted = self._wanted
        if wanted == self.actors:
            yield None
            return
        self.actors = wanted
        yield wanted
        with self._changed:
            self._changed.notify_all()

    def runs(self) -> list[dict[str, Any]]:
        """As of a host."""
        return [{"name": SERVICE, "count": self.actors, "generations": [0] * self.actors}]

    def scale(self, name: str, count: int) -> range:
        """As of a host."""
        if name != SERVICE:
            raise Missing(f"no service {name!r} was started", where="spar train", do=f"It runs {SERVICE}")
        if not 1 <= count <= MAX_ACTORS:
            raise Refused(f"{count} instances", where=f"service {SERVICE}", do=f"Ask for 1 to {MAX_ACTORS}")
        with self._changed:
            self._wanted = count
            if not self._changed.wait_for(lambda: self.actors == count, SCALED_S):
                do = "It scales between two iterations, as soon as it can"
                raise CallTimeout("the learner is busy and has not scaled yet", where="spar train", do=do)
        return range(count)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


class _LocalActors(ABC):
    """Processes that read shared weights; they start with the first version."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        self._spec = spec
        self._weights = spec.open_weights()
        self._publisher = WeightPublisher(plan.algorithm, plan.seed, spec.past, self._weights)
        self.pool: ProcessPool | None = None
        self._first_generation = 0
        self._scaling = ActorScaling(plan)

    @property
    def actors(self) -> int:
        return self._scaling.actors

    @property
    def restarts(self) -> int:
        return 0 if self.pool is None else self.pool.restarts

    @property
    def generation(self) -> int:
        return self._first_generation if self.pool is None else self.pool.generation

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._publisher.publish(learner, env_steps)
        if self.pool is None:
            self.pool = ProcessPool(self.actors, self._launch, self._first_generation)
            self._scaling.open()
        elif self._spec.feeds == "rollouts":
            self.pool.ring_all()  # an actor that plays blocks looks before each of them anyway

    def tend(self) -> None:
        if self.pool is not None:
            with self._scaling.requested() as actors:
                if actors is not None:
                    self._resize(self.pool, actors)
            self.pool.tend()

    def wait(self, timeout_s: float) -> None:
        assert self.pool is not None
        self.pool.wait(timeout_s)

    def replace(self, actor: int) -> None:
        assert self.pool is not None
        self.pool.replace(actor)

    def pid(self, actor: int) -> int | None:
        """Of its process; None while it is being restarted."""
        return None if self.pool is None else self.pool.pid(actor)

    def save(self) -> Tree:
        return {"past": self._publisher.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._publisher.load(state["past"])
        self._first_generation = state["generation"]

    def close(self) -> None:
        self._scaling.close()
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        self._weights.close()

    @abstractmethod
    def _resize(self, pool: ProcessPool, actors: int) -> None: ...

    @abstractmethod
    def _launch(self, request: StartRequest) -> ProcessSpec:
        """How an actor is started, with a ring buffer that no other writes."""

    def _process(self, request: StartRequest, ring: Ring, spec: ActorSpec) -> ProcessSpec:
        weights, out = self._weights.block.descriptor, ring.ring.block.descriptor
        spec = replace(
            spec,
            actor=request.actor,
            generation=request.generation,
            weights_descriptor=weights,
            ring_descriptor=out,
            wakeup_descriptor=request.bell,
        )
        return ProcessSpec(spec.encode(), (weights, out))


class LocalAsyncActors(_LocalActors, Generic[Played]):
    """Each actor has a ring buffer; it waits where that is full. `epsilon` gives actor i of n its own ε."""

    def __init__(self, plan: Plan, spec: ActorSpec, epsilon: Callable[[int, int], float] | None = None) -> None:
        super().__init__(plan, spec)
        self._epsilon = epsilon
        self._rings: dict[int, Ring] = {}
        self._broken_off: list[int] = []
        self._taken: set[int] = set()  # actors whose oldest slot is being read
        self._handed: dict[int, tuple[int, int]] = {}  # actor → its generation, and how many blocks were handed over

    def waiting(self, actor: int) -> int:
        ring = self._rings.get(actor)
        return 0 if ring is None else ring.ring.ready()

    def version(self, actor: int) -> int:
        return int(self._rings[actor].ring.to_read()["head"].reshape(-1)[0])

    def take(self, actor: int) -> Played:
        self._taken.add(actor)
        taken: Played = self._rings[actor].take()  # type: ignore[assignment]
        return taken

    def hand_over(self, actor: int) -> dict[str, int | dict[str, Array]]:
        columns = self._rings[actor].take_columns()
        self._taken.add(actor)
        self.release(actor)
        generation, number = self._handed[actor]
        self._handed[actor] = (generation, number + 1)
        return {"actor": actor, "generation": generation, "number": number + 1, "columns": columns}

    def lost(self, actor: int) -> None:
        """The block was here when it was handed over: only the shard can have lost it."""

    def release(self, actor: int) -> None:
        if actor in self._taken and self.pool is not None:
            self._taken.remove(actor)
            self._rings[actor].ring.release()
            self.pool.ring(actor)

    def broken_off(self) -> list[int]:
        found, self._broken_off = self._broken_off, []
        return found

    def close(self) -> None:
        super().close()
        for ring in self._rings.values():
            ring.ring.close()
        self._rings, self._taken = {}, set()

    def _resize(self, pool: ProcessPool, actors: int) -> None:
        left = range(actors, len(pool))
        pool.resize(actors)
        for actor in left:
            self._rings.pop(actor).ring.close()
            self._taken.discard(actor)
            self._broken_off.append(actor)

    def _launch(self, request: StartRequest) -> ProcessSpec:
        """A new ring buffer: what a dead actor left in the old one is lost, and was never counted."""
        actor = request.actor
        if (old := self._rings.pop(actor, None)) is not None:
            old.ring.close()
        self._taken.discard(actor)
        self._broken_off.append(actor)
        self._handed[actor] = (request.generation, 0)
        ring = self._rings[actor] = self._spec.open_ring()
        epsilon = None if self._epsilon is None else self._epsilon(actor, self.actors)
        return self._process(request, ring, replace(self._spec, epsilon=epsilon))


class LocalSyncActors(_LocalActors):
    """All actors write into one ring buffer, each its own streams, so that joining them costs nothing."""

    def __init__(self, plan: Plan, spec: ActorSpec) -> None:
        super().__init__(plan, spec)
        self._rollouts = self._open_rollouts()
        self._states: list[bytes] = []  # of actors that are not started yet
        self._restarts = 0  # before the last resize

    def publish(self, learner: Learner, env_steps: int) -> None:
        first = self.pool is None
        super().publish(learner, env_steps)
        if first:
            self._states = []

    @property
    def restarts(self) -> int:
        return self._restarts + super().restarts

    def missing(self) -> list[int]:
        return [actor for actor in range(self.actors) if not self._rollouts.ring.ready(actor)]

    def take_all(self) -> PlayedRollout:
        return self._rollouts.take_all()

    def release_all(self) -> None:
        for actor in range(self.actors):
            self._rollouts.ring.release(actor)

    def save(self) -> Tree:
        states = self._states if self.pool is None else self.pool.ask(self._weights.version)
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def close(self) -> None:
        super().close()
        self._rollouts.ring.close()

    def _open_rollouts(self) -> RolloutRing:
        ring = self._spec.open_ring()
        assert isinstance(ring, RolloutRing)
        return ring

    def _resize(self, pool: ProcessPool, actors: int) -> None:
        """A ring buffer of as many writers, and all start again: what they have played of this version they repeat."""
        self._restarts, generation = self.restarts, pool.generation
        pool.close()
        self._rollouts.ring.close()
        self._spec = replace(self._spec, writers=actors)
        self._rollouts = self._open_rollouts()
        self.pool = ProcessPool(actors, self._launch, generation)

    def _launch(self, request: StartRequest) -> ProcessSpec:
        """The same streams of the ring buffer again: their last writer is dead, and what it left is dropped."""
        actor = request.actor
        self._rollouts.ring.rewind(actor)
        state = self._states[actor] if actor < len(self._states) else b""
        return self._process(request, self._rollouts, replace(self._spec, writer=actor, state=state))
