"""A service of one's own beside a league: it writes the league's state to a file, and answers who learns what."""

import json
import threading
from pathlib import Path

from sparring.errors import Unreachable
from sparring.services.register import register
from sparring.services.solver import Solver


class Scoreboard:
    def __init__(self, file, every_s=2.0):
        self.file, self.every_s, self.stopping = Path(file), every_s, threading.Event()
        self.newest = {}
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    @register(idempotent=True)
    def learners(self):
        """Each learner and its steps, for any other process that finds this service."""
        return {one["name"]: one["steps"] for one in self.newest.get("learners", [])}

    def watch(self):
        with Solver() as solver:
            while not self.stopping.wait(self.every_s):
                try:
                    self.newest = solver.retrieve("league", "status")
                except Unreachable:
                    continue  # it is being started again
                self.file.write_text(json.dumps(self.newest))

    def close(self):
        self.stopping.set()
        self.thread.join()
