"""Services of several machines by a real Consul. Here a machine is a folder of its own: whoever has another one is
reached by tcp alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from worker_services import Worker

from servers.running import ConsulAgent
from sparring.errors import Unreachable
from sparring.services.consul_discovery import open_consul
from sparring.services.discovery import Local
from sparring.services.keys import create_keys
from sparring.services.solver import Solver
from sparring.services.topics import Publisher

pytestmark = pytest.mark.servers
HERE = Path(__file__).parent
PROMISE_S = 3.0
LIMIT_S = 3 * PROMISE_S  # what a test waits on a loaded machine


@pytest.fixture
def agent(folder):
    with ConsulAgent(folder) as started:
        yield started


@pytest.fixture
def url(agent, folder):
    create_keys(folder / "k")
    return lambda machine: f"{agent.url}?keys={folder}/k&folder={folder}/{machine}"


@pytest.fixture
def start(url):
    children = []

    def begin(id, machine="far"):
        words = [sys.executable, str(HERE / "worker_services.py"), url(machine), id]
        child = subprocess.Popen(words, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.send_signal(signal.SIGCONT)
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def solver(url):
    discovery = open_consul(url("near"))
    with Solver(discovery) as one:
        yield one
    discovery.close()


def names(solver, calls=40):
    return {solver.retrieve(Worker, "whoami") for _ in range(calls)}


@contextmanager
def within(limit_s):
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < limit_s


def test_calls_between_machines_carry_arrays_and_are_spread(start, solver):
    for id in ("a", "b", "c"):
        start(id, machine=f"m{id}")
    image = np.random.default_rng(0).integers(0, 255, (210, 160, 3), np.uint8)
    values, _ = solver.retrieve(Worker, "echo", image, 2)
    np.testing.assert_array_equal(values[0], image)
    assert names(solver) == {"a", "b", "c"}
    found = solver._discovery.instances("Worker")
    assert all(one.address.startswith("tcp://127.0.0.1:") and one.key and one.pid and one.host for one in found)
    assert solver._discovery.services() == ("Worker",)


def test_within_one_machine_calls_need_no_network(start, url):
    start("a", machine="here")
    discovery = open_consul(url("here"))
    with Solver(discovery) as solver:
        assert solver.retrieve(Worker, "whoami") == "a"
        (only,) = discovery.instances("Worker")
        assert only.address.startswith("ipc://")
    discovery.close()


@pytest.mark.parametrize("machine", ["here", "far"])
def test_services_of_a_group_find_each_other_alone(start, url, machine):
    start("a", machine=f"{machine}&group=one")
    start("b", machine=f"{machine}&group=two")
    start("c", machine=machine)
    for group, id in (("&group=one", "a"), ("&group=two", "b"), ("", "c")):
        discovery = open_consul(url(f"here{group}"))
        with Solver(discovery) as solver:
            assert names(solver.within(LIMIT_S), 10) == {id}
        discovery.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=lambda end: end.name)
def test_a_dead_instance_is_gone_and_a_new_one_used(start, solver, end):
    first = start("a")
    assert names(solver, 5) == {"a"}
    first.send_signal(end)
    with within(LIMIT_S):
        while solver._discovery.instances("Worker"):
            time.sleep(0.05)
    start("b")
    with within(LIMIT_S):
        assert names(solver.within(LIMIT_S), 5) == {"b"}


def test_a_stopped_instance_is_gone_at_once(start, solver):
    child = start("a")
    assert names(solver, 5) == {"a"}
    child.terminate()
    assert child.wait(3) == 0
    with within(LIMIT_S):
        while solver._discovery.instances("Worker"):
            time.sleep(0.01)
    with pytest.raises(Unreachable, match="no instance of Worker is there"):
        solver.within(0.3).retrieve(Worker, "whoami")


def test_calls_go_on_while_the_agent_is_killed_and_comes_back_without_memory(start, solver, agent):
    children = {id: start(id) for id in ("a", "b")}
    over, failures, answers = threading.Event(), [], []

    def call():
        while not over.is_set():
            try:
                answers.append(solver.within(5).retrieve(Worker, "nap", 0.005))
            except Unreachable as error:
                failures.append(error)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    try:
        time.sleep(0.5)
        agent.kill()
        time.sleep(1.0)
        children["b"].kill()  # nobody tells: it is found out by calling
        time.sleep(1.0)
        agent.start()
        time.sleep(2.0)
        start("c")
        with within(LIMIT_S):
            while "c" not in answers:
                time.sleep(0.05)
    finally:
        over.set()
        for caller in callers:
            caller.join()
    assert not failures
    assert names(solver) == {"a", "c"}


def test_a_service_that_starts_before_its_agent_is_found_once_that_is_there(start, solver, agent):
    agent.kill()
    start("a")
    with pytest.raises(Unreachable):
        solver.within(0.5).retrieve(Worker, "whoami")
    agent.start()
    assert solver.within(LIMIT_S).retrieve(Worker, "whoami") == "a"


def test_a_service_whose_key_is_not_trusted_is_not_called(start, solver, agent, folder):
    create_keys(folder / "stranger")
    words = [f"{agent.url}?keys={folder}/stranger&folder={folder}/evil", "evil"]
    child = subprocess.Popen([sys.executable, str(HERE / "worker_services.py"), *words], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        start("good")
        assert names(solver) == {"good"}
        with (folder / "k" / "trusted").open("w") as trusted:
            trusted.write((folder / "stranger" / "key").read_text().split()[0] + " of another team\n")
        stranger = open_consul(f"{agent.url}?keys={folder}/stranger&folder={folder}/near2")
        with Solver(stranger) as other:
            assert names(other, 5) == {"evil"}  # it does not trust us in turn
        stranger.close()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_threads_and_descriptors_are_given_back(start, url):
    start("a")

    def once():
        discovery = open_consul(url("near"))
        with Solver(discovery) as solver:
            assert solver.retrieve(Worker, "whoami") == "a"
        discovery.close()

    once()
    handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        once()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= handles


MIRRORING = """
import sys, time
from sparring.services.discovery import open_discovery
from sparring.services.topics import Subscription
discovery = open_discovery(sys.argv[1])
with Subscription("weights/main", discovery, wait_s=20) as weights:
    for version in (0, 1, 2):
        value = weights.take(version)
        print(weights.version, int(value["w"][-1]), value["w"].flags.writeable, flush=True)
discovery.close()
"""


def test_a_topic_comes_to_another_machine_once_for_all_its_readers(url):
    here = open_consul(url("here"))
    with Publisher("weights/main", here) as publisher:
        publisher.publish({"w": np.full(200_000, 5, np.float32)})
        words = [sys.executable, "-c", MIRRORING, url("there")]
        children = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        try:
            assert [child.stdout.readline() for child in children] == ["0 5 False\n"] * 3
            there = Local(Path(url("there").rpartition("=")[2]))
            (mirroring,) = there.instances("mirror-topic-weights.main")
            publisher.publish({"w": np.full(200_000, 6, np.float32)})
            assert [child.stdout.readline() for child in children] == ["1 6 False\n"] * 3
            (killed,) = [child for child in children if child.pid == mirroring.pid]
            killed.kill()
            killed.wait()
            publisher.publish({"w": np.full(200_000, 7, np.float32)})
            rest = [child for child in children if child is not killed]
            assert [child.stdout.readline() for child in rest] == ["2 7 False\n"] * 2
            assert [child.wait(10) for child in rest] == [0, 0]
        finally:
            for child in children:
                child.kill()
                child.wait()
                child.stdout.close()
    here.close()
