"""Chunks of CartPole's shape whose every number follows from (seed, client, episode, step).

Any stored chunk can so be judged alone, without a record of what was sent: its episode's name holds
client and episode, its header the seed. Import it as `from derived import …`.
"""

from collections.abc import Mapping

import numpy as np

from sparring.games.catalogue import spec_of
from sparring.wire.chunk import Array, Chunk, Header
from sparring.wire.ids import EpisodeId, GameId, PlayerId

GAME = GameId("cartpole")
EPOCH_MS = 1_750_000_000_000
_ODD = 0x9E3779B97F4A7C15
_M2, _M3 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def episode_of(seed: int, client: int, episode: int) -> EpisodeId:
    """The name (UUIDv7) of a client's n-th episode; client below 4096."""
    tail = int(_noise(seed, client, episode, np.zeros(1, np.uint64), 99)[0]) & (1 << 62) - 1
    value = (EPOCH_MS + episode) << 80 | 0x7 << 76 | (client & 0xFFF) << 64 | 0b10 << 62 | tail
    text = f"{value:032x}"
    return EpisodeId("-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))


def player_of(client: int) -> PlayerId:
    """The pseudonym of a client: 32 hex digits that occur nowhere else."""
    return PlayerId(f"{(client + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 & (1 << 128) - 1:032x}")


def columns_of(seed: int, client: int, episode: int, first_step: int, steps: int) -> dict[str, Array]:
    """The per-step columns of those steps."""
    at = np.arange(first_step, first_step + steps, dtype=np.uint64)
    return {
        "observation/state": _states(seed, client, episode, at),
        "action": (_noise(seed, client, episode, at, 4) & np.uint64(1)).astype(np.int32),
        "reward": (_noise(seed, client, episode, at, 5) >> np.uint64(41)).astype(np.float32) / np.float32(1 << 23),
        "tick": at.astype(np.int64),
    }


def chunks_of(
    seed: int,
    client: int,
    episode: int,
    *,
    steps: int = 100,
    chunk_steps: int = 40,
    ended: bool = True,
    **header: object,
) -> list[Chunk]:
    """A whole episode, cut into chunks. `header` replaces fields of every header."""
    chunks = []
    for first in range(0, steps, chunk_steps):
        count = min(chunk_steps, steps - first)
        last = ended and first + count == steps
        columns: Mapping[str, Array] = columns_of(seed, client, episode, first, count)
        if last:
            final = _states(seed, client, episode, np.asarray([steps], np.uint64))[0]
            columns = {**columns, "final_observation/state": final}
        fields: dict[str, object] = {
            "game": GAME,
            "version": "1",
            "spec": spec_of(GAME).hash,
            "episode": episode_of(seed, client, episode),
            "seat": 0,
            "first_step": first,
            "steps": count,
            "player": player_of(client),
            "actor": "person",
            "source": "play",
            "ending": "terminated" if last else "running",
            "outcome": float(steps) if last else None,
            "seed": seed,
            "uploader": f"key-{client}",
            "received_at_ms": EPOCH_MS + episode,
        }
        chunks.append(Chunk(Header(**{**fields, **header}), columns))
    return chunks


def differences(chunk: Chunk) -> list[str]:
    """The names of the columns that are not what they must be; empty for a true chunk."""
    head = chunk.header
    bits = int(head.episode.replace("-", ""), 16)
    client, episode = bits >> 64 & 0xFFF, (bits >> 80) - EPOCH_MS
    seed = head.seed or 0
    if head.episode != episode_of(seed, client, episode):
        return ["episode"]
    expected = columns_of(seed, client, episode, head.first_step, head.steps)
    if head.ending != "running":
        end = head.first_step + head.steps
        expected["final_observation/state"] = _states(seed, client, episode, np.asarray([end], np.uint64))[0]
    names = expected.keys() | chunk.columns.keys()
    return sorted(
        name
        for name in names
        if name not in chunk.columns or name not in expected or not np.array_equal(chunk.columns[name], expected[name])
    )


def _states(seed: int, client: int, episode: int, at: Array) -> Array:
    bits = np.stack([_noise(seed, client, episode, at, k) for k in range(4)], axis=-1)
    return ((bits >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).astype(np.float32)


def _noise(seed: int, client: int, episode: int, at: Array, k: int) -> Array:
    """splitmix64 over all five; the same numbers on every machine."""
    mixed = at.copy()
    for part in (seed, client, episode, k):
        mixed = _mix(mixed + np.uint64(part * _ODD & (1 << 64) - 1))
    return mixed


def _mix(bits: Array) -> Array:
    with np.errstate(over="ignore"):
        bits = (bits ^ bits >> np.uint64(30)) * _M2
        bits = (bits ^ bits >> np.uint64(27)) * _M3
    return bits ^ bits >> np.uint64(31)
