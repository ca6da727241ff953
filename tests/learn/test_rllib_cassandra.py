"""The same reading from a Cassandra cluster, whose parts are ranges of its tokens."""

import time
from collections import Counter

import numpy as np
import pytest

from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.learn.offline.parallel_store import ParallelStore
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.ids import GameId

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.servers]


@pytest.fixture(scope="module")
def url(cassandra_server, worker_id):
    from sparring.store.cassandra import schema
    from sparring.store.cassandra.session import CassandraAddress

    chosen = cassandra_server.url(f"shared_{worker_id}")
    schema.migrate(CassandraAddress.read(chosen), now_ms=int(time.time() * 1000), replication=0, buckets=0)
    return chosen


def places(chunks):
    return Counter((chunk.key.episode, chunk.key.first_step, chunk.content_hash()) for chunk in chunks)


def test_rays_processes_read_every_chunk_of_a_ring_once(url):
    query = Query(GameId("cartpole"))
    with open_store(url) as store:
        player, rng = script("cartpole", "balance"), np.random.default_rng(5)
        for chunks in play(open_game("cartpole", 8), [player], list(range(16)), rng, "play"):
            store.append(chunks)
        alone = list(store.read(query))
        shared = list(ParallelStore(store, url, "ray://local").read(query))
    assert sum(chunk.header.steps for chunk in alone) == 16 * 500
    assert places(shared) == places(alone)
    order = [(chunk.header.received_at_ms, chunk.header.episode, chunk.header.first_step) for chunk in shared]
    assert order == sorted(order)
