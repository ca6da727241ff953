"""`ray://`: services as actors of a Ray cluster. Placement, restart, object store and scheduling are Ray's work."""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
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

from sparring.hosts.control import HostFolder
from sparring.hosts.protocol import Event, Host, Kind, Pending, Resources, Started
from sparring.hosts.ray.actor import RayCallee, RayPending, RayServiceActor, call, plain
from sparring.hosts.ray.cluster import Cluster
from sparring.processes.supervisor import RestartPolicy

STOP_S = 2.5  # for an orderly end; then Ray kills
LOOK_S = 0.5
ANSWER_S = 10.0  # of a node that is asked about an instance
MAX_CONCURRENT = 1000  # callers of one instance that Ray lets in


@dataclass(slots=True, eq=False)
class RayMember(RayCallee):
    """One instance: the Handle of this host."""

    service: str
    index: int
    policy: RestartPolicy
    group: "PlacedGroup"
    node: Any = None  # Ray's function `known_of`, where this process is no node's and has to ask one
    generation: int = 0
    state: str = ""
    pid: int = 0
    node_ip: str = ""
    up_s: float | None = None  # since when it can be called
    leaving: bool = False
    why: str = ""  # it is gone for good
    caller: str = field(default_factory=lambda: os.urandom(6).hex())
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(self, verb: str, *args: Any, **named: Any) -> RayPending:
        return call(self, verb, args, named, (self.caller, next(self._numbers)))

    def look(self) -> dict[str, Any]:
        """What Ray knows of it now; empty where it knows nothing."""
        actor: str = self.actor._actor_id.hex()
        found = known_of(actor) if self.node is None else ray.get(self.node.remote(actor), timeout=ANSWER_S)
        if found:
            self.state, self.pid, self.node_ip = found["State"], found["Pid"], found["Address"]["IPAddress"]
        return found

    def why_gone(self) -> str:
        return "" if self.leaving else self.why

    def why_late(self) -> str:
        waiting = self.state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY", "")
        return "it has no place in the cluster yet (see `ray status`)" if waiting else ""


def known_of(actor: str) -> dict[str, Any]:
    """What the control store says of one of that number, as plain data, which can travel."""
    found = state.actors(actor)
    kept = {name: found[name] for name in ("State", "NumRestarts", "Address", "Pid") if name in found}
    return kept | {"DeathCause": str(found["DeathCause"]).strip()} if found else {}


class PlacedGroup:
    """Instances that are placed together; the place is given back when the last has left."""

    def __init__(self, needs: Resources, count: int) -> None:
        self._needs, self.count = needs, count
        wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": float(needs.memory_bytes)}
        bundle = {name: amount for name, amount in wanted.items() if amount > 0}
        self._placed: PlacementGroup | None = None
        if bundle and needs.place != "here":
            self._placed = placement_group([bundle] * count, strategy=needs.place.upper())

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


class RayHost(Host):
    """Instances are Ray's actors, in a namespace of this host. A thread looks at their states, and ends those that keep
    dying young, which Ray would start again for ever."""

    def __init__(self, url: str, cluster: Cluster, seen: str = "") -> None:
        super().__init__(url, cluster.discovery)
        self._cluster = cluster
        self._members: list[RayMember] = []
        self._over = Flag()
        self._thread = Thread(target=self._look_at_all, name="ray-watch", daemon=True)
        self._thread.start()
        self._node = ray.remote(num_cpus=0)(known_of) if cluster.remote else None
        self._folder = HostFolder(seen)
        self._folder.serve(self.runs, self.scale)

    def _places(self, handles: list[RayMember]) -> list[dict[str, Any]]:
        boot_s = time.time() - time.monotonic()
        return [
            {
                "id": str(one.index),
                "address": f"ray://{one.node_ip}/{self._cluster.namespace}" if one.up_s else one.state.lower(),
                "pid": one.pid,
                "host": one.node_ip,
                "since_s": boot_s + one.up_s if one.up_s else 0.0,
            }
            for one in handles
        ]

    def share(self, value: Any) -> "ray.ObjectRef[Any]":
        return ray.put(plain(value))

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        by_ref = {one.ref: one for one in pending if isinstance(one, RayPending)}
        if not by_ref:
            return []
        fetch = all(one.here for one in by_ref.values())
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=seconds, fetch_local=fetch)
        if ready:
            ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0, fetch_local=fetch)
        return [by_ref[ref] for ref in ready]

    def _close(self) -> None:
        self._over.set()
        self._thread.join()
        self._folder.close()
        self._cluster.close()

    def _add(self, started: Started, first: int, given: Sequence[dict[str, Any]]) -> list[RayMember]:
        if not given:
            return []
        group = PlacedGroup(started.needs, len(given))
        around = {"discovery": self.discovery, "paths": [path for path in sys.path if path]}
        kind = ray.remote(RayServiceActor)
        members = []
        for index, one in enumerate(given, first):
            options = group.options(index - first) | {
                "name": f"sparring/{started.name}/{index}",
                "namespace": self._cluster.namespace,
                "max_restarts": started.needs.restarts,
                "max_concurrency": MAX_CONCURRENT,
            }
            actor = kind.options(**options).remote(started.path, started.name, index, one, around)
            policy = RestartPolicy(started.needs.restarts)
            who = f"{started.name}/{index}"
            members.append(RayMember(who, actor, started.idempotent, started.name, index, policy, group, self._node))
        self._members = [*self._members, *members]
        return members

    def _stop(self, handles: list[RayMember], by_force: bool) -> None:
        """Ask them to end, wait a little, and end them."""
        members = [member for member in handles if not member.why]
        for member in members:
            member.leaving = True
            member.look()
        asked = [member.actor.close.remote() for member in members if member.state == "ALIVE"]
        if asked and not by_force:
            ray.wait(asked, num_returns=len(asked), timeout=STOP_S)
        for member in members:
            ray.kill(member.actor, no_restart=True)
            self._remove(member, "stopped", "it was stopped")
        for member in handles:
            member.group.left()

    def _remove(self, member: RayMember, kind: Kind, why: str) -> None:
        self._members = [one for one in self._members if one is not member]
        member.why = why
        self._happened(member, kind, why)

    def _happened(self, member: RayMember, kind: Kind, why: str = "") -> None:
        self._events.append(Event(kind=kind, service=member.service, index=member.index, why=why))

    def _look_at_all(self) -> None:
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
                self._remove(member, "gave up", f"it ended {member.policy.deaths} times")
                return
            member.up_s = None
        if member.state == "ALIVE" and member.up_s is None:
            member.up_s = now
            self._happened(member, "restarted" if member.generation else "started")
        if member.state == "DEAD":
            why = found["DeathCause"] or "Ray ended it"
            self._happened(member, "died", why)
            self._remove(member, "gave up", why)
