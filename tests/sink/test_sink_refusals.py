"""A chunk that the store itself will not take, and a store that is away: told apart, on real servers."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from derived import EPOCH_MS, GAME, chunks_of, episode_of
from servers.aws_servers import Kinesis
from servers.cassandra_cluster import Cassandra
from servers.running import cassandra
from sink.flow import SEED, episodes, judged, new_stream, once, put, sink, spar, wait_for
from sparring.config import Config
from sparring.errors import StoreRefused
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import ChunkRules
from sparring.games.spec import parse
from sparring.sink.batch_writer import AGAIN_AFTER_S, BatchWriter
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.store.sqlite.store import SqliteStore
from sparring.stream.protocol import Placed, Position
from sparring.wire.chunk import Chunk, Header, encode
from sparring.wire.ids import GameId

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("local_credentials")]


def test_a_chunk_that_claims_numbers_beyond_any_column_is_put_aside_and_its_shard_goes_on(
    tmp_path: Path, kinesalite_server: Kinesis, cassandra_server: Cassandra
) -> None:
    url, store_url = new_stream(kinesalite_server, 1), cassandra_server.url(f"refusals{time.time_ns()}")
    spar(tmp_path, "store", "migrate", "--set", f"store.url={store_url}")
    sent = [chunk for episode in episodes(2, 5) for chunk in episode]
    (like, *_) = chunks_of(SEED, 9, 1)
    far = msgspec.structs.replace(like.header, first_step=1 << 50)
    strange = msgspec.structs.replace(like.header, game=GameId("chess"), seat=1 << 40)
    put(url, sent[:10])
    put(url, [Chunk(far, like.columns), Chunk(strange, like.columns)])
    put(url, sent[10:])
    said = once(tmp_path, url, "--set", f"store.url={store_url}")
    assert (said["chunks"], said["quarantined"]) == (len(sent), 2)
    assert judged(store_url, sent).exact
    with open_store(store_url) as store:
        (row,), (other,) = store.quarantined(GAME), store.quarantined(GameId(""))
    assert (row.episode, row.first_step) == (like.header.episode, (1 << 31) - 1)
    assert (other.field, other.seat) == ("game", (1 << 31) - 1)


WIDE = """
id = "wide"
turns = "simultaneous"
max_ticks = 100_000

[[seats]]
name = "eye"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/state", kind = "vector", shape = [64] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
"""


def wide(steps: int) -> Chunk:
    """A chunk of a game that sees much: 250 bytes a step."""
    rng, spec = np.random.default_rng(steps), parse(WIDE)
    header = Header(
        game=spec.id,
        version=spec.version,
        spec=spec.hash,
        episode=episode_of(SEED, 1, steps),
        seat=0,
        first_step=0,
        steps=steps,
        actor="person",
        source="play",
    )
    columns = {
        "observation/state": rng.random((steps, 64), np.float32),
        "action": np.zeros(steps, np.int32),
        "reward": np.zeros(steps, np.float32),
        "tick": np.arange(steps, dtype=np.int64),
    }
    return Chunk(header, columns)


def test_what_a_real_cassandra_refuses_is_put_aside_with_its_reason_and_all_else_is_stored(
    tmp_path: Path, kinesalite_server: Kinesis, cassandra_server: Cassandra
) -> None:
    url, store_url = new_stream(kinesalite_server, 1), cassandra_server.url(f"refusing{time.time_ns()}")
    spar(tmp_path, "store", "migrate", "--set", f"store.url={store_url}")
    with open_store(store_url) as store:
        # An operator's index on the wrong column: it takes no value above 64 KiB, and so the table takes none.
        store.session.driver.execute("CREATE INDEX ON chunks (body)")  # type: ignore[attr-defined]
    (tmp_path / "wide.toml").write_text(WIDE)
    (tmp_path / "spar.toml").write_text('games = ["wide.toml"]')
    sent, small, large = [chunk for episode in episodes(2, 10) for chunk in episode], wide(20), wide(400)
    put(url, [*sent[:20], large, small, *sent[20:]])
    said = once(tmp_path, url, "--set", f"store.url={store_url}")
    assert (said["chunks"], said["steps"], said["quarantined"]) == (len(sent) + 1, 2_020, 1)
    assert judged(store_url, sent).exact
    with open_store(store_url) as store:
        (row,) = store.quarantined(GameId("wide"))
        assert [chunk.header.steps for chunk in store.read(Query(GameId("wide")))] == [20]
        assert sum(minute.steps for minute in store.minutes(GAME, 0)) == 2_000  # none for its second try
    assert (row.verdict, row.episode) == ("refused", large.header.episode)
    assert "Cannot index value of size" in row.reason, row.reason
    _spark_does_the_same(store_url, [*chunks_of(SEED, 50, 1), large])


def _spark_does_the_same(store_url: str, chunks: Sequence[Chunk]) -> None:
    from sparring.sink import spark

    games = (*Catalogue.from_config(Config()).games(), parse(WIDE))
    settings = msgspec.json.encode(spark.ExecutorSettings("", store_url, "", 0.0, games))
    try:
        (made,) = spark.write_partition(settings, "0", iter([spark.record_batch(placed(chunks))]))
    finally:
        spark.writer(settings)._store.close()
        spark.writer.cache_clear()
    (done,) = made.to_pylist()
    assert (done["chunks"], done["quarantined"]) == (3, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cassandra_that_is_away_is_waited_for(tmp_path: Path, kinesalite_server: Kinesis) -> None:
    url, log = new_stream(kinesalite_server, 1), tmp_path / "sink.log"
    sent = [chunk for episode in episodes(2, 10) for chunk in episode]
    with cassandra(tmp_path / "cluster") as cluster:
        store_url = cluster.url("sink")
        spar(tmp_path, "store", "migrate", "--set", f"store.url={store_url}")
        with sink(tmp_path, url, "--set", "sink.trigger_s=0.2", "--set", f"store.url={store_url}") as process:
            put(url, sent[:40])
            wait_for(log, "40 chunks (", seconds=120)
            cluster.nodes[0].kill()
            put(url, sent[40:])
            wait_for(log, "waiting: ", seconds=120)
            cluster.nodes[0].start()
            wait_for(log, f"{len(sent)} chunks (", seconds=180)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        assert judged(store_url, sent).exact
        with open_store(store_url) as store:
            assert not list(store.quarantined(GAME))
            assert sum(minute.steps for minute in store.minutes(GAME, 0)) == 2_000


def placed(chunks: Sequence[Chunk]) -> list[Placed]:
    """As they would lie in a shard."""
    return [
        Placed("shard", Position(str(at)), 2 * EPOCH_MS, "someone", encode(chunk)) for at, chunk in enumerate(chunks)
    ]


class Batch:
    """A real file that takes values up to a limit, and what a writer did with it. Nothing here waits."""

    def __init__(self, store: SqliteStore, then: Callable[[int], bool | None] = lambda pauses: None) -> None:
        self.store, self.waited, self._then = store, list[float](), then
        rules = ChunkRules(Catalogue.from_config(Config()).games())
        self.writer = BatchWriter(rules, store, lambda: 0, self._pause)

    def limit(self, size_bytes: int) -> None:
        self.store._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, size_bytes)

    def _pause(self, wait_s: float) -> bool | None:
        self.waited.append(wait_s)
        return self._then(len(self.waited))


@pytest.fixture
def small_file(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "experience.db") as store:
        yield store


SMALL = [chunk for episode in episodes(3, 4) for chunk in episode]
LARGE = [chunk for client in (20, 21) for chunk in chunks_of(SEED, client, 1, steps=480, chunk_steps=480)]


def test_only_what_is_refused_alone_and_again_is_put_aside(small_file: SqliteStore) -> None:
    batch = Batch(small_file)
    batch.limit(6_000)
    done = batch.writer.store("batch", placed([*SMALL[:7], LARGE[0], *SMALL[7:], LARGE[1], SMALL[0]]), set())
    assert (done.chunks, done.steps, done.had, done.quarantined) == (len(SMALL), 1_200, 1, 2)
    assert batch.waited == list(AGAIN_AFTER_S)
    rows = list(small_file.quarantined(GAME))
    assert {row.episode for row in rows} == {chunk.header.episode for chunk in LARGE}
    assert {row.verdict for row in rows} == {"refused"}
    assert all("too big" in row.reason for row in rows)
    assert sum(minute.steps for minute in done.minutes) == 1_200


def test_a_refusal_that_passes_costs_nothing(small_file: SqliteStore) -> None:
    batch = Batch(small_file, lambda pauses: batch.limit(1 << 20) if pauses == 2 else None)
    batch.limit(6_000)
    done = batch.writer.store("batch", placed([*SMALL, *LARGE]), set())
    assert (done.chunks, done.quarantined, len(batch.waited)) == (len(SMALL) + 2, 0, 2)
    assert sum(minute.steps for minute in done.minutes) == 1_200 + 960
    assert not list(small_file.quarantined(GAME))


def test_where_nothing_of_several_is_taken_the_store_is_at_fault_and_nothing_is_put_aside(
    small_file: SqliteStore,
) -> None:
    batch = Batch(small_file)
    batch.limit(6_000)
    with pytest.raises(StoreRefused, match="too big"):
        batch.writer.store("batch", placed(LARGE), set())
    assert not list(small_file.quarantined(GAME))
    batch.writer.store("batch", placed(LARGE[:1]), set())  # alone there is nothing to compare it with
    assert len(list(small_file.quarantined(GAME))) == 1


def test_a_sink_that_is_told_to_stop_does_not_wait_for_a_refused_chunk(small_file: SqliteStore) -> None:
    batch = Batch(small_file, lambda pauses: True)
    batch.limit(6_000)
    with pytest.raises(StoreRefused):
        batch.writer.store("batch", placed([*SMALL, *LARGE]), set())
    assert len(batch.waited) == 1
    batch.limit(1 << 20)
    done = batch.writer.store("batch", placed([*SMALL, *LARGE]), set())  # the next life
    assert (done.chunks, done.had, done.quarantined) == (len(SMALL) + 2, len(SMALL), 0)
