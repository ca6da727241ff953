"""The same calls for programs that live in an event loop: many under way on one socket to each instance."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from sparring.errors import WireError
from sparring.services.discovery import Discovery, Instance
from sparring.services.frames import Head, codec

LOOK_S = 0.25  # how often somebody looks whether instances with calls under way still live


class Lines:
    """Sockets of one event loop."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", discovery: Discovery) -> None:
        self._context = zmq.asyncio.Context(context)
        self._discovery = discovery
        self._lines: dict[str, _Line] = {}

    def line(self, instance: Instance) -> "_Line":
        found = self._lines.get(instance.id)
        if found is None or found.closed:
            found = self._lines[instance.id] = _Line(self._context, instance, self._discovery)
        return found

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()
        self._lines = {}


class _Line:
    """One socket, and who waits for which answer."""

    def __init__(self, context: zmq.asyncio.Context, instance: Instance, discovery: Discovery) -> None:
        self._instance, self._discovery = instance, discovery
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        discovery.connect(self._socket, instance)
        self._waiting: dict[int, asyncio.Future[Head | None]] = {}
        self.closed = False
        self._reading = asyncio.create_task(self._read())
        self._looking = asyncio.create_task(self._look())

    async def ask(self, said: list[Any], number: int, until: float) -> Head | None:
        """The answer; None where the instance died first. TimeoutError after the deadline."""
        answer: asyncio.Future[Head | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._socket.send_multipart(said, copy=False)
            return await asyncio.wait_for(answer, max(0.0, until - time.monotonic()))
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        self.closed = True
        for task in (self._reading, self._looking):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._socket.close()

    async def _read(self) -> None:
        while True:
            said = await self._socket.recv_multipart(copy=False)
            with suppress(WireError):
                answer = codec().decode([frame.buffer for frame in said])
                waiting = self._waiting.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._waiting and not self._discovery.alive(self._instance):
                self.closed = True
                for waiting in self._waiting.values():
                    if not waiting.done():
                        waiting.set_result(None)
