"""Connections: strangers cannot keep callers with a key out, every state has a deadline, and limits are said."""

import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import psutil
import pytest
from talking import one_chunk, player_token, post
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from registry.small_models import small_model
from serving import inside, serving
from sparring.gateway import connections
from sparring.gateway.connections import Connections, network_of
from sparring.gateway.credentials import ApiKeys
from sparring.gateway.limited_protocols import MAX_FRAMES, MAX_PIPELINED
from sparring.gateway.server import bound
from sparring.registry import open_registry
from sparring.registry.file import Folder
from sparring.wire.messages import Hello
from sparring.wire.messages import encode as encode_message
from sparring.wire.model import ONNX, WEIGHTS

NOW_MS = 1_790_000_000_000
MOST, PER_ADDRESS, PER_CALLER, PER_PLAYER = 48, 20, 6, 3
LIMITS = (
    f"gateway.connections={MOST}",
    f"gateway.connections_per_address={PER_ADDRESS}",
    f"gateway.connections_per_caller={PER_CALLER}",
    f"gateway.sockets_per_player={PER_PLAYER}",
    "gateway.body_deadline_s=3",
)
REQUEST = b"GET /v1/games HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"


def make_key(data, name, scopes=("admin",)):
    return ApiKeys(Folder(data, 0o600)).create(name, scopes, NOW_MS)[1]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    data = tmp_path_factory.mktemp("connections") / "data"
    return data, make_key(data, "one"), make_key(data, "two")


@pytest.fixture(scope="module")
def server(keys):
    with serving(keys[0], *(word for one in LIMITS for word in ("--set", one))) as running:
        yield running


@pytest.fixture
def opened():
    with ExitStack() as stack:
        yield stack


def dial(server, opened, host="127.0.0.1", key=None):
    """A connection from that address; with a key, one request is answered over it."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=30, source_address=(host, 0))
    opened.callback(made.close)
    if key is not None:
        assert ask(made, key) == 200
    return made


def ask(made, key=None):
    """The status of a request, with that key; 0 where the connection is closed."""
    try:
        made.sendall(REQUEST % (b"" if key is None else f"Authorization: Bearer {key}\r\n".encode()))
        got = b""
        while b"\r\n\r\n" not in got or not got.endswith(b"}"):
            part = made.recv(65536)
            if not part:
                return 0
            got += part
    except ConnectionError:
        return 0
    return int(got.split()[1])


def is_closed(made, wait_s=0.0):
    made.settimeout(wait_s or 0.001)
    try:
        return made.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        made.settimeout(30)


def until(condition, wait_s=30.0):
    end_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_silent_sockets_of_many_addresses_keep_no_key_out(server, keys, opened):
    _, one, two = keys
    kept = dial(server, opened, key=one)
    silent = [dial(server, opened, f"127.0.0.{2 + n // 15}") for n in range(MOST + 10)]
    late = dial(server, opened, key=two)
    assert ask(kept, one) == ask(late, two) == 200
    assert sum(map(is_closed, silent)) >= 12
    assert not any(map(is_closed, silent[-5:]))
    assert server.log().count("limit connections_without_key:") in (1, 2)  # a line a minute, not one for each
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {one}"}).text
    assert f"spar_connections {MOST // 2 + 2}.0\n" in text
    assert 'spar_connections_refused_total{limit="connections_without_key"}' in text


def test_an_address_keeps_its_newest_connections_and_costs_the_others_none(server, keys, opened):
    _, one, _ = keys
    neighbour = dial(server, opened, "127.0.0.91")
    with_key = [dial(server, opened, "127.0.0.90", key=one) for _ in range(PER_CALLER)]
    silent = [dial(server, opened, "127.0.0.90") for _ in range(PER_ADDRESS + 5)]
    until(lambda: sum(map(is_closed, silent)) == 5)
    assert all(map(is_closed, silent[:5]))
    assert not is_closed(neighbour)
    assert [ask(made, one) for made in with_key] == [200] * PER_CALLER
    assert server.log().count("limit connections_per_address:") in (1, 2)
    assert "127.0.0.90" not in server.log()


def test_a_key_cannot_protect_more_connections_than_its_share(server, keys, opened):
    _, one, two = keys
    greedy = [dial(server, opened, key=one) for _ in range(MOST - 10)]
    other = dial(server, opened, key=two)
    for n in range(30):
        dial(server, opened, f"127.0.0.{10 + n // 10}")
    until(lambda: sum(map(is_closed, greedy)) >= 15)
    assert [is_closed(made) for made in greedy[-PER_CALLER:]] == [False] * PER_CALLER
    assert ask(other, two) == 200
    assert server.log().count("limit connections:") in (1, 2)


def test_a_players_play_sockets_are_counted_and_the_next_player_gets_one(server, keys, opened):
    _, one, _ = keys

    def play(headers):
        url = f"ws://127.0.0.1:{server.port}/v1/games/cartpole/play"
        return opened.enter_context(connect(url, additional_headers=headers))

    alice, bob = player_token(server.url, one, "alice"), player_token(server.url, one, "bob")
    sockets = [play(alice) for _ in range(PER_PLAYER)]
    with pytest.raises(InvalidStatus) as refused:
        play(alice)
    assert refused.value.response.status_code == 503
    assert "limit sockets_per_player: 3 play sockets are open" in server.log()
    play(bob).close()
    sockets[0].close()
    until(lambda: _opens(lambda: play(alice)))


def _opens(play):
    try:
        play()
    except InvalidStatus:
        return False
    return True


def test_a_play_socket_that_says_nothing_is_closed(server, keys):
    headers = {"Authorization": f"Bearer {keys[1]}"}
    with connect(f"ws://127.0.0.1:{server.port}/v1/games/cartpole/play", additional_headers=headers) as play:
        with pytest.raises(ConnectionClosed):
            play.recv(timeout=30)
        assert (play.close_code, play.close_reason) == (1008, "no hello came")


def test_an_empty_line_does_not_make_a_connection_live_for_ever(server, keys, opened):
    made = dial(server, opened, key=keys[1])
    made.sendall(b"\r\n")
    assert is_closed(made, 30)


def resident_bytes(server):
    return psutil.Process(server.process.pid).memory_info().rss


def send_all(made, data):
    """Send until it is closed, or not read for two seconds."""
    made.settimeout(2.0)
    with suppress(OSError):
        for at in range(0, len(data), 65536):
            made.sendall(data[at : at + 65536])


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Without keys."""
    with serving(tmp_path_factory.mktemp("local") / "data") as running:
        yield running


def test_requests_sent_ahead_take_no_memory(local, opened):
    before = resident_bytes(local)
    for _ in range(2):
        made = dial(local, opened)
        send_all(made, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 500_000)  # 17 MB
        assert is_closed(made, 30)
    assert resident_bytes(local) - before < 64 << 20
    few = dial(local, opened)
    few.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * (MAX_PIPELINED // 2))
    got = b""
    while got.count(b"200 OK") < MAX_PIPELINED // 2:
        got += few.recv(65536)


def frame(opcode, payload=b"", fin=True):
    return struct.pack("!BB", (0x80 if fin else 0) | opcode, 0x80 | len(payload)) + bytes(4) + payload


def test_a_message_of_endless_empty_frames_is_ended(local, opened):
    made = dial(local, opened)
    made.sendall(
        b"GET /v1/games/cartpole/play HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert b"101" in made.recv(65536)
    made.sendall(frame(1, encode_message(Hello(1, "1"), text=True).encode()))
    assert b"hello" in made.recv(65536)
    send_all(made, frame(1, b"", fin=False) + frame(0, b"", fin=False) * (MAX_FRAMES + 10))
    assert is_closed(made, 30)


def test_text_that_is_not_utf8_closes_the_socket_without_a_traceback(local):
    with connect(f"ws://127.0.0.1:{local.port}/v1/games/cartpole/play") as play:
        play.socket.sendall(frame(1, b"\xff"))
        with pytest.raises(ConnectionClosed):
            play.recv(timeout=30)
        assert play.close_code == 1007
    assert "Traceback" not in local.log()


def test_a_model_that_many_do_not_read_is_in_memory_once(local, opened):
    weights = os.urandom(12 << 20)
    model = small_model(files={WEIGHTS: weights, ONNX: b"none"})
    with open_registry(f"file:///{local.data}/models") as registry:
        registry.publish(model)
    before, path = resident_bytes(local), f"/v1/models/{model.id}/{WEIGHTS}"
    for _ in range(40):
        made = dial(local, opened)
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert made.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert resident_bytes(local) - before < 100 << 20
    assert httpx.get(local.url + path, timeout=30).content == weights
    assert httpx.head(local.url + path, timeout=30).headers["content-length"] == str(len(weights))


def test_pings_whose_answers_are_not_read_take_no_memory(local, opened):
    before = resident_bytes(local)
    made = dial(local, opened)
    made.sendall(
        b"GET /v1/games/cartpole/play HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert b"101" in made.recv(65536)
    send_all(made, frame(9, bytes(125)) * 700_000)  # 92 MB
    assert resident_bytes(local) - before < 64 << 20
    with httpx.Client(base_url=local.url, timeout=30) as client:
        assert post(client, [one_chunk(1)]).status_code == 200


def test_who_does_not_read_an_answer_is_not_waited_for(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_S", 1.0)
    monkeypatch.setattr("sparring.gateway.server.bound", bound_with_little_room)
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        made = socket.socket()
        opened.callback(made.close)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
        made.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * MAX_PIPELINED)
        made.recv(100)
        for connected in (2, 1):
            until(lambda said=f"spar_connections {connected}.0\n": said in client.get("/metrics").text)


@pytest.mark.slow
def test_who_reads_slowly_gets_the_whole_answer(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(connections, "UNREAD_S", 2.0)
    monkeypatch.setattr("sparring.gateway.server.bound", bound_with_little_room)
    weights = os.urandom(2 << 20)
    model = small_model(files={WEIGHTS: weights, ONNX: b"none"})
    with open_registry(f"file:///{tmp_path}/models") as registry:
        registry.publish(model)
    with inside(tmp_path) as running:
        made = socket.socket()
        opened.callback(made.close)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        made.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
        made.sendall(f"GET /v1/models/{model.id}/{WEIGHTS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        got, begun_s = b"", time.monotonic()
        while not got.endswith(weights[-100:]):
            part = made.recv(20_000)
            assert part, f"closed after {len(got)} bytes"
            got += part
            time.sleep(0.1 if time.monotonic() - begun_s < 6 else 0)
    assert got.endswith(weights)


@contextmanager
def bound_with_little_room(host, port):
    """The kernel sends little ahead, so that what is not read waits in the server."""
    with bound(host, port) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield listening


def test_a_silent_tls_handshake_ends_and_counts_from_its_first_byte(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_S", 4.0)
    key = make_key(tmp_path, "one")
    with inside(tmp_path, tls_cert="self-signed", connections=20) as running:
        port = int(running.url.rpartition(":")[2])
        silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(30)]
        context = ssl.create_default_context(cafile=str(tmp_path / "tls-cert.pem"))
        with httpx.Client(base_url=running.url, verify=context, headers={"Authorization": f"Bearer {key}"}) as client:
            assert client.get("/v1/games").status_code == 200
            assert sum(map(is_closed, silent)) >= 10
            until(lambda: all(map(is_closed, silent)))
            assert client.get("/v1/games").status_code == 200


@pytest.mark.parametrize("finished", [False, True], ids=["client hello", "handshake, and a head without an end"])
def test_thousands_of_tls_handshakes_left_silent_take_little_memory(tmp_path, opened, finished):
    key, hello = make_key(tmp_path / "data", "one"), client_hello()
    count = 900 if finished else 3_000
    limits = ("--set", f"gateway.connections={500 if finished else 4096}")
    _allow_files(count + 200)
    with serving(tmp_path / "data", "--tls", "self-signed", *limits) as server:
        context = ssl.create_default_context(cafile=str(server.data / "tls-cert.pem"))
        before = resident_bytes(server)
        for n in range(count):
            made = dial(server, opened, f"127.0.{1 + n // 200}.{1 + n % 200}")
            with suppress(OSError):  # it was closed for a newer one
                if finished:
                    made = opened.enter_context(context.wrap_socket(made, server_hostname="127.0.0.1"))
                made.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 30_000 if finished else hello)
        with httpx.Client(base_url=server.url, verify=context, headers={"Authorization": f"Bearer {key}"}) as client:
            for _ in range(20):  # while it works through them
                assert client.get("/v1/games").status_code == 200
                time.sleep(0.1)
        rise = resident_bytes(server) - before
    assert rise < (48 << 20 if finished else 96 << 20)
    assert f"limit {'connections_without_key' if finished else 'handshakes'}:" in server.log()


def test_before_its_first_byte_a_connection_takes_no_memory_of_tls(tmp_path, opened):
    key = make_key(tmp_path / "data", "one")
    with serving(tmp_path / "data", "--tls", "self-signed") as server:
        context = ssl.create_default_context(cafile=str(server.data / "tls-cert.pem"))
        with httpx.Client(base_url=server.url, verify=context, headers={"Authorization": f"Bearer {key}"}) as client:
            assert client.get("/v1/games").status_code == 200
            before = resident_bytes(server)
            for n in range(800):
                dial(server, opened, f"127.0.1.{1 + n % 10}")
            until(lambda: "spar_connections 801.0\n" in client.get("/metrics").text)
        assert resident_bytes(server) - before < 16 << 20


def client_hello():
    """The first bytes of a TLS handshake."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def _allow_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def test_the_file_limit_is_raised_or_said(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_000, hard), hard))
    try:
        with serving(tmp_path / "a", "--set", "gateway.connections=1500") as server:
            assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] == 1_756
            assert "file limit" not in server.log()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    words = f"ulimit -n 600 && exec {sys.executable} -m sparring serve --data {tmp_path / 'b'} --port 0 --json"
    process = subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert "url" in process.stdout.readline()
    finally:
        process.terminate()
        said = process.communicate(timeout=30)[1]
    assert (
        "the file limit of 600 allows 344 connections, not gateway.connections = 4096: raise it (ulimit -n 4352)"
        in said
    )


def test_without_a_file_left_newcomers_wait_and_that_is_said(tmp_path, opened):
    with serving(tmp_path / "data") as server:
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir(f"/proc/{server.process.pid}/fd"))) + 1
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 2, limits[1]))
        made = [dial(server, opened) for _ in range(20)]
        until(lambda: "limit files: no connection can be accepted: Too many open files" in server.log())
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        assert [ask(one) for one in made[-3:]] == [200] * 3


def test_an_address_is_a_subscribers_network():
    assert network_of("10.1.2.3") == network_of("::ffff:10.1.2.3") == "10.1.2.3"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("2001:db8::1") != network_of("2001:db8:0:1::1")
    assert network_of("unknown") == "unknown"


@pytest.fixture
def pairs(opened):
    made = [socket.socketpair() for _ in range(12)]
    for pair in made:
        for one in pair:
            opened.callback(one.close)
    return [mine for mine, _ in made]


def test_a_proxys_connections_are_not_counted_by_address(pairs):
    table = Connections(most=20, per_address=2, per_caller=10, is_proxy=lambda address: address == "10.0.0.1")
    assert all(table.add(mine, "10.0.0.1") for mine in pairs)
    assert len(table) == 12


def test_a_key_may_have_more_connections_than_it_protects_and_sockets_in_play_make_no_newcomer_wait(pairs):
    table = Connections(most=10, per_address=2, per_caller=3, is_proxy=lambda address: False)
    of_key = []
    for mine in pairs[:9]:
        of_key.append(table.add(mine, "10.0.0.2"))
        table.protect(of_key[-1], "studio")
    assert (len(table), table.protected, table.closed_early.total()) == (9, 3, 0)
    for one in of_key[:-4]:
        one.busy = True  # in play
    assert table.add(pairs[9], "10.0.0.3")
    assert table.add(pairs[10], "10.0.0.4")
    assert (len(table), table.protected) == (10, 3)
    assert is_closed(pairs[5])
    assert not any(map(is_closed, pairs[:5]))
    assert table.add(pairs[11], "10.0.0.4")
