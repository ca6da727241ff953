"""`spar sink` between a real Kinesis server and the embedded store."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from derived import GAME, chunks_of
from servers.aws_servers import Kinesis
from sink.flow import SEED, episodes, judged, new_stream, once, put, put_raw, sink, spar, store_of, trickle, wait_for
from sparring.config import Config
from sparring.errors import StoreFailed
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import ChunkRules
from sparring.sink.batch_writer import BatchWriter
from sparring.sink.process import Checkpoint, ProcessSink, SinkLock
from sparring.store import open_store
from sparring.stream import open_stream
from sparring.stream.kinesis.admin import StreamAdmin
from sparring.wire.chunk import Chunk, encode
from sparring.wire.ids import GameId

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("local_credentials")]

KILLS = int(os.environ.get("SPARRING_KILLS", "6"))


def test_what_lies_in_a_stream_is_in_the_store_once(tmp_path: Path, kinesalite_server: Kinesis) -> None:
    url = new_stream(kinesalite_server, 3)
    sent = [chunk for episode in episodes(4, 10) for chunk in episode]
    put(url, sent)
    put(url, sent[:20])  # a writer that heard no answer
    said = once(tmp_path, url)
    assert (said["chunks"], said["steps"], said["had"], said["quarantined"]) == (len(sent), 4_000, 20, 0)
    assert judged(store_of(tmp_path), sent).exact
    assert once(tmp_path, url)["chunks"] == 0
    more = [chunk for episode in episodes(4, 2, first=10) for chunk in episode]
    put(url, more)
    said = once(tmp_path, url)
    assert (said["chunks"], said["had"]) == (len(more), 0)  # only what came since was read
    assert judged(store_of(tmp_path), sent + more).exact


def test_what_cannot_be_stored_is_put_aside_with_its_reason_and_place(
    tmp_path: Path, kinesalite_server: Kinesis
) -> None:
    url = new_stream(kinesalite_server, 1)
    good = chunks_of(SEED, 1, 1)
    header = good[0].header
    lying = Chunk(msgspec.structs.replace(header, outcome=None, seed=8), good[0].columns)  # the key of good[0]
    unknown = Chunk(msgspec.structs.replace(header, game=GameId("chess")), good[0].columns)
    named = Chunk(msgspec.structs.replace(header, player="Alice"), good[0].columns)
    put(url, good)
    put(url, [lying])
    put_raw(kinesalite_server, url, b"no record of ours")
    put_raw(kinesalite_server, url, encode(unknown))
    put_raw(kinesalite_server, url, encode(named))
    put_raw(kinesalite_server, url, encode(good[1])[:-40])
    said = once(tmp_path, url)
    assert (said["chunks"], said["quarantined"]) == (3, 5)
    assert judged(store_of(tmp_path), good).exact
    with open_store(store_of(tmp_path)) as store:
        of_game = {row.verdict: row for row in store.quarantined(GAME)}
        nameless = list(store.quarantined(GameId("")))
    assert of_game["conflict"].episode == header.episode
    assert of_game["chunk"].field == "player"
    assert "Alice" not in of_game["chunk"].reason
    assert of_game["wire"].episode == header.episode  # its header is whole
    assert sorted(row.verdict for row in nameless) == ["chunk", "wire"]
    assert any("the game 'chess' is not known here" in row.reason for row in nameless)
    assert all(row.shard and row.position and row.reason for row in [*of_game.values(), *nameless])
    listed = spar(tmp_path, "sink", "--quarantined")
    assert len(listed["quarantined"]) == 5


def test_a_sink_that_died_between_rows_and_place_counts_nothing_twice(
    tmp_path: Path, kinesalite_server: Kinesis
) -> None:
    class Dying(Checkpoint):
        def finish(self, places: object) -> None:
            raise KeyboardInterrupt

    url = new_stream(kinesalite_server, 1)
    sent = [chunk for episode in episodes(3, 5) for chunk in episode]
    put(url, sent)
    with pytest.raises(KeyboardInterrupt):
        _drain(tmp_path, url, Dying)
    put(url, list(chunks_of(SEED, 0, 99)))  # came meanwhile: no part of the batch that was begun
    _drain(tmp_path, url, Checkpoint)
    sent += chunks_of(SEED, 0, 99)
    assert judged(store_of(tmp_path), sent).exact
    with open_store(store_of(tmp_path)) as store:
        minutes = store.minutes(GAME, 0)
    assert sum(minute.steps for minute in minutes) == 1_600
    assert sum(minute.ended for minute in minutes) == 16
    assert max(minute.players for minute in minutes) == 3
    rewards = sum(float(chunk.columns["reward"].sum(dtype="float64")) for chunk in sent)
    assert sum((minute.mean_return or 0) * minute.ended for minute in minutes) == pytest.approx(rewards)


def _drain(data: Path, url: str, positions: type[Checkpoint]) -> None:
    rules = ChunkRules(Catalogue.from_config(Config()).games())
    with SinkLock(data / "sink", url) as hold, open_stream(url) as stream, open_store(store_of(data)) as store:
        drain = ProcessSink(stream, BatchWriter(rules, store, lambda: 0, time.sleep), positions(hold))
        drain.run(
            trigger_s=0.2,
            once=True,
            stop=lambda wait_s: time.sleep(wait_s) or False,
            report=lambda progress: None,
            complain=lambda error: pytest.fail(str(error)),
        )


def test_a_sink_killed_again_and_again_loses_nothing_and_stores_nothing_twice(
    tmp_path: Path, kinesalite_server: Kinesis
) -> None:
    url, rng, log = new_stream(kinesalite_server, 2), random.Random(3), tmp_path / "sink.log"
    sent = [chunk for episode in episodes(8, 60) for chunk in episode]
    writer = threading.Thread(target=trickle, args=(url, sent, 6.0))
    writer.start()
    try:
        for _ in range(KILLS):
            before = log.stat().st_size if log.exists() else 0
            with sink(tmp_path, url, "--set", "sink.trigger_s=0.05") as process:
                wait_for(log, "reading", after=before)
                time.sleep(rng.uniform(0.05, 0.6))
                process.kill()
    finally:
        writer.join()
    once(tmp_path, url)
    found = judged(store_of(tmp_path), sent)
    assert found.exact, found
    assert found.steps == 48_000


def test_a_reshard_under_load_loses_nothing_and_keeps_order(tmp_path: Path, kinesalite_server: Kinesis) -> None:
    url = new_stream(kinesalite_server, 2)
    sent = [chunk for episode in episodes(8, 40) for chunk in episode]
    writer = threading.Thread(target=trickle, args=(url, sent, 8.0))
    with sink(tmp_path, url, "--set", "sink.trigger_s=0.1") as process:
        writer.start()
        try:
            with StreamAdmin(url, lambda text: None) as care:
                time.sleep(1.0)
                care.reshard(4)
                time.sleep(1.5)
                care.reshard(3)
        finally:
            writer.join()
        time.sleep(1.0)
        process.terminate()
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0, (tmp_path / "sink.log").read_text()
        said = json.loads(out.splitlines()[-1])
    last = once(tmp_path, url)
    found = judged(store_of(tmp_path), sent)
    assert found.exact, found
    assert said["stopped"]
    assert said["chunks"] + last["chunks"] == len(sent)
    assert last["quarantined"] == 0
    assert last["shards"] > 3  # closed parents are still there


def test_the_second_sink_of_a_data_folder_is_refused(tmp_path: Path, kinesalite_server: Kinesis) -> None:
    url = new_stream(kinesalite_server, 1)
    with sink(tmp_path, url) as first:
        wait_for(tmp_path / "sink.log", "reading")
        with sink(tmp_path, url) as second:
            out, _ = second.communicate(timeout=30)
            assert second.returncode == 1
            assert json.loads(out)["error"] == "another sink reads this stream into this data folder"
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 0


def test_a_store_that_fails_for_a_while_is_waited_for(tmp_path: Path, kinesalite_server: Kinesis) -> None:
    class Failing:
        """The real store, but its disk is full three times."""

        def __init__(self, store: object) -> None:
            self._store, self.failures = store, 3

        def append(self, chunks: object, batch: str) -> object:
            if self.failures:
                self.failures -= 1
                raise StoreFailed("the disk is full", where="here", do="Make room")
            return self._store.append(chunks, batch)  # type: ignore[attr-defined]

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

    url = new_stream(kinesalite_server, 1)
    sent = chunks_of(SEED, 1, 1)
    put(url, sent)
    complaints: list[str] = []
    rules = ChunkRules(Catalogue.from_config(Config()).games())
    with SinkLock(tmp_path / "sink", url) as hold, open_stream(url) as stream, open_store(store_of(tmp_path)) as real:
        store = Failing(real)
        writer = BatchWriter(rules, store, lambda: 0, time.sleep)  # type: ignore[arg-type]
        ProcessSink(stream, writer, Checkpoint(hold)).run(
            trigger_s=0.1,
            once=True,
            stop=lambda wait_s: time.sleep(min(wait_s, 0.05)) or False,
            report=lambda progress: None,
            complain=lambda error: complaints.append(error.wrong),
        )
    assert complaints == ["the disk is full"] * 3
    assert judged(store_of(tmp_path), sent).exact


def test_settings_that_cannot_work_are_one_sentence(tmp_path: Path) -> None:
    def said(*words: str) -> str:
        command = [sys.executable, "-m", "sparring", "sink", "--data", str(tmp_path), "--json", *words]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert found.returncode == 1
        assert "Traceback" not in found.stderr
        return found.stderr

    assert "[stream] url: there is no stream to read" in said()
    assert "stream" in said("--set", "stream.url=kinesis://plays?region=us-east-1&endpoint=http://127.0.0.1:9")
