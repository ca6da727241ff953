"""A relay: many nodes come to it as if it were the parent, and it has one connection to the parent itself.

    node ─┐                       Opened, Through, Closed in batches
    node ─┼── wss ──► relay ═════════════ one wss ═════════════► parent
    node ─┘  ◄── by the codec ──  ◄── Shared: weights of each version, once ──

The relay reads no contribution: it passes what a node sends on as it came, in that node's own channel, so that the
parent greets, compares, counts, refuses, drains and bans each of them (multiplex.py). It keeps the newest weights and
encodes them for each node against what that node has. When it loses its parent it lets its nodes go; they play on,
and connect again when the relay is back.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np

from sparring.config import Config
from sparring.errors import Refused, SparringError, Unreachable
from sparring.nodes.codecs import Codec, Layout
from sparring.nodes.link import DONE_CODE, Address, Door, Link, Server, dial, redial_wait_s
from sparring.nodes.messages import (
    PROTOCOL,
    Agreed,
    Batch,
    Closed,
    Hello,
    Job,
    Lease,
    Opened,
    Shared,
    Terms,
    Through,
    Weights,
    decode,
    encode,
    hello_disagreement,
)
from sparring.nodes.multiplex import PART_BYTES, UNANSWERED, Batches
from sparring.wire.chunk import Array

log = logging.getLogger(__name__)

NO_PARENT = "this relay has no parent now"
LEAVE_S = 5.0  # in which nodes hear that the run is done


@dataclass(slots=True, eq=False)
class _Behind:
    """A node behind this relay. `base` is what it has, bit for bit."""

    link: Link
    base: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    unanswered: int = 0
    frames: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # to it; None: close


class _Upstream:
    """The connection to the parent, and the weights that came over it."""

    def __init__(self, link: Link, hello: Hello, terms: Terms, silent_s: float) -> None:
        self.link, self.max_frame = link, hello.max_bytes - 2 * PART_BYTES
        self.out = Batches(link, silent_s, hello.max_bytes)
        self.codec, self.weights = Codec(terms.codec, Layout(terms.layout)), np.zeros(0, np.float32)
        self.behind: dict[int, _Behind] = {}

    def take(self, given: Shared) -> None:
        whole = np.frombuffer(given.payload, "<f4").astype(np.float32) if given.whole else None
        self.weights = self.codec.decode(given.payload, self.weights) if whole is None else whole

    def filled(self, frame: bytes, node: _Behind) -> bytes:
        """A message to a node with the weights put in: whole to one that is new, exact to one that plays leases."""
        message = decode(frame)
        if isinstance(message, Lease):
            had, node.base = node.base is self.weights, self.weights
            payload = b"" if had else self.weights.astype("<f4").tobytes()
            return encode(msgspec.structs.replace(message, weights=_with(message.weights, payload, whole=not had)))
        if not isinstance(message, Weights):
            raise Refused(f"it put weights into {type(message).__name__}", where=self.link.peer, do="Update Sparring")
        if message.whole:
            node.base = self.weights
            return encode(_with(message, self.weights.astype("<f4").tobytes(), whole=True))
        payload = self.codec.encode(self.weights, node.base)
        node.base = self.codec.decode(payload, node.base)
        return encode(_with(message, payload, whole=False))


def _with(message: Weights, payload: bytes, *, whole: bool) -> Weights:
    return msgspec.structs.replace(message, payload=payload, whole=whole)


class Relay:
    """One relay from start to stop. `stop` may be called by a signal handler."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config.nodes, name
        self.passed = 0  # messages of nodes
        self._secret = secrets.token_hex(16)
        self._up: _Upstream | None = None
        self._channels = 0
        self._tries = 0  # in vain since it had a parent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event

    def run(self, parent: Address, door: Door, nodes: Sequence[Address] = ()) -> str:
        """Pass on what nodes send that come to the door or are dialled, until the run is done; why it ended."""
        return asyncio.run(self._run(parent, door, nodes))

    def stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _run(self, parent: Address, door: Door, nodes: Sequence[Address]) -> str:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server(door, self._behind, self.config, self.config.max_message_bytes)
        upstream, stopped = asyncio.create_task(self._serve(parent)), asyncio.create_task(self._stop.wait())
        dialled = [asyncio.create_task(self._dial(address)) for address in nodes]
        try:
            await asyncio.wait([upstream, stopped, *dialled], return_when=asyncio.FIRST_COMPLETED)
            return upstream.result() if upstream.done() else "stopped"
        finally:
            for task in (upstream, stopped, *dialled):
                task.cancel()
            await asyncio.gather(upstream, stopped, *dialled, return_exceptions=True)
            await server.close()

    # --- towards the parent

    async def _serve(self, address: Address) -> str:
        while True:
            try:
                link = await dial(address, self.config.max_message_bytes, self.config.handshake_s)
                if why := await self._session(link):
                    return why
            except Unreachable as error:
                if not self._tries:
                    log.warning("%s", error)
            self._tries += 1
            await asyncio.sleep(redial_wait_s(self._tries - 1, self.config.reconnect_s))

    async def _session(self, link: Link) -> str:
        """Serve the parent of that link; why it said that the run is done. Unreachable where it is lost."""
        writer, done = None, ""
        try:
            self._up = up = await self._greet(link)
            writer = asyncio.create_task(up.out.write())
            self._tries = 0
            log.info(f"{link.peer}: passing on what nodes learn")
            while True:
                batch = await link.expect(Batch, self.config.silent_s)
                for part in batch.parts:
                    self._take(up, part)
                if done := batch.leave:
                    async with asyncio.timeout(LEAVE_S):
                        while up.behind:
                            await asyncio.sleep(0.02)
                    return done
        except TimeoutError:
            return done
        except Unreachable:
            raise
        except SparringError as error:  # refused by either side
            await link.refuse(error.wrong)
            raise
        finally:
            if writer is not None:
                writer.cancel()
            if (lost := self._up) is not None:
                self._up = None
                why, code = (done, DONE_CODE) if done else (NO_PARENT, 1000)
                await asyncio.gather(*(node.link.close(why, code) for node in tuple(lost.behind.values())))
            await link.close()

    async def _greet(self, link: Link) -> _Upstream:
        within_s = self.config.handshake_s
        await link.send(Hello(PROTOCOL, "relay", self.name, self._secret), within_s)
        theirs = await link.expect(Hello, within_s)
        if sentence := hello_disagreement(theirs, "relay"):
            raise Refused(sentence, where=link.peer, do="Correct it")
        terms = (await link.expect(Job, within_s)).terms
        if any(side < 0 for _, shape in terms.layout for side in shape) or terms.byte_length > self._most_weights():
            wrong = f"weights of {terms.byte_length} bytes are above this relay's nodes.max_message_bytes"
            raise Refused(wrong, where=link.peer, do="Raise it")
        await link.send(Agreed(terms), within_s)
        return _Upstream(link, theirs, terms, self.config.silent_s)

    def _most_weights(self) -> int:
        return self.config.max_message_bytes - 2 * PART_BYTES

    def _take(self, up: _Upstream, part: object) -> None:
        if isinstance(part, Shared):
            up.take(part)
        elif isinstance(part, Through) and (node := up.behind.get(part.channel)) is not None:
            node.unanswered = 0
            node.frames.put_nowait(up.filled(part.frame, node) if part.weights else part.frame)
        elif isinstance(part, Closed) and (node := up.behind.get(part.channel)) is not None:
            node.frames.put_nowait(None)

    # --- towards the nodes

    async def _dial(self, address: Address) -> None:
        """One node that listens, through all its connections."""
        tries, said = 0, ""
        while True:
            try:
                if self._up is not None:
                    link = await dial(address, self.config.max_message_bytes, self.config.handshake_s)
                    said = ""
                    if await self._pass_on(link):
                        tries = 0
                    await link.close()
            except (Refused, Unreachable) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("node %s", said)
            tries += 1
            await asyncio.sleep(redial_wait_s(tries - 1, self.config.reconnect_s))

    async def _behind(self, link: Link, holder: str) -> None:
        """One node that dialled."""
        await self._pass_on(link)

    async def _pass_on(self, link: Link) -> bool:
        """One node from its first message to its last; whether the parent admitted it, which then gave it weights."""
        up = self._up
        if up is None:
            await link.close(NO_PARENT)
            return False
        self._channels += 1
        number, node, why = self._channels, _Behind(link), "it left its relay"
        up.behind[number] = node
        up.out.put(Opened(number, link.peer[:100]))
        writer = asyncio.create_task(self._write(node))
        try:
            while True:
                frame = await link.receive_frame()
                node.unanswered += 1
                if isinstance(frame, str) or len(frame) > up.max_frame or node.unanswered > UNANSWERED:
                    why = "its message was above the limit, or no answer to one of the parent's"
                    await link.refuse(why)
                    break
                self.passed += 1
                up.out.put(Through(number, frame))
        except Unreachable as error:
            why = error.wrong
        finally:
            writer.cancel()
            del up.behind[number]
            up.out.put(Closed(number, why[:1_000]))
        return node.base.size > 0

    async def _write(self, node: _Behind) -> None:
        """Messages to one node, until the parent is done with it; what reads from the link is told when it breaks."""
        try:
            while (frame := await node.frames.get()) is not None:
                await node.link.send_frame(frame, self.config.silent_s)
        except SparringError as error:
            log.debug("a node behind this relay: %s", error)
        await node.link.close()
