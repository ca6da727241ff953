"""A chunk as a row: what is written of it, how it is sealed, and whether it may be kept. No I/O."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from sparring.store.protocol import AppendResult, Erased, Views
from sparring.wire.chunk import Chunk, encode_parts
from sparring.wire.ids import EpisodeId, GameId, PlayerId

_pack = msgspec.msgpack.Encoder().encode


class Row(NamedTuple):
    """The columns of table `chunks` between id and seal, in its order."""

    game: str
    episode: str
    seat: int
    first_step: int
    steps: int
    version: str
    spec: str
    player: str | None
    mark: int | None
    uploader: str
    actor: str
    source: str
    sample_rate: float
    ending: str
    outcome: float | None
    seed: int | None  # as signed 64 bits, which is what SQLite has
    reward: float
    tick: int
    received_at_ms: int
    batch_id: int  # of the sink that brought it (`batch_number`); 0: it came without one
    size_bytes: int
    content: bytes
    stored: bytes

    def seal(self) -> bytes:
        """8 bytes over every column; a row whose seal differs is damaged."""
        return hashlib.blake2b(_pack(self), digest_size=8).digest()


COLUMNS = ", ".join(Row._fields)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chunk ready to be written: all that costs time was done before the file is locked."""

    row: Row
    header: bytes
    body: bytes


def prepare(chunk: Chunk, batch: str = "") -> Prepared:
    """Encode, hash and sum up a chunk, each once; `batch` names the sink's batch that brings it."""
    header, body = encode_parts(chunk)
    head, columns = chunk.header, chunk.columns
    reward, tick = columns.get("reward"), columns.get("tick")
    row = Row(
        game=head.game,
        episode=head.episode,
        seat=head.seat,
        first_step=head.first_step,
        steps=head.steps,
        version=head.version,
        spec=head.spec,
        player=head.player,
        mark=None if head.player is None else mark(head.game, head.player),
        uploader=head.uploader,
        actor=head.actor,
        source=head.source,
        sample_rate=float(head.sample_rate),
        ending=head.ending,
        outcome=None
        if head.outcome is None
        else float(head.outcome) + 0.0,  # SQLite has no -0.0: the seal would differ
        seed=None if head.seed is None else signed(head.seed),
        reward=0.0 if reward is None else float(reward.sum(dtype="float64")) + 0.0,
        tick=0 if tick is None or not len(tick) else int(tick[-1]),
        received_at_ms=head.received_at_ms,
        batch_id=batch_number(batch) if batch else 0,
        size_bytes=len(header) + len(body),
        content=chunk.content_hash(),
        stored=digest(header, body),
    )
    return Prepared(row, header, body)


def digest(header: bytes, body: bytes) -> bytes:
    """8 bytes over a chunk as it is stored."""
    return hashlib.blake2b(header + body, digest_size=8).digest()


def mark(game: GameId, name: PlayerId | EpisodeId | str) -> int:
    """The stand-in of a player, an episode or a seat of one ("EPISODE/SEAT") in tombstones and indexes, where the name
    itself must not remain."""
    said = f"spar-mark\0{game}\0{name}".encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little", signed=True)


def tombstone_marks(row: Row) -> list[int]:
    """Where a tombstone for this row may stand: at its episode, at its seat, at its player."""
    game, marks = GameId(row.game), [] if row.mark is None else [row.mark]
    return [mark(game, row.episode), mark(game, f"{row.episode}/{row.seat}"), *marks]


def late_rows(rows: Iterable[Row], gone: set[tuple[str, int | None]]) -> Iterator[Row]:
    """Those of erased players, by the tombstones found, whose episode has none yet: it is to be erased, too."""
    for row in rows:
        if (row.game, row.mark) in gone and not any((row.game, one) in gone for one in tombstone_marks(row)[:2]):
            yield row


def to_erase(
    game: GameId, episode: EpisodeId, rows: Sequence[Row], player: int, views: Views
) -> tuple[list[Row], list[int]]:
    """Which rows of an episode go with the player of that mark, and the marks of the tombstones to write.

    All of it, unless the game's spec says that some seats see nothing of the others: these stay.
    """
    sees = views.get(rows[0].version, ()) if rows else ()
    if all(sees):
        return list(rows), [mark(game, episode)]
    own = {row.seat for row in rows if row.mark == player}
    gone = own | {seat for seat, others in enumerate(sees) if others}
    return [row for row in rows if row.seat in gone], [mark(game, f"{episode}/{seat}") for seat in sorted(gone)]


def erased_of(rows: Sequence[Row]) -> Erased:
    """What an erasure of those rows answers."""
    received = [row.received_at_ms for row in rows]
    return Erased(
        chunks=len(rows),
        steps=sum(row.steps for row in rows),
        episodes=len({row.episode for row in rows}),
        first_received_ms=min(received, default=None),
        last_received_ms=max(received, default=None),
    )


def batch_number(name: str) -> int:
    """A batch's name as a row has it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def signed(seed: int) -> int:
    """An unsigned 64-bit number as a signed one; `unsigned` is the way back."""
    return seed if seed < 1 << 63 else seed - (1 << 64)


def unsigned(seed: int) -> int:
    return seed if seed >= 0 else seed + (1 << 64)


class Neighbour(NamedTuple):
    """The chunk of the same seat that begins at or before another's first step, or the next one after it."""

    first_step: int
    steps: int
    ending: str
    uploader: str
    content: bytes
    batch_id: int


def judge(row: Row, before: Neighbour | None, after: Neighbour | None) -> AppendResult:
    """Whether the chunk may stand between its neighbours. Whose seat it is comes first: a stranger learns no more."""
    near = before or after
    if near is not None and near.uploader != row.uploader:
        reason = f"seat {row.seat} of episode {row.episode} was opened by another uploader"
        return AppendResult("forbidden", reason, "uploader", row.uploader, "the uploader that opened the seat")
    end = row.first_step + row.steps
    if before is not None:
        last = before.first_step + before.steps
        if before.first_step == row.first_step:
            if before.content == row.content:
                return AppendResult("had", batch_id=before.batch_id)
            reason = f"another chunk is stored at step {row.first_step}; the first stays"
            return AppendResult("conflict", reason, "first_step", str(row.first_step), "the same content as before")
        if last > row.first_step:
            reason = f"steps {row.first_step} to {last - 1} are stored already"
            return AppendResult("conflict", reason, "first_step", str(row.first_step), f"{last} or more")
        if before.ending != "running":
            reason = f"the seat ended at step {last - 1}"
            return AppendResult("conflict", reason, "first_step", str(row.first_step), f"below {last}")
    if after is not None:
        if after.first_step < end:
            reason = f"step {after.first_step} is stored already"
            return AppendResult(
                "conflict", reason, "steps", str(row.steps), f"up to {after.first_step - row.first_step}"
            )
        if row.ending != "running":
            reason = f"the seat goes on: step {after.first_step} is stored already"
            return AppendResult("conflict", reason, "ending", row.ending, "running")
    return AppendResult("new")
