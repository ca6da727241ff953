"""Services that the tests call, each in a process of its own: python worker_services.py FOLDER-OR-URL ID."""

import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from sparring.services.discovery import open_discovery
from sparring.services.register import register
from sparring.services.server import Server

sys.path.append(str(Path(__file__).parents[1]))  # as a program it knows its own folder alone

from worker_verbs import Verbs


class Worker(Verbs):
    def __init__(self, id: str = "") -> None:
        super().__init__()
        self.id = id

    @register(idempotent=True)
    def echo(self, *values, **named):
        return [list(values), named]

    @register()
    def whoami(self):
        return self.id

    @register()
    def until(self, path):
        """Until somebody makes the file."""
        while not Path(path).exists():
            time.sleep(0.01)
        return self.id

    @register(idempotent=True)
    def nap(self, seconds):
        time.sleep(seconds)
        return self.id

    @register(response=False)
    def work(self, number, gate=""):
        if gate:
            self.until(gate)
        self.done.append(number)

    @register(batch=8, wait_ms=50)
    def double(self, x):
        self.sizes.append(len(x))
        return 2 * x

    @register(response=False, queue=1, full="wait")
    def patient(self, seconds):
        time.sleep(seconds)
        self.done.append(seconds)

    @register(batch=4, wait_ms=20)
    def uneven(self, x):
        return np.zeros(len(x) + 1)


def main() -> None:
    where, id = sys.argv[1:3]
    discovery = open_discovery(where if "://" in where else f"local://{where}")
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with Server(Worker(id), discovery, id=id):
        print("ready", flush=True)  # noqa: T201  (whoever started it waits for this)
        over.wait(120)
    discovery.close()


if __name__ == "__main__":
    main()
