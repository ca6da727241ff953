"""Services that the tests of the hosts start."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from sparring.errors import Missing
from sparring.services.register import register
from sparring.services.solver import Solver
from worker_verbs import Verbs

ASKING = """
import sys
from contextlib import closing
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver
url, service, verb, *words = sys.argv[1:]
with closing(open_discovery(url)) as found, Solver(found) as solver:
    print(solver.retrieve(service, verb, *words))
"""


class Worker(Verbs):
    def __init__(self, word="", index=-1, generation=-1, closes=""):
        super().__init__()
        self.word, self.index, self.generation, self.closes = word, index, generation, closes
        sys.stdout.write(f"{word} {index} begins\n")

    @register(idempotent=True)
    def who(self):
        return {"word": self.word, "index": self.index, "generation": self.generation, "pid": os.getpid()}

    @register()
    def modules(self, names):
        return [name for name in names if name in sys.modules]

    @register()
    def echo(self, *values, **named):
        return [list(values), named]

    @register()
    def add(self, a, b):
        return a + b

    @register()
    def total(self, weights, times=1):
        return float(sum(one.sum() for one in weights.values())) * times

    @register()
    def is_read_only(self, array):
        return not array.flags.writeable

    @register(idempotent=True)
    def nap(self, seconds):
        time.sleep(seconds)
        return self.generation

    @register()
    def note(self, what):
        self.done.append(what)
        return what

    @register(response=False)
    def work(self, number):
        time.sleep(0.05)
        self.done.append(number)

    @register(batch=8, wait_ms=200)
    def double(self, x):
        self.sizes.append(len(x))
        return 2 * x

    @register(response=False, queue=2, full="wait")
    def patient(self, number):
        time.sleep(0.02)
        self.done.append(number)

    @register()
    def ask_others(self, service, verb, *values):
        with Solver() as solver:
            return solver.retrieve(service, verb, *values)

    @register()
    def ask_in_a_process(self, discovery, *words):
        """What a service answers to a process that this one starts."""
        command = [sys.executable, "-c", ASKING, discovery, *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    @register()
    def newest(self, topic, version):
        with Solver() as solver, solver.subscribe(topic, wait_s=20) as subscribed:
            value = subscribed.take(version)
            return [subscribed.version, float(value["w"].sum())]

    def close(self):
        if self.closes:
            Path(self.closes).write_text("closed")


class Doomed:
    """Its process ends as it begins."""

    def __init__(self):
        sys.stdout.write("alas\n")
        sys.stdout.flush()
        os._exit(7)

    @register()
    def who(self):
        return 0


class Broken:
    """Its constructor fails."""

    def __init__(self):
        raise Missing("there is no larder", where="kitchen", do="Build one")

    @register()
    def who(self):
        return 0


class Stubborn:
    """It does not end when it is asked to."""

    @register()
    def who(self):
        return os.getpid()

    def close(self):
        time.sleep(60)


class Large:
    """It answers with what it was given, and much of it."""

    def __init__(self, weights):
        self.weights = weights

    @register()
    def sums(self):
        return [float(self.weights.sum()), np.ones(1 << 16)]
