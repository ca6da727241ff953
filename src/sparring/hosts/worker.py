"""`python -m sparring.hosts.worker`: one instance of a service in a process of its own.

What it is to be comes as one line on standard input; the end of that says that the host is gone: then this ends.
It says its address on an inherited pipe once it can be called. All that it prints goes to its log.
"""

import os
import signal
import sys
import threading
from contextlib import suppress

import msgspec

from sparring.hosts.protocol import construct
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
from sparring.services.discovery import open_discovery
from sparring.services.frames import Codec
from sparring.services.server import Server

ORPHAN_S = 2.0  # for an orderly end, after the host has gone


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What this process is to be."""

    service: str  # "module:Class"
    name: str
    index: int
    discovery: str  # URL
    arguments: list[bytes]  # the frames of the constructor's arguments
    id: str = ""  # this and what follows differ at each start
    generation: int = 0
    ready: int = -1  # the descriptor of that pipe


def main() -> int:
    """Serve until the host says so, or has ended."""
    lines = read_lines()
    spec = msgspec.json.decode(first_line(lines), type=WorkerSpec)
    stop = threading.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: stop.set())
    end_with_parent(lines, stop.set, ORPHAN_S)
    instance = construct(spec.service, Codec().decode(spec.arguments).body, spec.index, spec.generation)
    discovery = open_discovery(spec.discovery)
    server = Server(instance, discovery, name=spec.name, id=spec.id).start()
    with suppress(BrokenPipeError):
        os.write(spec.ready, server.address.encode())
    os.close(spec.ready)
    stop.wait()
    server.close()
    discovery.close()
    close = getattr(instance, "close", None)
    if callable(close):
        close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
