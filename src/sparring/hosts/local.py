"""`local://`: services as this machine's processes, one for each instance."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self

from sparring.errors import Missing
from sparring.hosts.line import Asked, Line
from sparring.hosts.naming import checked_name, given_each, path_of
from sparring.hosts.post import Member, Post
from sparring.hosts.private import Private
from sparring.hosts.protocol import Event, Handle, Pending, Resources
from sparring.hosts.revival import Revival
from sparring.hosts.worker import Told
from sparring.services import frames
from sparring.services.arena import Arena
from sparring.services.frames import ANSWER, CALL, TASK, Codec, Head
from sparring.services.kept import Keeping, Kept

DEADLINE_S = 30.0


class LocalHandle:
    """One instance on this machine."""

    def __init__(self, member: Member, post: Post) -> None:
        self._member, self._post = member, post

    @property
    def index(self) -> int:
        return self._member.told.index

    @property
    def generation(self) -> int:
        return max(0, self._member.generation)

    @property
    def log(self) -> Path:
        """Where what it prints is kept."""
        return self._member.log

    def ask(self, verb: str, *args: Any, **named: Any) -> Asked:
        return self._posted(CALL, verb, args, named)

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        self._posted(TASK, verb, args, named).result()

    def _posted(self, kind: int, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> Asked:
        asked = Asked(kind, self._member.name, verb, self._post.news, DEADLINE_S)
        self._member.line.post(asked, args, named)
        self._post.wake()
        return asked


class LocalHost:
    """A context manager. Threads may share one."""

    def __init__(self, url: str = "local://", logs: Path | None = None) -> None:
        self.url = url
        self._folder = Private()
        self._logs = logs or self._folder.path / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.discovery = f"local://{self._folder.path}"
        self._keeping = Keeping(self._folder.path / "kept")
        self._arena = Arena()
        self._post = Post(self._keeping)
        self._services: dict[str, list[LocalHandle]] = {}
        self._started: dict[str, tuple[str, Resources, dict[str, Any]]] = {}
        self._lock, self._closed = Lock(), False

    def start(
        self,
        service: type,
        name: str,
        count: int,
        needs: Resources,
        given: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    ) -> list[Handle]:
        each = given_each(given, count, checked_name(name))
        path = path_of(service)
        with self._lock:
            handles = [self._add(path, name, index, needs, one) for index, one in enumerate(each)]
            self._services[name] = handles
            self._started[name] = (path, needs, each[0] if each else {})
        return list(handles)

    def scale(self, name: str, count: int) -> list[Handle]:
        with self._lock:
            if name not in self._services:
                known = ", ".join(sorted(self._services)) or "nothing"
                raise Missing(f"no service {name!r} was started", where="host", do=f"It runs {known}")
            path, needs, given = self._started[name]
            handles = self._services[name]
            leaving, staying = handles[count:], handles[:count]
            self._post.leave([handle._member for handle in leaving])
            new = [self._add(path, name, index, needs, given) for index in range(len(staying), count)]
            self._services[name] = [*staying, *new]
            return list(self._services[name])

    def share(self, value: Any) -> Kept:
        return self._keeping.keep(value)

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        with self._post.news:
            self._post.news.wait_for(lambda: any(one.done() for one in pending), seconds)
        return [one for one in pending if one.done()]

    def watch(self) -> Iterator[Event]:
        while self._post.events:
            yield self._post.events.popleft()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._post.close()
        self._keeping.close()
        self._arena.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, path: str, name: str, index: int, needs: Resources, given: dict[str, Any]) -> LocalHandle:
        said = Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, given))
        told = Told(
            service=path,
            name=name,
            id="",
            index=index,
            generation=0,
            discovery=self.discovery,
            given=[bytes(part) for part in said],
            ready=-1,
        )
        line = Line(f"{name}/{index}", self._arena, self._post.context)
        log = self._logs / f"{name}.{index}.log"
        member = Member(told, line, Revival(needs.restarts), log, next_s=time.monotonic())
        self._post.add(member)
        return LocalHandle(member, self._post)
