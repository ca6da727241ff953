"""Services on a Ray cluster of two nodes, both on this machine's loopback."""

from contextlib import suppress

import numpy as np
import psutil
import pytest
from host_contract import until
from host_services import Worker

from sparring.errors import ConfigError, Unreachable
from sparring.hosts.protocol import Resources, open_host
from sparring.hosts.ray.cluster import prepare
from sparring.services.solver import CallTimeout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]
SMALL = {"num_cpus": 4, "object_store_memory": 100 << 20, "include_dashboard": False}
FIRST = {
    "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
}  # a death is seen soon


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    prepare(loopback=True)
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for more in (FIRST, {}):
        for tries_left in (2, 1, 0):
            try:
                cluster.add_node(**SMALL, **more)
                break
            except Exception:  # a busy machine: Ray's parts did not find each other in their own time
                if not tries_left:
                    raise
    yield cluster
    cluster.shutdown()


def nodes_of(handles):
    return [handle.look()["Address"]["NodeID"] for handle in handles]


def test_what_is_only_handed_on_is_not_fetched(cluster):
    from ray.experimental import get_object_locations

    with open_host(f"ray://{cluster.address}") as host:
        pair = host.start(Worker, "pair", 2, Resources(cpus=0.5), {})
        for handle in pair:
            handle.ask("who").result(60.0)
        head = cluster.head_node.node_id
        (away,) = [handle for handle, node in zip(pair, nodes_of(pair), strict=True) if node != head]
        passed, read = (away.ask("echo", np.zeros(1 << 18)) for _ in range(2))
        passed.here = False
        until(lambda: passed.done() and read.done(), 30.0)
        assert host.wait([passed], 60.0) == [passed]
        at = get_object_locations([passed.ref, read.ref])
        assert [head in at[one.ref]["node_ids"] for one in (passed, read)] == [False, True]


def test_services_spread_over_nodes_pack_on_one_and_outlive_a_node(cluster):
    with open_host(f"ray://{cluster.address}") as host:
        head, second = cluster.head_node.node_id, cluster.list_all_nodes()[-1]
        spread = host.start(Worker, "spread", 4, Resources(cpus=0.5), {"word": "s"})
        packed = host.start(Worker, "packed", 2, Resources(cpus=0.5, place="pack"), {})
        here = host.start(Worker, "here", 1, Resources(cpus=0.5, place="here"), {})
        for handle in (*spread, *packed, *here):
            handle.ask("who").result(60.0)
        assert set(nodes_of(spread)) == {head, second.node_id}
        assert len(set(nodes_of(packed))) == 1
        assert nodes_of(here) == [head]
        (crowded,) = host.start(Worker, "crowded", 1, Resources(cpus=64), {})
        with pytest.raises(CallTimeout, match="it has no place in the cluster yet"):
            crowded.ask("who").result(1.0)
        moving = [handle for handle, node in zip(spread, nodes_of(spread), strict=True) if node == second.node_id]
        cluster.remove_node(second, allow_graceful=False)
        assert all(handle.ask("who").result(90.0)["word"] == "s" for handle in spread)
        until(lambda: set(nodes_of(spread)) == {head}, 30.0)
        assert all(handle.ask("who").result(60.0)["generation"] >= 1 for handle in moving)
        restarted = [event for event in host.watch() if event.kind == "restarted"]
        until(lambda: restarted.extend(host.watch()) or restarted, 10.0)


def test_nothing_of_it_listens_beyond_loopback(cluster):
    listening = set()
    for one in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # what was ended a moment ago
            places = one.net_connections(kind="tcp")
            listening |= {place.laddr.ip for place in places if place.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_a_cluster_that_is_not_there_is_named():
    with pytest.raises(Unreachable, match=r"ray://127.0.0.1:1: no Ray cluster answers"):
        open_host("ray://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"'ray://' is no Ray cluster\. Say ray://auto or ray://HOST:PORT"):
        open_host("ray://")
