"""What goes over tcp is encrypted, and only who is trusted gets an answer."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
from worker_services import Worker

from sparring.errors import ConfigError, Missing
from sparring.services import frames
from sparring.services.client import Client
from sparring.services.consul_discovery import Consul, open_consul
from sparring.services.discovery import Instance
from sparring.services.frames import CALL, Head, codec
from sparring.services.keys import CurveKeys, create_keys
from sparring.services.server import Server
from sparring.services.solver import CallTimeout, Solver

NOWHERE = "consul://127.0.0.1:1"  # no agent: an instance listens all the same
SECRET = "an unlikely secret"


class Known:
    """Every instance is where it is said to be; the rest is Consul's."""

    def __init__(self, discovery: Consul, address: str, key: str) -> None:
        self._discovery = discovery
        self._only = Instance(service="Worker", id="x", address=address, key=key, idempotent=("echo",))

    def instances(self, _):
        return (self._only,)

    def alive(self, _):
        return True

    def connect(self, line, instance):
        self._discovery.connect(line, instance)


@contextmanager
def serving(folder):
    """A Worker; its tcp address and public key."""
    create_keys(folder / "k")
    discovery = open_consul(f"{NOWHERE}?folder={folder}/a&keys={folder}/k")
    ports = {}
    discovery._ports = Ports(ports)
    with Server(Worker("w"), discovery, id="w"):
        yield ports["tcp"], CurveKeys(folder / "k").public
    discovery.close()


class Ports(dict):
    """Remembers the port that an instance was given."""

    def __init__(self, seen):
        self._seen = seen

    def __setitem__(self, near, far):
        self._seen["tcp"] = far
        super().__setitem__(near, far)


def caller(folder, keys, address, key):
    return Known(open_consul(f"{NOWHERE}?folder={folder}/b&keys={keys}"), address, key)


def test_a_trusted_caller_is_answered_and_nobody_on_the_way_can_read_it(folder):
    with serving(folder) as (address, key), tapped(int(address.rpartition(":")[2])) as (port, heard):
        with Solver(caller(folder, folder / "k", f"tcp://127.0.0.1:{port}", key)) as solver:
            assert solver.retrieve(Worker, "echo", SECRET) == [[SECRET], {}]
        passed = b"".join(heard)
        assert len(passed) > 500
        assert SECRET.encode() not in passed
        assert b"echo" not in passed


def test_large_arrays_between_machines_are_copied_by_us_on_neither_side(folder):
    large = np.random.default_rng(0).integers(0, 255, 1 << 20, np.uint8)
    with serving(folder) as (address, key), Solver(caller(folder, folder / "k", address, key)) as solver:
        solver.retrieve(Worker, "echo", large[:10])
        tracemalloc.start()  # it sees every array and every bytes of this process, which is both sides
        try:
            ((got,), _) = solver.retrieve(Worker, "echo", large)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(got, large)
        assert most < large.nbytes  # a single copy would be all of it; other threads of the process have theirs
        assert not got.flags.writeable


def test_a_stranger_gets_no_answer(folder):
    create_keys(folder / "stranger")
    with serving(folder) as (address, key):
        (folder / "stranger" / "trusted").write_text(key)
        with Solver(caller(folder, folder / "stranger", address, key)) as solver, pytest.raises(CallTimeout):
            solver.within(0.5).retrieve(Worker, "echo", 1)
        said = codec().encode(Head(frames.VERSION, CALL, 1, "echo", 5.0, [[1], {}]))
        with zmq.Context() as context, context.socket(zmq.DEALER) as bare:  # without any key at all
            bare.setsockopt(zmq.LINGER, 0)
            bare.connect(address)
            bare.send_multipart(said)
            assert not bare.poll(500)
        # The machine of the stranger is trusted from now on, without a restart.
        (folder / "k" / "trusted").write_text(CurveKeys(folder / "stranger").public + " of the stranger\n")
        with Solver(caller(folder, folder / "stranger", address, key)) as solver:
            assert solver.within(5).retrieve(Worker, "echo", 1) == [[1], {}]


def test_a_call_that_is_sent_after_its_key_was_refused_ends_by_its_deadline(folder, monkeypatch):
    """ZeroMQ has no connection to send on at that moment, and would wait for one for ever."""
    connect, pauses = Client.connect, iter(range(25))

    def connect_slowly(client, target):
        socket = connect(client, target)
        time.sleep(next(pauses) * 0.0012)
        return socket

    monkeypatch.setattr(Client, "connect", connect_slowly)
    create_keys(folder / "stranger")
    with serving(folder) as (address, key):
        (folder / "stranger" / "trusted").write_text(key)
        with Solver(caller(folder, folder / "stranger", address, key)) as solver:
            for _ in range(25):
                with pytest.raises(CallTimeout):
                    solver.within(0.06).retrieve(Worker, "echo", 1)


def test_a_server_with_another_key_than_it_says_is_not_spoken_to(folder):
    other = create_keys(folder / "other").public
    with serving(folder) as (address, _):
        (folder / "k" / "trusted").write_text(other)
        with Solver(caller(folder, folder / "k", address, other)) as solver, pytest.raises(CallTimeout):
            solver.within(0.5).retrieve(Worker, "echo", SECRET)
        (folder / "k" / "trusted").unlink()
        refused = Solver(caller(folder, folder / "k", address, other))
        with refused as solver, pytest.raises(ConfigError, match="is not trusted"):
            solver.within(0.5).retrieve(Worker, "echo", SECRET)


def test_keys_are_private_and_what_is_none_is_refused(folder):
    keys = create_keys(folder / "k")
    path = folder / "k" / "key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert create_keys(folder / "k").public == keys.public  # a pair is never replaced
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"others can read the secret key. Run chmod 600 {path}"):
        CurveKeys(folder / "k")
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match="it holds no pair of keys"):
        CurveKeys(folder / "k")
    with pytest.raises(Missing, match="spar services keys create"):
        CurveKeys(folder / "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("bind=10.0.0.5", "10.0.0.5 can be reached from other machines, and there are no keys"),
        ("bind=0.0.0.0", "0.0.0.0 is every address, and others must be told one"),
        ("bind=here", "'here' is no address"),
        ("keys=/nowhere", "there are no keys in /nowhere"),
        ("kyes=/nowhere", "'kyes' is no option of consul://. Did you mean keys"),
    ],
)
def test_nothing_listens_for_others_without_keys(folder, options, words):
    with pytest.raises(ConfigError) as wrong:
        open_consul(f"{NOWHERE}?folder={folder}/a&{options}")
    assert words in str(wrong.value)


def test_an_address_of_another_machine_is_refused(folder):
    create_keys(folder / "k")
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.7: Cannot assign requested address"):
        open_consul(f"{NOWHERE}?folder={folder}/a&keys={folder}/k&bind=192.0.2.7")


@contextmanager
def tapped(port):
    """A way to `port` on which all bytes are heard."""
    heard, lines = [], []
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(one, other):
        try:
            while data := one.recv(65536):
                heard.append(data)
                other.sendall(data)
        except OSError:
            pass
        other.close()

    def admit():
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port))
            lines.extend([near, far])
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=admit, daemon=True).start()
    yield listening.getsockname()[1], heard
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    time.sleep(0.1)
    for line in lines:
        line.close()


FAR = """
import sys, json
from sparring.services.consul_discovery import open_consul
from sparring.services.server import Server
sys.path.insert(0, sys.argv[2])
from worker_services import Worker
discovery = open_consul(sys.argv[1])
ports = {}
class Ports(dict):
    def __setitem__(self, near, far):
        print(json.dumps(far), flush=True)
        super().__setitem__(near, far)
discovery._ports = Ports()
with Server(Worker("far"), discovery, id="far"):
    sys.stdin.read()
discovery.close()
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="only root has network namespaces")
def test_calls_cross_from_one_network_to_another(folder):
    create_keys(folder / "k")
    name = f"spar{os.getpid() % 10_000}"
    near, far = f"a{name}", f"b{name}"
    run = lambda words: subprocess.run(words.split(), check=True, capture_output=True)  # noqa: E731
    run(f"ip netns add {name}")
    child = None
    try:
        run(f"ip link add {near} type veth peer name {far} netns {name}")
        run(f"ip addr add 10.213.7.1/24 dev {near}")
        run(f"ip link set {near} up")
        run(f"ip -n {name} addr add 10.213.7.2/24 dev {far}")
        run(f"ip -n {name} link set {far} up")
        url = f"{NOWHERE}?folder={folder}/far&keys={folder}/k&bind=10.213.7.2"
        words = ["ip", "netns", "exec", name, sys.executable, "-c", FAR, url, str(Path(__file__).parent)]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        address = json.loads(child.stdout.readline())
        assert address.startswith("tcp://10.213.7.2:")
        with Solver(caller(folder, folder / "k", address, CurveKeys(folder / "k").public)) as solver:
            assert solver.within(10).retrieve(Worker, "whoami") == "far"
    finally:
        if child is not None:
            child.communicate(timeout=10)
        run(f"ip netns del {name}")
