"""The local host's one thread: it carries calls to the instances and answers back, and keeps their processes alive."""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from sparring.errors import WireError
from sparring.hosts.call_queue import CallQueue, PendingCall
from sparring.hosts.process import Process, cut
from sparring.hosts.protocol import Event, Kind
from sparring.hosts.restart_policy import RestartPolicy
from sparring.hosts.worker import Ready, WorkerSpec
from sparring.services.shared_value import SharedValues

LOOK_S = 0.5  # how often is looked at what tells nothing by itself
STOP_S = 2.8  # whoever was asked to end and has not is killed
MAX_EVENTS = 1000
KILLED = "signal SIGKILL"


@dataclass(slots=True, eq=False)
class Member:
    """One instance through its lives."""

    told: WorkerSpec
    line: CallQueue
    revival: RestartPolicy
    log: Path
    process: Process | None = None
    generation: int = -1
    ready: Ready | None = None  # what its process said, until it is connected to
    up_s: float | None = None  # since when it can be called
    next_s: float = 0.0  # not started before
    leaving_s: float | None = None  # asked to end; killed then
    over: bool = False  # it is not started again

    @property
    def name(self) -> str:
        return f"{self.told.name}/{self.told.index}"


class Supervisor:
    """Its thread lives until `close`; `news` is notified of answers, `events` tells what happened."""

    def __init__(self, keeping: SharedValues) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.news = threading.Condition()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._keeping = keeping
        self._members: list[Member] = []
        self._poller = zmq.Poller()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._todo: deque[Callable[[], None]] = deque()  # by other threads; each waits until its own is done
        self._settled = 0
        self._next_look_s = 0.0
        self._stopping = self._has_started = False
        self._poller.register(self._woken.fileno(), zmq.POLLIN)
        self._poller.register(keeping.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="host", daemon=True)
        self._thread.start()

    # Other threads.

    def wake(self) -> None:
        """Something was posted."""
        with suppress(OSError):  # it has been woken often enough, or has ended
            self._wake.send(b"!")

    def add(self, member: Member) -> None:
        """Keep an instance alive from now on."""
        self._do(lambda: self._members.append(member))

    def leave(self, members: list[Member], within_s: float = STOP_S) -> None:
        """Ask instances to end; returns when they have. Whoever has not within that time is killed."""
        self._do(lambda: self._ask_to_end(members, within_s))
        with self.news:
            self.news.wait_for(lambda: all(member.over and member.process is None for member in members), STOP_S + 2)

    def close(self) -> None:
        """End all instances, then the thread."""
        self.leave(list(self._members))
        self._stopping = True
        self.wake()
        self._thread.join()
        self._woken.close()
        self._wake.close()
        self.context.destroy(linger=0)

    def _do(self, what: Callable[[], object]) -> None:
        """Let the thread do it, and wait until it has."""
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self._todo.append(do)
        self.wake()
        done.wait()

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
            if self._keeping.fileno() in ready:
                self._keeping.serve()
            self._has_started = False
            for member in list(self._members):
                self._tend(member, ready, now)
            self._pass_on(now)
            self._tell_news()
            if now >= self._next_look_s:
                self._next_look_s = now + LOOK_S
                for member in self._members:
                    cut(member.log)

    def _patience_ms(self) -> int:
        now = time.monotonic()
        due = now + LOOK_S
        for member in self._members:
            if (paused := member.line.due()) is not None:
                due = min(due, paused)
            if member.process is None and not member.over:
                due = min(due, member.next_s)
            if member.leaving_s is not None:
                due = min(due, member.leaving_s)
        return max(0, int((due - now) * 1000) + 1)

    def _tend(self, member: Member, ready: dict[object, int], now: float) -> None:
        line, process = member.line, member.process
        if line.socket is not None and line.socket in ready:
            line.hear(now, self._settle)
        if process is not None:
            if process.ready in ready:
                self._hear_ready(member, process)
            if member.ready is not None:
                self._come_up(member, member.ready)
            process.tell()
            if (process.ended is None or process.ended in ready) and (how := process.over()) is not None:
                self._bury(member, process, how, now)
            elif member.leaving_s is not None and now >= member.leaving_s:
                process.kill()
        elif not member.over and now >= member.next_s and not self._has_started:
            self._has_started = True  # one in each round, so that nobody waits for all of them
            self._start(member)
        line.flush(now, self._settle)

    def _pass_on(self, now: float) -> None:
        """Send what waited for an answer that has just come, rather than when something else happens."""
        seen = 0
        while self._settled != seen:
            seen = self._settled
            for member in list(self._members):
                member.line.flush(now, self._settle)

    def _start(self, member: Member) -> None:
        member.generation += 1
        id = f"{member.told.index}-{os.urandom(3).hex()}"
        told = msgspec.structs.replace(member.told, generation=member.generation, id=id)
        process = member.process = Process(told, member.log)
        self._poller.register(process.ready, zmq.POLLIN)
        if process.ended is not None:
            self._poller.register(process.ended, zmq.POLLIN)

    def _hear_ready(self, member: Member, process: Process) -> None:
        self._poller.unregister(process.ready)
        if said := process.heard_ready():
            member.ready = msgspec.json.decode(said, type=Ready)

    def _come_up(self, member: Member, ready: Ready) -> None:
        try:
            member.line.up(ready)
        except (OSError, WireError):  # it is slow to answer, and tried again; or it has ended, which is noticed
            return
        member.ready = None
        self._poller.register(member.line.socket, zmq.POLLIN)
        member.up_s = time.monotonic()
        self._happened(member, "restarted" if member.generation else "started")

    def _bury(self, member: Member, process: Process, how: str, now: float) -> None:
        if process.ready >= 0:
            self._poller.unregister(process.ready)
        if process.ended is not None:
            self._poller.unregister(process.ended)
        if member.line.socket is not None:
            self._poller.unregister(member.line.socket)
        why = f"{how}: {process.said()}"
        process.let_go()
        member.process = member.ready = None
        if member.leaving_s is not None:
            self._end(member, "stopped", "it was stopped")
            return
        self._happened(member, "died", why)
        member.line.down(how, self._settle)
        wait_s = member.revival.died(now, member.up_s, killed=how == KILLED)
        member.up_s = None
        if wait_s is None:
            self._end(member, "gave up", f"it ended {member.revival.deaths} times, the last with {why}")
        else:
            member.next_s = now + wait_s

    def _end(self, member: Member, kind: Kind, why: str) -> None:
        member.over, member.leaving_s = True, None
        member.line.end(why, self._settle)
        self._happened(member, kind, why)
        self._members.remove(member)

    def _ask_to_end(self, members: list[Member], within_s: float) -> None:
        for member in members:
            if not member.over and member.process is None:
                self._end(member, "stopped", "it was stopped")
            elif not member.over and member.process is not None:
                member.process.stop()
                member.leaving_s = time.monotonic() + within_s

    def _happened(self, member: Member, kind: Kind, why: str = "") -> None:
        self.events.append(
            Event(kind=kind, service=member.told.name, index=member.told.index, why=why, at_s=time.time())
        )
        self._settled += 1

    def _settle(self, asked: PendingCall) -> None:
        asked.args, asked.named, asked.said = [], {}, None
        asked.over = True
        self._settled += 1

    def _tell_news(self) -> None:
        if self._settled:
            self._settled = 0
            with self.news:
                self.news.notify_all()
