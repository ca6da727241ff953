"""What is cheap to send must be cheap to refuse: no caller's bytes make the gateway work for long while others wait."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import pytest
from talking import one_chunk, post
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serving import inside
from sparring.errors import Refused
from sparring.games.catalogue import open_game, spec_of
from sparring.gateway import app, handlers, limited_protocols, state
from sparring.gateway.inference import MODELS, InferenceServer
from sparring.gateway.limited_protocols import MAX_HEAD_BYTES, MAX_MESSAGES, PINGS_PER_S, LimitedHttp
from sparring.gateway.rate_limits import DAY_S, Quotas
from sparring.gateway.request_body import act_bytes
from sparring.nets.chooser import ActRequest
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.store.sqlite.store import SqliteStore
from sparring.wire.ids import new_episode
from sparring.wire.messages import End, Hello
from sparring.wire.messages import encode as encode_message
from sparring.wire.model import Lineage

NOW_MS = 1_790_000_000_000
ACT = "/v1/games/cartpole/act"


@pytest.fixture
def running(tmp_path):
    with inside(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def client(running):
    with httpx.Client(base_url=running.url, timeout=60) as made:
        yield made


def play(running):
    return connect(running.url.replace("http", "ws") + "/v1/games/cartpole/play", max_size=None)


def test_a_key_that_stands_twice_is_found_among_two_hundred_thousand():
    script = """
        from sparring.gateway.http_errors import BadRequest
        from sparring.gateway.request_body import read_json
        keys = [f"k{n}" for n in range(200_000)] + ["k199999"]
        try:
            read_json(("{" + ",".join(f'"{key}":0' for key in keys) + "}").encode(), dict)
        except BadRequest as error:
            assert "'k199999' stands twice" in str(error), error
        else:
            raise SystemExit("it was not refused")
    """
    lines = "\n".join(line[8:] for line in script.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_act_request_has_as_many_bytes_as_its_game_needs(running, client):
    limit = act_bytes(spec_of("cartpole"))
    assert limit < 256 << 10
    body = json.dumps({"observation": {"state": [0.0] * 4}}).encode()
    assert client.post(ACT, content=body + b" " * (limit - len(body))).status_code == 200
    assert client.post(ACT, content=body + b" " * limit).status_code == 413
    with play(running) as game:
        game.send(encode_message(Hello(1), text=True))
        assert json.loads(game.recv(timeout=30))["type"] == "hello"
        game.send('{"type": "hello"' + " " * limit + "}")
        assert "the limit is" in json.loads(game.recv(timeout=30))["message"]
        with pytest.raises(ConnectionClosed):
            game.recv(timeout=30)


@pytest.mark.parametrize("opcode", [0x89, 0x8A], ids=["pings", "pongs"])
def test_a_play_socket_that_pings_without_a_pause_is_closed(running, opcode):
    with play(running) as game:
        for _ in range(PINGS_PER_S // 2):
            game.socket.sendall(bytes((opcode, 0x80, 0, 0, 0, 0)))
        game.send(encode_message(Hello(1), text=True))
        assert json.loads(game.recv(timeout=30))["type"] == "hello"
        with suppress(OSError):
            game.socket.sendall(bytes((opcode, 0x80, 0, 0, 0, 0)) * 20 * PINGS_PER_S)
        with pytest.raises(ConnectionClosed):
            game.recv(timeout=30)


def read_all(game):
    while True:
        game.recv(timeout=30)


def test_messages_that_wait_are_counted(running, monkeypatch):
    monkeypatch.setattr(limited_protocols, "FRAMES_BYTES", 1 << 20)  # all that arrived is parsed at once
    said = encode_message(End(new_episode(), 0, {}, 0.0), text=True).encode()  # a problem, after which it goes on
    one = bytes((0x81, 0xFE)) + len(said).to_bytes(2) + bytes(4) + said
    with play(running) as game:
        game.send(encode_message(Hello(1), text=True))
        with suppress(OSError):
            game.socket.sendall(one * 3 * MAX_MESSAGES)
        with pytest.raises(ConnectionClosed):
            read_all(game)


def test_no_more_trailers_are_parsed_than_their_limit_allows(running, monkeypatch):
    parsed = []
    on_header = LimitedHttp.on_header
    monkeypatch.setattr(LimitedHttp, "on_header", lambda self, *both: (parsed.append(1), on_header(self, *both)))
    with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])), timeout=30) as made:
        made.sendall(b"POST /v1/games/cartpole/chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        with suppress(OSError):
            for _ in range(20):
                made.sendall(b"X: \r\n" * 50_000)
        with suppress(OSError):
            while made.recv(65536):
                pass
    assert 0 < len(parsed) < 3 * MAX_HEAD_BYTES // 5


def test_who_sends_too_much_waits_for_the_refusal(tmp_path):
    with (
        inside(tmp_path, requests_per_s=0.01, burst_requests=2) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        begun_s = time.monotonic()
        seen = [http.get("/healthz").status_code for _ in range(4)]
        assert seen == [200, 200, 429, 429]
        assert time.monotonic() - begun_s > 1.5


def test_a_players_records_are_not_read_or_erased_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "OWN_AT_ONCE", 3.0)
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, timeout=60) as http:
        headers = {"Spar-Player": "0" * 32}
        seen = [http.delete("/v1/games/cartpole/players/me", headers=headers).status_code for _ in range(8)]
        assert seen[:3] == [200] * 3
        assert 429 in seen
        assert (tmp_path / "audit.jsonl").read_text().count("erase") == seen.count(200) < 8


def test_requests_of_strangers_do_not_fill_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(app, "LINES_AT_ONCE", 10.0)
    monkeypatch.setattr(app, "LINES_PER_S", 0.01)
    caplog.set_level(logging.INFO, "sparring.gateway.requests")
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, timeout=60) as http:
        assert [http.get(f"/nothing/{n}").status_code for n in range(50)] == [404] * 50
        assert post(http, [one_chunk(1)]).status_code == 200
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "sparring.gateway.requests"]
    assert len(lines) == 12
    assert lines[10] == {"not_logged": 40}
    assert lines[11]["caller"] == "anonymous"


def test_many_who_ask_whether_it_is_ready_ask_the_store_once(tmp_path, monkeypatch):
    asked, append = [], SqliteStore.append
    monkeypatch.setattr(handlers, "READY_S", 600.0)
    monkeypatch.setattr(SqliteStore, "append", lambda self, *some: (asked.append(1), append(self, *some))[1])
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, timeout=60) as http:
        with ThreadPoolExecutor(8) as pool:
            assert {one.status_code for one in pool.map(lambda _: http.get("/readyz"), range(40))} == {200}
        assert len(asked) == 1


def test_models_that_callers_name_neither_push_the_champion_out_nor_are_read_for_another_game(tmp_path, monkeypatch):
    game = spec_of("cartpole")
    network = default_network(game.seats[0], hidden=(8,), separate_value=True)
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    lineage = Lineage(algorithm="test", config={}, steps={})
    models = [make_model(game, network, weights, "categorical", lineage, NOW_MS + n) for n in range(MODELS + 4)]
    view = ActRequest({"observation/state": np.zeros(4, np.float32)}, None, None, None)
    with open_registry(f"file:///{tmp_path}") as registry:
        for model in models:
            registry.publish(model)
        champion = models[0].id
        registry.promote(game.id, champion, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
        read, fetch = [], registry.fetch
        monkeypatch.setattr(registry, "fetch", lambda model: (read.append(model), fetch(model))[1])

        async def scene(server):
            await server.decide(game, 0, view)
            for model in models[1:]:
                await server.decide(game, 0, view, model.id)
            assert read == [model.id for model in models]
            assert (await server.decide(game, 0, view)).model == champion
            await asyncio.gather(*(server.decide(game, 0, view, models[1].id) for _ in range(10)))
            assert read == [*(model.id for model in models), models[1].id]
            with pytest.raises(Refused, match="another game or spec"):
                await server.decide(spec_of("duel"), 0, view, models[2].id)
            assert len(read) == len(models) + 1

        server = InferenceServer(registry, open_game)
        try:
            asyncio.run(scene(server))
        finally:
            server.close()


def test_accounts_that_are_forgotten_are_those_that_were_quiet_longest():
    quotas = Quotas(steps_per_day=10, bytes_per_day=1_000, accounts=10)
    for n in range(500):
        quotas.take("busy", 0, 1, DAY_S)
        quotas.take(n, 1, 1, DAY_S)
    assert len(quotas._used) == 10
    assert quotas.take("busy", 0, 501, DAY_S) > 0.0
