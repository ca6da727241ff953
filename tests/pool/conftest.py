"""Places for pools, and a registry behind them."""

import pytest
from pool_places import InProcess, Redis, Service

from servers.running import redis
from sparring.hosts.protocol import open_host
from sparring.registry import open_registry


@pytest.fixture
def redis_place(tmp_path):
    with redis(tmp_path / "redis") as server:
        yield Redis(server)


@pytest.fixture
def service_place():
    with open_host("local://") as host:
        place = Service(host)
        yield place
        place.solver.close()


@pytest.fixture(params=["process", "service", pytest.param("redis", marks=pytest.mark.servers)])
def place(request, monkeypatch):
    monkeypatch.delenv("SPARRING_DISCOVERY", raising=False)
    return InProcess() if request.param == "process" else request.getfixturevalue(f"{request.param}_place")


@pytest.fixture
def registry_url(tmp_path):
    return f"file://{tmp_path}/models"


@pytest.fixture
def registry(registry_url):
    with open_registry(registry_url) as opened:
        yield opened
