"""Actors of this machine: processes that inherit a board of weights and rings, so that nothing is copied or sent."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec.structs import replace

from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.process_pool import ProcessPool, ProcessSpec, StartRequest
from sparring.learn.actors.rollout_slots import PlayedRollout, RolloutRing
from sparring.learn.actors.scale import ActorScaling
from sparring.learn.actors.step_blocks import StepBlock, StepBlockRing
from sparring.learn.actors.weight_publisher import WeightPublisher
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

What = TypeVar("What", PlayedRollout, StepBlock)


class _LocalActors(ABC):
    """A crew around a board, started with the first version."""

    def __init__(self, plan: Plan, part: ActorSpec) -> None:
        self._plan, self._part = plan, part
        self._board = part.open_board()
        self._leader = WeightPublisher(plan, self._board)
        self.crew: ProcessPool | None = None
        self._generation = 0  # of those who are started first
        self._scaling = ActorScaling(plan)

    @property
    def actors(self) -> int:
        return self._scaling.actors

    @property
    def restarts(self) -> int:
        return 0 if self.crew is None else self.crew.restarts

    @property
    def generation(self) -> int:
        return self._generation if self.crew is None else self.crew.generation

    def publish(self, learner: Learner, env_steps: int) -> None:
        self._leader.publish(learner, env_steps)
        if self.crew is None:
            self.crew = ProcessPool(self.actors, self._launch, self._generation)
            self._scaling.open()
        elif self._part.feeds == "rollouts":
            self.crew.ring_all()  # whoever plays blocks looks before each

    def tend(self) -> None:
        if self.crew is not None:
            with self._scaling.asked() as actors:
                if actors is not None:
                    self._resize(self.crew, actors)
            self.crew.tend()

    def wait(self, timeout_s: float) -> None:
        assert self.crew is not None
        self.crew.wait(timeout_s)

    def replace(self, actor: int) -> None:
        assert self.crew is not None
        self.crew.replace(actor)

    def pid(self, actor: int) -> int | None:
        """Of its process; None between two lives."""
        return None if self.crew is None else self.crew.pid(actor)

    def save(self) -> Tree:
        return {"leader": self._leader.save(), "generation": self.generation}

    def load(self, state: Tree) -> None:
        self._leader.load(state["leader"])
        self._generation = state["generation"]

    def close(self) -> None:
        self._scaling.close()
        if self.crew is not None:
            self.crew.close()
            self.crew = None
        self._leader.close()

    @abstractmethod
    def _resize(self, crew: ProcessPool, actors: int) -> None:
        """So many from now on."""

    @abstractmethod
    def _launch(self, call: StartRequest) -> ProcessSpec:
        """How an actor is started, with memory that no other has touched."""

    def _launched(self, call: StartRequest, ring: int, part: ActorSpec) -> ProcessSpec:
        board = self._board.block.descriptor
        told = replace(part, actor=call.actor, generation=call.generation, board=board, ring=ring, bell=call.bell)
        return ProcessSpec(told.told(), (board, ring))


class LocalAsyncActors(_LocalActors, Generic[What]):
    """Players with a ring for each: full means wait. `boldness` gives each actor, of so many, an ε of its own."""

    def __init__(self, plan: Plan, part: ActorSpec, boldness: Callable[[int, int], float] | None = None) -> None:
        super().__init__(plan, part)
        self._boldness = boldness
        self._rings: dict[int, RolloutRing | StepBlockRing] = {}
        self._broken_off: list[int] = []
        self._taken: set[int] = set()  # whose oldest is looked at
        self._handed: dict[int, tuple[int, int]] = {}  # the life of each actor, and how many of it were handed over

    def waiting(self, actor: int) -> int:
        ring = self._rings.get(actor)
        return 0 if ring is None else ring.ring.ready()

    def version(self, actor: int) -> int:
        return int(self._rings[actor].ring.to_read()["head"].reshape(-1)[0])

    def take(self, actor: int) -> What:
        ring = self._rings[actor]
        self._taken.add(actor)
        taken: What = ring.take() if isinstance(ring, RolloutRing) else ring.take_joined()  # type: ignore[assignment]
        return taken

    def hand_over(self, actor: int) -> dict[str, int | dict[str, Array]]:
        columns = self._rings[actor].take_columns()
        self._taken.add(actor)
        self.release(actor)
        life, number = self._handed[actor]
        self._handed[actor] = (life, number + 1)
        return {"actor": actor, "life": life, "number": number + 1, "columns": columns}

    def lost(self, actor: int) -> None:
        """What it hands over is there: it cannot be lost on its way."""

    def release(self, actor: int) -> None:
        if actor in self._taken and self.crew is not None:
            self._taken.remove(actor)
            self._rings[actor].ring.release()
            self.crew.ring(actor)

    def broken_off(self) -> list[int]:
        found, self._broken_off = self._broken_off, []
        return found

    def close(self) -> None:
        super().close()
        for ring in self._rings.values():
            ring.ring.close()
        self._rings, self._taken = {}, set()

    def _resize(self, crew: ProcessPool, actors: int) -> None:
        left = range(actors, len(crew))
        crew.resize(actors)
        for actor in left:
            self._rings.pop(actor).ring.close()
            self._taken.discard(actor)
            self._broken_off.append(actor)

    def _launch(self, call: StartRequest) -> ProcessSpec:
        """A fresh ring for whoever is started: what a dead one left is lost, and was never counted."""
        if (old := self._rings.pop(call.actor, None)) is not None:
            old.ring.close()
        self._taken.discard(call.actor)
        self._broken_off.append(call.actor)
        self._handed[call.actor] = (call.generation, 0)
        opened = self._part.open_rollouts() if self._part.feeds == "rollouts" else self._part.open_blocks()
        ring = self._rings[call.actor] = opened
        own = None if self._boldness is None else self._boldness(call.actor, self.actors)
        return self._launched(call, ring.ring.block.descriptor, replace(self._part, epsilon=own))


class LocalSyncActors(_LocalActors):
    """Players in step, who share one ring, each with streams of its own: joining them costs nothing."""

    def __init__(self, plan: Plan, part: ActorSpec) -> None:
        super().__init__(plan, part)
        self._rollouts = part.open_rollouts()
        self._states: list[bytes] = []  # of actors that are not started yet
        self._restarts = 0  # in crews of other sizes

    def publish(self, learner: Learner, env_steps: int) -> None:
        first = self.crew is None
        super().publish(learner, env_steps)
        if first:
            self._states = []

    @property
    def restarts(self) -> int:
        return self._restarts + super().restarts

    def missing(self) -> list[int]:
        return [lane for lane in range(self.actors) if not self._rollouts.ring.ready(lane)]

    def take_all(self) -> PlayedRollout:
        return self._rollouts.take_all()

    def release_all(self) -> None:
        for lane in range(self.actors):
            self._rollouts.ring.release(lane)

    def save(self) -> Tree:
        states = self._states if self.crew is None else self.crew.ask(self._board.version)
        return super().save() | {"actors": states}

    def load(self, state: Tree) -> None:
        super().load(state)
        self._states = list(state["actors"])

    def close(self) -> None:
        super().close()
        self._rollouts.ring.close()

    def _resize(self, crew: ProcessPool, actors: int) -> None:
        """A ring of as many lanes, and all begin anew: what they have played of the newest version they play again."""
        self._restarts, generation = self.restarts, crew.generation
        crew.close()
        self._rollouts.ring.close()
        self._part = replace(self._part, lanes=actors)
        self._rollouts = self._part.open_rollouts()
        self.crew = ProcessPool(actors, self._launch, generation)

    def _launch(self, call: StartRequest) -> ProcessSpec:
        """The same lane again: whoever wrote it is dead, and what it left there is forgotten."""
        ring = self._rollouts.ring
        ring.rewind(call.actor)
        state = self._states[call.actor] if call.actor < len(self._states) else b""
        part = replace(self._part, lane=call.actor, state=state)
        return self._launched(call, ring.block.descriptor, part)
