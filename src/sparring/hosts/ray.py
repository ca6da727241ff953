"""`ray://`: services as actors of a Ray cluster. Placement, restart, object store and scheduling are Ray's work."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self

import ray

from sparring.errors import Missing
from sparring.hosts.naming import checked_name, given_each, path_of
from sparring.hosts.protocol import Event, Handle, Pending, Resources
from sparring.hosts.ray_actor import Actor
from sparring.hosts.ray_calls import RayPending, RayShared, ask
from sparring.hosts.ray_cluster import Cluster
from sparring.hosts.ray_members import MAX_AT_ONCE, Group, Member, Watch
from sparring.hosts.revival import Revival
from sparring.services.register import verbs_of

STOP_S = 2.5  # for an orderly end; then Ray kills


class RayHandle:
    """One instance on a cluster."""

    def __init__(self, member: Member) -> None:
        self.member = member

    @property
    def index(self) -> int:
        return self.member.index

    @property
    def generation(self) -> int:
        return self.member.generation

    def ask(self, verb: str, *args: Any, **named: Any) -> RayPending:
        return ask(self.member, verb, args, named)

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        self.ask(verb, *args, **named).result()


@dataclass(frozen=True, slots=True)
class _Service:
    """What was started under a name."""

    kind: type
    needs: Resources
    given: dict[str, Any]  # of the first
    handles: list[RayHandle]


class RayHost:
    """A context manager. Threads may share one."""

    def __init__(self, url: str, cluster: Cluster) -> None:
        self.url, self._cluster = url, cluster
        self.discovery = cluster.discovery
        self._watch = Watch()
        self._services: dict[str, _Service] = {}
        self._lock = Lock()

    def start(
        self,
        service: type,
        name: str,
        count: int,
        needs: Resources,
        given: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ) -> list[Handle]:
        each = given_each(given, count, checked_name(name))
        path_of(service)
        with self._lock:
            started = _Service(service, needs, each[0] if each else {}, [])
            self._services[name] = started
            started.handles.extend(self._added(started, name, each))
            return list(started.handles)

    def scale(self, name: str, count: int) -> list[Handle]:
        with self._lock:
            if name not in self._services:
                known = ", ".join(sorted(self._services)) or "nothing"
                raise Missing(f"no service {name!r} was started", where="host", do=f"It runs {known}")
            started = self._services[name]
            _stop([handle.member for handle in started.handles[count:]], self._watch)
            del started.handles[count:]
            new = count - len(started.handles)
            started.handles.extend(self._added(started, name, [started.given] * new))
            return list(started.handles)

    def share(self, value: Any) -> RayShared:
        return RayShared(ray.put(value))

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        by_ref = {one.ref: one for one in pending if isinstance(one, RayPending)}
        if not by_ref:
            return []
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        return [by_ref[ref] for ref in ready]

    def watch(self) -> Iterator[Event]:
        while self._watch.events:
            yield self._watch.events.popleft()

    def close(self) -> None:
        with self._lock:
            _stop([handle.member for started in self._services.values() for handle in started.handles], self._watch)
            self._services = {}
        self._watch.close()
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _added(self, started: _Service, name: str, given: Sequence[dict[str, Any]]) -> list[RayHandle]:
        if not given:
            return []
        group, first = Group(started.needs, len(given)), len(started.handles)
        again = frozenset(verb.name for verb in verbs_of(started.kind).values() if verb.idempotent)
        around = {"discovery": self.discovery, "paths": [path for path in sys.path if path]}
        handles = []
        for number, one in enumerate(given):
            options = group.options(number) | {
                "name": f"sparring/{name}/{first + number}",
                "namespace": self._cluster.namespace,
                "max_restarts": started.needs.restarts,
                "max_concurrency": MAX_AT_ONCE,
            }
            actor = (
                ray.remote(Actor).options(**options).remote(path_of(started.kind), name, first + number, one, around)
            )
            member = Member(name, first + number, actor, again, Revival(started.needs.restarts), group)
            self._watch.add(member)
            handles.append(RayHandle(member))
        return handles


def _stop(members: list[Member], watch: Watch) -> None:
    """Ask them to end, wait a little, and end them."""
    members = [member for member in members if not member.why]
    for member in members:
        member.leaving = True
        member.look()
    asked = [member.actor.close.remote() for member in members if member.state == "ALIVE"]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=STOP_S)
    for member in members:
        ray.kill(member.actor, no_restart=True)
        member.group.left()
        watch.remove(member, "stopped", "it was stopped")
