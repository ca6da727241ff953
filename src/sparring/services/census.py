"""Who is there now, and how busy: every instance of every service, asked itself."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from sparring.errors import SparringError
from sparring.services import frames
from sparring.services.discovery import Announced, Discovery, Door, Instance
from sparring.services.frames import ANSWER, CALL, Codec, Head
from sparring.services.register import HOW_BUSY

PATIENCE_S = 1.0


class Counted(msgspec.Struct, frozen=True):
    """An instance, and how many calls wait there or are worked on; None where it did not answer in time, or where
    calls are not ours (Ray's)."""

    instance: Instance
    outstanding: int | None


class Alone:
    """A discovery in which there is one instance: whoever calls its service calls that one."""

    def __init__(self, discovery: Discovery, instance: Instance) -> None:
        self._discovery, self._instance = discovery, instance

    def listen(self, socket: "zmq.Socket[bytes]", service: str, id: str) -> Door:
        return self._discovery.listen(socket, service, id)

    def connect(self, socket: "zmq.Socket[Any]", instance: Instance) -> None:
        self._discovery.connect(socket, instance)

    def announce(self, instance: Instance) -> Announced:
        return self._discovery.announce(instance)

    def instances(self, service: str) -> tuple[Instance, ...]:
        return (self._instance,) if service == self._instance.service else ()

    def alive(self, instance: Instance) -> bool:
        return self._discovery.alive(instance)

    def services(self) -> tuple[str, ...]:
        return (self._instance.service,)

    def close(self) -> None:
        """It is another's."""


def census(discovery: Discovery) -> list[Counted]:
    """Every instance by service and id. All are asked at once, so it takes a second at most."""
    found = [one for service in discovery.services() for one in discovery.instances(service)]
    found.sort(key=lambda one: (one.service, one.id))
    ours = [one for one in found if one.address.startswith(("ipc://", "tcp://"))]
    with zmq.Context() as context:
        lines = [context.socket(zmq.DEALER) for _ in ours]
        try:
            for line, instance in zip(lines, ours, strict=True):
                line.setsockopt(zmq.LINGER, 0)
                discovery.connect(line, instance)
                line.send_multipart(Codec().encode(Head(frames.VERSION, CALL, 1, HOW_BUSY, PATIENCE_S, [[], {}])))
            until = time.monotonic() + PATIENCE_S
            answers = {(one.service, one.id): _answer(line, until) for one, line in zip(ours, lines, strict=True)}
        finally:
            _close(lines)
    return [Counted(instance, answers.get((instance.service, instance.id))) for instance in found]


def _answer(line: "zmq.Socket[bytes]", until: float) -> int | None:
    if not line.poll(max(0, int(1000 * (until - time.monotonic())))):
        return None
    try:
        head = Codec().decode(line.recv_multipart())
    except SparringError:
        return None
    return head.body if head.kind == ANSWER and isinstance(head.body, int) else None


def _close(lines: "Iterable[zmq.Socket[bytes]]") -> None:
    for line in lines:
        line.close()
