"""Services that the tests call, each in a process of its own: python worker_services.py FOLDER-OR-URL ID."""

import signal
import sys
import threading
import time

import numpy as np

from sparring.errors import Missing
from sparring.services.discovery import open_discovery
from sparring.services.register import register
from sparring.services.server import Server


class Worker:
    def __init__(self, id: str = "") -> None:
        self.id, self.done, self.sizes = id, [], []

    @register(idempotent=True)
    def echo(self, *values, **named):
        return [list(values), named]

    @register()
    def whoami(self):
        return self.id

    @register()
    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    @register(idempotent=True)
    def nap(self, seconds):
        time.sleep(seconds)
        return self.id

    @register(response=False)
    def work(self, number):
        time.sleep(0.2)
        self.done.append(number)

    @register()
    def worked(self):
        return list(self.done)

    @register(batch=8, wait_ms=50)
    def double(self, x):
        self.sizes.append(len(x))
        return 2 * x

    @register()
    def batches(self):
        return list(self.sizes)

    @register(response=False, queue=2, full="refuse")
    def rare(self, seconds):
        time.sleep(seconds)

    @register(response=False, queue=1, full="wait")
    def patient(self, seconds):
        time.sleep(seconds)
        self.done.append(seconds)

    @register()
    def breaks(self, kind):
        if kind == "ours":
            raise Missing("there is no cheese", where="larder", do="Buy some")
        if kind == "object":
            return object()
        raise ZeroDivisionError("by nothing")

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
