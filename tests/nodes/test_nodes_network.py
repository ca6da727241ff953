"""A node in a network of its own: the link goes down and comes back, loses packets, and is slow; the run goes on."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from test_nodes_train import PATIENCE_S, config, line, node, wait, wish

from sparring.gateway.certificates import fingerprint
from sparring.learn.runs.train import TrainOptions, train
from sparring.nodes.board import Board

NAME, OURS, THEIRS = f"spar{os.getpid()}", "10.77.13.1", "10.77.13.2"
LOSES_A_TENTH = "4,32 0 0 4294963256,37 1 0 429496729,6 0 0 2,6 0 0 4294967295,"  # by a random number of the kernel
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None, reason="needs root, ip and tc"
)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def tc(*words):
    subprocess.run(["tc", *words], check=True, capture_output=True)


@pytest.fixture
def network():
    """A namespace that reaches this machine by one link, called `veth…` on our side."""
    link = f"v{os.getpid()}"
    ip("netns", "add", NAME)
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", NAME)
        ip("addr", "add", f"{OURS}/24", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", NAME, "addr", "add", f"{THEIRS}/24", "dev", "eth0")
        ip("-n", NAME, "link", "set", "eth0", "up")
        ip("-n", NAME, "link", "set", "lo", "up")
        yield link
    finally:
        ip("netns", "del", NAME)


@contextmanager
def far_node(tmp_path, url):
    command = ["ip", "netns", "exec", NAME, sys.executable, "-m", "sparring", "node", "--join", url, "--workers", "1"]
    with (tmp_path / "far.log").open("w") as log:
        words = ["--name", "far", "--set", "nodes.reconnect_s=1", "--data", str(tmp_path / "far")]
        process = subprocess.Popen([*command, *words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@needs_root
@pytest.mark.timeout(1800)
def test_a_node_behind_a_bad_link_comes_back_and_the_others_do_not_wait(tmp_path, network):
    settings = config(tmp_path)
    board, loops, done = Board(settings.data), [], []

    def merges(name):
        return {one.node: one.merges for state in board.parents() for one in state.nodes}.get(name, 0)

    def more(name, count=3):
        before = merges(name)
        wait(lambda: merges(name) >= before + count)

    with node(tmp_path, "near", "--listen", "127.0.0.1:0") as (_, log):
        request = wish(settings, [line(log)], f"{OURS}:0", steps=1 << 40)
        learning = threading.Thread(
            target=lambda: done.append(train(request, TrainOptions(), settings, print, loops.append))
        )
        learning.start()
        try:
            wait(lambda: loops and merges("near"))
            address = loops[0].topology.sessions.address
            assert address.sha256 == fingerprint(tmp_path / "data/nodes/tls-cert.pem").replace(":", "").lower()
            with far_node(tmp_path, str(address)):
                wait(lambda: merges("far") > 2)
                ip("link", "set", network, "down")
                more("near", 10)
                ip("link", "set", network, "up")
                more("far")
                tc(
                    "qdisc",
                    "add",
                    "dev",
                    network,
                    "root",
                    "tbf",
                    *["rate", "256kbit", "burst", "4k", "latency", "400ms"],
                )
                tc("qdisc", "add", "dev", network, "clsact")
                tc("filter", "add", "dev", network, "egress", "bpf", "da", "bytecode", LOSES_A_TENTH)
                more("far")
                more("near")
        finally:
            loops[0].stop_requested = True
            learning.join(PATIENCE_S)
    assert done[0].state == "stopped"
