"""A real parent on a free port, without a run around it (`with parent(tmp_path) as here:`), and nodes that call it."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from sparring.config import Config, NodesConfig
from sparring.gateway.connections import bound
from sparring.learn.plan import NodesPlan, TrainRequest, plan
from sparring.nodes import link
from sparring.nodes.board import Board
from sparring.nodes.codecs import Codec, Layout
from sparring.nodes.link import Address, Door, Link, Tokens, server_tls
from sparring.nodes.merge_rules import Limits, Merger, read_rule
from sparring.nodes.messages import Agreed, Contribution, Hello, Job, Terms, Weights, encode, terms_of
from sparring.nodes.sessions import NodeSessions
from sparring.wire.network import Head, Input, NetworkSpec

LAYOUT = Layout((("w", (4, 8)), ("b", (4,))))
PATIENCE_S = 120.0
NETWORK = NetworkSpec((Input("x", (7,)),), (Head("logits", 4),))
TERMS = Terms("cartpole", "1", "a" * 64, NETWORK, LAYOUT.shapes, LAYOUT.byte_length, "f32", "average")


@dataclass
class Parent:
    """A parent that accepts nodes."""

    sessions: NodeSessions
    address: Address
    tokens: Tokens
    board: Board
    terms: Terms

    @property
    def merger(self) -> Merger:
        return self.sessions.merger

    def wait(self, until) -> None:
        end = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.01)


def cartpole_job(merge: str = "average", codec: str = "f32", algo: str = "a3c", exchange_s: float = 1.0) -> Job:
    """What a run asks of its nodes: CartPole, with a network of four units."""
    settings = ("hidden_units=[4]", "rollout_ticks=4")
    request = TrainRequest("cartpole", algo, envs=2, settings=settings, nodes=NodesPlan(Config().nodes, "data"))
    made = plan(request, Config())
    network = made.algorithm.begin(made.spec, made.settings, 0).network
    record = msgspec.msgpack.decode(encode(made.record()))
    return Job("run", "cartpole", terms_of(made.spec, network, codec, merge), record, 7, exchange_s, 2)


@contextmanager
def parent(
    tmp_path: Path,
    merge: str = "average",
    codec: str = "f32",
    layout: Layout = LAYOUT,
    asked: Job | None = None,
    dial: Sequence[Address] = (),
    **settings,
):
    """`asked`: a job that real nodes can do, in place of one that only `Peer` takes."""
    patient = {"exchange_s": 0.01, "handshake_s": 60.0, "round_s": PATIENCE_S, **settings}
    config = NodesConfig(merge=merge, codec=codec, **patient)
    terms = msgspec.structs.replace(TERMS, codec=Codec(codec, layout).name, merge=str(read_rule(merge)))
    terms = msgspec.structs.replace(terms, layout=layout.shapes, byte_length=layout.byte_length)
    if asked is not None:
        terms, layout = asked.terms, Layout(asked.terms.layout)
    limits = Limits(config.max_staleness, config.max_norm, config.norm_factor)
    merger = Merger(read_rule(merge), np.zeros(layout.size, np.float32), limits)
    folder, board = tmp_path / "nodes", Board(tmp_path)
    plan = {"algo": "a3c"}

    def job(number: int) -> Job:
        return asked or Job("run", "cartpole", terms, plan, number, config.exchange_s, config.max_staleness)

    tokens, (tls, mark) = Tokens(folder), server_tls(folder, "127.0.0.1", "", "")
    with bound("127.0.0.1", 0) as listening:
        address = Address("127.0.0.1", listening.getsockname()[1], tokens.read(), True, mark)
        sessions = NodeSessions(job, merger, config, board)
        sessions.start(dial, Door(listening, tls, tokens.holder))
        try:
            yield Parent(sessions, address, tokens, board, terms)
        finally:
            sessions.stop()


_LINKS: list[Link] = []


async def dial(address: Address, max_bytes: int = 1 << 20, within_s: float = PATIENCE_S) -> Link:
    """A link that is closed at the end of the conversation."""
    _LINKS.append(await link.dial(address, max_bytes, within_s))
    return _LINKS[-1]


class Peer:
    """A node that contributes what a test says."""

    def __init__(self, here: Parent, name: str) -> None:
        self.here, self.name, self.version = here, name, -1
        layout = Layout(here.terms.layout)
        self.codec, self.base = Codec(here.terms.codec, layout), np.zeros(layout.size, np.float32)
        self.link: Link

    async def join(self, terms: Terms | None = None, secret: str = "mine", run: str = "") -> Weights:
        self.link = await dial(self.here.address)
        await self.link.send(Hello(1, "node", self.name, secret, 1, run, self.version))
        assert isinstance(await self.link.receive(PATIENCE_S), Hello)
        job = await self.link.receive(PATIENCE_S)
        assert isinstance(job, Job)
        await self.link.send(Agreed(terms or job.terms))
        first = await self.link.receive(PATIENCE_S)
        assert isinstance(first, Weights)
        self.base, self.version = np.frombuffer(first.payload, "<f4").copy(), first.version
        return first

    async def send(self, learned: np.ndarray | float, version: int | None = None) -> None:
        payload = self.codec.encode(self.base + np.float32(learned), self.base)
        version = self.version if version is None else version
        await self.link.send(Contribution(version, payload, 10, 1, 1, (1.0,), 5.0))

    async def answer(self) -> Weights:
        given = await self.link.receive(PATIENCE_S)
        assert isinstance(given, Weights)
        self.base, self.version = self.codec.decode(given.payload, self.base), given.version
        return given

    async def exchange(self, learned: np.ndarray | float) -> Weights:
        await self.send(learned)
        return await self.answer()


def run(conversation) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(conversation, PATIENCE_S)
        finally:
            while _LINKS:
                await _LINKS.pop().close()
            await asyncio.sleep(0.05)  # in which transports close

    asyncio.run(whole())
