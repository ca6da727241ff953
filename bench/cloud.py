"""Steps per second from upload to Cassandra, and how long until an upload can be queried, on real servers.

Mock players' chunks (512 steps each, encoded before the clock starts) go over HTTP to `spar serve`, from there into
Kinesis (kinesalite, 4 shards), and by `spar sink` with a trigger of 1 s into one Cassandra node that syncs its log
before it answers; once as one process, once as the same job on a Spark master and worker, all on this machine.

The rate counts from the first upload until the last of its rows can be read. The delay is asked for separately, at a
steady, modest load (five uploads a second): an upload's episode is looked for in the store from the moment it is sent.
What Spark's batches take is told of that load, too; at full speed a batch holds thousands of chunks.

Beside it stand the published figures of the first such system that we know of (Kinesis, Spark and Cassandra): 4.55
records/s, and 97 ms that Spark spent on a batch. They were measured on other machines and count something else (a
record there, a step here), so they are told and not raced.

Needs `make servers`:    spar bench cloud [--quick] --json
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # which know how the servers are started

from bench.flood import flood, request
from bench.ingest import CHUNK_STEPS, SPEC, columns
from bench.ledger import case, result

from servers import aws_servers, cassandra_cluster, spark_cluster
from sparring.games.spec import parse
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk, Header, encode, encode_parts, pack
from sparring.wire.ids import EpisodeId, GameId, new_episode

SHARDS, CLIENTS, BATCH, BODIES = 4, 4, 8, 32
GOAL_STEPS_PER_S, GOAL_DELAY_S = 20_000.0, 2.0
PUBLISHED = {"records_per_s": 4.55, "batch_ms": 97.0}
PROBES_PER_S, LOOK_EVERY_S = 5.0, 0.05
PATIENCE_S = 180.0
GAME = GameId("bench-cart")


@dataclass(frozen=True)
class Cloud:
    """One way's place on the servers, and the folder of the configuration that names it."""

    folder: Path
    store_url: str
    env: dict[str, str]
    spark: spark_cluster.Spark | None

    def on_spark(self) -> list[str]:
        """What `spar sink` takes for this cluster: its executors need the local servers' credentials, too."""
        if self.spark is None:
            return []
        env = {f"spark.executorEnv.{name}": self.env[name] for name in aws_servers.CREDENTIALS}
        small = {"spark.driver.memory": "512m", "spark.executor.memory": "512m"}
        conf = {**env, **self.spark.conf, **small}
        return ["--spark", self.spark.url, *(f"--spark-conf={name}={value}" for name, value in conf.items())]

    def spar(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sparring", *words, "--config", str(self.folder / "spar.toml"), "--json"]


@dataclass(frozen=True)
class Servers:
    """All that run on this machine for the time of the benchmark."""

    folder: Path
    cluster: cassandra_cluster.Cassandra
    kinesis: aws_servers.Kinesis
    spark: spark_cluster.Spark | None
    env: dict[str, str]


@contextmanager
def running_servers(with_spark: bool) -> Iterator[Servers]:
    """Kinesis, Cassandra and, where asked for, Spark; nothing in them."""
    with tempfile.TemporaryDirectory(prefix="bench-cloud-") as name, ExitStack() as started:
        folder = Path(name)
        cluster = cassandra_cluster.described(folder, 1, sync="batch")
        kinesis = aws_servers.kinesis(folder, "kinesalite")
        spark = spark_cluster.described(folder, 1, cores=2, memory="1g") if with_spark else None
        for process in (*cluster.nodes, kinesis.server, *((spark.master, *spark.workers) if spark else ())):
            started.callback(process.kill)
        cassandra_cluster.start(cluster)
        kinesis.server.start()
        if spark is not None:
            spark_cluster.start(spark)
        env = {**os.environ, **kinesis.env, **(spark.env if spark else {}), "OMP_NUM_THREADS": "1"}
        os.environ.update(kinesis.env)
        yield Servers(folder, cluster, kinesis, spark, env)


def place_for(way: str, servers: Servers) -> Cloud:
    """A stream, a keyspace and a configuration of its own: what one way leaves behind is not the next one's work."""
    name = "".join(filter(str.isalnum, way)).lower()
    folder = servers.folder / f"way-{name}"
    folder.mkdir()
    made = Cloud(folder, servers.cluster.url(name), servers.env, servers.spark)
    (folder / "cart.toml").write_text(SPEC)
    (folder / "spar.toml").write_text(
        f'data = "data"\ngames = ["cart.toml"]\n[stream]\nurl = "{servers.kinesis.url(name)}"\n'
        f'[store]\nurl = "{made.store_url}"\n[sink]\ntrigger_s = 1.0\n'
        "[gateway]\nrequests_per_s = 1e9\nburst_requests = 1000000000\n"
    )
    for words in (("store", "migrate"), ("stream", "create", "--shards", str(SHARDS))):
        subprocess.run(made.spar(*words), env=made.env, check=True, stdout=subprocess.DEVNULL)
    return made


@contextmanager
def running(at: Cloud, *words: str, log: str) -> Iterator["subprocess.Popen[str]"]:
    """A command of ours, ended gently with the block."""
    with (at.folder / log).open("ab") as file:
        process = subprocess.Popen(at.spar(*words), env=at.env, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()


class Uploads:
    """Requests of whole chunks; every chunk is an episode of its own, and none is ever sent twice."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self._ready: list[Chunk] = []

    def __call__(self, client: int, count: int) -> list[bytes]:
        return [self.one(client)[0] for _ in range(count)]

    def one(self, client: int = 0) -> tuple[bytes, EpisodeId]:
        """One request, and the episode of its last chunk."""
        body, episode = self.body(client)
        return request(f"/v1/games/{GAME}/chunks", "application/x-spar-chunks", body), episode

    def body(self, client: int = 0) -> tuple[bytes, EpisodeId]:
        if not self._ready:
            self._ready = _bodies(client)
        encoded, episode = [], EpisodeId("")
        for _ in range(self.chunks):
            episode = new_episode()
            chunk = self._ready[hash(episode) % BODIES]
            header = msgspec.structs.replace(chunk.header, episode=episode)
            encoded.append(encode(Chunk(header, chunk.columns, chunk.body)))
        return pack(encoded), episode


def _bodies(client: int) -> list[Chunk]:
    """Compressed once: compressing is the players' work, not the path's."""
    rng, spec, ready = np.random.default_rng(client), parse(SPEC), []
    for _ in range(BODIES):
        head = Header(
            game=GAME, version=spec.version, spec=spec.hash, episode=new_episode(), seat=0, first_step=0,
            steps=CHUNK_STEPS, actor="person", source="play",
        )  # fmt: skip
        chunk = Chunk(head, columns(rng, CHUNK_STEPS))
        packed, body = encode_parts(chunk)
        ready.append(Chunk(msgspec.msgpack.decode(packed, type=Header), chunk.columns, body))
    return ready


@dataclass(frozen=True)
class Measured:
    """One way through; every list is rising."""

    steps_per_s: list[float]  # of each round, from its first upload until the last of its rows can be read
    uploaded_per_s: list[float]  # as the gateway answered
    delays_s: list[float]
    batches_ms: list[float]  # what the sink said that each took at the modest load, where it says so
    triggers_ms: list[float]  # … and what Spark says of the same, its planning and its logs included


def measure(at: Cloud, sink_words: list[str], rounds: int, seconds: float, probes: int) -> Measured:
    """Rate, then delay, with a gateway and a sink of their own."""
    with running(at, "serve", "--port", "0", "--log", "warning", log="serve.log") as gateway:
        assert gateway.stdout is not None
        url = json.loads(gateway.stdout.readline())["url"]
        with running(at, "sink", *sink_words, log="sink.log"), open_store(at.store_url) as store:
            since_ms = int(time.time() * 1000)
            upload(url, Uploads(1).body()[0])  # the sink is there when this one is
            wait_for(at, store, since_ms, steps := CHUNK_STEPS)
            port, stored_per_s, uploaded_per_s = int(url.rpartition(":")[2]), [], []
            for _ in range(rounds):
                sent = flood(port, Uploads(BATCH), clients=CLIENTS, seconds=seconds, requests=int(seconds * 30))
                new = sent.answers * BATCH * CHUNK_STEPS
                wait_for(at, store, since_ms, steps := steps + new)
                stored_per_s.append(new / (time.monotonic() - sent.begun_s))
                uploaded_per_s.append(new / sent.seconds)
            said_before = len((at.folder / "sink.log").read_text())
            found_s = delays(at, store, url, probes)
            stored = sum(chunk.header.steps for chunk in store.read(Query(GAME, since_ms=since_ms)))
            said = (at.folder / "sink.log").read_text()[said_before:]
    if stored != (total := steps + probes * CHUNK_STEPS):
        raise SystemExit(f"{total} steps were sent and {stored} are stored")
    batches, triggers = (
        sorted(1000 * float(seconds) for seconds in re.findall(words, said))
        for words in (r"batch \d+ in ([\d.]+) s", r"Spark's trigger ([\d.]+) s")
    )
    return Measured(sorted(stored_per_s), sorted(uploaded_per_s), sorted(found_s), batches, triggers)


def upload(url: str, body: bytes) -> None:
    """One request, answered."""
    asked = Request(f"{url}/v1/games/{GAME}/chunks", body, {"Content-Type": "application/x-spar-chunks"})
    with urlopen(asked, timeout=30) as answer:
        if b'"taken"' not in answer.read():
            raise SystemExit("an upload was not taken")


def wait_for(at: Cloud, store: Store, since_ms: int, steps: int) -> None:
    """Until so many steps are in the store, as the figures of each minute say, which are written after the rows."""
    until_s = time.monotonic() + PATIENCE_S
    while (found := sum(minute.steps for minute in store.minutes(GAME, since_ms // 60_000 * 60_000))) < steps:
        if time.monotonic() > until_s:
            said = (at.folder / "sink.log").read_text()[-2000:]
            raise SystemExit(f"after {PATIENCE_S:g} s {found} of {steps} steps are stored; the sink says: {said}")
        time.sleep(LOOK_EVERY_S)


def delays(at: Cloud, store: Store, url: str, probes: int) -> list[float]:
    """Seconds from sending an upload until its episode is found; sent at chance moments, not in step with triggers."""
    pending: dict[EpisodeId, float] = {}
    found: list[float] = []
    rng, uploads = np.random.default_rng(0), Uploads(1)

    def send() -> None:
        for _ in range(probes):
            body, episode = uploads.body()
            pending[episode] = time.monotonic()
            upload(url, body)
            time.sleep(rng.exponential(1 / PROBES_PER_S))

    until_s = time.monotonic() + PATIENCE_S
    with ThreadPoolExecutor(1) as sender:
        sending = sender.submit(send)
        while pending or not sending.done():
            if asked := tuple(pending):
                for chunk in store.read(Query(GAME, episodes=asked)):
                    found.append(time.monotonic() - pending.pop(chunk.header.episode))
            if time.monotonic() > until_s:
                raise SystemExit(f"{len(pending)} of {probes} uploads are not found after {PATIENCE_S:g} s")
            time.sleep(LOOK_EVERY_S)
        sending.result()
    return found


WAYS = ("one process", "Spark")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both ways through, one after the other on the same servers."""
    rounds, seconds, probes = (1, 5.0, 20) if args.quick else (3, 10.0, 100)
    cases = []
    with running_servers(with_spark="Spark" in WAYS) as servers:
        for way in WAYS:
            at = place_for(way, servers)
            words = at.on_spark() if way == "Spark" else []
            cases += cases_of(way, measure(at, words, rounds, seconds, probes))
    return result("cloud", cases, published=PUBLISHED)


def cases_of(way: str, got: Measured) -> list[dict[str, Any]]:
    """The figures of one way, beside what was published and what the design asks for."""
    goal = "goal of the design"
    p50, p99 = (got.delays_s[len(got.delays_s) * share // 100] for share in (50, 99))
    made = [
        case(
            f"{way}: upload to stored",
            round(_middle(got.steps_per_s)),
            "steps/s",
            peers={goal: GOAL_STEPS_PER_S, "first such system, published (records/s)": PUBLISHED["records_per_s"]},
            goals={goal: 1.0},
            spread=(round(got.steps_per_s[0]), round(got.steps_per_s[-1])),
            uploaded_per_s=round(_middle(got.uploaded_per_s)),
        ),
        case(
            f"{way}: upload to queryable, p50",
            round(p50, 3),
            "s",
            peers={goal: GOAL_DELAY_S},
            goals={goal: 1.0},
            less_is_better=True,
            spread=(round(got.delays_s[0], 3), round(p99, 3)),
            p99_s=round(p99, 3),
        ),
    ]
    spans = {
        "a batch at the modest load, judged and stored": got.batches_ms,
        "… with Spark's planning and logs": got.triggers_ms,
    }
    for what, taken_ms in spans.items():
        if taken_ms:
            peers = {"first such system, published": PUBLISHED["batch_ms"]}
            about = {"less_is_better": True, "spread": (taken_ms[0], taken_ms[-1]), "batches": len(taken_ms)}
            made.append(case(f"{way}: {what}", round(_middle(taken_ms), 1), "ms", peers=peers, **about))
    return made


def _middle(rising: list[float]) -> float:
    return rising[len(rising) // 2]


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
