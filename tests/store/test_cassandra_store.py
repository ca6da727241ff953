"""What a store of several machines must bear: writers at once or killed half way, and everything forgotten."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from keyspaces import emptied

from derived import EPOCH_MS, GAME, chunks_of, differences, episode_of, player_of
from servers.cassandra_cluster import Cassandra
from sparring.errors import StoreFailed
from sparring.store import open_store
from sparring.store.cassandra import schema
from sparring.store.cassandra.schema import DAY_MS, BucketLayout, Partition, in_part
from sparring.store.cassandra.session import CassandraAddress
from sparring.store.cassandra.store import CassandraStore
from sparring.store.protocol import MinuteCount, Quarantined, Query
from sparring.store.rows import mark
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId, new_episode

pytestmark = pytest.mark.servers
WRITER = [sys.executable, str(Path(__file__).parent / "writer.py")]


@pytest.fixture
def url(cassandra_server: Cassandra, keyspace: Any) -> str:
    emptied(keyspace(cassandra_server))
    found: str = keyspace(cassandra_server)
    return found


@pytest.fixture
def store(url: str) -> Iterator[CassandraStore]:
    with open_store(url) as opened:
        assert isinstance(opened, CassandraStore)
        yield opened


def told(chunk: Chunk, action: int) -> Chunk:
    """The same chunk with other content."""
    return Chunk(chunk.header, {**chunk.columns, "action": np.full_like(chunk.columns["action"], action)})


def test_of_writers_that_contradict_each_other_at_once_one_is_first_and_stays(url: str) -> None:
    """Six processes' worth of sessions send other content under the same keys at the same moment."""
    stores = [open_store(url) for _ in range(6)]
    rounds, start = 8, threading.Barrier(6)
    verdicts: dict[tuple[int, int], list[str]] = {}

    def write(writer: int) -> None:
        for number in range(rounds):
            (chunk,) = chunks_of(1, 0, number, steps=4)
            start.wait()
            kept = stores[writer].append([told(chunk, writer)])
            verdicts[writer, number] = [one.verdict for one in kept]

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = {chunk.header.episode: int(chunk.columns["action"][0]) for chunk in stores[0].read(Query(GAME))}
    for number in range(rounds):
        first = [writer for writer in range(6) if verdicts[writer, number] == ["new"]]
        assert first == [stored[episode_of(1, 0, number)]]
        assert all(verdicts[writer, number] == ["conflict"] for writer in range(6) if writer not in first)
    for one in stores:
        one.close()


def test_writers_that_overlap_at_once_never_both_stay(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        for number in range(6):
            chunks = chunks_of(1, 0, number, steps=40, chunk_steps=10 + writer)
            start.wait()
            for chunk in chunks:
                stores[writer].append([chunk])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ends: dict[str, int] = {}
    for chunk in stores[0].read(Query(GAME)):
        assert chunk.header.first_step >= ends.get(chunk.header.episode, 0)
        ends[chunk.header.episode] = chunk.header.first_step + chunk.header.steps
        assert differences(chunk) in ([], ["final_observation/state"])
    assert len(ends) == 6
    for one in stores:
        one.close()


def test_a_sole_writer_judges_as_the_others_do(url: str) -> None:
    with open_store(url, sole_writer=True) as store:
        sent = chunks_of(1, 0, 0)
        other = told(sent[0], 1)
        thief = Chunk(msgspec.structs.replace(sent[1].header, uploader="thief"), sent[1].columns)
        first = [kept.verdict for kept in store.append([sent[0], sent[0], other, sent[2]])]
        assert first == ["new", "had", "conflict", "new"]
        again = [kept.verdict for kept in store.append([*sent, thief, other])]
        assert again == ["had", "new", "had", "forbidden", "conflict"]
        assert [differences(chunk) for chunk in store.read(Query(GAME))] == [[], [], []]


def test_a_claim_whose_writer_died_is_invisible_and_its_retry_completes_it(store: CassandraStore) -> None:
    sent = chunks_of(1, 0, 0)
    store.append(sent)
    session = store.session
    place = store.layout().partition(GAME, episode_of(1, 0, 0))
    for table in ("chunks", "chunks_by_arrival"):  # as if the process had ended after its claims
        session.one(session.write(f"DELETE FROM {table} WHERE game = ? AND day = ? AND bucket = ?", place))
    assert list(store.read(Query(GAME))) == []
    assert [kept.verdict for kept in store.append([told(sent[0], 1)])] == ["conflict"]
    time.sleep(0.01)
    assert [kept.verdict for kept in store.append(sent)] == ["new"] * 3
    assert len(list(store.read(Query(GAME)))) == 3


def test_a_chunk_that_two_sole_writers_wrote_at_once_counts_once_and_goes_whole(
    store: CassandraStore, url: str
) -> None:
    with open_store(url, sole_writer=True) as sink:
        sent = chunks_of(1, 0, 0)
        sink.append(sent)
        place = store.layout().partition(GAME, episode_of(1, 0, 0))
        unseen = "DELETE FROM chunks WHERE game = ? AND day = ? AND bucket = ?"  # as the other saw it a moment before
        store.session.one(store.session.write(unseen, place))
        time.sleep(0.01)
        assert [kept.verdict for kept in sink.append(sent)] == ["new"] * 3
    assert len(store.session.one(store.session.scan("SELECT episode FROM chunks_by_arrival"))) == 6
    assert (store.stats(GAME).chunks, len(list(store.read(Query(GAME))))) == (3, 3)
    assert store.erase(GAME, player_of(0)).chunks == 3
    assert leftovers(store, 0) == {}
    assert store.stats(GAME).chunks == 0


@pytest.mark.slow
def test_writers_killed_at_any_moment_lose_nothing_acknowledged_and_erasing_finds_it_all(url: str) -> None:
    rng = random.Random(5)
    acknowledged: set[int] = set()
    tried = 0
    for _ in range(6):
        process = subprocess.Popen([*WRITER, url, "0", str(tried)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.uniform(0.05, 0.4))
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        acknowledged |= {int(line.split()[1]) for line in lines if line.startswith("ok ")}
        tried = max([tried, *acknowledged]) + 2
    with open_store(url) as store:
        assert isinstance(store, CassandraStore)
        found: dict[str, int] = {}
        for chunk in store.read(Query(GAME)):
            assert differences(chunk) == []
            found[chunk.header.episode] = found.get(chunk.header.episode, 0) + 1
        assert acknowledged
        assert {n for n in acknowledged if found.get(episode_of(5, 0, n)) != 3} == set()
        for n in range(tried):  # what was cut short is completed by being sent again
            assert {kept.verdict for kept in store.append(chunks_of(5, 0, n))} <= {"new", "had"}
        assert store.stats(GAME).chunks == 3 * tried
        assert store.erase(GAME, player_of(0)).chunks == 3 * tried
        assert leftovers(store, 0) == {}


def leftovers(store: CassandraStore, client: int) -> dict[str, int]:
    """Rows in any table but the tombstones that hold a player's pseudonym or mark."""
    session, player = store.session, player_of(client)
    tables = session.cluster.metadata.keyspaces[session.address.keyspace].tables
    found = {}
    for table in sorted(tables.keys() - {"tombstones"}):
        rows = [row for row in session.driver.execute(f"SELECT * FROM {table}") if holds(row, player)]
        if rows:
            found[table] = len(rows)
    return found


def holds(row: tuple[Any, ...], player: str) -> bool:
    sign = mark(GAME, player)  # type: ignore[arg-type]
    return any(cell in (sign, player) or (isinstance(cell, bytes) and player.encode() in cell) for cell in row)


def test_an_erased_player_is_in_no_table_and_no_one_else_is_missed(store: CassandraStore) -> None:
    for client in range(3):
        store.append([chunk for episode in range(4) for chunk in chunks_of(1, client, episode)])
    shared = [
        Chunk(msgspec.structs.replace(c.header, seat=1, player=player_of(1)), c.columns) for c in chunks_of(1, 0, 0)
    ]
    store.append(shared)
    assert leftovers(store, 1).keys() >= {"chunks", "chunks_by_arrival", "chunks_by_player"}
    assert store.erase(GAME, player_of(1)).chunks == 18  # with both seats of the shared episode
    assert leftovers(store, 1) == {}
    assert store.stats(GAME).chunks == 21
    assert [kept.verdict for kept in store.append(shared)] == ["gone"] * 3
    assert leftovers(store, 1) == {}


@pytest.mark.parametrize("by", ["open", "trim"])
def test_an_erasure_that_was_interrupted_is_finished_by_the_next_open_or_trim(
    store: CassandraStore, url: str, by: str
) -> None:
    store.append(chunks_of(1, 0, 0))
    sign = mark(GAME, player_of(0))
    session = store.session
    session.one(session.write("INSERT INTO erasing (name, game, mark) VALUES ('pending', ?, ?)", (GAME, sign)))
    if by == "trim":
        store.trim()
    else:
        open_store(url).close()
    assert leftovers(store, 0) == {}
    assert store.erased(GAME, player_of(0))


def test_uploads_while_a_player_is_erased_leave_nothing_behind(url: str) -> None:
    with open_store(url) as store, open_store(url) as other:
        assert isinstance(store, CassandraStore)

        def write() -> None:
            for episode in range(30):
                other.append(chunks_of(1, 0, episode, steps=6, chunk_steps=3))

        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.15)
        store.erase(GAME, player_of(0))
        thread.join()
        assert leftovers(store, 0) == {}


def test_a_damaged_chunk_is_left_out_and_named(store: CassandraStore) -> None:
    store.append(chunks_of(1, 0, 0))
    place = store.layout().partition(GAME, episode_of(1, 0, 0))
    spoil = """UPDATE chunks SET body = ? WHERE game = ? AND day = ? AND bucket = ? AND episode = ? AND seat = 0
        AND first_step = 40"""
    store.session.one(store.session.write(spoil, (b"no body", *place, episode_of(1, 0, 0))))
    assert [chunk.header.first_step for chunk in store.read(Query(GAME))] == [0, 80]
    ((key, wrong),) = store.damaged.items()
    assert (key.episode, key.first_step) == (episode_of(1, 0, 0), 40)
    assert wrong == "its bytes changed since they were stored"
    drawn = store.sample(Query(GAME), 2_000, np.random.default_rng(0))
    assert {chunk.header.first_step for chunk in drawn} == {0, 80}


def test_chunks_larger_than_a_batch_may_be_are_kept_like_others(store: CassandraStore) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 20_000), np.uint8)
    small = chunks_of(1, 0, 0, steps=16, chunk_steps=16)[0]
    large = Chunk(small.header, {**small.columns, "observation/screen": noise})
    assert [kept.verdict for kept in store.append([large, *chunks_of(1, 1, 0)])] == ["new"] * 4
    assert [kept.verdict for kept in store.append([large])] == ["had"]
    (found,) = store.read(Query(GAME, seats=(0,), episodes=(small.header.episode,)))
    assert found.content_hash() == large.content_hash()
    assert store.stats(GAME).chunks == 4


def test_where_an_episode_lies_follows_from_its_id_and_a_change_of_buckets_is_for_days_to_come(
    cassandra_server: Cassandra,
) -> None:
    where = CassandraAddress.read(cassandra_server.url(f"layout_{time.time_ns() % 10**9}"))
    now_ms = int(time.time() * 1000)
    first = schema.migrate(where, replication=0, buckets=8, now_ms=now_ms)
    assert (first.made, first.version, first.buckets, first.from_day) == (True, 1, 8, None)
    with CassandraStore(where) as store:
        store.append(chunks_of(1, 0, 0))
        later = schema.migrate(where, replication=0, buckets=32, now_ms=now_ms)
        assert (later.made, later.before, later.from_day) == (False, 1, now_ms // DAY_MS + 3)
    with CassandraStore(where) as store:
        layout = store.layout()
        assert [layout.buckets(day) for day in (0, now_ms // DAY_MS + 2, now_ms // DAY_MS + 3)] == [8, 8, 32]
        assert [kept.verdict for kept in store.append(chunks_of(1, 0, 0))] == ["had"] * 3
        store.session.driver.execute(f"DROP KEYSPACE {where.keyspace}", timeout=60)


def test_parts_are_ranges_of_tokens_of_nearly_equal_size() -> None:
    layout = BucketLayout([(0, 64)])
    places = {layout.partition(GAME, new_episode(EPOCH_MS)) for _ in range(5_000)}
    assert len(places) == 64
    shares = [sum(in_part(place, part, 4) for place in places) for part in range(4)]
    assert sum(shares) == 64
    assert min(shares) >= 6
    assert all(in_part(Partition(GameId("duel"), 3, 1), 0, 1) for _ in range(1))


def test_retention_removes_the_oldest_until_it_fits(store: CassandraStore) -> None:
    for day in range(3):
        at_ms = EPOCH_MS + day * DAY_MS
        for number in range(4):
            name = new_episode(at_ms + number)
            store.append(
                [Chunk(msgspec.structs.replace(c.header, episode=name), c.columns) for c in chunks_of(1, 0, 0)]
            )
    used = store.stats(GAME).encoded_bytes
    trimmed = store.trim(max_bytes=used // 2)
    assert (trimmed.episodes, trimmed.chunks) == (6, 18)
    assert store.stats(GAME).encoded_bytes <= used // 2
    assert [record.complete for record in store.episodes(Query(GAME))] == [True] * 6


def test_a_missing_keyspace_missing_tables_and_newer_ones_are_said_in_a_sentence(cassandra_server: Cassandra) -> None:
    with pytest.raises(StoreFailed, match=r"there is no keyspace 'nowhere'\. Run `spar store migrate`\."):
        open_store(cassandra_server.url("nowhere"))
    with pytest.raises(StoreFailed, match="another program's"):
        open_store(cassandra_server.url("system"))


def test_a_newer_schema_is_refused(store: CassandraStore) -> None:
    change = "INSERT INTO schema_version (name, version) VALUES ('tables', ?)"
    store.session.one(store.session.write(change, (99,)))
    try:
        with pytest.raises(StoreFailed, match="version 99, this Sparring reads up to"):
            CassandraStore(store.session.address)
    finally:
        store.session.one(store.session.write(change, (len(schema.MIGRATIONS),)))


def test_the_ledger_outlives_the_player_without_naming_anyone(store: CassandraStore) -> None:
    store.quarantine([Quarantined(GAME, "shard", "1", "conflict", "steps overlap", arrived_ms=EPOCH_MS)])
    store.count_minutes([MinuteCount(GAME, EPOCH_MS, "b", 3, 1, (5,))])
    assert next(iter(store.quarantined(GAME))).reason == "steps overlap"
    assert store.minutes(GAME, 0)[0].players == 1
