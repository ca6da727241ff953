"""What one player token may cost: memory while chunks are decoded and sent back, what is stored of it, and what others
may send meanwhile."""

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import numpy as np
import psutil
import pytest
from talking import one_chunk, player_token, post
from websockets.sync.client import connect

from derived import chunks_of
from serving import decode_answer, inside, serving
from sparring.games.catalogue import spec_of
from sparring.games.spec import parse
from sparring.gateway import connections, handlers, request_body
from sparring.gateway import state as gateway_state
from sparring.gateway.credentials import ApiKeys
from sparring.gateway.http_errors import ServerBusy, TooLarge
from sparring.gateway.request_body import ByteBudget
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters, state_width
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.registry.file import Folder
from sparring.store import open_store
from sparring.wire.chunk import Chunk, Header, decode, encode, pack, unpack
from sparring.wire.ids import new_episode
from sparring.wire.messages import Action, End, Ended, Hello, Observe, Problem, Start
from sparring.wire.messages import encode as encode_message
from sparring.wire.model import WEIGHTS, Lineage
from sparring.wire.network import Gru

MAY_RISE_BYTES = 256 << 20  # what one player token may raise the resident memory by
ME = "/v1/games/cartpole/players/me"
IMAGES = """
id = "images"
turns = "simultaneous"
max_ticks = 1000

[[seats]]
name = "eye"
reward_bounds = [0.0, 1.0]
observation = [{ name = "observation/image", kind = "image", dtype = "uint8", shape = [3, 200, 210] }]
action = { name = "action", kind = "discrete", dtype = "int32", choices = [2] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With a key, and a game of large images beside the built-in ones."""
    folder = tmp_path_factory.mktemp("decode")
    (folder / "images.toml").write_text(IMAGES)
    (folder / "spar.toml").write_text('games = ["images.toml"]\n')
    _, text = ApiKeys(Folder(folder / "data", 0o600)).create("studio", ("admin",), 1_790_000_000_000)
    with serving(folder / "data", "--config", str(folder / "spar.toml")) as running:
        object.__setattr__(running, "key", text)
        yield running


def player(server, name, game="cartpole"):
    """A client with a token of that player."""
    headers = {"Authorization": f"Bearer {server.key}"}
    said = httpx.post(f"{server.url}/v1/games/{game}/tokens", json={"player": name}, headers=headers)
    bearer = {"Authorization": f"Bearer {said.raise_for_status().json()['token']}"}
    return httpx.Client(base_url=server.url, headers=bearer, timeout=120)


def fresh(chunk, state=None, **header):
    """The same steps as a new episode of no named player, with a recurrent state."""
    columns = chunk.columns if state is None else {**chunk.columns, "state/state": state}
    return Chunk(msgspec.structs.replace(chunk.header, episode=new_episode(), **header), columns)


class Beside:
    """A well-behaved player who uploads without a pause while the block lasts, and the gateway's resident memory."""

    def __init__(self, server, name):
        self._process, self._client, self._over = psutil.Process(server.process.pid), player(server, name), False
        self._before = self.highest = self._process.memory_info().rss
        self.answers = []
        self._threads = [threading.Thread(target=self._upload), threading.Thread(target=self._watch)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over = True
        for thread in self._threads:
            thread.join()
        self._client.close()

    @property
    def rise_bytes(self):
        return self.highest - self._before

    def _upload(self):
        while not self._over:
            self.answers.append(post(self._client, [fresh(one_chunk(1))]).status_code)

    def _watch(self):
        while not self._over:
            self.highest = max(self.highest, self._process.memory_info().rss)
            time.sleep(0.005)


def test_a_state_of_any_size_is_refused_before_it_is_inflated(server):
    bomb = np.zeros(16 << 20, np.float32)  # 64 MiB less what the other columns take
    upload = pack([encode(fresh(one_chunk(1), bomb[:-1000]))] * 40)
    assert len(upload) < 400_000
    with player(server, "mallory") as mallory, Beside(server, "alice") as beside:
        said = post(mallory, upload)
    assert said.status_code == 422
    assert said.json()["error"]["field"] == "state/"
    assert said.json()["error"]["limit"] == 64 << 10
    assert beside.rise_bytes < 32 << 20
    assert set(beside.answers) == {200}


@pytest.mark.parametrize(
    ("name", "shape"),
    [("observation/state", (5, 3_000_000)), ("observation/state", (15_000_000, 1)), ("observation/more", (5, 10**6))],
    ids=["shape", "steps", "name"],
)
def test_columns_that_are_not_the_specs_are_refused_before_they_are_inflated(server, name, shape):
    chunk = one_chunk(1)
    columns = {**chunk.columns, name: np.zeros(shape, np.float32)}
    with player(server, "mallory") as mallory, Beside(server, "alice") as beside:
        said = post(mallory, pack([encode(Chunk(chunk.header, columns))] * 10))
    assert (said.status_code, said.json()["error"]["field"]) == (422, name)
    assert beside.rise_bytes < 32 << 20


def test_a_models_state_has_the_size_that_its_card_says(server):
    game = spec_of("cartpole")
    network = default_network(game.seats[0], hidden=(8,), separate_value=True, memory=Gru(5))
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    model = make_model(
        game, network, weights, "categorical", Lineage(algorithm="test", config={}, steps={}), 1_790_000_000_000
    )
    with open_registry(f"file:///{server.data}/models") as registry:
        registry.publish(model)
    known, unknown = f"model:{model.id}", "model:" + "0" * 64
    width = state_width(network)
    with player(server, "bob") as bob:
        for actor, numbers, status in (
            (known, width, 200),
            (known, width + 1, 422),
            (unknown, 16_384, 200),
            (unknown, 16_385, 422),
            ("script:x", 16_385, 422),
        ):
            said = post(bob, [fresh(one_chunk(1), np.zeros(numbers, np.float32), actor=actor)])
            assert said.status_code == status, (actor, numbers, said.text)


def image_chunk():
    """63 MiB of black images, in few kB."""
    spec = parse(IMAGES)
    steps = 512
    header = Header(
        game=spec.id,
        version="1",
        spec=spec.hash,
        episode=new_episode(),
        seat=0,
        first_step=0,
        steps=steps,
        actor="person",
        source="play",
    )
    columns = {
        "observation/image": np.zeros((steps, 3, 200, 210), np.uint8),
        "action": np.zeros(steps, np.int32),
        "reward": np.zeros(steps, np.float32),
        "tick": np.arange(steps),
    }
    return Chunk(header, columns)


@pytest.mark.slow
def test_all_that_one_token_sends_at_once_is_bounded_and_leaves_room_for_others(server):
    """Bodies that are never finished, and as many chunks of large images as the spec allows."""
    uploads = [pack([encode(fresh(image_chunk())) for _ in range(4)]) for _ in range(6)]
    mallory = player(server, "mallory", "images")
    lines = [f"{name}: {value}" for name, value in mallory.headers.items() if name != "connection"]
    head = "\r\n".join(["POST /v1/games/images/chunks HTTP/1.1", *lines, "Host: x", "Content-Length: 4000000", "", ""])
    with mallory, Beside(server, "alice") as beside, ThreadPoolExecutor(6) as pool, contextlib.ExitStack() as opened:
        for _ in range(40):
            slow = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with contextlib.suppress(OSError):  # it was refused
                slow.sendall(head.encode() + bytes(3_900_000))
        said = [answer.status_code for answer in pool.map(lambda body: post(mallory, body, "images"), uploads)]
    assert set(said) <= {200, 503}
    assert beside.rise_bytes < MAY_RISE_BYTES, f"{beside.rise_bytes >> 20} MiB"
    assert len(beside.answers) > 3
    assert set(beside.answers) == {200}


@pytest.mark.slow
def test_json_is_bounded_by_the_same_budget(server):
    body = b'{"chunks": [' + b",".join([b'{"":0}'] * 250_000) + b"]}"  # 1.75 MB, and 50 MB as objects
    headers = {"Content-Type": "application/json"}

    def send(client):
        return client.post("/v1/games/cartpole/chunks", content=body, headers=headers).status_code

    with player(server, "mallory") as mallory, Beside(server, "alice") as beside:
        with ThreadPoolExecutor(12) as pool:
            said = list(pool.map(send, [mallory] * 24))
        longer = b'{"chunks": [' + b" " * 3_000_000 + b"]}"
        assert mallory.post("/v1/games/cartpole/chunks", content=longer, headers=headers).status_code == 413
    assert set(said) <= {400, 503}
    assert beside.rise_bytes < MAY_RISE_BYTES, f"{beside.rise_bytes >> 20} MiB"
    assert set(beside.answers) == {200}


@pytest.mark.parametrize("path", ["chunks", "act"])
def test_texts_where_numbers_belong_take_no_memory(server, path):
    """NumPy makes every text of an array as long as its longest one: here 40 GB, and 6 GB."""
    count = 100_000 if path == "chunks" else 40_000  # an act request is shorter
    column = '["' + "x" * count + '"' + ',""' * count + "]"
    head = msgspec.json.encode(msgspec.structs.replace(one_chunk(1).header, uploader="", received_at_ms=0)).decode()
    chunk = f'{{"header": {head}, "columns": {{"observation/state": {column}}}}}'
    body = f'{{"chunks": [{chunk}]}}' if path == "chunks" else f'{{"observation": {{"state": {column}}}}}'
    with player(server, "mallory") as mallory, Beside(server, "alice") as beside:
        json = {"Content-Type": "application/json"}
        said = mallory.post(f"/v1/games/cartpole/{path}", content=body, headers=json)
    assert (said.status_code, said.json()["error"]["code"]) == (422, "chunk")
    assert beside.rise_bytes < 64 << 20, f"{beside.rise_bytes >> 20} MiB"
    assert set(beside.answers) == {200}


def test_a_million_empty_chunks_take_no_memory(server):
    with player(server, "mallory") as mallory, Beside(server, "alice") as beside:
        assert post(mallory, bytes(4 << 20)).status_code == 400
    assert beside.rise_bytes < 32 << 20, f"{beside.rise_bytes >> 20} MiB"


@pytest.mark.slow
def test_slow_downloads_of_a_model_share_its_bytes(server):
    game = spec_of("cartpole")
    network = default_network(game.seats[0], hidden=(1_400, 1_400), separate_value=False)
    rng = np.random.default_rng(1)
    weights = {name: rng.random(shape, np.float32) for name, shape in parameters(network).items()}
    model = make_model(
        game, network, weights, "categorical", Lineage(algorithm="test", config={}, steps={}), 1_790_000_000_001
    )
    with open_registry(f"file:///{server.data}/models") as registry:
        registry.publish(model)
    assert len(model.files[WEIGHTS]) > 7 << 20
    with player(server, "mallory") as mallory, Beside(server, "alice") as beside, contextlib.ExitStack() as open_now:
        address = f"/v1/models/{model.id}/{WEIGHTS}"
        answers = [open_now.enter_context(mallory.stream("GET", address)) for _ in range(40)]
        assert {answer.status_code for answer in answers} == {200}
        assert answers[-1].read() == model.files[WEIGHTS]
    assert beside.rise_bytes < 100 << 20, f"{beside.rise_bytes >> 20} MiB"
    assert set(beside.answers) == {200}


def test_a_claimed_sample_rate_changes_nothing_for_others(server):
    (steps,) = chunks_of(7, 1, 1, steps=500, chunk_steps=500, player=None)
    with player(server, "mallory") as mallory, player(server, "alice") as alice:
        for _ in range(5):
            post(mallory, [fresh(steps, sample_rate=1e-4)]).raise_for_status()
        assert post(alice, [fresh(one_chunk(1))]).json()["sample_rate"] == 1.0


def verdicts(response):
    return [one["verdict"] for one in response.json()["results"]]


def test_a_bots_seat_counts_against_its_senders_quota(tmp_path):
    _, key = ApiKeys(Folder(tmp_path, 0o600)).create("studio", ("admin",), 1_790_000_000_000)
    with inside(tmp_path, player_steps_per_day=12, key_steps_per_day=22) as running:
        with httpx.Client(base_url=running.url, headers=player_token(running.url, key, "mallory")) as mallory:
            script = [fresh(one_chunk(1), actor="script:x", source="selfplay") for _ in range(3)]
            said = post(mallory, script)
            assert (said.status_code, verdicts(said)) == (429, ["new", "new", "quota"])
            assert verdicts(post(mallory, [fresh(one_chunk(1))])) == ["quota"]
        with httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {key}"}) as studio:
            named = [fresh(one_chunk(1), player=f"p{n}") for n in range(5)]
            assert verdicts(post(studio, named)) == ["new"] * 4 + ["quota"]  # other names are no other quota
    with inside(tmp_path / "none", key_steps_per_day=12) as running, httpx.Client(base_url=running.url) as local:
        assert verdicts(post(local, [fresh(one_chunk(1), actor="script:x") for _ in range(3)])) == [
            "new",
            "new",
            "quota",
        ]


def test_a_quota_is_in_bytes_too(tmp_path):
    noise = np.random.default_rng(1).random(15_000).astype(np.float32)  # 60 kB that no codec makes smaller
    with inside(tmp_path, key_bytes_per_day=150_000) as running, httpx.Client(base_url=running.url) as local:
        said = post(local, [fresh(one_chunk(1), noise) for _ in range(4)])
        assert verdicts(said) == ["new", "new", "quota", "quota"]
        assert "bytes" in said.json()["error"]["message"]
        assert verdicts(post(local, [fresh(one_chunk(1))])) == ["new"]


@pytest.mark.slow
@pytest.mark.parametrize("one", [False, True], ids=["many episodes", "one episode of many chunks"])
def test_an_export_of_many_rows_takes_little_memory(server, one):
    rows, episode, noise = 8_000, new_episode(), np.random.default_rng(1).integers(0, 256, 8_192, np.uint8)
    with player(server, f"carol {one}") as carol:
        chunk = one_chunk(
            1, player=carol.get(ME).json()["player"], uploader="x", steps=1, ending="running", outcome=None
        )
        columns = {name: array[:1] for name, array in chunk.columns.items() if not name.startswith("final_")}
        with open_store(f"sqlite:///{server.data}/experience.db", check=False) as store:
            for first in range(0, rows, 1_000):
                places = [(episode, n) if one else (new_episode(), 0) for n in range(first, first + 1_000)]
                heads = [msgspec.structs.replace(chunk.header, episode=e, first_step=n) for e, n in places]
                store.append([Chunk(head, {**columns, "state/state": noise}) for head in heads])
        with Beside(server, "alice") as beside:
            record = carol.get(ME).json()
            packed = carol.get(ME, headers={"Accept": "application/x-spar-chunks"}).content
    assert record["steps"] == sum(row["steps"] for row in record["episodes"]) == len(unpack(packed)) == rows
    assert len(record["episodes"]) == (1 if one else rows)
    assert decode(unpack(packed)[-1]).header.first_step == (rows - 1 if one else 0)
    assert beside.rise_bytes < 64 << 20, f"{beside.rise_bytes >> 20} MiB"
    assert set(beside.answers) == {200}


def test_a_caller_has_one_export_at_a_time_and_must_take_it(tmp_path, monkeypatch):
    monkeypatch.setattr(handlers, "SEND_WITHIN_S", 1.0)
    monkeypatch.setattr(connections, "UNREAD_S", 600.0)  # which would end it too, later
    _, key = ApiKeys(Folder(tmp_path, 0o600)).create("studio", ("admin",), 1_790_000_000_000)
    noise = np.random.default_rng(1).integers(0, 256, 600_000, np.uint8)
    with inside(tmp_path, state_bytes=1 << 20) as running:
        dave, eve = (player_token(running.url, key, name) for name in ("dave", "eve"))
        binary = {"Accept": "application/x-spar-chunks"}
        with httpx.Client(base_url=running.url, timeout=60) as client:
            for _ in range(5):
                post(client, [fresh(one_chunk(1), noise) for _ in range(5)], **dave).raise_for_status()
            port = int(running.url.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as idle:
                idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lines = [f"GET {ME} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in (dave | binary).items())]
                idle.sendall("\r\n".join([*lines, "", ""]).encode())
                assert idle.recv(12) == b"HTTP/1.1 200"
                busy = client.get(ME, headers=dave)
                assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
                assert client.get(ME, headers=eve).status_code == 200
                deadline_s = time.monotonic() + 30
                while (again := client.get(ME, headers=dave | binary)).status_code in (429, 503):
                    assert time.monotonic() < deadline_s
            assert len(unpack(again.content)) == 25


def test_the_open_seats_of_a_players_token_have_a_limit_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway_state, "PLAYER_STEPS_BYTES", 70_000)  # three blocks of CartPole's steps
    _, key = ApiKeys(Folder(tmp_path, 0o600)).create("studio", ("admin",), 1_790_000_000_000)
    with inside(tmp_path) as running:
        address = running.url.replace("http", "ws") + "/v1/games/cartpole/play"
        with connect(address, additional_headers=player_token(running.url, key, "mallory")) as play:

            def say(message, answered=True):
                play.send(encode_message(message, text=True))
                return decode_answer(play.recv(timeout=30)) if answered else None

            def begin(episode):
                say(Start(episode), answered=False)
                return say(Observe(episode, 0, {"state": [0, 0, 0, 0]}, 0))

            say(Hello(1, "1"))
            episodes = [new_episode() for _ in range(5)]
            for episode in episodes:
                assert isinstance(begin(episode), Action)
            ends = [say(End(episode, 0, {"state": [0, 0, 0, 0]}, 1.0, True)) for episode in episodes]
            assert [type(end) for end in ends] == [Ended] * 3 + [Problem] * 2
            assert ends[4].code == "busy"
            begin(again := new_episode())  # those that ended gave their memory back
            assert isinstance(say(End(again, 0, {"state": [0, 0, 0, 0]}, 1.0, True)), Ended)


def test_a_budget_makes_callers_wait_in_turn_and_then_refuses(monkeypatch):
    monkeypatch.setattr(request_body, "RESERVE_WITHIN_S", 0.2)

    async def scene():
        budget, order = ByteBudget(100), []

        async def work(caller, size, until):
            async with budget.reserved(caller, size):
                order.append((caller, size))
                await until.wait()

        with pytest.raises(TooLarge):
            async with budget.reserved("a", 51):
                pass
        done, other = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(work("a", 50, done))
        second = asyncio.create_task(work("a", 30, other))  # half is one caller's
        beside = asyncio.create_task(work("b", 40, other))  # and the rest for others
        await asyncio.sleep(0)
        assert order == [("a", 50), ("b", 40)]
        gone = asyncio.create_task(work("c", 20, other))
        await asyncio.sleep(0)
        gone.cancel()
        done.set()
        await first
        await asyncio.sleep(0)
        assert order[2:] == [("a", 30)]
        with pytest.raises(ServerBusy):
            async with budget.reserved("c", 31):
                pass
        other.set()
        await asyncio.gather(second, beside)
        async with budget.reserved("c", 50), budget.reserved("d", 50):
            pass  # nothing was lost

    asyncio.run(scene())
