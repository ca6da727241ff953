"""Buffers without a connection, for tests of what is decided without I/O."""

import numpy as np

from sparring.games.catalogue import spec_of
from sparring.games.chunk_checks import check_chunk
from sparring.games.cutter import cut, encoded
from sparring.games.step_buffer import Behaviour, MemoryBudget, StepBuffer, StepLayout
from sparring.wire.chunk import decode
from sparring.wire.ids import new_episode

CARTPOLE = spec_of("cartpole")


def buffer_of(game=CARTPOLE, seat=0, memory_bytes=64 << 20, seed=None):
    layout = StepLayout(game, seat)
    return StepBuffer(layout.header(new_episode(), "play", seed=seed), layout, MemoryBudget(memory_bytes))


def seen(step):
    """An observation that says which step it is of."""
    return np.array([step / 1000, 0, 0, 0], np.float32)


def write(buffer, step, action=0, reward=1.0, *, actor="person", tick=None, legal=None, logp=None, state=None):
    buffer.write(seen(step), action, reward, tick=tick, legal=legal, by=Behaviour(actor, logp, state))


def taken(buffer, due=False, spec=CARTPOLE):
    """What the buffer gives now, as the gateway will read it: each chunk passes the gateway's own check."""
    chunks = [decode(encoded(chunk)) for chunk in cut(buffer, due=due)]
    for chunk in chunks:
        check_chunk(chunk, spec)
    return chunks


def steps_of(chunks):
    """The steps by their own numbers, and where each chunk says it begins."""
    for chunk in chunks:
        first = chunk.header.first_step
        numbers = np.rint(chunk.columns["observation/state"][:, 0] * 1000).astype(int)
        assert numbers.tolist() == list(range(first, first + chunk.header.steps))
    return [step for c in chunks for step in range(c.header.first_step, c.header.first_step + c.header.steps)]
