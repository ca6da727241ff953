"""`spar train` and `spar node` as processes of their own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

from sparring.gateway.certificates import fingerprint

PATIENCE_S = 600.0  # of a busy machine
QUICK = ("nodes.exchange_s=0.2", "nodes.round_s=1.0", "nodes.handshake_s=60", "registry.gate_episodes=10")


def wait(until):
    end = time.monotonic() + PATIENCE_S
    while not (found := until()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
    return found


@contextmanager
def node(tmp_path, name, *words):
    """`spar node` in a process of its own, its log, and the line that it prints where it listens."""
    log = tmp_path / f"{name}.log"
    command = [sys.executable, "-m", "sparring", "node", *words, "--workers", "1", "--data", str(tmp_path / name)]
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--name", name], stdout=file, stderr=file, start_new_session=True)
    try:
        if "--listen" in words:
            wait(lambda: "wss://" in log.read_text() or process.poll() is not None)
        yield process, log
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def line(log):
    return re.search(r"wss://[^']*", log.read_text())[0]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def fingerprint_of(path):
    return path.exists() and fingerprint(path).replace(":", "").lower()


def joining_line(data, place):
    """What `spar train --accept-nodes` prints."""
    token = wait(lambda: (data / "nodes/token").exists() and (data / "nodes/token").read_text())
    mark = wait(lambda: fingerprint_of(data / "nodes/tls-cert.pem"))
    return f"wss://{token}@{place}#sha256:{mark}"


@contextmanager
def parent_process(tmp_path, place, *words):
    """`spar train --accept-nodes` in a process of its own."""
    command = [sys.executable, "-m", "sparring", "train", "cartpole", "--algo", "a3c", "--steps", str(1 << 40)]
    sets = [word for one in (*QUICK, "train.checkpoint_every_s=1") for word in ("--set", one)]
    with (tmp_path / "parent.log").open("a") as file:
        whole = [*command, "--accept-nodes", place, *sets, *words, "--data", str(tmp_path / "data")]
        process = subprocess.Popen(whole, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
