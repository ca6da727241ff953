"""`python -m sparring.hosts.worker`: one instance of a service in a process of its own.

What it is comes as one message on standard input, which then is its tether: where that ends, the host is gone, and so
is this. It says that it is ready on an inherited pipe. All that it prints goes to its log.
"""

import os
import signal
import struct
import sys
import threading
from contextlib import suppress

import msgspec

from sparring.hosts.service_path import class_at, constructed
from sparring.services import shared_value as shared_value  # a shared value may stand in what comes
from sparring.services.discovery import open_discovery
from sparring.services.frames import Codec
from sparring.services.register import verbs_of
from sparring.services.server import Server

LENGTH = struct.Struct("<I")
GRACE_S = 2.5  # for an orderly end, after it was asked for
ORPHAN_S = 2.0  # the same, after the host has gone


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What this process is to be."""

    service: str  # "module:Class"
    name: str
    id: str
    index: int
    generation: int
    discovery: str  # URL
    given: list[bytes]  # the frames of the constructor's arguments
    ready: int  # the descriptor on which to say so


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What this process says once it can be called."""

    address: str
    idempotent: tuple[str, ...]  # verbs
    patient: tuple[str, ...]  # verbs whose callers wait where the queue is full


def main() -> int:
    """Serve until the host says, or is, enough."""
    told = msgspec.msgpack.decode(_message(), type=WorkerSpec)
    over = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: over.set())
    threading.Thread(target=_follow_host, args=(over,), name="tether", daemon=True).start()
    instance = constructed(class_at(told.service), Codec().decode(told.given).body, told.index, told.generation)
    discovery = open_discovery(told.discovery)
    server = Server(instance, discovery, name=told.name, id=told.id).start()
    _say_ready(told.ready, server, instance)
    over.wait()
    threading.Thread(target=_end_by_force, args=(GRACE_S,), name="grace", daemon=True).start()
    server.close()
    discovery.close()
    close = getattr(instance, "close", None)
    if callable(close):
        close()
    return 0


def _message() -> bytes:
    (length,) = LENGTH.unpack(_exactly(LENGTH.size))
    return _exactly(length)


def _exactly(size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = os.read(0, size - len(parts))
        if not part:
            sys.exit(0)  # the host ended before it said anything
        parts += part
    return parts


def _follow_host(over: threading.Event) -> None:
    while os.read(0, 4096):
        pass  # nothing is sent; whatever comes is not the end
    over.set()
    _end_by_force(ORPHAN_S)


def _end_by_force(after_s: float) -> None:
    threading.Event().wait(after_s)
    os._exit(1)


def _say_ready(descriptor: int, server: Server, instance: object) -> None:
    verbs = verbs_of(instance).values()
    again = tuple(verb.name for verb in verbs if verb.idempotent)
    patient = tuple(verb.name for verb in verbs if verb.full == "wait")
    with suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(Ready(address=server.address, idempotent=again, patient=patient)))
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
