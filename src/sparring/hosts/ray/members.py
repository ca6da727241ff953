"""The instances of a host on Ray: where each is placed, and what becomes of it."""

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread
from typing import Any

import ray
from ray._private import state
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from sparring.hosts.protocol import Event, Kind, Resources
from sparring.hosts.ray.calls import RayCallee
from sparring.processes.restart_policy import RestartPolicy

LOOK_S = 0.5
ANSWER_S = 10.0  # of a node that is asked about an instance
MAX_EVENTS = 1000
MAX_CONCURRENT = 1000  # callers of one instance that Ray lets in


@dataclass(slots=True, eq=False)
class RayMember(RayCallee):
    """One instance of a host."""

    service: str
    index: int
    policy: RestartPolicy
    group: "PlacedGroup"
    node: Any = None  # Ray's function `known_of`, where this process is no node's and has to ask one
    generation: int = 0
    state: str = ""
    up_s: float | None = None  # since when it can be called
    leaving: bool = False
    why: str = ""  # it is gone for good
    caller: str = field(default_factory=lambda: os.urandom(6).hex())
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def order(self) -> tuple[str, int]:
        return self.caller, next(self._numbers)

    def look(self) -> dict[str, Any]:
        """What Ray knows of it now; empty where it knows nothing."""
        actor: str = self.actor._actor_id.hex()
        found = known_of(actor) if self.node is None else ray.get(self.node.remote(actor), timeout=ANSWER_S)
        if found:
            self.state = found["State"]
        return found

    def why_gone(self) -> str:
        return "" if self.leaving else self.why

    def why_late(self) -> str:
        waiting = self.state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY", "")
        return "it has no place in the cluster yet (see `ray status`)" if waiting else ""


def known_of(actor: str) -> dict[str, Any]:
    """What the control store says of one of that number, as plain data, which can travel."""
    found = state.actors(actor)
    kept = {name: found[name] for name in ("State", "NumRestarts", "Address") if name in found}
    return kept | {"DeathCause": str(found["DeathCause"]).strip()} if found else {}


class PlacedGroup:
    """Instances that are placed together; the place is given back when the last has left."""

    def __init__(self, needs: Resources, count: int) -> None:
        self._needs, self.count = needs, count
        bundle = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": float(needs.memory_bytes)}
        self._bundle = {name: amount for name, amount in bundle.items() if amount > 0}
        self._placed: PlacementGroup | None = None
        if self._bundle and needs.place != "here":
            self._placed = placement_group([self._bundle] * count, strategy=needs.place.upper())

    def options(self, number: int) -> dict[str, Any]:
        """How Ray is to start the instance of that number among these."""
        needs = self._needs
        strategy: Any = "SPREAD" if needs.place == "spread" else "DEFAULT"
        if needs.place == "here":
            strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        elif self._placed is not None:
            strategy = PlacementGroupSchedulingStrategy(self._placed, number)
        found = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": strategy}
        return found | ({"memory": needs.memory_bytes} if needs.memory_bytes else {})

    def left(self) -> None:
        """One of them has."""
        self.count -= 1
        if self.count == 0 and self._placed is not None:
            remove_placement_group(self._placed)
            self._placed = None


class RayWatch:
    """Looks at the instances' states, and ends those that keep dying young, which Ray would start again for ever."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._members: list[RayMember] = []
        self._over = Flag()
        self._thread: Thread | None = None

    def add(self, member: RayMember) -> None:
        self._members = [*self._members, member]
        if self._thread is None:
            self._thread = Thread(target=self._run, name="ray-watch", daemon=True)
            self._thread.start()

    def remove(self, member: RayMember, kind: Kind, why: str) -> None:
        self._members = [one for one in self._members if one is not member]
        member.why = why
        self._happened(member, kind, why)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for member in self._members:
                if not member.leaving:
                    with suppress(RayError, RuntimeError):  # the control store is away: look again later
                        self._look(member, time.monotonic())

    def _look(self, member: RayMember, now: float) -> None:
        found = member.look()
        if not found:
            return
        for _ in range(int(found["NumRestarts"]) - member.generation):
            member.generation += 1
            self._happened(member, "died", "its process ended")
            if member.policy.died(now, member.up_s) is None:
                ray.kill(member.actor, no_restart=True)
                self.remove(member, "gave up", f"it ended {member.policy.deaths} times")
                return
            member.up_s = None
        if member.state == "ALIVE" and member.up_s is None:
            member.up_s = now
            self._happened(member, "restarted" if member.generation else "started", "")
        if member.state == "DEAD":
            why = found["DeathCause"] or "Ray ended it"
            self._happened(member, "died", why)
            self.remove(member, "gave up", why)

    def _happened(self, member: RayMember, kind: Kind, why: str) -> None:
        event = Event(kind=kind, service=member.service, index=member.index, why=why, at_s=time.time())
        self.events.append(event)
