"""Hostile input: each is answered or closed in time, and the gateway goes on serving."""

import json
import socket
import struct
import time

import httpx
import msgspec
import psutil
import pytest
import zstandard
from talking import one_chunk, post
from websockets.sync.client import connect

from serving import inside, serving
from sparring.gateway.limited_protocols import DRAIN_S
from sparring.wire.chunk import MAX_INFLATED_BYTES, Column, encode, layout, pack
from sparring.wire.ids import new_episode
from sparring.wire.messages import Hello, Start
from sparring.wire.messages import encode as encode_message

JSON = {"Content-Type": "application/json"}
DEADLINE_S = 3.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    words = ("--set", f"gateway.body_deadline_s={DEADLINE_S}", "--set", "gateway.max_upload_bytes=1000000")
    with serving(tmp_path_factory.mktemp("hostile") / "data", *words) as running:
        yield running


@pytest.fixture(autouse=True)
def it_lives(http):
    yield
    assert http.get("/readyz").json() == {"status": "ok", "into": "store"}


def raw(server, sent, wait_s=30.0):
    """What comes back on a bare connection until it is closed or silent."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait_s) as connection:
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                got += part
                if b"\r\n\r\n" in got and b'"request"' in got:
                    break
        except (ConnectionError, TimeoutError):
            pass
    return got


def head(*lines, path="/v1/games/cartpole/chunks"):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


BINARY = "Content-Type: application/x-spar-chunks"


@pytest.mark.parametrize("length", ["1000001", str(2**63 - 1), "9" * 400])
def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(server, length):
    got = raw(server, head(BINARY, f"Content-Length: {length}"))
    assert got.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


def test_a_body_without_a_length_is_cut_at_the_limit(server, http):
    def endless():
        for _ in range(400):
            yield bytes(10_000)

    try:
        response = http.post("/v1/games/cartpole/chunks", content=endless(), headers={"Content-Type": BINARY})
        assert response.status_code == 413
    except httpx.TransportError:
        pass  # closed while we were still sending: refused all the same


def test_a_slow_body_is_closed_by_the_deadline(server):
    begun = time.monotonic()
    got = raw(server, head(BINARY, "Content-Length: 5000") + b"only this")
    assert got.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in got.lower()
    assert DEADLINE_S * 0.9 <= time.monotonic() - begun < DEADLINE_S + 20


def test_a_slow_head_is_closed_by_the_deadline(server):
    begun = time.monotonic()
    assert raw(server, b"GET /healthz HTTP/1.1\r\nHo") == b""
    assert time.monotonic() - begun < DEADLINE_S + 20
    assert raw(server, b"") == b""


def test_a_slow_second_head_on_a_kept_connection_is_closed_too(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        got = b""
        while b'"store"}' not in got:
            got += connection.recv(65536)
        connection.sendall(b"GET /heal")
        assert connection.recv(65536) == b""


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -5",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Content-Length: 5", "X-Bad\x00Name: 1"),
        ("Content-Length: 5", "X: " + "y" * 100_000),
    ],
)
def test_a_head_with_two_meanings_is_refused(server, lines):
    got = raw(server, head(*lines) + b"0\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501", b"HTTP/1.1 431"))


def test_a_zstd_bomb_is_not_inflated(http):
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 29))  # 512 MB in some 50 kB
    chunk = one_chunk(1)
    for shape in ((5, 4), (1 << 28,), (1 << 30, 1 << 30)):
        others = [column for column in layout(chunk) if column.name != "observation/state"]
        columns = (Column("observation/state", "float32", shape), *others)
        header = msgspec.structs.replace(chunk.header, columns=columns)
        packed = msgspec.msgpack.encode(header)
        response = post(http, pack([struct.pack("<4sI", b"SPC\x01", len(packed)) + packed + bomb]))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "wire"
    assert len(bomb) < MAX_INFLATED_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b"\x05\x00\x00\x00ab",
        b"\xff\xff\xff\xff",
        b"\x01",
        b"\x04\x00\x00\x00SPC\x02",
        struct.pack("<I4sI", 8, b"SPC\x01", 2**32 - 1),
        pack([encode(one_chunk(2))[:-3]]),
        pack([encode(one_chunk(2))[:30]]),
    ],
)
def test_lying_lengths_and_torn_chunks_are_refused(http, body):
    response = post(http, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "wire"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"chunks":' + b"[" * 90_000 + b"]" * 90_000 + b"}",
        b'{"a":' * 30_000,
        b'{"chunks": [NaN]}',
        b'{"chunks": [Infinity]}',
        b'{"chunks": [], "chunks": []}',
        b'{"chunks": [' + b"9" * 10_000 + b"]}",
        b'{"chunks": ["\xff\xfe"]}',
        b'{"chunks": ["\x00"]}',
        b"",
        b"null",
        b'{"chunks": {}}',
        json.dumps({str(n): n for n in range(10_000)}).encode(),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("path", ["chunks", "act"])
def test_json_with_traps_is_refused(http, body, path):
    response = http.post(f"/v1/games/cartpole/{path}", content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "request"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e/%2e%2e",
        "/v1/models/" + "a" * 64 + "/..%2f..%2fsigning.key",
        "/v1/models/" + "a" * 64 + "/evidence.json",
        "/v1/models/" + "A" * 64 + "/card.json",
        "/v1/models/" + "a" * 4096 + "/card.json",
        "/v1/models/%00/card.json",
        "/v1/models/.//signing.key",
        "/web/../app.py",
        "/web/%2e%2e/app.py",
        "/web/..%5capp.py",
        "/v1/games/..%2f..%2fx",
        "/play/%2e%2e%2f%2e%2e",
    ],
)
def test_path_tricks_lead_nowhere(server, path):
    got = raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PUT", "PATCH"])
def test_other_verbs_are_refused(http, method):
    assert http.request(method, "/v1/games/cartpole/chunks").status_code == 405


def test_a_verb_that_http_does_not_know_is_no_request(http):
    assert http.request("BREW", "/v1/games/cartpole/chunks").status_code == 400


def test_a_header_cannot_be_smuggled_into_the_answer(server):
    got = raw(server, b"GET /v1/games/x%0d%0aSet-Cookie:a=b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 404")
    assert b"\r\nset-cookie" not in got.lower()


HALF = "\\ud800"  # JSON can escape half of a surrogate pair, and UTF-8 has no bytes for it


@pytest.mark.parametrize(
    "body",
    [
        f'{{"observation": {{"{HALF}": [0]}}}}',
        f'{{"observation": {{"state": [0, 0, 0, 0]}}, "model": "{HALF}"}}',
        f'{{"observation": {{"state": [0, 0, 0, 0]}}, "version": "{HALF}"}}',
        f'{{"observation": {{"state": ["{HALF}"]}}}}',
    ],
)
def test_half_a_surrogate_pair_is_refused_with_a_sentence(http, server, body):
    answer = http.post("/v1/games/cartpole/act", content=body, headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "observe", "seat": 0, "observation": {"state": [0, 0, 0, 0]}, "tick": 1 << 63},
        {"type": "observe", "seat": 0, "observation": {"\ud800": [0]}, "tick": 1},
        {"type": "observe", "seat": 0, "observation": {"state": [0, 0, 0, 0]}, "tick": 1, "episode": "\ud800"},
        {"type": "start", "episode": "\ud800"},
    ],
    ids=["tick", "leaf", "observed episode", "started episode"],
)
def test_what_a_message_cannot_mean_is_a_problem(server, message):
    with connect(f"ws://127.0.0.1:{server.port}/v1/games/cartpole/play") as play:
        episode = new_episode()
        for said in (Hello(1, "1"), Start(episode)):
            play.send(encode_message(said, text=True))
        assert json.loads(play.recv(timeout=30))["type"] == "hello"
        play.send(json.dumps({"episode": episode} | message))
        assert json.loads(play.recv(timeout=30))["type"] == "problem"
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("path", ["/web/%00", f"/web/{'a' * 5000}", "/web/%ff", "/v1/games/%00/champion", "/play/%00"])
def test_a_strange_path_is_nothing_that_is_here(http, server, path):
    assert http.get(path).status_code == 404
    assert "Traceback" not in server.log()


def test_a_seat_of_thousands_of_digits_and_a_second_host_are_refused(http, server):
    assert http.get(f"/v1/games/cartpole/champion?seat={'9' * 6000}").status_code == 400
    answer = raw(server, b"GET /v1/games HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    assert b"its host is said twice" in answer


def test_a_wrong_method_is_told_which_there_are(http):
    answer = http.delete("/v1/games")
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_looking_for_paths_is_limited_too(tmp_path):
    with (
        inside(tmp_path, requests_per_s=0.5, burst_requests=5) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        seen = [client.get(f"/nothing/{n}") for n in range(10)]
        assert seen[0].status_code == 404
        assert "Wait 2 s" in next(one for one in seen if one.status_code == 429).json()["error"]["do"]


def resident_bytes(server):
    return psutil.Process(server.process.pid).memory_info().rss


@pytest.mark.parametrize("trailer", [b"X-A: b\r\n", b"a"], ids=["many", "one without an end"])
@pytest.mark.parametrize(
    "path", ["/v1/games/cartpole/chunks", "/v1/games/cartpole/players/me"], ids=["body", "refused"]
)
def test_trailers_without_an_end_take_no_memory(server, http, path, trailer):
    before = resident_bytes(server)
    closed = 0
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(head("Content-Type: application/json", "Transfer-Encoding: chunked", path=path))
            try:
                connection.sendall(b"2\r\n{}\r\n0\r\n" + (b"X: " if trailer == b"a" else b""))
                for _ in range(400):  # 25 MB
                    connection.sendall(trailer * (65536 // len(trailer)))
            except OSError:
                closed += 1
    assert closed == 2
    assert resident_bytes(server) - before < 64 << 20
    assert post(http, [one_chunk(77)]).status_code == 200


def test_a_body_that_goes_on_after_its_refusal_is_not_waited_for(tmp_path):
    """With the usual deadline for a head, which would end it too, much later."""
    with inside(tmp_path) as running:
        port = int(running.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            path = "/v1/games/cartpole/players/me"
            connection.sendall(head("Content-Length: 100000", path=path).replace(b"POST", b"DELETE"))
            assert b"403" in connection.recv(65536)
            begun_s = time.monotonic()
            while time.monotonic() - begun_s < 30:
                try:
                    connection.sendall(b"x")
                    connection.settimeout(0.2)
                    if connection.recv(100) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            assert time.monotonic() - begun_s < 6 * DRAIN_S < 20


def test_a_refused_caller_that_sends_all_of_its_body_hears_why(server):
    sent = head("Content-Length: 3000000", path="/v1/games/cartpole/players/me").replace(b"POST", b"DELETE")
    assert b'"code":"forbidden"' in raw(server, sent + b"x" * 3_000_000)


def test_the_bodies_of_all_requests_together_are_bounded(tmp_path):
    body = pack([encode(one_chunk(1))])
    with inside(tmp_path, bodies_bytes=2 * len(body) + 100) as running:  # of which one caller has half
        port = int(running.url.rpartition(":")[2])
        started = head("Content-Type: application/x-spar-chunks", f"Content-Length: {len(body)}")
        with socket.create_connection(("127.0.0.1", port)) as slow, httpx.Client(base_url=running.url) as client:
            slow.sendall(started + body[:-1])
            deadline_s = time.monotonic() + 30
            while (busy := post(client, [one_chunk(2)])).status_code != 503:
                assert time.monotonic() < deadline_s
            assert "the bodies of all requests together" in busy.text
            slow.sendall(body[-1:])
            assert b"200 OK" in slow.recv(65536)
            assert post(client, [one_chunk(3)]).status_code == 200
