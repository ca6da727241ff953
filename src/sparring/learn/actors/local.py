"""Actors on this machine: processes that inherit shared weights and ring buffers, so that nothing is copied or sent."""

import importlib.util
import time
from threading import Condition
from typing import Any

from msgspec.structs import replace

from sparring.errors import Missing, Refused
from sparring.hosts.protocol import MAX_COUNT
from sparring.learn.actors.actor_spec import ActorSpec, Ring
from sparring.learn.actors.process_pool import ProcessPool
from sparring.learn.actors.protocol import Epsilon, PublishingActors
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.services.errors import CallTimeout
from sparring.wire.chunk import Array

SERVICE = "actor"
SAVED_S, LOOK_S = 10.0, 0.01  # until actors have begun the newest version, and between two looks
SCALED_S = 50.0  # until the learner has scaled: it may be playing the games of the promotion gate


class LocalActors(PublishingActors):
    """Processes that read shared weights. Each writes into a ring buffer of its own, and waits where that is full.

    Others may change their number while a run goes on (`spar services scale actor=6`). Processes that share memory are
    no services, and only the learner's thread may start and end them. So this answers the command as a host of one
    service does (`runs`, `scale`), and the command waits until the learner's thread has called `tend`.
    """

    def __init__(self, plan: Plan, spec: ActorSpec, epsilon: Epsilon | None = None) -> None:
        self._shared = spec.open_weights()
        super().__init__(plan, spec, self._shared, epsilon)
        self.pool = ProcessPool(self._launch)
        self._count = self._wanted = plan.actors
        self._changed = Condition()
        self._control: list[Any] = []  # by which the command finds this
        self._rings: dict[int, Ring] = {}
        self._taken: set[int] = set()  # actors whose oldest slot is being read
        self._handed: dict[int, tuple[int, int]] = {}  # actor → its generation, and how many blocks were handed over

    @property
    def actors(self) -> int:
        return self._count

    @property
    def restarts(self) -> int:
        return self.pool.restarts

    @property
    def generation(self) -> int:
        return max(self._first_generation, self.pool.generation)

    def publish(self, learner: Learner, env_steps: int) -> None:
        super().publish(learner, env_steps)
        if not len(self.pool):
            self.pool.resize(self.actors, self._first_generation)
            self._states = []
            if importlib.util.find_spec("zmq") is not None:
                from sparring.hosts.control import HostFolder

                folder = HostFolder(self._plan.discovery)
                folder.serve(self.runs, self.scale)
                self._control = [folder]
        elif self._spec.feeds == "rollouts":
            self.pool.ring_all()  # an actor that plays blocks looks before each of them anyway

    def tend(self) -> None:
        if not len(self.pool):
            return
        if (wanted := self._wanted) != self._count:
            left, self._count = range(wanted, self._count), wanted
            self.pool.resize(wanted)
            for actor in left:
                self._drop_ring(actor)
            with self._changed:
                self._changed.notify_all()
        self.pool.tend()

    def runs(self) -> list[dict[str, Any]]:
        """As of a host."""
        return [{"name": SERVICE, "count": self._count, "generations": [0] * self._count}]

    def scale(self, name: str, count: int) -> range:
        """As of a host."""
        if name != SERVICE:
            raise Missing(f"no service {name!r} was started", where="spar train", do=f"It runs {SERVICE}")
        if not 1 <= count <= MAX_COUNT:
            raise Refused(f"{count} instances", where=f"service {SERVICE}", do=f"Ask for 1 to {MAX_COUNT}")
        with self._changed:
            self._wanted = count
            if not self._changed.wait_for(lambda: self._count == count, SCALED_S):
                do = "It scales between two iterations, as soon as it can"
                raise CallTimeout("the learner is busy and has not scaled yet", where="spar train", do=do)
        return range(count)

    def wait(self, timeout_s: float) -> None:
        self.pool.wait(timeout_s)

    def waiting(self, actor: int) -> int:
        ring = self._rings.get(actor)
        return 0 if ring is None else ring.ready()

    def version(self, actor: int) -> int:
        return int(self._rings[actor].to_read()["head"].flat[0])

    def take(self, actor: int) -> dict[str, Array]:
        self._taken.add(actor)
        return self._rings[actor].to_read()

    def release(self, actor: int) -> None:
        if actor in self._taken:
            self._taken.remove(actor)
            self._rings[actor].release()
            self.pool.ring(actor)

    def hand_over(self, actor: int) -> dict[str, Any]:
        """Nothing can be lost on the way but by the shard."""
        columns = self._rings[actor].take_columns()
        self.pool.ring(actor)
        generation, number = self._handed[actor]
        self._handed[actor] = (generation, number + 1)
        return {"actor": actor, "generation": generation, "number": number + 1, "columns": columns}

    def replace(self, actor: int) -> None:
        self.pool.replace(actor)

    def close(self) -> None:
        while self._control:
            self._control.pop().close()
        self.pool.close()
        self._weights.close()
        for actor in list(self._rings):
            self._drop_ring(actor)

    def _saved_actors(self) -> list[bytes]:
        if not len(self.pool) or not self._spec.synchronous:
            return self._states
        version, until = self._shared.version, time.monotonic() + SAVED_S
        while (states := [self._rings[actor].block.attached(version) for actor in range(self.actors)]).count(None):
            if time.monotonic() > until:
                break  # that actor is frozen; after --resume it starts with new games
            self.wait(LOOK_S)
        return [state or b"" for state in states]

    def _drop_ring(self, actor: int) -> None:
        """What an actor that is gone left in its ring buffer is lost, and was never counted."""
        if (ring := self._rings.pop(actor, None)) is not None:
            ring.close()
        self._taken.discard(actor)
        self._broken_off.add(actor)

    def _launch(self, actor: int, generation: int, bell: int) -> tuple[bytes, tuple[int, ...]]:
        """How an actor is started, with a ring buffer that no other has written."""
        self._drop_ring(actor)
        self._handed[actor] = (generation, 0)
        ring = self._rings[actor] = self._spec.open_ring()
        weights, out = self._shared.block.descriptor, ring.block.descriptor
        spec = replace(
            self._spec_of(actor, self.actors, generation),
            weights_descriptor=weights,
            ring_descriptor=out,
            wakeup_descriptor=bell,
        )
        return spec.encode(), (weights, out)
