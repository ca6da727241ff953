"""A node without torch for bench/nodes.py: it steps a tiny game and contributes noise.

    python -m bench.node_swarm URL NAME

It speaks the protocol as `spar node` does, and agrees to whatever terms the parent has.
"""

import asyncio
import sys

import numpy as np

from sparring.errors import SparringError
from sparring.games.catalogue import open_game
from sparring.nodes.codecs import Codec, Layout
from sparring.nodes.link import dial, read_address
from sparring.nodes.messages import PROTOCOL, Agreed, Contribution, Hello, Job, Weights
from sparring.wire.chunk import Array

TICKS = 20  # between two contributions


async def contribute(url: str, name: str) -> None:
    """Until the parent is gone."""
    link = await dial(read_address(url, "URL"), 1 << 24, 60.0)
    await link.send(Hello(PROTOCOL, "node", name, name, 1))
    await link.receive(60.0)
    job = await link.receive(60.0)
    assert isinstance(job, Job)
    await link.send(Agreed(job.terms))
    layout, rng = Layout(job.terms.layout), np.random.default_rng(job.seed)
    codec, base = Codec(job.terms.codec, layout), np.zeros(layout.size, np.float32)
    given = await link.receive(60.0)
    assert isinstance(given, Weights)
    base = np.frombuffer(given.payload, "<f4").copy()
    game = open_game("cartpole", 8)
    game.reset(_seeds(rng), np.ones(8, bool))
    while not given.leave:
        for _ in range(TICKS):
            view = game.step([rng.integers(2, size=8)])
            if view.over.any():
                game.reset(_seeds(rng), view.over)
        noise = (0.01 * rng.normal(size=layout.size)).astype(np.float32)
        payload = codec.encode(base + noise, base)
        await link.send(Contribution(given.version, payload, TICKS * 8, 1, 0, (), 0.0))
        given = await link.receive(60.0)
        assert isinstance(given, Weights)
        base = codec.decode(given.payload, base)
    await link.close()


def _seeds(rng: np.random.Generator) -> Array:
    return rng.integers(1 << 31, size=8).astype(np.uint64)


if __name__ == "__main__":
    try:
        asyncio.run(contribute(sys.argv[1], sys.argv[2]))
    except SparringError:
        sys.exit(1)
