"""The figures of each minute are those of the rows in the store, whichever sink read the stream, and how often."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from derived import GAME
from sink.flow import episodes
from sink.test_sink_refusals import placed
from sparring.config import Config
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import ChunkRules
from sparring.sink.batch_writer import BatchWriter
from sparring.store.sqlite.store import SqliteStore

CHUNKS = [chunk for episode in episodes(3, 4) for chunk in episode]
STEPS = sum(chunk.header.steps for chunk in CHUNKS)
PAGES = [placed(CHUNKS[:10]), placed(CHUNKS[10:])]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "experience.db") as opened:
        yield opened


@pytest.fixture
def writer(store: SqliteStore) -> BatchWriter:
    rules = ChunkRules(tuple(Catalogue.from_config(Config()).games()), 0.0)
    return BatchWriter(rules, store, lambda: 1_000, lambda seconds: None)


def figures(store: SqliteStore) -> tuple[int, int, int]:
    """Steps, chunks and ended seats of all minutes."""
    minutes = store.minutes(GAME, 0)
    return sum(one.steps for one in minutes), sum(one.chunks for one in minutes), sum(one.ended for one in minutes)


def test_a_batch_that_was_killed_before_it_was_counted_is_counted_when_it_is_done_again(store, writer) -> None:
    writer.store("batch", PAGES[0], set())  # killed here
    assert figures(store) == (0, 0, 0)
    writer.write("batch", PAGES)
    assert figures(store) == (STEPS, len(CHUNKS), 12)
    writer.write("batch", PAGES)  # killed after it was counted, before its position was written down
    assert figures(store) == (STEPS, len(CHUNKS), 12)


def test_another_sink_that_reads_the_same_records_counts_none_of_them(store, writer) -> None:
    writer.write("spark-7-shard", PAGES)
    for _ in range(2):  # the second time as a killed sink does it again
        writer.write("shard@-3", PAGES[:1])
        writer.write("shard@3-9", PAGES)
    assert figures(store) == (STEPS, len(CHUNKS), 12)


def test_a_chunk_that_was_sent_twice_counts_once(store, writer) -> None:
    done = writer.write("first", [*PAGES, PAGES[0]])
    assert (done.chunks, done.had) == (len(CHUNKS), 10)
    writer.write("second", [PAGES[1]])
    assert figures(store) == (STEPS, len(CHUNKS), 12)


def test_an_erasure_leaves_the_figures_of_the_others_and_a_batch_done_again_brings_none_back(store, writer) -> None:
    writer.write("batch", PAGES)
    gone = store.erase(GAME, CHUNKS[0].header.player)
    left = [chunk for chunk in CHUNKS if chunk.header.player != CHUNKS[0].header.player]
    steps = sum(chunk.header.steps for chunk in left)
    returns = sum(float(chunk.columns["reward"].sum(dtype="float64")) for chunk in left)
    assert gone.steps == STEPS - steps > 0
    for _ in range(2):
        assert figures(store) == (steps, len(left), sum(chunk.header.ending != "running" for chunk in left))
        minutes = store.minutes(GAME, 0)
        assert sum(one.mean_return * one.ended for one in minutes if one.ended) == pytest.approx(returns)
        assert max(one.players for one in minutes) == len({chunk.header.player for chunk in left})
        writer.write("batch", PAGES)
