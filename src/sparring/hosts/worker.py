"""`python -m sparring.hosts.worker`: one instance of a service in a process of its own.

What it is to be comes as one line on standard input; the end of that says that the host is gone: then this ends.
It says that it is ready on an inherited pipe. All that it prints goes to its log.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

import msgspec

from sparring.hosts.service_class import class_at, construct
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
from sparring.services.discovery import open_discovery
from sparring.services.frames import Codec
from sparring.services.register import verbs_of
from sparring.services.server import Server

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
    arguments: list[bytes]  # the frames of the constructor's arguments
    ready: int  # the descriptor on which to say so


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What this process says once it can be called."""

    address: str
    idempotent: tuple[str, ...]  # verbs


def main() -> int:
    """Serve until the host says so, or has ended."""
    lines = read_lines()
    spec = msgspec.json.decode(first_line(lines), type=WorkerSpec)
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    end_with_parent(lines, stop.set, ORPHAN_S)
    instance = construct(class_at(spec.service), Codec().decode(spec.arguments).body, spec.index, spec.generation)
    discovery = open_discovery(spec.discovery)
    server = Server(instance, discovery, name=spec.name, id=spec.id).start()
    _say_ready(spec.ready, server, instance)
    stop.wait()
    threading.Thread(target=_exit_after, args=(GRACE_S,), name="grace", daemon=True).start()
    server.close()
    discovery.close()
    close = getattr(instance, "close", None)
    if callable(close):
        close()
    return 0


def _exit_after(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(1)


def _say_ready(descriptor: int, server: Server, instance: object) -> None:
    again = tuple(verb.name for verb in verbs_of(instance).values() if verb.idempotent)
    with suppress(BrokenPipeError):
        os.write(descriptor, msgspec.json.encode(Ready(address=server.address, idempotent=again)))
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
