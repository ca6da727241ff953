"""`python -m sparring.cli.parent_watch NICE COMMAND …`: a `spar` command that ends when whoever started it is gone.

Its standard input is a pipe that the parent holds open and never writes to, so its end means that the
parent is gone, killed or not: no orphan goes on training. This works on every system, where a signal on
the parent's death is Linux's alone.
"""

import os
import signal
import sys
import threading
import time

from sparring.cli import main

GRACE_S = 3.0  # for a checkpoint, after the parent is gone


def _follow_parent() -> None:
    while os.read(0, 4096):
        pass  # nothing is ever sent; whatever comes is not the end
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    threading.Thread(target=_follow_parent, name="tether", daemon=True).start()
    sys.exit(main(sys.argv[2:]))
