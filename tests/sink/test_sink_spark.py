"""`spar sink --spark` on a real standalone master and worker, between a real Kinesis server and a real store.

The long test is longer with SPARRING_SPARK_KILLS=5 SPARRING_SPARK_STEPS=200000, and with SPARRING_SPARK_NODES=3 it
writes to that many nodes of Cassandra, of which one is killed. --log-cli-level=INFO tells of each life.
"""

import logging
import os
import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import boto3
import msgspec
import pyarrow.parquet as pq
import pytest

from derived import GAME
from servers.aws_servers import S3, Kinesis
from servers.cassandra_cluster import Cassandra
from servers.process import Process
from servers.running import cassandra
from servers.spark_cluster import Spark, described
from sink.flow import Feed, episodes, judged, new_stream, once, put, put_raw, spar, store_of
from sink.lives import MOMENTS, Checkpoint, Life, alive, await_moment, by_spar, by_submit, settings
from sparring.store import open_store
from sparring.store.protocol import Store
from sparring.stream.kinesis.admin import StreamAdmin
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("SPARRING_SPARK_KILLS", "2"))
STEPS = int(os.environ.get("SPARRING_SPARK_STEPS", "20000"))
NODES = int(os.environ.get("SPARRING_SPARK_NODES", "0"))

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.timeout(1800 if NODES else 900),
    pytest.mark.usefixtures("local_credentials"),
]


def on(spark: Spark, kinesis: Kinesis) -> list[str]:
    """The words that send the job there."""
    conf = settings(spark, kinesis)
    return ["--spark", spark.url, *(word for name in conf for word in ("--spark-conf", f"{name}={conf[name]}"))]


def test_the_same_job_on_a_spark_cluster(
    tmp_path: Path, kinesalite_server: Kinesis, s3_server: S3, spark_server: Spark
) -> None:
    url = new_stream(kinesalite_server, 3)
    client = boto3.client("s3", endpoint_url=s3_server.endpoint)
    bucket = f"lake-{os.getpid()}"
    client.create_bucket(Bucket=bucket)
    sent = [chunk for episode in episodes(4, 10) for chunk in episode]
    put(url, sent)
    header = sent[0].header
    put(url, [Chunk(msgspec.structs.replace(header, outcome=None, seed=8), sent[0].columns)])  # the key of sent[0]
    put_raw(kinesalite_server, url, b"no record of ours")
    lake = ("--set", f"sink.lake_url={s3_server.url(bucket, 'plays')}")
    said = once(tmp_path, url, *on(spark_server, kinesalite_server), *lake)
    assert (said["chunks"], said["steps"], said["quarantined"]) == (len(sent), 4_000, 2)
    assert "Spark UI http://127.0.0.1:" in (tmp_path / "sink.log").read_text()
    assert judged(store_of(tmp_path), sent).exact
    with open_store(store_of(tmp_path)) as store:
        (conflict,) = store.quarantined(GAME)
        (nameless,) = store.quarantined(GameId(""))
        minutes = store.minutes(GAME, 0)
    assert (conflict.verdict, conflict.episode, nameless.verdict) == ("conflict", header.episode, "wire")
    assert sum(minute.steps for minute in minutes) == 4_000
    assert sum(minute.ended for minute in minutes) == 40
    assert max(minute.players for minute in minutes) == 4
    keys = [one["Key"] for one in client.list_objects_v2(Bucket=bucket)["Contents"]]
    rows = 0
    for key in keys:
        (tmp_path / "file.parquet").write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
        table = pq.read_table(tmp_path / "file.parquet")
        rows += len(table)
        assert table["player"].null_count == len(table)
    assert rows == 4_000
    assert all(key.startswith("plays/game=cartpole/version=1/seat=0/day=") for key in keys)
    client.close()


def test_with_the_store_away_the_driver_says_what_it_waits_for_and_goes_on_when_it_is_back(
    tmp_path: Path, kinesalite_server: Kinesis
) -> None:
    url, (first, second) = new_stream(kinesalite_server, 1), list(episodes(2, 1))
    here = replace(described(tmp_path / "spark"), url="local[1]")  # the driver is its own executor
    with cassandra(tmp_path / "cluster") as cluster:
        store_url, (node,) = cluster.url("away"), cluster.nodes
        spar(tmp_path, "store", "migrate", "--set", f"store.url={store_url}")
        put(url, first)
        words = ["--data", str(tmp_path), "--set", f"stream.url={url}", "--set", f"store.url={store_url}"]
        command = by_spar(here, settings(here, kinesalite_server), words)
        with alive(tmp_path, command, {**here.env, **kinesalite_server.env}) as life:
            life.wait("batch", lambda: life.batches > 0)
            assert "starting Spark's driver on local[1]" in life.said
            node.kill()
            put(url, second)
            # The driver asks the store when a batch takes long; where an executor was refused at once, it says so.
            life.wait("sentence", lambda: re.search(r"waiting: (on Spark: )?cassandra://", life.said) is not None)
            assert "no node answers" in life.said
            before = life.batches
            node.start()
            life.wait("batch of the store that is back", lambda: life.batches > before)
        assert judged(store_url, [*first, *second]).exact


@contextmanager
def a_store(data: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Process | None]]:
    """The URL of one on the run's node, or on a cluster of its own; then with a node of it that may be killed."""
    with ExitStack() as stack:
        cluster: Cassandra
        if NODES:
            cluster = stack.enter_context(cassandra(data / "cluster", NODES))
        else:
            cluster = request.getfixturevalue("cassandra_server")
        url = cluster.url(f"sink{time.time_ns()}")
        spar(data, "store", "migrate", "--set", f"store.url={url}")
        yield url, cluster.nodes[-1] if NODES > 2 else None


@dataclass(frozen=True, slots=True)
class Trial:
    """Drivers come and go while the feed goes on; a node of the cluster dies in the middle, and is back later."""

    feed: Feed
    store: Store
    checkpoint: Checkpoint
    node: Process | None
    care: StreamAdmin
    rng: random.Random

    def live(self, kill: int, life: Life) -> bool:
        """One life up to its end; whether that left a batch unfinished."""
        moment = MOMENTS[kill % len(MOMENTS)]
        if moment != "again":
            first_s = life.wait("batch", lambda: life.batches > 0)
            log.info("life %d: its first batch was done after %.1f s", kill, first_s)
        if kill == 0:
            self.care.reshard(4)
            self.care.reshard(3)
        if self.node is not None and kill == KILLS // 2:
            self._without_the_node(kill, life, self.node)
        self.feed.allow((kill + 1) / (KILLS + 1))
        await_moment(moment, life, self.checkpoint, self.store, self.rng)
        life.kill()
        left = self.checkpoint.unfinished
        log.info("life %d: killed (%s); a batch was left unfinished: %s", kill, moment, left)
        return left

    def _without_the_node(self, kill: int, life: Life, node: Process) -> None:
        """It dies while a batch is written, and two more batches find it dead."""
        self.feed.allow((kill + 0.7) / (KILLS + 1))
        life.wait("batch at work", lambda: life.at_work)
        before = life.batches
        node.kill()
        for more in range(3):
            # What is let on only now is in a batch to come, however long the last one took.
            self.feed.allow((kill + 0.7 + 0.1 * more) / (KILLS + 1))
            life.wait("batch without the node", lambda more=more: life.batches > before + more)
        log.info("life %d: a node was killed while a batch was written; that and two more were done", kill)

    def node_returns(self, kill: int) -> None:
        """While the next life writes, or before the last."""
        if self.node is not None and self.node.pid is None and kill >= min(KILLS, KILLS // 2 + 2):
            self.node.launch()


def test_drivers_killed_and_a_reshard_under_load_lose_nothing_and_store_nothing_twice(
    tmp_path: Path, kinesalite_server: Kinesis, spark_server: Spark, request: pytest.FixtureRequest
) -> None:
    url, conf = new_stream(kinesalite_server, 2), settings(spark_server, kinesalite_server)
    sent = [chunk for episode in episodes(10, STEPS // 1_000) for chunk in episode]
    with (
        a_store(tmp_path, request) as (store_url, node),
        open_store(store_url) as store,
        StreamAdmin(url, lambda text: None) as care,
        Feed(url, sent, piece=len(sent) // (40 * (KILLS + 1)), every_s=0.5) as feed,
    ):
        trial, left = Trial(feed, store, Checkpoint(tmp_path), node, care, random.Random(11)), []
        words = ["--data", str(tmp_path), "--json", "--set", "sink.trigger_s=0.5"]
        words += ["--set", f"stream.url={url}", "--set", f"store.url={store_url}"]
        for kill in range(KILLS):
            feed.allow((kill + 0.6) / (KILLS + 1))
            trial.node_returns(kill)
            way = by_submit(spark_server, conf, words, tmp_path) if kill == 1 else by_spar(spark_server, conf, words)
            with alive(tmp_path, way, spark_server.env) as life:
                left.append(trial.live(kill, life))
        feed.finish()
        trial.node_returns(KILLS)
        last = once(tmp_path, url, *on(spark_server, kinesalite_server), "--set", f"store.url={store_url}")
        found, minutes = judged(store_url, sent), store.minutes(GAME, 0)
    assert found.exact, found
    assert found.steps == STEPS
    assert last["quarantined"] == 0
    assert last["trigger_ms"] >= last["batch_ms"] > 0
    # Batches that were done again are not counted again.
    assert sum(minute.steps for minute in minutes) == STEPS
    assert sum(minute.ended for minute in minutes) == STEPS // 100
    assert any(left), "no kill met a batch on its way"
