"""`ray://`: services as actors of a Ray cluster. Placement, restart, object store and scheduling are Ray's work."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from sparring.hosts.control import HostControl, private_folder
from sparring.hosts.protocol import Event, Pending
from sparring.hosts.ray.actor import RayServiceActor
from sparring.hosts.ray.calls import RayPending, RayShared, call, plain
from sparring.hosts.ray.cluster import Cluster
from sparring.hosts.ray.members import MAX_CONCURRENT, PlacedGroup, RayMember, RayWatch, known_of
from sparring.hosts.running_services import ServiceHost, Started
from sparring.hosts.service_class import path_of
from sparring.processes.restart_policy import RestartPolicy
from sparring.services.register import verbs_of

STOP_S = 2.5  # for an orderly end; then Ray kills


class RayHandle:
    """One instance on a cluster."""

    def __init__(self, member: RayMember) -> None:
        self.member = member

    @property
    def index(self) -> int:
        return self.member.index

    @property
    def generation(self) -> int:
        return self.member.generation

    def ask(self, verb: str, *args: Any, **named: Any) -> RayPending:
        return call(self.member, verb, args, named)

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        self.ask(verb, *args, **named).result()


class RayHost(ServiceHost[RayHandle]):
    """A context manager. Threads may share one."""

    def __init__(self, url: str, cluster: Cluster, seen: str = "") -> None:
        super().__init__()
        self.url, self._cluster = url, cluster
        self.discovery = cluster.discovery
        self._watch = RayWatch()
        self._node = ray.remote(num_cpus=0)(known_of) if cluster.remote else None
        self._folder = private_folder(seen)
        self._control = HostControl(self, self._folder.path, seen)

    def share(self, value: Any) -> RayShared:
        return RayShared(ray.put(plain(value)))

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        by_ref = {one.ref: one for one in pending if isinstance(one, RayPending)}
        if not by_ref:
            return []
        fetch = all(one.here for one in by_ref.values())
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=seconds, fetch_local=fetch)
        if ready:
            ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0, fetch_local=fetch)
        return [by_ref[ref] for ref in ready]

    def watch(self) -> Iterator[Event]:
        while self._watch.events:
            yield self._watch.events.popleft()

    def _close(self) -> None:
        for one in (self._control, self._watch, self._folder, self._cluster):
            one.close()

    def _add(self, started: Started[RayHandle], first: int, given: Sequence[dict[str, Any]]) -> list[RayHandle]:
        if not given:
            return []
        group = PlacedGroup(started.needs, len(given))
        again = frozenset(verb.name for verb in verbs_of(started.service).values() if verb.idempotent)
        around = {"discovery": self.discovery, "paths": [path for path in sys.path if path]}
        path, kind = path_of(started.service), ray.remote(RayServiceActor)
        handles = []
        for index, one in enumerate(given, first):
            options = group.options(index - first) | {
                "name": f"sparring/{started.name}/{index}",
                "namespace": self._cluster.namespace,
                "max_restarts": started.needs.restarts,
                "max_concurrency": MAX_CONCURRENT,
            }
            actor = kind.options(**options).remote(path, started.name, index, one, around)
            policy = RestartPolicy(started.needs.restarts)
            who = f"{started.name}/{index}"
            member = RayMember(who, actor, again, started.name, index, policy, group, self._node)
            self._watch.add(member)
            handles.append(RayHandle(member))
        return handles

    def _stop(self, handles: list[RayHandle], by_force: bool) -> None:
        """Ask them to end, wait a little, and end them."""
        members = [handle.member for handle in handles if not handle.member.why]
        for member in members:
            member.leaving = True
            member.look()
        asked = [member.actor.close.remote() for member in members if member.state == "ALIVE"]
        if asked and not by_force:
            ray.wait(asked, num_returns=len(asked), timeout=STOP_S)
        for member in members:
            ray.kill(member.actor, no_restart=True)
            self._watch.remove(member, "stopped", "it was stopped")
        for handle in handles:
            handle.member.group.left()
