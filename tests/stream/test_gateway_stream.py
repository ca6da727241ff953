"""`spar serve` with a stream: what is uploaded is taken by the stream, and nothing waits for the store."""

import threading
import time

import httpx
import msgspec
import numpy as np
import pytest
from websockets.sync.client import connect

import sparring
from derived import chunks_of, differences
from servers.running import kinesis
from serving import Server, decode_answer, serving, start, stop
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.games.catalogue import open_game
from sparring.gateway.credentials import Secrets
from sparring.registry.file import Folder
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.stream import open_stream
from sparring.stream.protocol import BEGINNING, Placed
from sparring.wire.chunk import Chunk, decode, encode, pack
from sparring.wire.ids import GameId, new_episode
from sparring.wire.messages import Action, End, Ended, Hello, Observe, Start
from sparring.wire.messages import encode as encode_message
from stream.made import make
from stream.unkind import Refuse, RefuseRecords, name_of, unkind

pytestmark = pytest.mark.servers
CARTPOLE = GameId("cartpole")


def everything(url: str) -> list[Placed]:
    with open_stream(url) as stream:
        return [placed for shard in stream.shards() for placed in stream.read(shard, BEGINNING)]


def caller(timeout_s: float) -> httpx.Client:
    """Without TLS: reading every authority of the machine costs more than a test's whole traffic."""
    return httpx.Client(verify=False, trust_env=False, timeout=timeout_s)


def post(url: str, chunks: list[Chunk], http: httpx.Client | None = None) -> httpx.Response:
    body = pack([encode(chunk) for chunk in chunks])
    headers = {"Content-Type": "application/x-spar-chunks"}
    if http is None:
        with caller(30.0) as once:
            return once.post(f"{url}/v1/games/cartpole/chunks", content=body, headers=headers)
    return http.post(f"{url}/v1/games/cartpole/chunks", content=body, headers=headers)


@pytest.fixture
def url(kinesalite_server, local_credentials):
    return make(kinesalite_server, 2)


@pytest.fixture
def gateway(url, tmp_path):
    with serving(tmp_path / "data", "--set", f"stream.url={url}") as server:
        yield server


def kept(server: Server) -> int:
    """Chunks in the gateway's own store."""
    with open_store(f"sqlite:///{server.data}/experience.db", check=False) as store:
        return len(list(store.read(Query(CARTPOLE))))


def test_what_a_client_records_is_in_the_stream_and_not_in_the_store(gateway, url, tmp_path):
    with sparring.connect(gateway.url, "cartpole", "alice", folder=tmp_path / "client") as game:
        player = MockPlayer(game, script_of("random", game.spec))
        for number in range(3):
            play(open_game("cartpole"), [player], number, 11)
        assert game.flush(20)
        done = game.statistics()
    assert done.new_chunks == done.chunks == 3
    found = everything(url)
    assert len(found) == 3
    assert {placed.uploader for placed in found} == {"anonymous"}
    assert {decode(placed.data).header.player for placed in found} == {
        Secrets(Folder(gateway.data, 0o600)).pseudonym(CARTPOLE, "alice")
    }
    assert all(abs(time.time() * 1000 - placed.arrived_ms) < 60_000 for placed in found)
    assert kept(gateway) == 0


def test_an_upload_is_answered_taken_and_counted(gateway, url):
    sent = chunks_of(7, 1, 0)
    answer = post(gateway.url, sent).json()
    assert [one["verdict"] for one in answer["results"]] == ["taken"] * 3
    assert [one["verdict"] for one in post(gateway.url, sent).json()["results"]] == ["taken"] * 3  # it cannot know
    assert [differences(decode(placed.data)) for placed in everything(url)] == [[]] * 6
    with caller(30.0) as http:
        assert http.get(f"{gateway.url}/healthz").json() == {"status": "ok", "into": "stream"}
        assert http.get(f"{gateway.url}/readyz").json() == {"status": "ok", "into": "stream"}
        metrics = http.get(f"{gateway.url}/metrics").text
    assert 'spar_chunks_total{verdict="taken"} 6' in metrics
    assert "spar_steps_total 200" in metrics
    assert "spar_into_stream 1" in metrics


def test_what_a_chunk_alone_shows_to_be_wrong_is_refused_and_the_others_are_taken(gateway, url):
    good, bad, more = chunks_of(7, 2, 0)
    worse = {**bad.columns, "action": np.full(bad.header.steps, 9, np.int32)}
    answer = post(gateway.url, [good, Chunk(bad.header, worse), more])
    assert answer.status_code == 422
    assert [one["verdict"] for one in answer.json()["results"]] == ["taken", "refused", "taken"]
    assert len(everything(url)) == 2


def test_an_erased_player_is_refused_by_the_stores_tombstone(gateway, url):
    chunk, more, _ = chunks_of(7, 3, 0)
    named = Chunk(msgspec.structs.replace(chunk.header, player="bob"), chunk.columns)
    with open_store(f"sqlite:///{gateway.data}/experience.db", check=False) as store:
        store.erase(CARTPOLE, Secrets(Folder(gateway.data, 0o600)).pseudonym(CARTPOLE, "bob"))
        bots = Chunk(msgspec.structs.replace(more.header, player=None, actor="script:random"), more.columns)
        answer = post(gateway.url, [bots, named, *chunks_of(7, 4, 0)])
        assert answer.status_code == 410
        assert [one["verdict"] for one in answer.json()["results"]] == ["gone", "gone", "taken", "taken", "taken"]
        assert len(everything(url)) == 3
        (kept,) = store.append([bots])  # as a sink would, had it come by the stream before
        assert (kept.verdict, kept.field) == ("gone", "episode")


def test_the_play_socket_says_taken_too(gateway, url):
    episode = new_episode()
    with connect(f"{gateway.url.replace('http', 'ws')}/v1/games/cartpole/play") as socket:

        def say(message):
            socket.send(encode_message(message, text=True))
            return decode_answer(socket.recv(timeout=20))

        assert say(Hello(1, "1")) == Hello(1, "1")
        socket.send(encode_message(Start(episode), text=True))
        assert isinstance(say(Observe(episode, 0, {"state": [0.0] * 4}, 0, 0.0)), Action)
        ended = say(End(episode, 0, {"state": [0.1] * 4}, 1.0, True))
    assert ended == Ended(episode, 0, "taken")
    assert [decode(placed.data).header.episode for placed in everything(url)] == [episode]


def test_a_stream_that_throttles_sends_players_away_and_takes_all_later(kinesalite_server, url, tmp_path):
    with (
        unkind(kinesalite_server.endpoint) as proxy,
        serving(tmp_path / "data", "--set", f"stream.url={proxy.url(name_of(url))}") as server,
    ):
        proxy.rule = lambda operation, body: RefuseRecords(frozenset(range(500))) if operation == "PutRecords" else None
        refused = post(server.url, chunks_of(7, 5, 0))
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        assert refused.json()["error"]["message"] == "the store would not keep it"
        proxy.rule = lambda operation, body: Refuse("ExpiredTokenException")
        assert post(server.url, chunks_of(7, 5, 0)).status_code == 503, "the sender is not at fault"
        proxy.rule = lambda operation, body: None
        assert post(server.url, chunks_of(7, 5, 0)).status_code == 200
        assert "these AWS credentials have expired" in server.log()
    assert len(everything(url)) == 3


class Load:
    """Senders of derived episodes, each chunk sent until it is answered "taken"; and the check of what is there."""

    def __init__(self, url: str) -> None:
        self.taken: set[tuple[str, int]] = set()
        self._url, self._stopping = url, threading.Event()
        self._senders = [threading.Thread(target=self._send, args=(client,)) for client in range(3)]

    def __enter__(self) -> "Load":
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for sender in self._senders:
            sender.join()

    def await_more(self, chunks: int = 12) -> None:
        wanted = len(self.taken) + chunks
        while len(self.taken) < wanted:
            time.sleep(0.05)

    def check(self, found: list[Placed]) -> None:
        """All that was taken is there, in order within each episode, as it was sent."""
        there: dict[str, list[int]] = {}
        for placed in found:
            chunk = decode(placed.data)
            assert differences(chunk) == []
            steps = there.setdefault(chunk.header.episode, [])
            if chunk.header.first_step not in steps:
                steps.append(chunk.header.first_step)
        assert self.taken <= {(episode, first) for episode, steps in there.items() for first in steps}
        assert all(steps == sorted(steps) for steps in there.values())

    def _send(self, client: int) -> None:
        episode = 0
        with caller(15.0) as http:
            while not self._stopping.is_set():
                for chunk in chunks_of(9, client, episode, steps=60, chunk_steps=20):
                    if not self._until_taken(chunk, http):
                        return
                episode += 1

    def _until_taken(self, chunk: Chunk, http: httpx.Client) -> bool:
        """The next chunk of an episode follows when this one was taken."""
        while not self._stopping.is_set():
            try:
                if post(self._url, [chunk], http).status_code == 200:
                    self.taken.add((chunk.header.episode, chunk.header.first_step))
                    return True
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        return False


def test_nothing_is_lost_when_the_gateway_is_killed(url, tmp_path):
    """Two kills -9 under load."""
    data, words = tmp_path / "data", ("--set", f"stream.url={url}")
    server = start(data, *words)
    try:
        with Load(server.url) as load:
            for _ in range(2):
                load.await_more()
                server.kill()
                stop(server)
                server = start(data, *words, port=server.port)
            load.await_more()
    finally:
        stop(server)
    load.check(everything(url))


def test_nothing_is_lost_when_the_stream_is_away_for_a_while(tmp_path, local_credentials):
    """The Kinesis server killed -9 and started again, twice; the gateway and its clients go on by themselves."""
    with kinesis(tmp_path, keep=True) as away:
        url = make(away, 2)
        with serving(tmp_path / "data", "--set", f"stream.url={url}") as server, Load(server.url) as load:
            for _ in range(2):
                load.await_more()
                away.server.kill()
                time.sleep(0.5)
                away.server.start()
            load.await_more()
        load.check(everything(url))
