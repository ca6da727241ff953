"""`spar sink --spark` on a real standalone master and worker, between a real Kinesis server and a real store.

The long test is longer with SPARRING_SPARK_KILLS=5 SPARRING_SPARK_STEPS=200000, and with SPARRING_SPARK_RING=3 it
writes to that many nodes of Cassandra, of which one is killed.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import msgspec
import pyarrow.parquet as pq
import pytest

from derived import GAME
from servers.aws_servers import S3, Kinesis
from servers.running import cassandra
from servers.spark_cluster import Spark
from sink.flow import episodes, judged, new_stream, once, put, put_raw, sink, spar, store_of, trickle, wait_for
from sparring.store import open_store
from sparring.stream.care import Care
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId

pytestmark = [
    pytest.mark.servers,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("local_credentials"),
]

KILLS = int(os.environ.get("SPARRING_SPARK_KILLS", "1"))
STEPS = int(os.environ.get("SPARRING_SPARK_STEPS", "20000"))
RING = int(os.environ.get("SPARRING_SPARK_RING", "0"))


def on(spark: Spark, kinesis: Kinesis) -> list[str]:
    """The words that send the job there. Credentials are the worker's affair; here they open nothing."""
    env = [f"spark.executorEnv.{name}={value}" for name, value in kinesis.env.items()]
    conf = [f"{name}={value}" for name, value in spark.conf.items()]
    small = ["spark.driver.memory=512m", "spark.executor.memory=512m"]
    return ["--spark", spark.url, *(word for one in [*env, *conf, *small] for word in ("--spark-conf", one))]


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


@contextmanager
def a_store(data: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Its URL, and what kills a part of it where that has several."""
    if not RING:
        yield store_of(data), lambda: None
        return
    with cassandra(data / "ring", RING) as ring:
        url = ring.url("sink")
        spar(data, "store", "migrate", "--set", f"store.url={url}")
        yield url, ring.nodes[-1].kill if RING > 2 else lambda: None


def test_drivers_killed_and_a_reshard_under_load_lose_nothing_and_store_nothing_twice(
    tmp_path: Path, kinesalite_server: Kinesis, spark_server: Spark
) -> None:
    url, rng, log = new_stream(kinesalite_server, 2), random.Random(11), tmp_path / "sink.log"
    sent = [chunk for episode in episodes(10, STEPS // 1_000) for chunk in episode]
    writer = threading.Thread(target=trickle, args=(url, sent, 10.0 + 30.0 * KILLS))
    with a_store(tmp_path) as (store_url, kill_node):
        words = [*on(spark_server, kinesalite_server), "--set", "sink.trigger_s=0.5", "--set", f"store.url={store_url}"]
        for kill in range(KILLS):
            before = log.stat().st_size if log.exists() else 0
            with sink(tmp_path, url, *words) as process:
                wait_for(log, "Spark UI", after=before, seconds=300)
                if kill == 0:
                    writer.start()
                wait_for(log, "chunks (", after=before, seconds=300)  # a batch was done
                if kill == 0:
                    with Care(url, lambda text: None) as care:
                        care.reshard(4)
                        care.reshard(3)
                if kill == KILLS // 2:
                    kill_node()
                time.sleep(rng.uniform(0.2, 2.0))
                os.killpg(process.pid, signal.SIGKILL)  # Python and the JVM
        writer.join()
        last = once(tmp_path, url, *words)
        found = judged(store_url, sent)
        with open_store(store_url) as store:
            minutes = store.minutes(GAME, 0)
    assert found.exact, found
    assert found.steps == STEPS
    assert last["quarantined"] == 0
    assert sum(minute.steps for minute in minutes) == STEPS  # batches that were done again are not counted again
