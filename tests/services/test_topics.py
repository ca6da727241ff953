"""Topics between real processes."""

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sparring.errors import ConfigError, Unreachable
from sparring.services.discovery import Local
from sparring.services.topics import Publisher, Subscription

READER = """
import sys, time
from pathlib import Path
from sparring.services.discovery import Local
from sparring.services.topics import Subscription
with Subscription("weights/main", Local(Path(sys.argv[1]))) as weights:
    torn = 0
    print("ready", flush=True)
    until = time.monotonic() + 30
    while weights.version < int(sys.argv[2]) and time.monotonic() < until:
        value = weights.at_least(weights.version + 1, 20)
        torn += int((value["w"] != value["stamp"]).any())
        time.sleep(float(sys.argv[3]))
    print(weights.version, torn, flush=True)
"""


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="spar"))
    yield path
    shutil.rmtree(path)


def reader(folder, last, pause):
    child = subprocess.Popen(
        [sys.executable, "-c", READER, str(folder), str(last), str(pause)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def test_readers_of_other_processes_see_whole_versions_and_slow_ones_hold_nobody_up(folder):
    with Publisher("weights/main", Local(folder)) as publisher:
        children = [reader(folder, 199, pause) for pause in (0.0, 0.2)]
        dead = reader(folder, 10_000, 0.0)
        begun = time.monotonic()
        for number in range(200):
            publisher.publish({"w": np.full(50_000, number, np.float32), "stamp": number})
            if number == 20:
                dead.kill()
                dead.wait()
                dead.stdout.close()
            time.sleep(0.002)
        took = time.monotonic() - begun
        for child in children:
            assert child.stdout.read() == "199 0\n"
            assert child.wait(30) == 0
            child.stdout.close()
        assert took < 10
    assert list(folder.iterdir()) == []


def test_a_reader_takes_the_newest_or_waits_for_a_version(folder):
    with Subscription("weights/main", Local(folder)) as weights:
        assert weights.newest() is None
        with Publisher("weights/main", Local(folder)) as publisher:
            assert publisher.publish([1, "one"]) == 0
            assert weights.newest(timeout_s=3) == [1, "one"]
            later = threading.Timer(0.3, publisher.publish, [["two"]])
            later.start()
            assert weights.newest() == [1, "one"]
            assert weights.at_least(1, 3) == ["two"]
            later.join()
            with pytest.raises(Unreachable, match="version 9 did not come, 1 is the newest"):
                weights.at_least(9, 0.2)
            with pytest.raises(ConfigError, match="version 1 after 1"):
                publisher.publish("again", 1)
        assert weights.newest() == ["two"]  # its publisher has gone; what it holds it keeps
        with Publisher("weights/main", Local(folder)) as publisher:
            publisher.publish("anew", 7)
            assert weights.at_least(7, 3) == "anew"


def test_what_is_published_cannot_be_changed_by_a_reader(folder):
    with Publisher("t", Local(folder)) as publisher, Subscription("t", Local(folder)) as reading:
        publisher.publish(np.zeros(3))
        with pytest.raises(ValueError, match="read-only"):
            reading.newest(3)[0] = 1
    with pytest.raises(ConfigError):
        Publisher("no good", Local(folder))
