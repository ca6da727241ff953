"""What strangers and broken peers send to a parent: refused by the deadline, while a good node works on."""

import asyncio
import datetime
import hashlib
import socket
import ssl
import time
from dataclasses import replace

import msgspec
import numpy as np
import psutil
import pytest
import zstandard

from peers import LAYOUT, PATIENCE_S, TERMS, Peer, dial, parent, run
from sparring.errors import ConfigError, Refused, SparringError, Unreachable
from sparring.gateway.certificates import _make_certificate
from sparring.gateway.connections import bound
from sparring.nodes.link import Address, Door, Server, read_address, server_tls
from sparring.nodes.messages import Contribution, Hello
from sparring.wire.network import NetworkSpec

DEADLINE_S = 3.0  # of the test that waits for one: a good node must not miss it on a busy machine


def beside_a_good_node(tmp_path, attack, **settings):
    """The attack on a parent for which a good node works before, meanwhile and afterwards."""

    async def conversation(here):
        good = Peer(here, "good")
        await good.join()
        await good.exchange(0.1)
        working = asyncio.create_task(_work(good))
        await attack(here)
        assert not working.done()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await Peer(here, "another").join()

    with parent(tmp_path, **{"merge": "gradient", **settings}) as here:
        run(conversation(here))
        return here


async def _work(good):
    while True:
        assert (await good.exchange(0.001)).refused == ""
        await asyncio.sleep(0.01)


def test_a_wrong_token_is_refused(tmp_path):
    async def attack(here):
        for token in ("wrong", "ü", "x" * 4_000):
            with pytest.raises(Refused, match="its token does not hold"):
                await dial(replace(here.address, token=token.encode().decode("latin-1")))

    beside_a_good_node(tmp_path, attack)


def test_ws_in_place_of_wss_is_told_as_that(tmp_path):
    async def attack(here):
        with pytest.raises(Unreachable, match=r"no answer in plain HTTP. .* begin with wss://"):
            await dial(replace(here.address, secure=False, sha256=""))

    beside_a_good_node(tmp_path, attack)


def test_a_wrong_fingerprint_is_noticed_before_the_token_is_sent(tmp_path):
    seen = []

    async def attack(here):
        _, mark = server_tls(tmp_path / "other", "127.0.0.1", "", "")
        with bound("127.0.0.1", 0) as listening:
            tls, _ = server_tls(tmp_path / "thief", "127.0.0.1", "", "")
            thief = Server(Door(listening, tls, lambda token: seen.append(token) or ""), None, here.sessions.config, 99)
            for sha256, wrong in ((mark, "another fingerprint"), ("", "does not verify")):
                address = Address("127.0.0.1", listening.getsockname()[1], "secret", True, sha256)
                with pytest.raises(Refused, match=wrong):
                    await dial(address)
            await thief.close()

    beside_a_good_node(tmp_path, attack)
    assert seen == []


def test_an_expired_certificate_is_refused(tmp_path):
    async def attack(here):
        long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=500)
        certificate, key = tmp_path / "old.pem", tmp_path / "old-key.pem"
        _make_certificate(certificate, key, [], long_ago)
        tls, _ = server_tls(tmp_path, "", str(certificate), str(key))
        mark = ssl.PEM_cert_to_DER_cert(certificate.read_text())
        with bound("127.0.0.1", 0) as listening:
            server = Server(Door(listening, tls, lambda _: "all"), None, here.sessions.config, 99)
            address = Address("127.0.0.1", listening.getsockname()[1], "t", True, hashlib.sha256(mark).hexdigest())
            with pytest.raises(Refused, match="its certificate expired on"):
                await dial(address)
            await server.close()

    beside_a_good_node(tmp_path, attack)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"game": "duel"}, "the game differs: the parent has cartpole, the node duel"),
        ({"layout": (("w", (4, 9)),)}, "the layout of the weights differs"),
        ({"byte_length": 1}, "length in bytes differs"),
        ({"codec": "int8"}, "the codec differs"),
        ({"network": NetworkSpec((), ())}, "the network differs"),
    ],
)
def test_a_node_with_other_terms_is_refused_by_the_parent(tmp_path, change, wrong):
    async def attack(here):
        with pytest.raises(Refused, match=wrong):
            await Peer(here, "other").join(msgspec.structs.replace(TERMS, merge="gradient", **change))

    assert any(wrong[:20] in why for why in beside_a_good_node(tmp_path, attack).sessions.turned_away)


def test_an_older_protocol_is_refused_in_words(tmp_path):
    async def attack(here):
        link = await dial(here.address)
        await link.send(Hello(0, "node", "old"))
        await link.receive(PATIENCE_S)
        with pytest.raises(Refused, match="it speaks protocol 0, this side 1: update Sparring"):
            await link.receive(PATIENCE_S)

    beside_a_good_node(tmp_path, attack)


def test_oversized_frames_bombs_and_noise_end_their_connection_alone(tmp_path):
    async def attack(here):
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
        rng = np.random.default_rng(0)
        for number, payload in enumerate((bytes(1 << 22), bomb, rng.bytes(4 * LAYOUT.size + 1), b"")):
            peer = Peer(here, f"bad{number}")
            await peer.join()
            await peer.link.send(Contribution(peer.version, payload))
            with pytest.raises((Refused, Unreachable)):
                await peer.link.receive(PATIENCE_S)
        link = await dial(here.address)
        await link._websocket.send("a text")
        await link.receive(PATIENCE_S)
        with pytest.raises(Refused, match="it is text"):
            await link.receive(PATIENCE_S)

    memory = psutil.Process().memory_info().rss
    here = beside_a_good_node(tmp_path, attack, codec="f32-delta")
    assert here.merger.refused["bytes"] == 4  # the largest was closed by its declared length, before it was read
    assert psutil.Process().memory_info().rss - memory < 100 << 20


def test_a_dribble_of_single_bytes_is_closed_by_the_deadline(tmp_path):
    async def attack(here):
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", here.address.port, ssl=tls)
        began = time.monotonic()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await _dribble(writer, b"GET / HTTP/1.1\r\nHost: " + b"x" * 8_000)
        assert time.monotonic() - began >= DEADLINE_S / 2
        writer.close()
        silent = await dial(here.address)  # with a token, and without a word
        await silent.receive(PATIENCE_S)
        with pytest.raises(Unreachable):
            await silent.receive(PATIENCE_S)
        half = Peer(here, "half")  # a whole handshake, then a frame that does not end
        await half.join()
        transport = half.link._websocket.transport
        transport.write(b"\x82\xfe\x00\x80" + bytes(4))
        for _ in range(100):
            transport.write(b"x")
            await asyncio.sleep(0.02)
            if half.link._websocket.transport.is_closing():
                break
        with pytest.raises(SparringError):
            await half.link.receive(PATIENCE_S)

    beside_a_good_node(tmp_path, attack, handshake_s=DEADLINE_S, silent_s=DEADLINE_S)


async def _dribble(writer, text):
    for byte in text:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


def test_five_hundred_idle_sockets_hurt_nobody(tmp_path):
    async def attack(here):
        idle = []
        for _ in range(500):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", here.address.port))
            idle.append(one)
        while here.sessions.server.table.closed_early["connections_without_key"] < 500 - 16:
            await asyncio.sleep(0.05)
        assert len(here.sessions.server.table) <= 32
        await Peer(here, "late").join()  # a token gets in, however many are there
        for one in idle:
            one.close()

    memory = psutil.Process().memory_info().rss
    beside_a_good_node(tmp_path, attack, connections=32)
    assert psutil.Process().memory_info().rss - memory < 100 << 20


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http://token@host:1", "it is no wss"),
        ("wss://token@host", "it is no wss"),
        ("wss://host:1", "without a token"),
        ("ws://token@host:1", "is not encrypted"),
        ("ws://token@127.0.0.1:1#sha256:" + "0a" * 32, "shows no certificate"),
        ("wss://token@host:1#sha256:abc", "fingerprint"),
        ("wss://token@[::1", "it is no wss"),
    ],
)
def test_addresses_that_cannot_be_meant_are_refused_without_showing_the_token(url, wrong):
    with pytest.raises(ConfigError, match=wrong) as refused:
        read_address(url, "--nodes")
    assert "token@" not in str(refused.value).replace("TOKEN@", "")


def test_an_address_reads_as_it_is_written():
    mark = "0a" * 32
    for text in (f"wss://abc_-1@example.org:8720#sha256:{mark}", "ws://t@127.0.0.1:1", "wss://t@[::1]:8"):
        assert str(read_address(text, "--nodes")) == text
    colons = ":".join(mark[at : at + 2] for at in range(0, 64, 2)).upper()
    assert read_address(f"wss://t@h:1#sha256:{colons}", "--nodes").sha256 == mark
