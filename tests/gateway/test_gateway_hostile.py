"""Hostile input: each is answered or closed in time, and the gateway goes on serving."""

import json
import socket
import struct
import time

import httpx
import msgspec
import pytest
import zstandard
from talking import one_chunk, post

from serving import serving
from sparring.wire.chunk import MAX_INFLATED_BYTES, Column, encode, pack

JSON = {"Content-Type": "application/json"}
DEADLINE_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    words = ("--set", f"gateway.body_deadline_s={DEADLINE_S}", "--set", "gateway.max_upload_bytes=1000000")
    with serving(tmp_path_factory.mktemp("hostile") / "data", *words) as running:
        yield running


@pytest.fixture(autouse=True)
def it_lives(http):
    yield
    assert http.get("/readyz").json() == {"status": "ok", "into": "store"}


def raw(server, sent, wait_s=5.0):
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
    assert DEADLINE_S * 0.9 <= time.monotonic() - begun < DEADLINE_S + 15


def test_a_slow_head_is_closed_by_the_deadline(server):
    begun = time.monotonic()
    assert raw(server, b"GET /healthz HTTP/1.1\r\nHo") == b""
    assert time.monotonic() - begun < DEADLINE_S + 15
    assert raw(server, b"") == b""


def test_a_slow_second_head_on_a_kept_connection_is_closed_too(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
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
        header = msgspec.structs.replace(chunk.header, columns=(Column("observation/state", "float32", shape),))
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
        b'{"chunks":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000,
        b'{"chunks": [NaN]}',
        b'{"chunks": [Infinity]}',
        b'{"chunks": [], "chunks": []}',
        b'{"chunks": [' + b"9" * 10_000 + b"]}",
        b'{"chunks": ["\xff\xfe"]}',
        b'{"chunks": ["\x00"]}',
        b"",
        b"null",
        b'{"chunks": {}}',
        json.dumps({str(n): n for n in range(50_000)}).encode(),
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
