"""Ray's own processes that a start which failed leaves behind, and how they are ended.

Ray forgets a node that did not come up, and with it the processes that did: they would go on running, and be in the way
of the next try, until this process ends.
"""

import os
from contextlib import suppress
from typing import Any

import ray

END_S = 3.0  # for an orderly end; then they are killed


def parts() -> set[Any]:
    """Children of this process that run one of Ray's programs, as psutil has them."""
    import psutil  # Ray brings one along

    home = os.path.dirname(ray.__file__)
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if any(word.startswith(home) for word in child.cmdline()):
                found.add(child)
    return found


def end(remains: set[Any]) -> None:
    """End those and all that they started."""
    import psutil

    every = list(remains)
    for one in remains:
        with suppress(psutil.Error):
            every += one.children(recursive=True)
    for one in every:
        with suppress(psutil.Error):
            one.terminate()
    _, left = psutil.wait_procs(every, timeout=END_S)
    for one in left:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(left, timeout=END_S)
