"""The host of a real Ray cluster: the contract, and what holds of it alone."""

import numpy as np
import pytest
from host_contract import *  # noqa: F403
from host_contract import until

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.open import open_host
from sparring.hosts.ray.cluster import join
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
