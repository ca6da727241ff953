from pathlib import Path

import pytest

from sparring.errors import StoreFailed
from sparring.sink.process import Checkpoint, SinkLock
from sparring.stream.protocol import Position, Shard, ShardPosition, readable, still_there

URL = "kinesis://plays?region=eu-west-1"


def test_positions_and_a_begun_batch_outlive_the_sink(tmp_path: Path) -> None:
    with SinkLock(tmp_path, URL) as hold:
        first = Checkpoint(hold)
        first.finish({"a": ShardPosition(Position("5"), ended=True), "b": ShardPosition(Position("7"))})
        first.begin({"b": Position("9"), "c": Position("2")})
    with SinkLock(tmp_path, URL) as hold:
        second = Checkpoint(hold)
    assert second.positions["a"] == ShardPosition(Position("5"), ended=True)
    assert second.positions["b"] == ShardPosition(Position("7"), until=Position("9"))
    assert second.positions["c"].until == "2"
    second.finish({"b": ShardPosition(Position("9"))})
    assert Checkpoint(hold).positions == {"b": ShardPosition(Position("9"))}


def test_one_sink_at_a_time_reads_a_stream_into_a_data_folder(tmp_path: Path) -> None:
    with SinkLock(tmp_path, URL) as hold:
        with (
            pytest.raises(StoreFailed, match="another sink reads this stream into this data folder"),
            SinkLock(tmp_path, f"{URL}&connect_s=3"),
        ):
            pass
        with SinkLock(tmp_path, "kinesis://other?region=eu-west-1") as other:
            assert other.name != hold.name
    with SinkLock(tmp_path, URL):
        pass


def test_a_damaged_file_is_said_with_what_to_do(tmp_path: Path) -> None:
    with SinkLock(tmp_path, URL) as hold:
        (tmp_path / f"{hold.name}.json").write_text('{"format": 1, "shards": {"a": {"posi')
        with pytest.raises(StoreFailed, match="read from its beginning, and nothing is stored twice"):
            Checkpoint(hold)


def test_children_wait_for_their_parents_and_parents_that_are_gone_for_none() -> None:
    shards = [Shard("a", closed=True), Shard("b"), Shard("c", ("a",)), Shard("d", ("a", "b"))]
    assert [one.id for one in readable(shards, {})] == ["a", "b"]
    done = {"a": ShardPosition(Position("1"), ended=True), "gone": ShardPosition(ended=True)}
    assert [one.id for one in readable(shards, done)] == ["b", "c"]
    assert set(still_there(shards, done)) == {"a"}
