"""`local://`: services as this machine's processes, one for each instance. One thread of the host carries calls to the
instances and answers back, and keeps their processes alive."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sparring.errors import WireError
from sparring.hosts.call_queue import CallQueue, PendingCall
from sparring.hosts.control import HostControl, private_folder
from sparring.hosts.protocol import Event, Kind, Pending
from sparring.hosts.running_services import ServiceHost, Started
from sparring.hosts.service_class import path_of
from sparring.hosts.worker import Ready, WorkerSpec
from sparring.processes.restart_policy import RestartPolicy
from sparring.processes.supervisor import ONE_THREAD, Launch, ProcessLog, SupervisedProcess, exit_reason
from sparring.services import frames
from sparring.services.frames import ANSWER, CALL, TASK, Codec, Head
from sparring.services.shared_memory import Arena
from sparring.services.shared_value import SharedValue, SharedValues

DEADLINE_S = 30.0
LOOK_S = 0.5  # how often the thread looks at what wakes it by nothing
STOP_S = 2.8  # an instance that was asked to end and has not is killed
MAX_EVENTS = 1000


@dataclass(slots=True, eq=False)
class Member:
    """One instance through its restarts."""

    spec: WorkerSpec
    queue: CallQueue
    child: SupervisedProcess
    ready_fd: int = -1  # where its process says that it is ready
    ready: Ready | None = None  # what it said, until it is connected to
    kill_at_s: float | None = None  # it was asked to end, and is killed then
    over: bool = False  # it is not started again

    @property
    def generation(self) -> int:
        return max(0, self.child.generation - 1)


class HostThread:
    """Lives until `close`; `news` is notified of answers, `events` tells what happened."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.news = threading.Condition()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._members: list[Member] = []
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._todo: deque[Callable[[], object]] = deque()  # by other threads
        self._settled = 0  # calls and events since the last news
        self._next_trim_s = 0.0
        self._stopping = False
        self._poller = zmq.Poller()
        self._poller.register(self._woken.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._thread.start()

    # Other threads.

    def wake(self, todo: Callable[[], object] | None = None) -> None:
        """A call was queued, or there is something to do."""
        if todo is not None:
            self._todo.append(todo)
        with suppress(OSError):  # it has been woken often enough, or has ended
            self._wake.send(b"!")

    def add(self, member: Member) -> None:
        """Keep an instance alive from now on."""
        self.wake(lambda: self._members.append(member))

    def stop(self, members: list[Member], deadline_s: float = STOP_S) -> None:
        """Ask instances to end; returns when they have. Those that have not by the deadline are killed."""
        self.wake(lambda: self._stop(members, deadline_s))
        with self.news:
            self.news.wait_for(lambda: all(member.over for member in members), STOP_S + 2)

    def close(self) -> None:
        """End all instances, then the thread."""
        self.stop(list(self._members))
        self._stopping = True
        self.wake()
        self._thread.join()
        self._woken.close()
        self._wake.close()
        self.context.destroy(linger=0)

    # The thread.

    def _run(self) -> None:
        while not self._stopping:
            ready = dict(self._poller.poll(self._patience_ms()))
            now = time.monotonic()
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
            while self._todo:
                self._todo.popleft()()
            may_start = True  # one process in each round, so that no call waits for all of them
            for member in list(self._members):
                if member.child.due(now) and may_start:
                    may_start = False
                    self._start(member)
                self._tend(member, ready, now)
            self._flush(now)
            if now >= self._next_trim_s:
                self._next_trim_s = now + LOOK_S
                for member in self._members:
                    member.child.log.trim()
            if self._settled:
                self._settled = 0
                with self.news:
                    self.news.notify_all()

    def _patience_ms(self) -> int:
        now = time.monotonic()
        due = now + LOOK_S
        for member in self._members:
            if member.child.process is None:
                due = min(due, member.child.next_start_s)
            due = min(due, *(one for one in (member.queue.due(), member.kill_at_s) if one is not None), due)
        return max(0, int((due - now) * 1000) + 1)

    def _tend(self, member: Member, ready: dict[Any, int], now: float) -> None:
        queue, process = member.queue, member.child.process
        if queue.socket is not None and queue.socket in ready:
            queue.receive(now, self._settle)
        if process is None:
            return
        process.send()
        if member.ready_fd in ready:
            said = os.read(member.ready_fd, 65536)
            self._close_ready(member)
            member.ready = msgspec.json.decode(said, type=Ready) if said else None
        if member.ready is not None:
            self._connect(member, member.ready)
        if process.exit_fd is None or process.exit_fd in ready:
            self._look(member, process.exit_fd, now)
        elif member.kill_at_s is not None and now >= member.kill_at_s:
            process.kill()

    def _flush(self, now: float) -> None:
        """Send what can be sent; also what waited for an answer that has just come."""
        settled = -1
        while self._settled != settled:
            settled = self._settled
            for member in list(self._members):
                member.queue.flush(now, self._settle)

    def _start(self, member: Member) -> None:
        member.ready_fd, theirs = os.pipe()
        spec = msgspec.structs.replace(
            member.spec,
            generation=member.child.generation,
            id=f"{member.spec.index}-{os.urandom(3).hex()}",
            ready=theirs,
        )
        threads = {name: one for name, one in ONE_THREAD.items() if name not in os.environ}
        environment = {**threads, "SPARRING_DISCOVERY": spec.discovery}
        try:
            process = member.child.start(
                Launch(["sparring.hosts.worker"], msgspec.json.encode(spec) + b"\n", (theirs,), environment)
            )
        finally:
            os.close(theirs)
        self._poller.register(member.ready_fd, zmq.POLLIN)
        if process.exit_fd is not None:
            self._poller.register(process.exit_fd, zmq.POLLIN)

    def _connect(self, member: Member, ready: Ready) -> None:
        try:
            member.queue.connect(ready)
        except (OSError, WireError):  # it is slow to answer, and tried again; or it has ended, which is noticed
            return
        member.ready, member.child.up_s = None, time.monotonic()
        self._poller.register(member.queue.socket, zmq.POLLIN)
        self._happened(member, "restarted" if member.generation else "started")

    def _look(self, member: Member, exit_fd: int | None, now: float) -> None:
        """Where its process has ended: lose its calls, and start it again when its time has come."""
        if (code := member.child.ended(now)) is None:
            return
        if exit_fd is not None:
            self._poller.unregister(exit_fd)
        if member.queue.socket is not None:
            self._poller.unregister(member.queue.socket)
        self._close_ready(member)
        member.ready = None
        reason = exit_reason(code)
        if member.kill_at_s is not None:
            self._end(member, "stopped", "it was stopped")
            return
        why = f"{reason}: {member.child.log.last_lines()}"
        self._happened(member, "died", why)
        member.queue.disconnect(reason, self._settle)
        if member.child.gave_up:
            self._end(member, "gave up", f"it ended {member.child.policy.deaths} times, the last with {why}")

    def _close_ready(self, member: Member) -> None:
        if member.ready_fd >= 0:
            self._poller.unregister(member.ready_fd)
            os.close(member.ready_fd)
            member.ready_fd = -1

    def _end(self, member: Member, kind: Kind, why: str) -> None:
        member.queue.end(why, self._settle)
        member.child.close()
        self._members.remove(member)
        self._happened(member, kind, why)
        member.over = True

    def _stop(self, members: list[Member], deadline_s: float) -> None:
        for member in members:
            if not member.over and member.child.process is None:
                self._end(member, "stopped", "it was stopped")
            elif not member.over and member.child.process is not None:
                member.child.process.stop()
                member.kill_at_s = time.monotonic() + deadline_s

    def _happened(self, member: Member, kind: Kind, why: str = "") -> None:
        name, index = member.spec.name, member.spec.index
        self.events.append(Event(kind=kind, service=name, index=index, why=why, at_s=time.time()))
        self._settled += 1

    def _settle(self, call: PendingCall) -> None:
        call.args, call.named = [], {}
        call.over = True
        self._settled += 1


class LocalHandle:
    """One instance on this machine."""

    def __init__(self, member: Member, thread: HostThread) -> None:
        self.member, self._thread = member, thread

    @property
    def index(self) -> int:
        return self.member.spec.index

    @property
    def generation(self) -> int:
        return self.member.generation

    def ask(self, verb: str, *args: Any, **named: Any) -> PendingCall:
        return self._call(CALL, verb, args, named)

    def tell(self, verb: str, *args: Any, **named: Any) -> None:
        self._call(TASK, verb, args, named).result()

    def _call(self, kind: int, verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> PendingCall:
        call = PendingCall(kind, self.member.queue.who, verb, self._thread.news, DEADLINE_S)
        self.member.queue.put(call, args, named)
        self._thread.wake()
        return call


class LocalHost(ServiceHost[LocalHandle]):
    """A context manager. Threads may share one. Its services find each other alone, or with `discovery` all that
    are found there, on other machines too (consul://…). The host is found where `seen` says, by default there too."""

    def __init__(self, url: str = "local://", logs: Path | None = None, seen: str = "", *, discovery: str = "") -> None:
        super().__init__()
        self.url, seen = url, seen or discovery
        self._folder = private_folder(seen)
        self._logs = logs or self._folder.path / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.discovery = discovery or f"local://{self._folder.path}"
        self._shared = SharedValues(self._folder.path / "shared")
        self._arena = Arena()
        self._thread = HostThread()
        self._control = HostControl(self, self._folder.path, seen)

    def share(self, value: Any) -> SharedValue:
        return self._shared.share(value)

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        with self._thread.news:
            self._thread.news.wait_for(lambda: not pending or any(one.done() for one in pending), seconds)
        return [one for one in pending if one.done()]

    def watch(self) -> Iterator[Event]:
        while self._thread.events:
            yield self._thread.events.popleft()

    def _close(self) -> None:
        for one in (self._control, self._thread, self._shared, self._arena, self._folder):
            one.close()

    def _stop(self, handles: list[LocalHandle], by_force: bool) -> None:
        self._thread.stop([handle.member for handle in handles], 0.0 if by_force else STOP_S)

    def _add(self, started: Started[LocalHandle], first: int, given: Sequence[dict[str, Any]]) -> list[LocalHandle]:
        return [self._add_one(started, index, one) for index, one in enumerate(given, first)]

    def _add_one(self, started: Started[LocalHandle], index: int, given: dict[str, Any]) -> LocalHandle:
        spec = WorkerSpec(
            service=path_of(started.service),
            name=started.name,
            id="",
            index=index,
            generation=0,
            discovery=self.discovery,
            arguments=[bytes(part) for part in Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, given))],
            ready=-1,
        )
        who = f"{started.name}/{index}"
        log = ProcessLog(self._logs / f"{started.name}.{index}.log")
        child = SupervisedProcess(who, log, RestartPolicy(started.needs.restarts))
        member = Member(spec, CallQueue(who, self._arena, self._thread.context), child)
        self._thread.add(member)
        return LocalHandle(member, self._thread)
