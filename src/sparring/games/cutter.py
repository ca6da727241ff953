"""Steps become chunks, in the client, the gateway and scripted play. Decides without I/O: a buffer in, chunks out.

The last two steps of a running episode are held back: the last one's reward may still grow, and if the episode is
left without an end the last one falls away and the one before it must carry the ending.
"""

import msgspec
import numpy as np

from sparring.errors import ChunkRefused
from sparring.games.step_buffer import FINITE_AT_ONCE, Block, StepBuffer, refused
from sparring.wire.chunk import MAX_ENCODED_BYTES, Array, Chunk, encode

HELD_BACK = 2


def cut(buffer: StepBuffer, *, due: bool) -> list[Chunk]:
    """The chunks that `buffer` gives now: full blocks; when `due` or over, all of it but the steps held back."""
    over = buffer.over  # read before the blocks: all that was written before it was set is then seen
    blocks = buffer.blocks[:]
    if not blocks:
        return []
    last = blocks[-1]
    limit = _limit(buffer, last, over)
    chunks, done = [], 0
    for block in blocks:
        sealed = over or block is not last
        end = max(block.cut, min(block.count, limit - block.first_step))
        if end > block.cut and (due or over or (sealed and end == block.count)):
            closing = over and not buffer.lost and block.first_step + end == limit
            chunks.append(_chunk(buffer, block, end, closing))
            block.cut = end
        if not over and not (sealed and block.cut == block.count):
            break
        done += 1
    buffer.release(done)
    return chunks


def encoded(chunk: Chunk) -> bytes:
    """The chunk as bytes; ChunkRefused where a single step is too big for one (a block never is), or has a NaN."""
    for name, array in chunk.columns.items():
        if array.dtype.kind == "f" and array[:1].size > FINITE_AT_ONCE and not np.isfinite(array).all():
            raise refused(name, "it has a NaN or infinite entry", "not finite", "finite")
    whole = encode(chunk)
    if len(whole) > MAX_ENCODED_BYTES:
        wrong = f"the step at {chunk.header.first_step} takes {len(whole)} bytes encoded"
        raise ChunkRefused(
            f"{wrong}, the limit is {MAX_ENCODED_BYTES}",
            where="record",
            do="Record smaller observations",
            field="step",
            value=len(whole),
            limit=MAX_ENCODED_BYTES,
        )
    return whole


def _limit(buffer: StepBuffer, last: Block, over: bool) -> int:
    total = last.first_step + last.count
    if not over:
        return total - HELD_BACK
    return total - 1 if buffer.left else total


def _chunk(buffer: StepBuffer, block: Block, end: int, closing: bool) -> Chunk:
    rows = slice(block.cut, end)
    columns: dict[str, Array] = {
        slot.name: leaf[rows] for slot, leaf in zip(buffer.layout.slots, block.leaves, strict=True)
    }
    columns |= {"action": block.action[rows], "reward": block.reward[rows], "tick": block.tick[rows]}
    if block.legal is not None:
        columns["legal"] = block.legal[rows]
    if block.logp is not None:
        columns["behaviour_logp"] = block.logp[rows]
    if block.state is not None:
        columns["state/state"] = block.state[block.cut]
    if closing:
        columns |= _last_seen(buffer) if buffer.left else buffer.final
    header = msgspec.structs.replace(
        buffer.header,
        first_step=block.first_step + block.cut,
        steps=end - block.cut,
        actor=block.actor,
        ending=buffer.ending if closing else "running",
        outcome=buffer.outcome if closing else None,
    )
    return Chunk(header, columns)


def _last_seen(buffer: StepBuffer) -> dict[str, Array]:
    block = next(block for block in reversed(buffer.blocks) if block.count)
    row = block.count - 1
    return {f"final_{slot.name}": leaf[row] for slot, leaf in zip(buffer.layout.slots, block.leaves, strict=True)}
