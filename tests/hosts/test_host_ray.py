"""The host of a real Ray cluster: the contract, and what holds of it alone."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from host_contract import *  # noqa: F403
from host_contract import until

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.protocol import open_host
from sparring.hosts.ray.cluster import _how_to_look, join
from sparring.services.discovery import open_discovery
from sparring.services.solver import Solver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One on this machine, for all tests here: it takes ten seconds to start."""
    ours = join("local", 200 << 20)
    import ray

    yield
    if ours:
        ray.shutdown()


@pytest.fixture(scope="module")
def kept(cluster):
    with open_host("ray://local") as opened:
        yield opened


@pytest.fixture
def host(cluster):
    with open_host("ray://local") as opened:
        yield opened


def test_the_command_that_is_printed_shows_the_cluster_with_its_token(cluster):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    printed = _how_to_look("local").removeprefix(": ")
    done = subprocess.run(
        printed, shell=True, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Node status" in done.stdout


def test_many_calls_of_one_event_loop_are_under_way(kept, worker):
    async def play():
        return await asyncio.gather(*(solver.retrieve_async("pair", "add", number, 1) for number in range(40)))

    with (
        closing(open_discovery(kept.discovery)) as discovery,
        Solver(discovery).within(30) as solver,
        ThreadPoolExecutor(1) as thread,
    ):
        assert thread.submit(lambda: asyncio.run(play())).result() == list(range(1, 41))


def test_a_topic_has_its_latest_value_for_all_and_the_later_publisher_counts(kept, worker):
    with (
        Solver(open_discovery(kept.discovery)) as solver,
        solver.publisher("weights/main") as first,
        solver.subscribe("weights/main", wait_s=20) as weights,
    ):
        assert weights.newest() is None
        first.publish({"w": np.full(100_000, 1.0)})
        assert weights.take(0)["w"].sum() == 100_000.0
        assert not weights.value["w"].flags.writeable
        assert worker.ask("newest", "weights/main", 0).result() == [0, 100_000.0]
        first.publish({"w": np.full(100_000, 2.0)}, 7)
        assert weights.take(3)["w"][0] == 2.0
        assert weights.version == 7
        with pytest.raises(ConfigError, match="version 7 after 7"):
            first.publish({}, 7)
        with solver.publisher("weights/main") as second:
            second.publish({"w": np.full(10, 3.0)})
            until(lambda: weights.newest()["w"][0] == 3.0, 90.0)
            assert weights.version == 0
        with pytest.raises(Unreachable, match="version 9 did not come"):
            weights.at_least(9, 0.3)
