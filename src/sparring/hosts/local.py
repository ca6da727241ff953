"""`local://`: services as this machine's processes, one for each instance."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparring.hosts.call_queue import CallQueue, PendingCall
from sparring.hosts.control import Offer, private_folder
from sparring.hosts.protocol import Event, Pending
from sparring.hosts.restart_policy import RestartPolicy
from sparring.hosts.roster import Roster, Rostered, Started
from sparring.hosts.service_path import path_of
from sparring.hosts.supervisor import STOP_S, Member, Supervisor
from sparring.hosts.worker import WorkerSpec
from sparring.services import frames
from sparring.services.frames import ANSWER, CALL, TASK, Codec, Head
from sparring.services.shared_memory import Arena
from sparring.services.shared_value import SharedValue, SharedValues

DEADLINE_S = 30.0


class LocalHandle:
    """One instance on this machine."""

    def __init__(self, member: Member, post: Supervisor) -> None:
        self.member, self._post = member, post

    @property
    def index(self) -> int:
        return self.member.told.index

    @property
    def generation(self) -> int:
        return max(0, self.member.generation)

    @property
    def log(self) -> Path:
        """Where what it prints is kept."""
        return self.member.log

    def ask(self, verb: str, *args: Any, **named: Any) -> PendingCall:
        return self._posted(CALL, verb, args, named)

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        self._posted(TASK, verb, args, named).result()

    def _posted(self, kind: int, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> PendingCall:
        asked = PendingCall(kind, self.member.name, verb, self._post.news, DEADLINE_S)
        self.member.line.post(asked, args, named)
        self._post.wake()
        return asked


class LocalHost(Rostered[LocalHandle]):
    """A context manager. Threads may share one. Its services find each other alone, or with `discovery` all that meet
    there, on other machines too (consul://…). The host itself is found where `seen` says, by default there too."""

    def __init__(self, url: str = "local://", logs: Path | None = None, seen: str = "", *, discovery: str = "") -> None:
        self.url, seen = url, seen or discovery
        self._folder = private_folder(seen)
        self._logs = logs or self._folder.path / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.discovery = discovery or f"local://{self._folder.path}"
        self._keeping = SharedValues(self._folder.path / "kept")
        self._arena = Arena()
        self._post = Supervisor(self._keeping)
        self._roster: Roster[LocalHandle] = Roster(self._added, self._stop)
        self._control = Offer(self._roster, self._folder.path, seen)

    def share(self, value: Any) -> SharedValue:
        return self._keeping.keep(value)

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        with self._post.news:
            self._post.news.wait_for(lambda: not pending or any(one.done() for one in pending), seconds)
        return [one for one in pending if one.done()]

    def watch(self) -> Iterator[Event]:
        while self._post.events:
            yield self._post.events.popleft()

    def close(self) -> None:
        if self._roster.close():
            self._control.close()
            self._post.close()
            self._keeping.close()
            self._arena.close()
            self._folder.close()

    def _stop(self, handles: list[LocalHandle], by_force: bool) -> None:
        self._post.leave([handle.member for handle in handles], 0.0 if by_force else STOP_S)

    def _added(self, started: Started[LocalHandle], first: int, given: Sequence[dict[str, Any]]) -> list[LocalHandle]:
        return [self._one(started, first + number, one) for number, one in enumerate(given)]

    def _one(self, started: Started[LocalHandle], index: int, given: dict[str, Any]) -> LocalHandle:
        said = Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, given))
        told = WorkerSpec(
            service=path_of(started.service),
            name=started.name,
            id="",
            index=index,
            generation=0,
            discovery=self.discovery,
            given=[bytes(part) for part in said],
            ready=-1,
        )
        line = CallQueue(f"{started.name}/{index}", self._arena, self._post.context)
        log = self._logs / f"{started.name}.{index}.log"
        member = Member(told, line, RestartPolicy(started.needs.restarts), log, next_s=time.monotonic())
        self._post.add(member)
        return LocalHandle(member, self._post)
