"""The whole cloud path on real servers, by the commands of examples/cloud-on-one-machine and no other.

Sixteen players → gateway → Kinesis of 4 shards → Spark → three Cassandra nodes, each with a copy of each row →
training from the store → S3 → a game that downloads the champion and plays.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from servers.process import free_ports
from servers.running import installed
from servers.spark_cluster import described
from sparring.store import open_store
from sparring.wire.ids import GameId

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cloud-on-one-machine"
CLOUD = [sys.executable, str(ROOT / "tests" / "servers" / "cloud.py")]
SPAR = str(Path(sys.executable).parent / "spar")
GAME = GameId("cartpole")
CLIENTS, EPISODES, SHARDS, NODES, PLAYED = 16, 240, 4, 3, 100
GOAL = 475.0
SERVERS = NODES + 4  # S3, Kinesis, Spark's master and worker
STORED_WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Cloud:
    """The example, up."""

    config: Path
    spark_url: str
    env: dict[str, str]

    @property
    def store_url(self) -> str:
        found = re.search(r'url = "(cassandra://[^"]+)"', self.config.read_text())
        assert found is not None
        return found[1]

    def spar(self, *words: str, timeout_s: float = 300.0) -> dict[str, Any]:
        """What a command answers."""
        command = [SPAR, *words, "--config", str(self.config), "--json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    @contextmanager
    def running(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that goes on until the block ends, and then ends well."""
        log = self.config.parent / f"{words[0]}.log"
        command = [SPAR, *words, "--config", str(self.config), "--json"]
        with log.open("w") as out:
            process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=out, text=True)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()[-3000:]
        finally:
            if process.poll() is None:
                for one in psutil.Process(process.pid).children(recursive=True):  # Spark's driver is a JVM
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def settings(folder: Path) -> tuple[Path, int]:
    """The example's own spar.toml with a cluster of three, on ports that are free; and a port for Spark."""
    kinesis, cassandra, s3, spark = free_ports(4)
    text = (EXAMPLE / "spar.toml").read_text()
    for port, free in ((4567, kinesis), (9042, cassandra), (7070, s3)):
        text = text.replace(f":{port}", f":{free}")
    hosts = ",".join(f"127.0.0.{1 + number}" for number in range(NODES))
    text = text.replace("cassandra://127.0.0.1:", f"cassandra://{hosts}:").replace("replication=1", "replication=3")
    config = folder / "spar.toml"
    config.write_text(text)
    return config, spark


@contextmanager
def example(folder: Path) -> Iterator[Cloud]:
    """Up by the example's script, and down again with nothing left."""
    with installed():
        described(folder / "look")
    config, port = settings(folder)
    words = [str(config), "--spark-port", str(port), "--shards", str(SHARDS)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    pids: list[int] = []

    def run(verb: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*CLOUD, verb, *more], env=clean, capture_output=True, text=True, timeout=600)

    try:
        up = run("up", *words)
        if "make servers" in up.stderr:
            pytest.skip(up.stderr)
        assert up.returncode == 0, up.stdout + up.stderr
        again, status = run("up", *words), run("status", str(config))  # what runs is left as it is
        assert (again.returncode, status.returncode) == (0, 0), again.stdout + again.stderr + status.stdout
        pids = [int(pid) for pid in re.findall(r"pid (\d+)", status.stdout)]
        assert len(pids) == SERVERS
        secrets = folder / "data" / "servers" / "cloud.env"
        assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
        said = dict(line.removeprefix("export ").split("=", 1) for line in secrets.read_text().splitlines())
        assert said["AWS_SECRET_ACCESS_KEY"] not in up.stdout + status.stdout
        yield Cloud(config, f"spark://127.0.0.1:{port}", {**clean, **said, "OMP_NUM_THREADS": "1"})
    finally:
        down = run("down", str(config))
    assert down.returncode == 0, down.stdout + down.stderr
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert run("status", str(config)).returncode == 1


def wait_for_steps(store_url: str, steps: int, log: Path) -> None:
    """Until exactly so many are in the store; fails on more, and on the sink's patience."""
    until_s = time.monotonic() + STORED_WITHIN_S
    with open_store(store_url) as store:
        while (found := store.stats(GAME).steps) != steps:
            assert found < steps, "more is stored than was played"
            assert time.monotonic() < until_s, f"{found} of {steps} steps are stored: {log.read_text()[-3000:]}"
            time.sleep(0.2)


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sixteen_players_games_become_a_champion_that_a_client_downloads_and_plays(tmp_path: Path) -> None:
    with example(tmp_path) as cloud:
        found = {one["what"]: one for one in cloud.spar("doctor", "--set", "gateway.port=0")["findings"]}
        assert all(found[part]["ok"] for part in ("stream", "store", "registry")), found
        assert cloud.env["AWS_SECRET_ACCESS_KEY"] not in json.dumps(found)
        stored = cloud.spar("store", "describe")
        assert list(stored["nodes"].values()) == [True] * NODES
        assert list(stored["replication"].values()) == [3]
        with cloud.running("serve", "--port", "0") as gateway, cloud.running("sink", "--spark", cloud.spark_url):
            assert gateway.stdout is not None
            serving = json.loads(gateway.stdout.readline())
            collect = ("collect", GAME, "--clients", str(CLIENTS), "--episodes", str(EPISODES), "--seed", "3")
            collected = cloud.spar(*collect, "--to", serving["url"], "--trust", serving["trust"])
            assert (collected["waiting_chunks"], collected["refused_chunks"]) == (0, 0)
            wait_for_steps(cloud.store_url, collected["steps"], tmp_path / "sink.log")
            filled = [shard for shard in cloud.spar("stream", "describe")["shards"] if not shard["empty"]]
            assert len(filled) == SHARDS
            # The last model alone stands for promotion, however long learning takes on a busy machine.
            alone = ("--set", "train.publish_every_s=3600")
            trained = cloud.spar("train", GAME, "--from", "store", "--seed", "1", *alone)
            assert trained["promoted"]
            played = play(serving, tmp_path / "game")
            wait_for_steps(cloud.store_url, collected["steps"] + played["steps"], tmp_path / "sink.log")
    assert played["model"] == trained["model"]
    assert played["mean"] >= GOAL, (trained, played)


def play(serving: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The champion's hundred games, played by a process that was told the gateway's address and nothing else."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPARRING_"))}
    words = [sys.executable, str(Path(__file__).parent / "playing_champion.py")]
    words += [serving["url"], serving["trust"], str(folder), str(PLAYED)]
    folder.mkdir()
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer["sent"]
    return answer
