"""Batches planned ahead, on a real Kinesis server."""

import json

import pytest

from derived import chunks_of
from servers.aws_servers import Kinesis
from sink.flow import SEED, episodes, new_stream
from sparring.sink.spark import Offset, between, planned, positions_of
from sparring.stream import open_stream
from sparring.stream.kinesis.admin import StreamAdmin
from sparring.stream.protocol import Stream, pages
from sparring.wire.chunk import Key, decode

pytestmark = [pytest.mark.servers, pytest.mark.usefixtures("local_credentials")]


def read(stream: Stream, start: Offset, end: Offset) -> list[Key]:
    return [decode(one.data).key for wanted in between(start, end) for page in pages(stream, wanted) for one in page]


def drained(stream: Stream, start: Offset) -> tuple[list[Key], Offset]:
    """Batch after batch until nothing is new; offsets travel as JSON, as Spark keeps them."""
    keys: list[Key] = []
    while (end := planned(stream, start)) != start:
        end = json.loads(json.dumps(end))
        first = read(stream, start, end)
        assert read(stream, start, end) == first  # a batch is the same whenever it is read
        keys += first
        start = end
    return keys, start


def test_batches_follow_each_other_without_gap_or_overlap(kinesalite_server: Kinesis) -> None:
    with open_stream(new_stream(kinesalite_server, 3)) as stream:
        assert planned(stream, {}) == {}
        sent = [chunk for episode in episodes(3, 5) for chunk in episode]
        stream.append(sent)
        keys, at = drained(stream, {})
        assert sorted(keys, key=repr) == sorted((chunk.key for chunk in sent), key=repr)
        assert planned(stream, at) is at
        more = chunks_of(SEED, 9, 9)
        stream.append(more)
        keys, at = drained(stream, at)
        assert keys == [chunk.key for chunk in more]


def test_a_reshard_is_followed_from_parents_to_children(kinesalite_server: Kinesis) -> None:
    url = new_stream(kinesalite_server, 2)
    with open_stream(url) as stream, StreamAdmin(url, lambda text: None) as care:
        sent, keys, at = [], [], {}
        for number, shards in enumerate((2, 4, 3)):
            if number:
                care.reshard(shards)
            some = [chunk for episode in episodes(4, 5, first=5 * number) for chunk in episode]
            stream.append(some)
            sent += some
            if number == 1:
                found, at = drained(stream, at)
                keys += found
        found, at = drained(stream, at)
        keys += found
        assert len(keys) == len(sent)
        assert {key.episode for key in keys} == {chunk.header.episode for chunk in sent}
        for episode in {key.episode for key in keys}:
            steps = [key.first_step for key in keys if key.episode == episode]
            assert steps == sorted(steps), "an episode's chunks are read in their order"
        assert sum(not place.ended for place in positions_of(at).values()) == 3
