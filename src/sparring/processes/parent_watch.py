"""A child ends when its parent is gone. Its standard input is a pipe that the parent holds open: the end of that pipe
means that the parent has ended, killed or not. (A signal on the parent's death exists on Linux alone.)

The parent may also write a line to it, which says what the child is to be.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator


def read_lines(descriptor: int = 0) -> Iterator[bytes]:
    """Unbuffered: a thread that sleeps in a buffered read would hold its lock when the process wants to end."""
    rest = bytearray()
    while part := os.read(descriptor, 1 << 16):
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            yield from map(bytes, lines)


def first_line(lines: Iterator[bytes]) -> bytes:
    """What the parent says that this process is to be; ends the process where the parent is gone before it said so."""
    line = next(lines, None)
    if line is None:
        os._exit(0)
    return line


def end_with_parent(lines: Iterator[bytes], on_gone: Callable[[], object] = lambda: None, grace_s: float = 0.0) -> None:
    """Watch the parent in a thread. When it is gone, call `on_gone`, wait `grace_s` for an orderly end, and exit."""

    def watch() -> None:
        for _ in lines:
            pass
        on_gone()
        time.sleep(grace_s)
        os._exit(1 if grace_s else 0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":  # python -m sparring.processes.parent_watch NICE GRACE_S MODULE WORDS…
    import runpy  # a module that ends in good order on SIGTERM

    _, nice, grace_s, module, *words = sys.argv
    os.nice(int(nice))
    end_with_parent(read_lines(), lambda: os.kill(os.getpid(), signal.SIGTERM), float(grace_s))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
