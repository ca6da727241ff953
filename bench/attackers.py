"""Attacks on a gateway by one stranger, or with one player's token: each is a loop in one process of one thread, so
that it takes one core at most. `ATTACKS` names them; `attack.py` measures a well-behaved player beside each."""

import itertools
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from bench.ingest import columns
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from sparring.games.spec import GameSpec
from sparring.wire import messages
from sparring.wire.chunk import Chunk, Header, encode, pack
from sparring.wire.ids import GameId, new_episode

CHUNKS = "application/x-spar-chunks"


@dataclass(frozen=True)
class Target:
    """The gateway, and what the attacker has: one player's token for the game of carts, and one for that of images."""

    port: int
    token: str
    image_token: str
    cart: GameSpec
    images: GameSpec


def trailers(at: Target) -> Iterator[None]:
    """Chunked bodies with trailers without an end, on eight connections."""
    head = f"POST /v1/games/{at.cart.id}/chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".encode()
    yield from endless(at, 8, head, b"X-A: b\r\n" * 2_000)


def dribbled(at: Target) -> Iterator[None]:
    """Bodies that go on byte by byte after their 401, on 200 connections."""
    head = f"POST /v1/games/{at.cart.id}/chunks HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".encode()
    yield from endless(at, 200, head, b"x", pause_s=0.02)


def endless(at: Target, count: int, head: bytes, more: bytes, pause_s: float = 0.0) -> Iterator[None]:
    """Connections that send a head and then `more` again and again; a closed one is opened again."""
    made: list[socket.socket | None] = [None] * count
    while True:
        for n, one in enumerate(made):
            try:
                if one is None:
                    made[n] = one = socket.create_connection(("127.0.0.1", at.port), timeout=5)
                    one.setblocking(False)
                    one.send(head)
                one.send(more)
            except BlockingIOError:
                pass
            except OSError:
                if one is not None:
                    one.close()
                made[n] = None
        time.sleep(pause_s)
        yield


def silent(at: Target) -> Iterator[None]:
    """5,000 silent sockets from 25 addresses; one that is closed is opened again."""
    yield from held(at, 5_000, b"")


def handshakes(at: Target) -> Iterator[None]:
    """5,000 TLS handshakes from 25 addresses that stop after the client's hello."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    yield from held(at, 5_000, sent.read())


def held(at: Target, count: int, first: bytes) -> Iterator[None]:
    made: dict[int, socket.socket] = {}
    for n in itertools.cycle(range(count)):
        address = f"127.0.1.{1 + n % 25}"
        one = made.get(n)
        with suppress(OSError):
            if one is not None:
                one.setblocking(False)
                try:
                    if one.recv(65536):
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                one.close()
            made[n] = socket.create_connection(("127.0.0.1", at.port), timeout=5, source_address=(address, 0))
            if first:
                made[n].send(first)
        if n % 50 == 0:
            yield


def uploads(at: Target) -> Iterator[None]:
    """Images of 61 MiB in each chunk, four chunks in an upload, as fast as six connections are answered."""
    steps, spec = 512, at.images
    made = {
        "observation/image": np.zeros((steps, 3, 200, 210), np.uint8),
        "action": np.zeros(steps, np.int32),
        "reward": np.zeros(steps, np.float32),
        "tick": np.arange(steps),
    }
    body = encode(Chunk(header(spec, steps), made))
    del made
    yield from asked(at, 6, lambda n: post(at.image_token, spec, CHUNKS, pack([renamed(body)] * 4)))


def states(at: Target) -> Iterator[None]:
    """Chunks whose recurrent state claims 60 MiB, 40 in an upload, as fast as six connections are answered."""
    head = header(at.cart, 512)
    chunk = Chunk(head, {**columns(np.random.default_rng(1), 512), "state/h": np.zeros(15 << 20, np.float32)})
    body = encode(chunk)
    del chunk
    yield from asked(at, 6, lambda n: post(at.token, at.cart, CHUNKS, pack([body] * 40)))


def numbers(at: Target) -> Iterator[None]:
    """Act requests whose bodies are a megabyte of numbers, as fast as four connections are answered."""
    body = b'{"observation": {"state": [' + b"0," * 500_000 + b"0]}}"
    yield from asked(at, 4, lambda n: post(at.token, at.cart, "application/json", body, "act"))


def wrong_keys(at: Target) -> Iterator[None]:
    """Wrong keys, 32 requests sent ahead on four connections, from the well-behaved player's address."""
    key = "spar_000000000000_" + "A" * 43
    one = f"GET /v1/games HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    yield from asked(at, 4, lambda n: one * 32)


def readiness(at: Target) -> Iterator[None]:
    """/readyz, which asks the store, 32 requests sent ahead on four connections."""
    yield from asked(at, 4, lambda n: b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 32)


def exports(at: Target) -> Iterator[None]:
    """All that is stored of the player, as JSON, again and again on two connections."""
    path, accept = f"/v1/games/{at.cart.id}/players/me", "application/x-ndjson"
    one = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {at.token}\r\nAccept: {accept}\r\n\r\n".encode()
    yield from asked(at, 2, lambda n: one)


def asked(at: Target, count: int, request: Callable[[int], bytes]) -> Iterator[None]:
    """`count` connections: each sends what `request` makes, and once more after anything came back."""
    selector, number = selectors.DefaultSelector(), itertools.count()
    waiting: dict[socket.socket, memoryview] = {}

    def dial() -> None:
        made = socket.create_connection(("127.0.0.1", at.port), timeout=5)
        made.setblocking(False)
        waiting[made] = memoryview(request(next(number)))
        selector.register(made, selectors.EVENT_READ | selectors.EVENT_WRITE)

    while True:
        while len(waiting) < count:
            dial()
        for key, events in selector.select(0.1):
            one: Any = key.fileobj
            try:
                if events & selectors.EVENT_READ:
                    if not one.recv(1 << 20):
                        raise ConnectionResetError
                    if not waiting[one]:
                        waiting[one] = memoryview(request(next(number)))
                        selector.modify(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
                elif waiting[one]:
                    waiting[one] = waiting[one][one.send(waiting[one]) :]
                    if not waiting[one]:
                        selector.modify(one, selectors.EVENT_READ)
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(one)
                one.close()
                del waiting[one]
        yield


def play(at: Target) -> Iterator[None]:
    """As many play sockets as one token gets, all of which play as fast as they are answered; and tries for more."""
    opened: list[tuple[ClientConnection, Any]] = []
    tick = 0
    while True:
        with suppress(WebSocketException, OSError):
            opened.append(_socket(at))
        for one, episode in tuple(opened):
            seen = {"state": [0.0] * 4}
            with suppress(WebSocketException, OSError, TimeoutError):
                one.send(messages.encode(messages.Observe(episode, 0, seen, tick, 0.0), text=True))
        for one, _ in tuple(opened):
            with suppress(WebSocketException, OSError, TimeoutError):
                one.recv(timeout=5)
        tick += 1
        yield


def pings(at: Target) -> Iterator[None]:
    """Pings without a pause on one play socket; a closed one is opened again."""
    flood, one = b"\x89\x80\0\0\0\0" * 10_000, None
    while True:
        try:
            if one is None:
                one, _ = _socket(at)
                one.socket.settimeout(1)
            one.socket.sendall(flood)
        except (WebSocketException, OSError):
            if one is not None:
                one.socket.close()
            one = None
        yield


def _socket(at: Target) -> tuple[ClientConnection, Any]:
    url = f"ws://127.0.0.1:{at.port}/v1/games/{at.cart.id}/play"
    made = connect(url, additional_headers={"Authorization": f"Bearer {at.token}"}, max_size=None)
    episode = new_episode()
    made.send(messages.encode(messages.Hello(1), text=True))
    made.recv(timeout=10)
    made.send(messages.encode(messages.Start(episode), text=True))
    return made, episode


def header(spec: GameSpec, steps: int) -> Header:
    """Of a person's chunk that begins an episode."""
    return Header(
        game=GameId(spec.id), version=spec.version, spec=spec.hash, episode=new_episode(), seat=0, first_step=0,
        steps=steps, actor="person", source="play",
    )  # fmt: skip


def renamed(encoded: bytes) -> bytes:
    """The same chunk as a new episode: names of episodes are equally long."""
    size = int.from_bytes(encoded[4:8], "little")
    read = msgspec.msgpack.decode(encoded[8 : 8 + size], type=Header)
    packed = msgspec.msgpack.encode(msgspec.structs.replace(read, episode=new_episode()))
    return encoded[:4] + len(packed).to_bytes(4, "little") + packed + encoded[8 + size :]


def post(token: str, spec: GameSpec, kind: str, body: bytes, verb: str = "chunks") -> bytes:
    """A whole request with a token."""
    head = f"POST /v1/games/{spec.id}/{verb} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


ATTACKS: dict[str, Callable[[Target], Iterator[None]]] = {
    "trailers without end": trailers,
    "5,000 silent sockets": silent,
    "5,000 TLS handshakes left silent": handshakes,
    "bodies dribbled after a 401": dribbled,
    "a token uploads large images": uploads,
    "a token uploads states of 60 MiB": states,
    "a token sends a megabyte of numbers to act": numbers,
    "wrong keys": wrong_keys,
    "readiness asked for": readiness,
    "a token's play sockets up to the limit": play,
    "a token's pings": pings,
    "a token's exports": exports,
}
