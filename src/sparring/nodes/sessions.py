"""The parent's side of every connection: one thread with an event loop greets, merges and answers all nodes.

A session is one node's connection. Its contribution is merged at once, or waits for the round to close, and the answer
carries the newest weights. Merging goes on while the run's own thread writes a checkpoint or plays the gate's games.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from sparring.config import NodesConfig
from sparring.errors import Refused, SparringError, Unreachable, WireError
from sparring.nodes import messages
from sparring.nodes.board import Board, NodeState, Orders, ParentState
from sparring.nodes.codecs import Codec, Layout
from sparring.nodes.link import DONE_CODE, Address, Door, Link, Server, dial, redial_wait_s
from sparring.nodes.merge_rules import Contribution, Merger
from sparring.nodes.messages import HEAD_BYTES, PROTOCOL, Agreed, Hello, Idle, Job, Weights
from sparring.nodes.multiplex import Channel, RelayPeer
from sparring.nodes.rounds import Rounds
from sparring.wire.chunk import Array

log = logging.getLogger(__name__)

TICK_S = 1.0  # between two looks at the orders
STOP_S = 5.0  # for the farewell to all nodes
MOST_REASONS = 64  # why connections became no node, that are told apart
ABORT_S = 0.05  # in which aborted transports close their sockets
DONE = "the run is done"


@dataclass(slots=True)
class Progress:
    """What nodes did, until the run's thread takes it."""

    steps: int = 0
    updates: int = 0
    episodes: int = 0
    returns: list[float] = field(default_factory=list)
    messages: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """One node while it is connected. `base` is what it has, bit for bit."""

    link: Link
    state: NodeState
    base: Array
    secret: str
    given_s: float = field(default_factory=time.monotonic)  # when it got its weights

    def give(self, version: int, weights: Array, codec: Codec) -> bytes:
        """The payload of the next message: those weights for this node, or nothing where its relay puts them in."""
        if isinstance(self.link, Channel):
            self.base = self.link.share(version, weights, codec)
            return b""
        payload = codec.encode(weights, self.base)
        self.base = codec.decode(payload, self.base)
        return payload


class NodeSessions:
    """All nodes of one parent. `lock` guards `merger` and `progress`, which other threads read."""

    def __init__(self, job: Callable[[int], Job], merger: Merger, config: NodesConfig, board: Board) -> None:
        """`job` makes what a node is asked to learn, of the node's number."""
        self.merger, self.config, self.board = merger, config, board
        self._job, self._terms = job, job(0).terms
        self.codec = Codec(self._terms.codec, Layout(self._terms.layout))
        self.progress, self.lock, self.changed = Progress(), threading.Lock(), threading.Event()
        self.states: dict[str, NodeState] = {}
        self.turned_away: Counter[str] = Counter()
        self.server: Server | None = None  # where nodes join
        self.address: Address | None = None  # by which they do
        self.live: dict[str, Session] = {}
        self.relays: dict[str, RelayPeer] = {}
        self._numbers: dict[str, int] = {}  # of nodes: each has a seed of its own
        self._next_number = 0
        self.leaving = ""  # why all nodes are to stop
        self._new_orders: asyncio.Event  # of an operator, since they were last obeyed
        self.rounds = Rounds(merger, self.lock, config.round_s, self.changed.set)
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    # --- from the run's thread

    def start(self, addresses: Sequence[Address], door: Door | None) -> None:
        """Dial those nodes and keep dialling them; accept others at the door."""
        ready = threading.Event()

        def run() -> None:
            try:
                asyncio.run(self._run(addresses, door, ready))
            except BaseException as error:  # noqa: BLE001  (told in the run's thread)
                self._failed = error
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, name="nodes", daemon=True)
        self._thread.start()
        ready.wait()

    def check(self) -> None:
        """Raise what ended the thread of the sessions, if anything did."""
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """Tell all nodes that the run is done."""
        if self._thread is not None:
            with suppress(RuntimeError):  # its loop ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None

    # --- in the thread of the sessions

    async def _run(self, addresses: Sequence[Address], door: Door | None, ready: threading.Event) -> None:
        self._loop, self._stop, self._new_orders = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.server = server = None if door is None else Server(door, self.accepted, self.config, self.max_bytes)
        ready.set()
        tasks = [asyncio.create_task(self._dialled(address)) for address in addresses]
        tasks.append(asyncio.create_task(self._watch()))
        stopped = asyncio.create_task(self._stop.wait())
        ended, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # those that serve nodes never end but by an error
        self.leaving = DONE
        until = self._loop.time() + STOP_S
        while self.live and self._loop.time() < until:  # each hears it with its next answer
            self.rounds.close(late=True, forced=True)
            await asyncio.sleep(0.02)
        late = [session.link for session in self.live.values()]  # they exchange more seldom: they hear it when they try
        await asyncio.gather(*(link.close(DONE, DONE_CODE) for link in late))
        for relay in tuple(self.relays.values()):
            with suppress(SparringError):
                await relay.out.end(DONE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.close()
        await asyncio.sleep(ABORT_S)
        self.board.withdraw(os.getpid())

    async def _watch(self) -> None:
        """Every second: obey the orders, and show the state."""
        obeyed = Orders()
        while True:
            try:
                orders = self.board.orders()
                for name, session in tuple(self.live.items()):
                    if why := orders.banned.get(name) or orders.banned.get(session.state.holder):
                        await self._ban(session, why)
                for name, relay in tuple(self.relays.items()):
                    if why := orders.banned.get(name) or orders.banned.get(relay.state.holder):
                        relay.state.state, relay.state.why = "banned", why
                        await relay.link.refuse(f"this relay is banned: {why}")
                if orders != obeyed:
                    obeyed = orders
                    self._new_orders.set()
                    self._new_orders = asyncio.Event()
                self.board.publish(self.described())
            except (SparringError, OSError) as error:
                log.error("%s", error)
            await asyncio.sleep(TICK_S)

    def described(self) -> ParentState:
        """What `spar nodes` shows."""
        for relay in self.relays.values():
            relay.count_bytes()
        for state in self.states.values():
            state.lag = self.merger.version - state.version if state.version >= 0 else 0
        return ParentState(
            pid=os.getpid(),
            game=self._terms.game,
            algo=self._job(0).plan["algo"],
            merge=self._terms.merge,
            codec=self._terms.codec,
            version=self.merger.version,
            merges=self.merger.merged,
            refused=dict(self.merger.refused),
            turned_away=dict(self.turned_away),
            nodes=list(self.states.values()),
        )

    async def _dialled(self, address: Address) -> None:
        """One node that listens, through all its connections."""
        tries, said = 0, ""
        while True:
            try:
                link = await dial(address, self.max_bytes, self.config.handshake_s)
                await self._serve(link, "")
                tries, said = 0, ""
            except (Refused, Unreachable) as error:
                if str(error) != said:  # once, not at every try
                    said = str(error)
                    log.warning("node %s", said)
            tries += 1
            with suppress(TimeoutError):  # an order may allow a node that was drained or banned
                wait_s = redial_wait_s(tries - 1, self.config.reconnect_s)
                await asyncio.wait_for(self._new_orders.wait(), wait_s)

    @property
    def max_bytes(self) -> int:
        return self.codec.max_bytes + HEAD_BYTES + 9 * messages.MAX_RETURNS

    async def accepted(self, link: Link, holder: str) -> None:
        """One connection of somebody who dialled, from its hello to its end."""
        try:
            await self._serve(link, holder)
        except Refused as error:
            log.warning("node %s", error)
        except Unreachable as error:
            log.debug("node %s", error)

    async def _serve(self, link: Link, holder: str) -> None:
        """One connection from its hello to its end. Refused or Unreachable where it became no node; Refused also where
        the node refused to go on."""
        session: Session | RelayPeer | None = None
        why = "it left"
        try:
            session = await self._greet(link, holder)
            if isinstance(session, RelayPeer):
                log.info(f"relay {session.state.node} ({link.peer}) joined")
                await session.serve(self.accepted)
            else:
                log.info(f"node {session.state.node} ({link.peer}) joined with {session.state.workers} workers")
                await self.exchange(session)
        except Refused as error:
            why = error.wrong
            raise
        except Unreachable as error:
            why = error.wrong
            if session is None:
                raise
        except WireError as error:
            why = error.wrong
            self._count_refused(session, "bytes")
            await self.refuse(link, why)
        finally:
            self._left(session, link, why)
            await link.close()

    def _left(self, session: Session | RelayPeer | None, link: Link, why: str) -> None:
        if session is None:
            known = why[:80] in self.turned_away or len(self.turned_away) < MOST_REASONS
            self.turned_away[why[:80] if known else "another reason"] += 1
            return
        state = session.state
        if isinstance(session, RelayPeer):
            session.count_bytes()
            if self.relays.get(state.node) is session:
                del self.relays[state.node]
                state.leave(why)
                log.info(f"relay {state.node} ({link.peer}) is gone: {why}")
            return
        self.count_bytes(session)
        if self.live.get(state.node) is session:
            del self.live[state.node]
            state.leave(why)
            if not self.leaving:
                log.info(f"node {state.node} ({link.peer}) is gone: {state.why}")
            self.rounds.leave(state.node)

    async def _greet(self, link: Link, holder: str) -> Session | RelayPeer:
        """The handshake, by its deadline; Refused where the two do not suit each other."""
        within_s = self.config.handshake_s
        await link.send(Hello(PROTOCOL, "parent", "parent", max_bytes=self.max_bytes), within_s)
        hello = await link.receive(within_s)
        if not isinstance(hello, Hello):
            await self.refuse(link, f"it began with {type(hello).__name__}, not with a hello")
        orders = self.board.orders()
        sentence = messages.hello_disagreement(hello, "parent")
        if why := orders.banned.get(hello.node) or orders.banned.get(holder):
            sentence = f"this node is banned: {why}"
        elif hello.node in orders.drained:
            sentence = "this node was drained; `spar nodes allow` lets it work again"
        older = self.live.get(hello.node) or self.relays.get(hello.node)
        if older is not None and (
            older.secret != hello.secret or isinstance(older, RelayPeer) != (hello.role == "relay")
        ):
            sentence = f"another node is called {hello.node!r}; give this one another --name"
        if hello.role == "relay" and isinstance(link, Channel):
            sentence = "it is a relay behind a relay; let it join the parent"
        if sentence:
            await self.refuse(link, sentence)
        if hello.node not in self.states:
            self._make_room()
        state = self.states.setdefault(hello.node, NodeState(node=hello.node, peer=link.peer))
        state.peer, state.holder, state.workers, state.state = link.peer, holder, hello.workers, "building"
        state.connections += 1
        state.relay = link.relay.state.node if isinstance(link, Channel) else ""
        job = self._job(self._number(hello.node))
        await link.send(job, within_s)
        agreed = await link.receive(self.config.silent_s)  # it starts its workers meanwhile
        if not isinstance(agreed, Agreed):
            await self.refuse(link, f"it answered the job with {type(agreed).__name__}")
        if sentence := messages.disagreement(self._terms, agreed.terms):
            await self.refuse(link, sentence)
        if hello.role == "relay":
            return await self._admit_relay(link, state, hello.secret)
        missed = self.merger.version - hello.version if hello.run == job.run and hello.version >= 0 else 0
        return await self._admit(link, state, hello.secret, max(0, missed))

    def _number(self, node: str) -> int:
        if node not in self._numbers:
            self._numbers[node], self._next_number = self._next_number, self._next_number + 1
        return self._numbers[node]

    def _make_room(self) -> None:
        """Forget the nodes that were lost longest ago: strangers may come under any number of names."""
        gone = [name for name in self.states if name not in self.live and name not in self.relays]
        for name in gone[: max(0, len(self.states) - self.config.connections)]:
            del self.states[name]
            self._numbers.pop(name, None)

    async def _admit(self, link: Link, state: NodeState, secret: str, missed: int) -> Session:
        if (older := self.live.get(state.node)) is not None:  # the same node again: its old connection is dead
            await older.link.close()
        version, weights = self.merger.version, self.merger.weights
        session = Session(link, state, weights, secret)
        self.live[state.node] = session
        self.rounds.join(state.node)
        state.state, state.version, state.why = "working", version, ""
        whole = (
            session.give(version, weights, self.codec) if isinstance(link, Channel) else weights.astype("<f4").tobytes()
        )
        await link.send(Weights(version, whole, whole=True, missed=missed), self.config.silent_s)
        return session

    async def _admit_relay(self, link: Link, state: NodeState, secret: str) -> RelayPeer:
        if (older := self.relays.get(state.node)) is not None:
            await older.link.close()
        relay = RelayPeer(link, state, secret, self.config.silent_s, self.config.connections)
        self.relays[state.node] = relay
        state.state, state.why = "relaying", ""
        return relay

    async def exchange(self, session: Session) -> None:
        """Contribution and answer, again and again, until the node or the run leaves."""
        state = session.state
        while True:
            given = await session.link.receive(self.config.silent_s)
            if isinstance(given, messages.Contribution):
                reason = await self._merged(session, given)
            elif isinstance(given, Idle):
                reason = ""
                self.rounds.skip(state.node)
            else:
                await self.refuse(session.link, f"it sent {type(given).__name__}, not a contribution")
            leave = self.reason_to_leave(state)
            await self._answer(session, reason, leave, idle=isinstance(given, Idle))
            if leave:
                return

    def reason_to_leave(self, state: NodeState) -> str:
        """Why a node is to stop; "": it is not."""
        drained = self.board.orders().drained
        if state.node in drained or state.relay in drained:
            state.state, state.why = "draining", "it was drained"
            return "it was drained"
        return self.leaving

    async def _merged(self, session: Session, given: messages.Contribution) -> str:
        """What became of a contribution, once it was merged: "" or why it does not count."""
        state = session.state
        self.rounds.responded(state.node, time.monotonic() - session.given_s)
        weights = self.codec.decode(given.payload, session.base)
        with self.lock:
            self._count(given)
            if given.version != state.version:
                reason = "version"  # its payload was decoded against another base
                self.merger.refused[reason] += 1
            else:
                one = Contribution(state.node, given.version, session.base, weights)
                reason = self.merger.offer(one, len(self.live))
        state.steps += given.steps
        state.seen(given.steps_per_s)
        if reason:
            state.refuse(reason)
            return reason
        state.merges += 1
        if not self.merger.rule.at_once:
            await self.rounds.wait()
        self.changed.set()
        return ""

    async def _answer(self, session: Session, reason: str, leave: str, *, idle: bool) -> None:
        """The newest weights; none to a node that contributed nothing and has them already."""
        version, weights, payload = self.merger.version, self.merger.weights, b""
        if not idle or version != session.state.version:
            payload = session.give(version, weights, self.codec)
        session.state.version = version
        session.given_s = time.monotonic()
        await session.link.send(Weights(version, payload, refused=reason, leave=leave), self.config.silent_s)
        self.count_bytes(session)

    async def _ban(self, session: Session, why: str) -> None:
        session.state.state, session.state.why = "banned", why
        with self.lock:
            self.merger.leave(session.state.node)
        await session.link.refuse(f"this node is banned: {why}")

    async def refuse(self, link: Link, sentence: str) -> NoReturn:
        """Tell the node, and raise."""
        await link.refuse(sentence)
        raise Refused(sentence, where=link.peer, do="Correct it there; it may connect again")

    def _count(self, given: messages.Contribution) -> None:
        mine = self.progress
        mine.steps += given.steps
        mine.updates += given.updates
        mine.episodes += given.episodes
        mine.returns.extend(one for one in given.returns if np.isfinite(one))
        mine.messages += 1

    def _count_refused(self, session: Session | RelayPeer | None, reason: str) -> None:
        with self.lock:
            self.merger.refused[reason] += 1
        if session is not None:
            session.state.refuse(reason)

    def count_bytes(self, session: Session) -> None:
        link, state = session.link, session.state
        state.received_bytes += link.received_bytes
        state.sent_bytes += link.sent_bytes
        link.received_bytes = link.sent_bytes = 0
