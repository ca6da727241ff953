"""What every stream promises, on kinesalite and on moto: all of it, in order within an episode, from any place."""

import random
from collections import defaultdict

import boto3
import pytest

from derived import chunks_of, differences
from sparring.errors import StoreFailed, Unreachable
from sparring.store.protocol import AppendResult
from sparring.stream import open_stream
from sparring.stream.kinesis.client import Timeouts
from sparring.stream.kinesis.stream import order
from sparring.stream.protocol import BEGINNING, Placed, Stream
from sparring.wire.chunk import Chunk, decode
from stream.unkind import LoseAnswer, Refuse, RefuseRecords, name_of, unkind

pytestmark = pytest.mark.servers

EPISODES = 24


def played(clients: int = EPISODES, **other: object) -> list[Chunk]:
    """Three chunks of each episode, the episodes' chunks mixed but each episode's in order."""
    lines = [chunks_of(7, client, client, **other) for client in range(clients)]
    return [line[at] for at in range(3) for line in lines]


def whole(stream: Stream) -> dict[str, list[Placed]]:
    """Everything in the stream, shard by shard."""
    return {shard.id: list(stream.read(shard, BEGINNING)) for shard in stream.shards()}


def assert_all_there_in_order(found: list[Placed], sent: list[Chunk]) -> None:
    """Each chunk that was sent is there, first copies in order, and nothing else is."""
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for placed in found:
        chunk = decode(placed.data)
        assert differences(chunk) == []
        if chunk.header.first_step not in steps[chunk.header.episode]:
            steps[chunk.header.episode].append(chunk.header.first_step)
    assert {chunk.header.episode for chunk in sent} == set(steps)
    for episode, firsts in steps.items():
        assert firsts == [chunk.header.first_step for chunk in sent if chunk.header.episode == episode]


def test_what_is_appended_is_read_from_every_shard(new_stream):
    sent = played()
    with open_stream(new_stream(3)) as stream:
        assert stream.append(sent) == [AppendResult("taken")] * len(sent)
        assert stream.append([]) == []
        found = whole(stream)
    assert len(found) == 3
    assert all(found.values()), "some shard got nothing of 24 episodes"
    everything = [placed for shard in found.values() for placed in shard]
    assert len(everything) == len(sent)
    assert_all_there_in_order(everything, sent)
    for placed in everything:
        head = decode(placed.data).header
        assert placed.uploader == head.uploader, "the gateway's word for who brought it is lost"
        assert placed.arrived_ms == head.received_at_ms


def test_without_a_gateway_the_uploader_is_the_stream_and_the_time_the_streams(new_stream):
    with open_stream(new_stream(1)) as stream:
        stream.append(played(1, uploader="", received_at_ms=0))
        (found,) = whole(stream).values()
        name = stream.client.address.name
    assert {placed.uploader for placed in found} == {f"stream:{name}"}
    assert all(placed.arrived_ms > 1_700_000_000_000 for placed in found)


def test_a_reader_goes_on_after_any_position(new_stream):
    with open_stream(new_stream(1)) as stream:
        stream.append(played(2))
        stream.append(played(4)[6:])
        (shard,) = stream.shards()
        everything = list(stream.read(shard, BEGINNING))
        assert [order(placed.position) for placed in everything] == sorted({order(one.position) for one in everything})
        for at in random.Random(3).sample(range(len(everything)), 4):
            assert list(stream.read(shard, everything[at].position)) == everything[at + 1 :]
        assert list(stream.read(shard, everything[-1].position)) == []


def test_pages_are_as_short_as_asked_and_follow_each_other(new_stream):
    with open_stream(new_stream(1)) as stream:
        for client in range(4):
            stream.append(chunks_of(7, client, 0))
        (shard,) = stream.shards()
        after, pages = BEGINNING, []
        while (page := stream.page(shard, after, limit=1)).placed:
            assert page.position == page.placed[-1].position
            assert len({order(placed.position)[0] for placed in page.placed}) == 1
            assert not page.ended
            pages.append(page.placed)
            after = page.position
        assert page.position == after
        assert [len(one) for one in pages] == [3, 3, 3, 3]
        assert [placed for one in pages for placed in one] == list(stream.read(shard, BEGINNING))


def test_the_tip_is_near_the_end_and_never_before_where_one_is(new_stream):
    with open_stream(new_stream(1)) as stream:
        (shard,) = stream.shards()
        assert stream.tip(shard, BEGINNING) == BEGINNING
        for client in range(30):
            stream.append(chunks_of(7, client, 0))
        everything = list(stream.read(shard, BEGINNING))
        for after in (BEGINNING, everything[0].position, everything[40].position, everything[-2].position):
            tip = stream.tip(shard, after)
            assert order(after) < order(tip) <= order(everything[-1].position)
            assert tip in {placed.position for placed in everything}
        assert stream.tip(shard, everything[-1].position) == everything[-1].position


def test_many_chunks_go_in_few_requests_and_large_ones_in_several(server, new_stream):
    url = new_stream(2)
    with unkind(server.endpoint) as proxy, open_stream(proxy.url(name_of(url))) as stream:
        sent = played(300)
        stream.append(sent)
        assert proxy.calls["PutRecords"] == 1
        assert sum(map(len, whole(stream).values())) == len(sent)


def test_single_records_that_are_refused_are_sent_again_in_order(server, new_stream):
    url, rng = new_stream(2), random.Random(5)

    def some(operation, body):
        if operation != "PutRecords":
            return None
        return RefuseRecords(frozenset(at for at in range(len(body["Records"])) if rng.random() < 0.4))

    sent = played()
    with unkind(server.endpoint) as proxy, open_stream(proxy.url(name_of(url))) as stream:
        proxy.rule = some
        for first in range(0, len(sent), EPISODES):  # each episode's chunks in three appends, so three records
            stream.append(sent[first : first + EPISODES])
        everything = [placed for shard in whole(stream).values() for placed in shard]
        assert proxy.calls["records refused"] > 10
    assert len(everything) == len(sent), "refused records are sent again, others are not"
    assert_all_there_in_order(everything, sent)


def test_throttling_and_lost_answers_delay_and_lose_nothing(server, new_stream):
    url, rng = new_stream(2), random.Random(6)
    codes = ("ProvisionedThroughputExceededException", "LimitExceededException", "InternalFailure")

    def moody(operation, body):
        if rng.random() < 0.4 and operation != "DescribeStreamSummary":
            return rng.choice([*map(Refuse, codes), *([LoseAnswer()] if operation == "PutRecords" else [])])
        return None

    sent = played()
    with unkind(server.endpoint) as proxy, open_stream(proxy.url(name_of(url))) as stream:
        proxy.rule = moody
        for first in range(0, len(sent), EPISODES):
            stream.append(sent[first : first + EPISODES])
        everything = [placed for shard in whole(stream).values() for placed in shard]
        assert sum(count for call, count in proxy.calls.items() if call.endswith("refused")) > 3
    assert_all_there_in_order(everything, sent)  # what was sent twice is there twice


def test_an_iterator_that_expired_is_renewed(server, new_stream):
    url, expired = new_stream(1), []

    def forgetful(operation, body):
        if operation == "GetRecords" and len(expired) < 3:
            expired.append(body["ShardIterator"])
            return Refuse("ExpiredIteratorException")
        return None

    with unkind(server.endpoint) as proxy, open_stream(proxy.url(name_of(url))) as stream:
        stream.append(played(1))
        (shard,) = stream.shards()
        proxy.rule = forgetful
        assert len(list(stream.read(shard, BEGINNING))) == 3
        assert proxy.calls["GetShardIterator"] == 4, "an expired iterator was tried again"


def test_what_stays_throttled_is_said_with_what_to_do(server, new_stream):
    url = new_stream(1)
    name = name_of(url)
    with (
        unkind(server.endpoint) as proxy,
        open_stream(proxy.url(name), timeouts=Timeouts(deadline_s=0.5)) as stream,
    ):
        (shard,) = stream.shards()
        proxy.rule = lambda operation, body: RefuseRecords(frozenset({0})) if operation == "PutRecords" else None
        with pytest.raises(StoreFailed) as told:
            stream.append(played(3))
        assert str(told.value) == (
            f"[stream] url (kinesis://{name}): 1 of 3 records were not taken within 0.5 s "
            "(ProvisionedThroughputExceededException). "
            "Add shards with `spar stream reshard`, and send them again later."
        )
        proxy.rule = lambda operation, body: Refuse("ProvisionedThroughputExceededException")
        with pytest.raises(StoreFailed, match="asked for more than its shards give"):
            stream.append(played(3))
        with pytest.raises(StoreFailed, match="asked for more than its shards give"):
            stream.page(shard, BEGINNING)


def test_what_is_no_record_is_handed_over_as_it_is(server, new_stream):
    url = new_stream(1)
    name = name_of(url)
    client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1")
    client.put_record(StreamName=name, Data=b"not ours", PartitionKey="x")
    client.close()
    with open_stream(url) as stream:
        stream.append(played(1))
        (shard,) = stream.shards()
        found = list(stream.read(shard, BEGINNING))
    assert [placed.data for placed in found[:1]] == [b"not ours"]
    assert len(found) == 4


def test_a_closed_stream_takes_nothing(new_stream):
    stream = open_stream(new_stream(1))
    stream.ready()
    stream.close()
    with pytest.raises(Unreachable, match="it is closed"):
        stream.append(played(1))
