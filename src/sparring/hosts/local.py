"""`local://`: services as this machine's processes, one for each instance. One thread of the host carries calls to the
instances and answers back, and keeps their processes alive."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sparring.errors import SparringError, WireError
from sparring.hosts.call_queue import CallQueue, PendingCall
from sparring.hosts.control import HostFolder
from sparring.hosts.protocol import Event, Host, Kind, Pending, Started
from sparring.hosts.worker import WorkerSpec
from sparring.processes.supervisor import ONE_THREAD, Launch, ProcessLog, RestartPolicy, SupervisedProcess, exit_reason
from sparring.services import frames
from sparring.services.frames import ANSWER, Codec, Head
from sparring.services.shared_memory import Arena
from sparring.services.shared_value import SharedValue, ValueServer

LOOK_S = 0.5  # how often the thread looks at what wakes it by nothing
STOP_S = 2.8  # an instance that was asked to end and has not is killed


@dataclass(slots=True, eq=False)
class Member:
    """One instance through its restarts: the Handle of this host."""

    spec: WorkerSpec
    queue: CallQueue
    child: SupervisedProcess
    thread: "HostThread"
    ready_fd: int = -1  # where its process says its address
    address: str = ""  # what it said, until it is connected to
    kill_at_s: float | None = None  # it was asked to end, and is killed then
    over: threading.Event = field(default_factory=threading.Event)  # it has ended, and is not started again

    @property
    def index(self) -> int:
        return self.spec.index

    @property
    def generation(self) -> int:
        return max(0, self.child.generation - 1)

    def ask(self, verb: str, *args: Any, **named: Any) -> PendingCall:
        call = PendingCall(self.queue.who, verb, args, named)
        self.queue.put(call)
        self.thread.wake()
        return call


class HostThread:
    """Lives until `close`; `events` tells what happened."""

    def __init__(self, events: deque[Event]) -> None:
        self._events = events
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._members: list[Member] = []
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._todo: deque[Callable[[], object]] = deque()  # by other threads
        self._settled = 0  # calls
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
        until = time.monotonic() + STOP_S + 2
        for member in members:
            member.over.wait(until - time.monotonic())

    def close(self) -> None:
        """After all instances have ended."""
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
            queue.receive(now)
        if process is None:
            return
        process.send()
        if member.ready_fd in ready:
            member.address = os.read(member.ready_fd, 65536).decode()
            self._close_ready(member)
        if member.address:
            self._connect(member)
        if member.kill_at_s is not None and now >= member.kill_at_s:
            process.kill()
        if process.exit_fd is None or process.exit_fd in ready:
            self._look(member, process.exit_fd, now)

    def _flush(self, now: float) -> None:
        """Send what can be sent; also what waited for an answer that has just come."""
        settled = -1
        while self._settled != settled:
            settled = self._settled
            for member in list(self._members):
                member.queue.flush(now)

    def _start(self, member: Member) -> None:
        member.ready_fd, theirs = os.pipe()
        id = f"{member.index}-{os.urandom(3).hex()}"
        spec = msgspec.structs.replace(member.spec, generation=member.child.generation, id=id, ready=theirs)
        threads = {name: one for name, one in ONE_THREAD.items() if name not in os.environ}
        environment = {**threads, "SPARRING_DISCOVERY": spec.discovery}
        message = msgspec.json.encode(spec) + b"\n"
        try:
            process = member.child.start(Launch(["sparring.hosts.worker"], message, (theirs,), environment))
        finally:
            os.close(theirs)
        self._poller.register(member.ready_fd, zmq.POLLIN)
        if process.exit_fd is not None:
            self._poller.register(process.exit_fd, zmq.POLLIN)

    def _connect(self, member: Member) -> None:
        try:
            member.queue.connect(member.address)
        except (OSError, WireError):  # it is slow to answer, and tried again; or it has ended, which is noticed
            return
        member.address, member.child.up_s = "", time.monotonic()
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
        member.address = ""
        reason = exit_reason(code)
        if member.kill_at_s is not None:
            self._end(member, "stopped", "it was stopped")
            return
        why = f"{reason}: {member.child.log.last_lines()}"
        self._happened(member, "died", why)
        member.queue.disconnect(reason)
        if member.child.gave_up:
            self._end(member, "gave up", f"it ended {member.child.policy.deaths} times, the last with {why}")

    def _close_ready(self, member: Member) -> None:
        if member.ready_fd >= 0:
            self._poller.unregister(member.ready_fd)
            os.close(member.ready_fd)
            member.ready_fd = -1

    def _end(self, member: Member, kind: Kind, why: str) -> None:
        member.queue.end(why)
        member.child.close()
        self._members.remove(member)
        self._happened(member, kind, why)
        member.over.set()

    def _stop(self, members: list[Member], deadline_s: float) -> None:
        for member in members:
            if member.child.process is not None:
                member.child.process.stop()
                member.kill_at_s = time.monotonic() + deadline_s
            elif not member.over.is_set():
                self._end(member, "stopped", "it was stopped")

    def _happened(self, member: Member, kind: Kind, why: str = "") -> None:
        self._events.append(Event(kind=kind, service=member.spec.name, index=member.index, why=why))

    def settle(self, call: PendingCall, value: Any, error: SparringError | None) -> None:
        """A call is over."""
        call.args, call.named = [], {}
        if error is None:
            call.set_result(value)
        else:
            call.set_exception(error)
        self._settled += 1


class LocalHost(Host):
    """Its services find each other alone, or with `discovery` all that are found there, on other machines too
    (consul://…). The host is found where `seen` says, by default there too."""

    def __init__(self, url: str = "local://", logs: Path | None = None, seen: str = "", *, discovery: str = "") -> None:
        self._folder = HostFolder(seen or discovery)
        super().__init__(url, discovery or f"local://{self._folder.path}")
        self._logs = logs or self._folder.path / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._shared = ValueServer(self._folder.path / "shared")
        self._arena = Arena()
        self._thread = HostThread(self._events)
        self._folder.serve(self.runs, self.scale)

    def share(self, value: Any) -> SharedValue:
        return self._shared.share(value)

    def wait(self, pending: Sequence[Pending], seconds: float) -> list[Pending]:
        futures.wait([one for one in pending if isinstance(one, PendingCall)], seconds, futures.FIRST_COMPLETED)
        return [one for one in pending if one.done()]

    def _close(self) -> None:
        for one in (self._thread, self._shared, self._arena, self._folder):
            one.close()

    def _stop(self, handles: list[Member], by_force: bool) -> None:
        self._thread.stop(handles, 0.0 if by_force else STOP_S)

    def _add(self, started: Started, first: int, given: Sequence[dict[str, Any]]) -> list[Member]:
        return [self._add_one(started, index, one) for index, one in enumerate(given, first)]

    def _add_one(self, started: Started, index: int, given: dict[str, Any]) -> Member:
        spec = WorkerSpec(
            service=started.path,
            name=started.name,
            index=index,
            discovery=self.discovery,
            arguments=[bytes(part) for part in Codec().encode(Head(frames.VERSION, ANSWER, 0, "", 0.0, given))],
        )
        who, thread = f"{started.name}/{index}", self._thread
        log = ProcessLog(self._logs / f"{started.name}.{index}.log")
        child = SupervisedProcess(who, log, RestartPolicy(started.needs.restarts))
        queue = CallQueue(who, started.idempotent, self._arena, thread.context, thread.settle)
        member = Member(spec, queue, child, thread)
        thread.add(member)
        return member
