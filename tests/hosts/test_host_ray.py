"""The host of a real Ray cluster: the contract, and what holds of it alone."""

import pytest
from host_contract import *  # noqa: F403

from sparring.hosts.opening import open_host
from sparring.hosts.ray_cluster import join

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One on this machine, for all tests here: it takes ten seconds to start."""
    assert join("local", 200 << 20)
    import ray

    yield
    ray.shutdown()


@pytest.fixture
def host(cluster):
    with open_host("ray://local") as opened:
        yield opened
