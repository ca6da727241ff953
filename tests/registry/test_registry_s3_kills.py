"""A publisher killed at each of its requests: readers see the old or the new, whole."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from buckets import through
from small_models import small_model
from toll import toll

from sparring.errors import Missing
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import verify
from sparring.wire.ids import GameId
from sparring.wire.model import ONNX, WEIGHTS

pytestmark = pytest.mark.servers
GAME = GameId("cartpole")
EVIDENCE = Evidence(episodes=1, mean=1.0, sd=0.0)
OLD = small_model(1)
NEW = small_model(2, files={WEIGHTS: b"two parts" * 700_000, ONNX: b"onnx 2"})
MOST_REQUESTS = 60

# One process imports once and forks for each try: importing takes ten times as long as publishing.
NURSERY = """
import os, sys
import sparring.registry.s3.bucket as bucket
from test_registry_s3_kills import EVIDENCE, NEW
from sparring.registry import open_registry
bucket.ALONE_BYTES = bucket.PART_BYTES = 5 << 20  # the smallest parts that S3 takes: more places to die at
for url in sys.stdin:
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        with open_registry(url.strip()) as registry:
            registry.publish(NEW)
            print("published", flush=True)
            registry.promote("cartpole", NEW.id, EVIDENCE)
            print("promoted", flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class Nursery:
    """Publishers, each killed when `at` says so."""

    def __init__(self):
        folder = Path(__file__).parent
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(folder.parent), *sys.path])}
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._born, self._pid, self.at = threading.Event(), 0, 0

    def kill_now(self, number, verb, path):
        """Called at the toll: kill -9 at the request whose turn it is."""
        if number != self.at:
            return False
        assert self._born.wait(10)
        os.kill(self._pid, signal.SIGKILL)
        return True

    def publish(self, url, at):
        """What it said before its end, and whether it came to it by itself."""
        self.at = at
        self._born.clear()
        print(url, file=self._process.stdin, flush=True)
        self._pid = int(self._process.stdout.readline())
        self._born.set()
        said = []
        while not (line := self._process.stdout.readline()).startswith("ended"):
            assert line, "the nursery ended"
            said.append(line.strip())
        return said, int(line.split()[1])

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture
def nursery():
    made = Nursery()
    yield made
    made.close()


def judge(url, said):
    """Old or new, whole; what was said to be done is done; and the work can be done again."""
    with open_registry(url) as registry:
        assert registry.fetch(OLD.id) == OLD
        try:
            assert registry.fetch(NEW.id) == NEW
            assert NEW.id in registry.ids()
        except Missing:
            assert "published" not in said
            assert [listed.card.id for listed in registry.models(GAME)] == [OLD.id]
        champion = verify(registry.champion(GAME, "1"), registry.trust)
        assert (champion.model, champion.counter) in ((OLD.id, 1), (NEW.id, 2))
        assert champion.model == NEW.id or "promoted" not in said
        registry.publish(NEW)
        again = verify(registry.promote(GAME, NEW.id, EVIDENCE), registry.trust)
        assert again.counter == champion.counter + 1
        assert registry.fetch(NEW.id) == NEW


@pytest.mark.slow
def test_killed_at_each_request_it_holds_the_old_or_the_new(bucket_url, s3_server, nursery):
    points = 0
    # The server has done what it was asked, and nobody hears of it; before the next request it is the same.
    with toll(s3_server.endpoint, after=nursery.kill_now) as way:
        for number in range(1, MOST_REQUESTS):
            url = bucket_url.replace("test/", f"test/{number}-", 1)
            with open_registry(url) as registry:
                registry.publish(OLD)
                registry.promote(GAME, OLD.id, EVIDENCE)
            way.seen.clear()
            said, code = nursery.publish(through(url, way.endpoint), number)
            judge(url, said)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            points += 1
    assert 15 < points < MOST_REQUESTS - 1
