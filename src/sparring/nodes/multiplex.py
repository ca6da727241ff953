"""Many nodes over one connection: what a parent does with a relay (relay.py is the other side).

Each node behind a relay has a channel, which is a link as any other: it is greeted, compared, merged, refused, drained
and banned by itself. Messages of all channels travel in batches. Weights travel once for each version: `share` sends
them if the relay does not have them yet, and a channel's next message says that the relay is to put them in.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from sparring.errors import SparringError, WireError
from sparring.nodes.board import NodeState
from sparring.nodes.codecs import Codec
from sparring.nodes.link import CLOSE_S, Link
from sparring.nodes.messages import MAX_PARTS, Batch, Closed, Opened, Part, Shared, Through
from sparring.wire.chunk import Array

BEAT_S = 5.0  # an empty batch at least this often
BATCH_BYTES = 64 << 10  # parts are put together up to this; one that is larger travels alone
PART_BYTES = 64  # of a part, beside its frame
UNANSWERED = 4  # messages of one node that its parent has not taken: nodes wait for answers


class Batches:
    """Parts on their way over a link, in order."""

    def __init__(self, link: Link, silent_s: float, max_bytes: int = BATCH_BYTES) -> None:
        self._link, self._silent_s, self._max_bytes = link, silent_s, min(max_bytes, BATCH_BYTES)
        self._parts: deque[Part] = deque()
        self._some = asyncio.Event()

    def put(self, part: Part) -> None:
        self._parts.append(part)
        self._some.set()

    async def write(self) -> None:
        """Until the link breaks, which is then closed: whoever reads from it is told."""
        try:
            while True:
                try:
                    async with asyncio.timeout(min(BEAT_S, self._silent_s / 4)):
                        await self._some.wait()
                except TimeoutError:
                    pass
                await self._link.send(self._next(), self._silent_s)
        except SparringError:
            await self._link.close()

    async def end(self, leave: str) -> None:
        """Send what is left, and why the other side is to stop."""
        while self._parts:
            await self._link.send(self._next(), CLOSE_S)
        await self._link.send(Batch((), leave), CLOSE_S)

    def _next(self) -> Batch:
        taken: list[Part] = []
        length = 0
        while self._parts and len(taken) < MAX_PARTS:
            length += _length(self._parts[0])
            if taken and length > self._max_bytes:
                break
            taken.append(self._parts.popleft())
        if not self._parts:
            self._some.clear()
        return Batch(tuple(taken))


def _length(part: Part) -> int:
    if isinstance(part, Through):
        return PART_BYTES + len(part.frame)
    return PART_BYTES + (len(part.payload) if isinstance(part, Shared) else 0)


class Channel(Link):
    """The link to one node behind a relay."""

    def __init__(self, relay: "RelayPeer", number: int, peer: str) -> None:
        self.relay, self._number, self.peer = relay, number, peer
        self.sent_bytes = self.received_bytes = 0
        self._inbox: deque[bytes] = deque()
        self._came = asyncio.Event()
        self._lost_because = ""
        self._puts_weights = False

    def share(self, version: int, weights: Array, codec: Codec) -> Array:
        """Let the next message carry these weights; they are given back as the relay has them."""
        self._puts_weights = True
        return self.relay.share(version, weights, codec)

    def take(self, frame: bytes) -> None:
        """A message of the node came."""
        if len(self._inbox) < UNANSWERED:
            self._inbox.append(frame)
            self._came.set()
        else:
            self.lose("it does not wait for answers")

    def lose(self, why: str) -> None:
        self._lost_because = why
        self._came.set()

    async def send_frame(self, frame: bytes, within_s: float | None = None) -> None:
        with self._lost():
            self._check()
        self.sent_bytes += len(frame)
        self.relay.carried_bytes[0] += len(frame)
        self.relay.out.put(Through(self._number, frame, self._puts_weights))
        self._puts_weights = False

    async def receive_frame(self, within_s: float | None = None) -> bytes:
        with self._lost():
            async with asyncio.timeout(within_s):
                while not self._inbox:
                    self._check()
                    await self._came.wait()
                    self._came.clear()
        frame = self._inbox.popleft()
        self.received_bytes += len(frame)
        self.relay.carried_bytes[1] += len(frame)
        return frame

    async def close(self, why: str = "", code: int = 1000) -> None:
        if self.relay.channels.pop(self._number, None) is not None:
            self.relay.out.put(Closed(self._number, why))
        self.lose(why or "it was closed")

    def _check(self) -> None:
        if self._lost_because:
            raise ConnectionError(self._lost_because)


class RelayPeer:
    """A relay as its parent sees it."""

    def __init__(self, link: Link, state: NodeState, secret: str, silent_s: float, most: int) -> None:
        """At most so many nodes may be behind it."""
        self.link, self.state, self.secret, self._silent_s, self._most = link, state, secret, silent_s, most
        self.out, self.channels, self.carried_bytes = Batches(link, silent_s), dict[int, Channel](), [0, 0]
        self._version = -1
        self._weights: Array | None = None  # as the relay has them, bit for bit

    def share(self, version: int, weights: Array, codec: Codec) -> Array:
        """The weights of that version as the relay has them, to which they are sent once."""
        if self._weights is None:
            self.out.put(Shared(weights.astype("<f4").tobytes(), whole=True))
            self._weights = weights
        elif version != self._version:
            payload = codec.encode(weights, self._weights)
            self.out.put(Shared(payload))
            self._weights = codec.decode(payload, self._weights)
        self._version = version
        return self._weights

    async def serve(self, accepted: Callable[[Channel, str], Coroutine[Any, Any, None]]) -> None:
        """Open a channel for each node that comes to the relay, until the relay is gone."""
        tasks: set[asyncio.Task[None]] = set()
        writer = asyncio.create_task(self.out.write())
        try:
            while True:
                batch = await self.link.expect(Batch, self._silent_s)
                for part in batch.parts:
                    if isinstance(part, Opened):
                        task = asyncio.create_task(accepted(self._open(part), self.state.holder))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    elif isinstance(part, Through) and (channel := self.channels.get(part.channel)) is not None:
                        channel.take(part.frame)
                    elif isinstance(part, Closed) and (channel := self.channels.pop(part.channel, None)) is not None:
                        channel.lose(part.why or "it left its relay")
        except asyncio.CancelledError:
            for task in tuple(tasks):
                task.cancel()
            raise
        finally:
            writer.cancel()
            for channel in tuple(self.channels.values()):
                channel.lose("its relay is gone")

    def _open(self, part: Opened) -> Channel:
        if part.channel in self.channels or len(self.channels) >= self._most:
            wrong = f"a channel twice, or above {self._most} of them"
            raise WireError(
                wrong, where=f"relay {self.state.node}", do="Start another relay, or raise nodes.connections"
            )
        channel = self.channels[part.channel] = Channel(self, part.channel, part.peer)
        return channel

    def count_bytes(self) -> None:
        """What the connection carried beside the messages of nodes: weights, and the frames around all."""
        self.state.sent_bytes += self.link.sent_bytes - self.carried_bytes[0]
        self.state.received_bytes += self.link.received_bytes - self.carried_bytes[1]
        self.link.sent_bytes = self.link.received_bytes = 0
        self.carried_bytes = [0, 0]
