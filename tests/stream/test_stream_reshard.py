"""Shards split and merged under load: nothing lost, and every episode's chunks in order for whoever follows."""

import json
import threading
import time
from collections import defaultdict

import pytest

from derived import chunks_of, differences
from sparring.cli import main
from sparring.stream import open_stream
from sparring.stream.kinesis.admin import StreamAdmin
from sparring.stream.protocol import BEGINNING, ShardPosition, Stream, readable
from sparring.wire.chunk import decode
from stream.made import make

pytestmark = pytest.mark.servers
SENDERS = 4


class Follower:
    """Reads every shard to its end before its children, as a sink does, and notes what came in which order."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.positions: dict[str, ShardPosition] = {}
        self.seen: defaultdict[str, list[int]] = defaultdict(list)

    def round(self) -> int:
        """One page of each shard that may be read; how many chunks came."""
        count = 0
        for shard in readable(self._stream.shards(), self.positions):
            page = self._stream.page(shard, self.positions.get(shard.id, ShardPosition()).position)
            self.positions[shard.id] = ShardPosition(page.position, page.ended)
            for placed in page.placed:
                chunk = decode(placed.data)
                assert differences(chunk) == []
                self.seen[chunk.header.episode].append(chunk.header.first_step)
            count += len(page.placed)
        return count


def await_more(sent: dict[str, list[int]], chunks: int = 100) -> None:
    """Until that many more were sent; the test's own time limit ends it where none are."""
    wanted = sum(map(len, [*sent.values()])) + chunks
    while sum(map(len, [*sent.values()])) < wanted:
        time.sleep(0.05)


def test_two_shards_become_four_and_then_three_under_load(kinesalite_server, local_credentials):
    url = make(kinesalite_server, 2)
    sent: defaultdict[str, list[int]] = defaultdict(list)
    stopping, failed = threading.Event(), []

    def send(client: int) -> None:
        with open_stream(url) as stream:
            episode = 0
            while not stopping.is_set():
                for chunk in chunks_of(5, client, episode, steps=400, chunk_steps=40):
                    stream.append([chunk])
                    sent[chunk.header.episode].append(chunk.header.first_step)
                episode += 1

    def guarded(client: int) -> None:
        try:
            send(client)
        except BaseException as error:
            failed.append(error)
            raise

    senders = [threading.Thread(target=guarded, args=(client,)) for client in range(SENDERS)]
    told: list[str] = []
    with open_stream(url) as stream, StreamAdmin(url, told.append) as care:
        follower = Follower(stream)
        try:
            for sender in senders:
                sender.start()
            for shards in (4, 3):
                await_more(sent)
                while not follower.round():
                    time.sleep(0.05)
                care.reshard(shards)
                assert len([shard for shard in stream.shards() if not shard.closed]) == shards
            await_more(sent)
        finally:
            stopping.set()
            for sender in senders:
                sender.join()
        assert not failed
        quiet = 0
        while quiet < 3:
            quiet = 0 if follower.round() else quiet + 1
        family = stream.shards()
        assert {shard.id for shard in family if shard.closed} == {
            name for name, at in follower.positions.items() if at.ended
        }
    assert sum(": split " in line for line in told) == 4
    assert sum(": merge " in line for line in told) == 3
    assert len(sent) > SENDERS
    for episode, steps in sent.items():
        assert follower.seen[episode] == steps, "an episode is torn, or out of order"
    assert set(follower.seen) == set(sent)


def test_a_closed_shard_ends_and_its_children_name_it(kinesalite_server, local_credentials):
    url = make(kinesalite_server, 1)
    with open_stream(url) as stream, StreamAdmin(url, lambda line: None) as care:
        (before,) = stream.shards()
        stream.append(chunks_of(5, 1, 0))
        assert not stream.page(before, BEGINNING).ended
        care.reshard(2)
        stream.append(chunks_of(5, 2, 0))
        first, *children = stream.shards()
        assert (first.id, first.closed) == (before.id, True)
        assert [(child.parents, child.closed) for child in children] == [((before.id,), False)] * 2
        assert len(list(stream.read(first, BEGINNING))) == 3
        page = stream.page(first, BEGINNING)
        while not page.ended:
            page = stream.page(first, page.position)
        assert sum(len(list(stream.read(child, BEGINNING))) for child in children) == 3


def test_a_stream_is_made_described_resharded_and_deleted_by_command(server, capsys):
    url = server.url("by-command")

    def spar(url: str, *words: str) -> dict:
        code = main(["stream", *words, "--url", url, "--json"])
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert code == ("error" in said)
        return said

    assert spar(url, "create", "--shards", "2", "--retention-hours", "48") == {
        "stream": "by-command",
        "made": True,
        "status": "ACTIVE",
        "shards": 2,
        "retention_hours": 48,
    }
    again = spar(url, "create", "--shards", "2")
    assert (again["made"], again["retention_hours"]) == (False, 48)
    assert spar(url, "create", "--retention-hours", "24")["retention_hours"] == 24
    with open_stream(url) as stream:
        stream.append([chunk for client in range(12) for chunk in chunks_of(5, client, 0)])
    assert spar(url, "reshard", "--shards", "3") == {"stream": "by-command", "before": 2, "shards": 3}
    found = spar(url, "describe")
    assert (found["status"], found["open_shards"], found["retention_hours"]) == ("ACTIVE", 3, 24)
    open_ones = [shard for shard in found["shards"] if not shard["closed"]]
    assert sum(int(shard["last_hash"]) - int(shard["first_hash"]) + 1 for shard in open_ones) == 1 << 128
    assert all(shard["parents"] for shard in open_ones)
    assert not all(shard["empty"] for shard in found["shards"])
    assert all(shard["behind_ms"] is None for shard in found["shards"]), "no sink has read it"
    refused = spar(url, "delete")
    assert refused["do"] == "Add --yes if that is meant"
    assert spar(url, "delete", "--yes") == {"stream": "by-command", "deleted": True}
    assert "there is no such stream" in spar(url, "describe")["error"]
