"""Topics between real processes."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sparring.errors import ConfigError, Unreachable
from sparring.services.discovery import Local
from sparring.services.solver import Solver
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
        weights = np.zeros(100_000)
        publisher.publish(weights)
        with pytest.raises(ValueError, match="read-only"):
            reading.newest(3)[0] = 1
        weights[:] = 7  # nor by the publisher: a learner goes on in place
        with Subscription("t", Local(folder)) as late:
            assert late.newest(3).sum() == 0
        assert publisher.newest(0.0, -1)[2].sum() == 0
    with pytest.raises(ConfigError):
        Publisher("no good", Local(folder))


def test_a_stopped_subscriber_costs_the_publisher_nothing_and_wakes_to_the_latest(folder):
    with Publisher("weights/main", Local(folder)) as publisher:
        child = reader(folder, 5000, 0.0)
        publisher.publish({"w": np.zeros(50_000, np.float32), "stamp": 0})
        time.sleep(0.2)
        child.send_signal(signal.SIGSTOP)
        handles = len(os.listdir("/proc/self/fd"))
        for number in range(1, 2001):
            publisher.publish({"w": np.full(1000, number, np.float32), "stamp": number})
        assert len(os.listdir("/proc/self/fd")) <= handles + 2  # what it has not read is not kept for it
        child.send_signal(signal.SIGCONT)
        publisher.publish({"w": np.full(1000, 5000, np.float32), "stamp": 5000}, 5000)
        assert child.stdout.read() == "5000 0\n"
        assert child.wait(30) == 0
        child.stdout.close()


WRITER = """
import sys, time
from pathlib import Path
from sparring.services.discovery import Local
from sparring.services.topics import Publisher
with Publisher("weights/main", Local(Path(sys.argv[1]))) as publisher:
    for number in range(int(sys.argv[2])):
        publisher.publish([sys.argv[3], number])
    print("ready", flush=True)
    time.sleep(60)
"""


def writer(folder, count, word):
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(count), word], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    return child


def stop(child):
    child.kill()
    child.wait()
    child.stdout.close()


def test_after_a_killed_publisher_its_successor_counts_though_it_begins_anew(folder):
    first = writer(folder, 10, "first")
    with Solver(Local(folder)) as solver, solver.subscribe("weights/main", wait_s=9) as weights:
        assert weights.take(9) == ["first", 9]
        stop(first)
        assert weights.newest() == ["first", 9]  # what it holds it keeps
        second = writer(folder, 3, "second")
        until = time.monotonic() + 9
        while weights.newest() != ["second", 2] and time.monotonic() < until:
            time.sleep(0.02)
        assert weights.version == 2
        with pytest.raises(Unreachable, match="version 3 did not come, 2 is the newest"):
            weights.at_least(3, 0.3)
        stop(second)
    with Subscription("weights/main", Local(folder)) as late:
        assert late.newest() is None
    assert list(folder.iterdir()) == []


def test_a_later_publisher_takes_over_from_one_that_hangs(folder):
    first = writer(folder, 10, "first")
    with Subscription("weights/main", Local(folder), wait_s=9) as weights:
        assert weights.take(9) == ["first", 9]
        first.send_signal(signal.SIGSTOP)
        second = writer(folder, 3, "second")
        until = time.monotonic() + 9
        while weights.newest() != ["second", 2] and time.monotonic() < until:
            time.sleep(0.02)
        assert weights.version == 2
    stop(first)
    stop(second)


def test_one_who_comes_late_gets_the_latest_at_once(folder):
    with Publisher("t", Local(folder)) as publisher, Solver(Local(folder)) as solver:
        for number in range(100):
            publisher.publish(number)
        for wait_s in (0.0, 5.0):
            with solver.subscribe("t", wait_s) as late:
                assert late.newest(5) == 99
                assert late.take(99) == 99
                assert late.version == 99
