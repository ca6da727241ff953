"""memory:// as a service: it is found by name, dies without harm, and runs on Ray."""

import os
import signal
import time

import pytest
from pool_places import Service, large_model

from sparring.errors import Unreachable
from sparring.hosts.protocol import Resources, open_host
from sparring.pool import open_pool
from sparring.pool.memory import serve_pool
from sparring.services.discovery import open_discovery
from sparring.services.register import register


class Member:
    """A role of a league: it opens the pool in its own process."""

    @register()
    def files(self, url, model_id):
        with open_pool(url) as pool:
            return dict(pool.get(model_id).files)


def test_a_service_that_is_killed_comes_back_empty_and_is_filled_from_the_registry(service_place, registry):
    model = large_model(0)
    registry.publish(model)
    url = service_place.url() + "&timeout_s=60"
    with service_place.open(url, registry) as pool:
        pool.put(model)
        (service,) = service_place.host.runs()
        (instance,) = open_discovery(service_place.host.discovery).instances(service["name"])
        os.kill(instance.pid, signal.SIGKILL)
        assert pool.get(model.id) == model
        assert pool.ids() == [model.id]


def test_where_no_service_is_there_it_is_said_within_the_timeout(service_place):
    with service_place.open("memory://nobody?timeout_s=0.5") as pool:
        began_s = time.monotonic()
        with pytest.raises(Unreachable, match="no instance of nobody is there"):
            pool.ids()
        assert time.monotonic() - began_s < 20


def test_a_pool_with_a_server_of_its_own_needs_no_service(service_place):
    serve_pool(service_place.host, "redis://127.0.0.1:1/0")
    assert service_place.host.runs() == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning")
def test_on_ray_members_read_what_the_program_put():
    from sparring.hosts.ray.cluster import join

    ours = join("local", 200 << 20)
    import ray

    try:
        with open_host("ray://local") as host:
            place = Service(host)
            url, model = place.url(max_bytes=8 << 20), large_model(0)
            with place.open(url) as pool:
                pool.put(model)
                assert pool.get(model.id) == model
                (member,) = host.start(Member, "member", 1, Resources(cpus=0.1), {})
                assert member.ask("files", url, model.id).result(120.0) == model.files
            place.solver.close()
    finally:
        if ours:
            ray.shutdown()
