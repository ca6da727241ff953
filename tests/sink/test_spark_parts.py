"""What driver and executors run, called as Spark calls it but without a cluster: plan, read, keep, count, and again."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from derived import GAME
from servers.aws_servers import Kinesis
from sink.flow import episodes, judged, new_stream, put, store_of
from sparring.config import Config
from sparring.errors import SparringError, Unreachable
from sparring.games.catalogue import Catalogue
from sparring.sink import spark
from sparring.sink.spark import ExecutorSettings, ShardReader, failure, write_partition
from sparring.store import open_store
from sparring.stream.kinesis.admin import StreamAdmin

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("local_credentials")]


class Driver:
    """One life of a driver: its reader, and a batch as Spark does it."""

    def __init__(self, url: str, data: Path) -> None:
        self.reader, self.store_url = ShardReader(url), store_of(data)
        games = tuple(Catalogue.from_config(Config()).games())
        self.settings = msgspec.json.encode(ExecutorSettings(url, self.store_url, "", 0.0, games))

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        planned: dict[str, Any] = json.loads(json.dumps(self.reader.latestOffset(start, None)))
        return planned

    def batch(self, start: dict[str, Any], end: dict[str, Any], name: str, *, parts: int | None = None) -> None:
        """With `parts` it dies when that many partitions are written."""
        for partition in list(self.reader.partitions(start, end))[:parts]:
            (made,) = write_partition(self.settings, name, self.reader.read(partition))
            assert made.num_rows == 1


def test_a_batch_left_half_done_is_done_again_by_the_next_driver_and_counted_once(
    tmp_path: Path, kinesalite_server: Kinesis
) -> None:
    url = new_stream(kinesalite_server, 2)
    sent = [chunk for episode in episodes(4, 10) for chunk in episode]
    put(url, sent)
    try:
        first = Driver(url, tmp_path)
        start = first.reader.initialOffset()
        end = first.plan(start)
        first.batch(start, end, "0", parts=1)
        second = Driver(url, tmp_path)
        second.batch(start, end, "0")
        with StreamAdmin(url, lambda text: None) as care:
            care.reshard(3)
        more = [chunk for episode in episodes(4, 10, first=10) for chunk in episode]
        put(url, more)
        put(url, sent[:10])  # a writer that heard no answer: had, and not counted
        number, at = 1, end
        while (end := second.plan(at)) != at:
            second.batch(at, end, str(number))
            number, at = number + 1, end
    finally:
        spark.opened.cache_clear()
        spark.writer.cache_clear()
    found = judged(store_of(tmp_path), sent + more)
    assert found.exact, found
    with open_store(store_of(tmp_path)) as store:
        minutes = store.minutes(GAME, 0)
    assert sum(minute.steps for minute in minutes) == 8_000
    assert sum(minute.ended for minute in minutes) == 80


def test_our_own_sentence_is_found_in_what_spark_says() -> None:
    text = (
        "[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure:\n"
        "Traceback (most recent call last):\n  File …\n"
        "sparring.errors.Unreachable: [store] url: no node answers. Start Cassandra.\n\tat org.apache.spark…\n"
    )
    passing = failure(RuntimeError(text))
    assert isinstance(passing, Unreachable)
    assert str(passing) == "on Spark: [store] url: no node answers. Start Cassandra. Nothing is lost meanwhile."
    other = failure(RuntimeError(text.replace("Unreachable", "ConfigError")))
    assert not isinstance(other, Unreachable)
    strange = failure(RuntimeError("the master went away.\n at …"))
    assert type(strange) is SparringError
    assert strange.wrong == "the master went away"
    planning = (
        "Failed to plan: Traceback (most recent call last):\n  File …\n    run()\nModuleNotFoundError: No module\n at …"
    )
    assert failure(RuntimeError(planning)).wrong == "ModuleNotFoundError: No module"
    slow = failure(RuntimeError("Python worker failed to connect back.\n at …"))
    assert isinstance(slow, Unreachable)  # too much to do: tried again
