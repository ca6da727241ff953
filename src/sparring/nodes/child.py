"""A node: one thread speaks to the parent, the others of this machine's cores play and learn.

The main thread owns the work (work.py): it iterates, and between two iterations does what the speaking thread asks of
it, such as to make a contribution. A node that lost its parent plays on for `nodes.orphan_s` and connects again.
"""

import asyncio
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from sparring.config import Config
from sparring.errors import Refused, SparringError, Unreachable
from sparring.nodes.link import Address, Door, Link, Server, dial, redial_wait_s
from sparring.nodes.messages import (
    PROTOCOL,
    Agreed,
    Contribution,
    Experience,
    Hello,
    Idle,
    Job,
    Lease,
    Terms,
    Weights,
    hello_disagreement,
)
from sparring.nodes.work import Play, Work

log = logging.getLogger(__name__)

IDLE_S = 0.1  # between two looks while there is nothing to do
STOP_S = 5.0  # in which a node that is to stop finishes its exchange
Found = TypeVar("Found")


class Node:
    """One node from start to stop. `stop` may be called from any thread, and by a signal handler."""

    def __init__(self, config: Config, name: str, workers: int) -> None:
        self.config, self.name, self.workers = config, name, workers
        self.work: Work | Play | None = None
        self.exchanges = 0
        self._secret = secrets.token_hex(16)  # by which the parent knows that it is the same node again
        self._run, self._version = "", -1
        # Not a SimpleQueue: one that waits while a signal comes may wait for ever (CPython 3.11).
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        self._stopping = threading.Event()
        self._talks = False  # with a parent
        self._lost_s = 0.0  # since when it does not
        self._tries = 0  # in vain since it had a job
        self._said = ""  # why it worked for no parent that dialled
        self._over: SparringError | None = None

    def join(self, address: Address) -> str:
        """Work for the parent that listens there until it says that it is done; why that was."""
        return self._live(lambda: self._dial(address))

    def listen(self, door: Door) -> str:
        """Work for any parent that dials, one after the other, until `stop`."""
        return self._live(lambda: self._serve(door))

    def stop(self) -> None:
        self._stopping.set()

    # --- the main thread

    def _live(self, speak: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Run `speak` in a thread, and do the work here."""
        said: Future[str] = Future()

        def run() -> None:
            try:
                said.set_result(asyncio.run(self._until_stopped(speak())))
            except BaseException as error:  # noqa: BLE001  (told in the main thread)
                said.set_exception(error)

        thread = threading.Thread(target=run, name="node", daemon=True)
        thread.start()
        try:
            while not said.done():
                self._turn()
        finally:
            self._stopping.set()
            self._drop()
            while thread.is_alive():  # it may wait for an answer of ours
                self._answer(IDLE_S)
            thread.join()
        return said.result()

    def _turn(self) -> None:
        """Answer the other thread, then iterate once."""
        self._answer(0 if self.work is not None and self.work.iterates else IDLE_S)
        if self.work is None:
            return
        if not self._talks and time.monotonic() - self._lost_s > self.config.nodes.orphan_s:
            log.info(f"no parent for {self.config.nodes.orphan_s:g} s: it stops playing until it has one again")
            self._drop()
        elif isinstance(self.work, Work) and self.work.version >= 0:
            try:
                self.work.iterate()
            except SparringError as error:
                self._over = error
                self._stopping.set()
                self._drop()

    def _answer(self, wait_s: float) -> None:
        try:
            call, future = self._calls.get(timeout=wait_s) if wait_s else self._calls.get_nowait()
        except queue.Empty:
            return
        if not future.set_running_or_notify_cancel():  # whoever asked is gone
            return
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  (told in the other thread)
            future.set_exception(error)

    def _drop(self) -> None:
        if self.work is not None:
            self.work.close()
            self.work = None

    def _build(self, job: Job) -> Terms:
        if self.work is not None and not self.work.fits(job):
            self._drop()
        if self.work is None:
            self.work = Play(job, self.config) if job.lease_ticks else Work(job, self.config, self.workers)
        return self.work.terms

    def _take(self, given: Weights) -> None:
        if self.work is None:
            raise Unreachable("the work is over", where="this node", do="It connects again")
        self.work.take(given)
        self._run, self._version = self.work.job.run, self.work.version

    def _contribution(self) -> Contribution | None:
        if not isinstance(self.work, Work):
            raise Unreachable("the work is over", where="this node", do="It connects again")
        return self.work.contribution()

    def _play(self, lease: Lease) -> Experience:
        if not isinstance(self.work, Play):
            raise Unreachable("the work is over", where="this node", do="It connects again")
        self._version = lease.weights.version
        return self.work.play(lease)

    # --- the thread that speaks

    async def _until_stopped(self, speaking: Coroutine[Any, Any, str]) -> str:
        """Why the conversation ended. When the node is to stop it may wait for its parent no longer than STOP_S: a
        round stays open until enough nodes contributed."""
        task = asyncio.create_task(speaking)
        while not task.done() and not self._stopping.is_set():
            await asyncio.wait([task], timeout=IDLE_S)
        await asyncio.wait([task], timeout=STOP_S)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return self._end()

    async def _dial(self, address: Address) -> str:
        nodes = self.config.nodes
        while not self._stopping.is_set():
            try:
                link = await dial(address, nodes.max_message_bytes, nodes.handshake_s)
                if why := await self._session(link):
                    return why
            except Unreachable as error:
                if not self._tries:
                    log.warning("%s", error)
            self._tries += 1
            await self._sleep(redial_wait_s(self._tries - 1, nodes.reconnect_s))
        return self._end()

    async def _serve(self, door: Door) -> str:
        nodes = self.config.nodes
        server = Server(door, self._visited, nodes, nodes.max_message_bytes)
        while not self._stopping.is_set():
            await self._sleep(3_600)
        await server.close()
        return self._end()

    async def _visited(self, link: Link, holder: str) -> None:
        """A parent dialled."""
        if self._talks:
            await link.refuse("this node works for a parent already; it is free when that connection ends")
            return
        try:
            if why := await self._session(link):
                log.info(f"{link.peer}: {why}; waiting for the next parent")
                await self._on_main(self._drop)
        except SparringError as error:
            if error.wrong != self._said:  # once, not at every try of the same parent
                self._said = error.wrong
                log.warning("%s", error)

    def _end(self) -> str:
        if self._over is not None:
            raise self._over
        return "stopped"

    async def _session(self, link: Link) -> str:
        """Work for the parent of that link; why it said that the work is over, "" where the link was lost."""
        self._talks = True
        try:
            return await self._speak(link)
        except Unreachable as error:
            if not link.farewell and not self._tries:
                log.warning("%s", error)
            return link.farewell
        except SparringError as error:  # refused by either side
            await link.refuse(error.wrong)
            raise
        finally:
            self._talks, self._lost_s = False, time.monotonic()
            await link.close()

    async def _speak(self, link: Link) -> str:
        nodes = self.config.nodes
        hello = Hello(PROTOCOL, "node", self.name, self._secret, self.workers, self._run, self._version)
        await link.send(hello, nodes.handshake_s)
        theirs = await link.expect(Hello, nodes.handshake_s)
        if sentence := hello_disagreement(theirs, "node"):
            raise Refused(sentence, where=link.peer, do="Correct it")
        job = await link.expect(Job, nodes.handshake_s)
        self._tries, self._said = 0, ""
        log.info(f"{link.peer}: learning {job.game} by {job.plan.get('algo')}, merged by {job.terms.merge}")
        terms = await self._on_main(lambda: self._build(job))
        await link.send(Agreed(terms), nodes.silent_s)
        first = await link.expect(Weights, nodes.silent_s)
        await self._on_main(lambda: self._take(first))
        if first.missed:
            log.info(f"{link.peer}: back at version {first.version}, {first.missed} versions later")
        return await (self._play_leases(link) if job.lease_ticks else self._exchange(link, job))

    async def _play_leases(self, link: Link) -> str:
        """Play what the parent asks for, until it says why no more."""
        while not self._stopping.is_set():
            began, moved = time.monotonic(), link.sent_bytes + link.received_bytes
            lease = await link.expect(Lease, None)
            if lease.weights.leave:
                return lease.weights.leave
            mine = await self._on_main(lambda one=lease: self._play(one))  # type: ignore[misc]
            await link.send(mine, self.config.nodes.silent_s)
            self.exchanges += 1
            await self._spare(link, moved, began)
        return self._end()

    async def _spare(self, link: Link, moved: int, since_s: float) -> None:
        """Wait until what was exchanged since then is within the cap."""
        if cap := self.config.nodes.max_bytes_per_s:
            await self._sleep((link.sent_bytes + link.received_bytes - moved) / cap - (time.monotonic() - since_s))

    async def _exchange(self, link: Link, job: Job) -> str:
        """Contribute what was learned, until the parent says why no more."""
        nodes = self.config.nodes
        while not self._stopping.is_set():
            began = time.monotonic()
            moved = link.sent_bytes + link.received_bytes
            await self._sleep(job.exchange_s)
            mine = await self._on_main(self._contribution)
            await link.send(Idle() if mine is None else mine, nodes.silent_s)
            given = await link.expect(Weights, None)  # a round may take as long as it likes; pings go on
            await self._on_main(lambda one=given: self._take(one))  # type: ignore[misc]
            self.exchanges += 1
            if given.leave:
                return given.leave
            await self._spare(link, moved, began)
        return self._end()

    async def _on_main(self, call: Callable[[], Found]) -> Found:
        """What the call gives, made in the main thread between two iterations."""
        future: Future[Found] = Future()
        self._calls.put((call, future))
        return await asyncio.wrap_future(future)

    async def _sleep(self, seconds: float) -> None:
        """So long, or until the node is to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            await asyncio.sleep(min(left, IDLE_S))
