"""Who is there now, and how busy: every instance of every service, asked itself; and any other question to one."""

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import zmq

from sparring.errors import SparringError
from sparring.services import frames
from sparring.services.client_sockets import ClientContext, Connection
from sparring.services.discovery import Discovery, Instance
from sparring.services.errors import error_of
from sparring.services.frames import ANSWER, CALL, ERROR, Codec, Head
from sparring.services.register import HOW_BUSY
from sparring.services.router import Target

PATIENCE_S = 1.0


class InstanceStatus(msgspec.Struct, frozen=True):
    """An instance, and how many calls wait there or are worked on; None where it did not answer in time, or where
    calls are not ours (Ray's)."""

    instance: Instance
    outstanding: int | None


def ask(discovery: Discovery, instance: Instance, verb: str, *args: Any, deadline_s: float = 10.0) -> Any:
    """The answer of this very instance, whoever else offers its service. Errors are those of any call."""
    until = time.monotonic() + deadline_s
    house = ClientContext(discovery)
    try:
        line = Connection(house, Target(instance), until)
        try:
            answer = line.ask(CALL, verb, (args, {}), until)
        finally:
            line.close()
    finally:
        house.close()
    if answer.kind == ERROR:
        raise error_of(answer.body)
    return answer.body


def service_status(discovery: Discovery) -> list[InstanceStatus]:
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
    return [InstanceStatus(instance, answers.get((instance.service, instance.id))) for instance in found]


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
