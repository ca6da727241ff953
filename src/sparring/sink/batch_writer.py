"""One batch on its way into the store: judged, stored, the rest quarantined with its reason, and counted.

Chunks are judged by the rules that a gateway applies to uploads, in the same order: all headers first, then bodies in
groups that take GROUP_BYTES of memory. Game servers without a gateway write to a stream, too.
Both drivers call `write`, in one process or in many executors. Everything it does may be done again: rows have their
key, quarantined ones their position in the stream, counts and files of the lake the batch's name. A chunk is counted by
the batch whose name its row has: once, however often the stream is read, and by which sink.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from sparring.errors import ChunkRefused, Refused, SparringError, StoreRefused
from sparring.games.chunk_checks import GROUP_BYTES, ChunkRules, grouped
from sparring.store.protocol import Appended, MinuteCount, Quarantined, Query, Store
from sparring.store.records import MINUTE_MS, merged_minutes
from sparring.store.rows import batch_number, mark
from sparring.stream.protocol import Placed
from sparring.wire.chunk import Chunk, Encoded, Header, Key, inflate, read_header
from sparring.wire.ids import EpisodeId, GameId, is_pseudonym

APPEND_CHUNKS = 256  # given to the store at once
AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0)  # a chunk that the store refuses is offered so often again, then quarantined
MAX_INT = (1 << 31) - 1  # Cassandra's columns of counts end here; a quarantined row names no larger number
MAX_TEXT = 200  # characters of anything that a sender chose
LAKE_FILE_BYTES = 64 << 20  # of columns in one file of the lake

Offer = tuple[Placed, Chunk]
Stuck = list[tuple[Placed, Header, StoreRefused]]  # what the store refuses even alone


@dataclass(slots=True)
class Totals:
    """What became of chunks."""

    batches: int = 0
    chunks: int = 0
    steps: int = 0
    had: int = 0
    quarantined: int = 0

    def add(self, other: "Totals") -> None:
        """These and those."""
        for one in fields(Totals):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class BatchResult(Totals):
    """What became of a batch, or of one page of it; with the chunks that it brought, and their counts by minute."""

    name: str = ""  # of the batch
    kept: list[Encoded] = field(default_factory=list)
    minutes: list[MinuteCount] = field(default_factory=list)
    refused: list[Quarantined] = field(default_factory=list)
    taken: bool = False  # the store gave a verdict on a chunk of it

    @property
    def lag_ms(self) -> int:
        """Of the slowest chunk, from its receipt to being stored."""
        return max((one.lag_ms_max for one in self.minutes), default=0)

    def count(self, head: Header, **counts: object) -> None:
        """Add to the counts of the minute in which the chunk came in."""
        minute_ms = head.received_at_ms // MINUTE_MS * MINUTE_MS
        self.minutes.append(MinuteCount(head.game, minute_ms, self.name, **counts))  # type: ignore[arg-type]


class Lake:
    """Training-ready Parquet beside the store: one file for each batch, game, version and seat, under s3://….

        game=GAME/version=VERSION/seat=SEAT/day=2026-01-31/BATCH.parquet

    Columns of more than LAKE_FILE_BYTES go on in BATCH.1.parquet. A file is named after its batch, so a batch that is
    written again replaces its own files. Pseudonyms stay out: erasing a player reaches the store, and must not leave
    them here.
    """

    def __init__(self, url: str) -> None:
        """Reaches the bucket; a wrong one is said at once."""
        from sparring.registry.s3.bucket import Address, Bucket  # boto3 and pyarrow are for lakes alone
        from sparring.store.exchange.parquet import encode

        self._bucket, self._encode = Bucket(Address.read(url, "sink.lake_url")), encode

    def close(self) -> None:
        """Give the connections back."""
        self._bucket.close()

    def write(self, batch: str, chunks: Sequence[Encoded]) -> None:
        """Put the batch's files there; durable on return."""
        files: dict[str, list[Encoded]] = {}
        for chunk in chunks:
            files.setdefault(folder_of(chunk.header), []).append(chunk)
        for folder, held in files.items():
            held.sort(key=lambda one: (one.header.episode, one.header.first_step))  # the same files if it is done again
            for number, part in enumerate(grouped(held, inflated_bytes, LAKE_FILE_BYTES)):
                key = f"{folder}/{_plain(batch)}{f'.{number}' if number else ''}.parquet"
                self._bucket.put(key, self._encode([nameless(one) for one in part], key))


def inflated_bytes(one: Encoded) -> int:
    """What its columns take."""
    return one.inflated_bytes


def folder_of(head: Header) -> str:
    """The folder of such chunks: those of one game, version and seat have the same columns."""
    day = datetime.fromtimestamp(head.received_at_ms / 1000, UTC).date().isoformat()
    return f"game={_plain(head.game)}/version={_plain(head.version)}/seat={head.seat}/day={day}"


def nameless(chunk: Encoded) -> Chunk:
    """The chunk without its player."""
    return inflate(replace(chunk, header=msgspec.structs.replace(chunk.header, player=None)))


def _plain(text: str) -> str:
    return quote(text, safe="-_.@")


class BatchWriter:
    """Writes what was read from a stream."""

    def __init__(
        self,
        rules: ChunkRules,
        store: Store,
        clock_ms: Callable[[], int],
        pause: Callable[[float], bool | None],
        lake: Lake | None = None,
    ) -> None:
        """`pause(seconds)` waits, and answers whether to give up instead."""
        self._rules, self._store, self._lake = rules, store, lake
        self._clock_ms, self._pause = clock_ms, pause

    def write(self, batch: str, pages: Iterable[Sequence[Placed]]) -> BatchResult:
        """Write the pages of one batch; all of it is durable on return."""
        done, counted = BatchResult(batches=1), set[Key]()
        for placed in pages:
            page = self.store(batch, placed, counted)
            done.add(page)
            done.minutes = merged_minutes([*done.minutes, *page.minutes])
            if self._lake is not None:
                done.kept += page.kept
        if self._lake is not None and done.kept:
            self._lake.write(batch, done.kept)
        if done.minutes:
            self._store.count_minutes(done.minutes)
        return done

    def store(self, batch: str, placed: Sequence[Placed], counted: set[Key]) -> BatchResult:
        """Store what may be stored and quarantine the rest; both durable on return. The counts are not written yet.

        `counted` are the chunks that earlier pages of the batch have counted; those of this page are added.

        A chunk that the store itself refuses, again and again, is quarantined while it takes others; where it takes
        none of several, the fault is the store's: StoreRefused, and nothing is quarantined.
        """
        page, stuck = BatchResult(name=batch), Stuck()
        for at in range(0, len(placed), APPEND_CHUNKS):
            for offers in self._passed(placed[at : at + APPEND_CHUNKS], page):
                stuck += self._offer_all(offers, page, counted)
        stuck = self._offered_again(stuck, page, counted)
        if len(stuck) > 1 and not page.taken:
            raise stuck[0][2]
        for one, head, error in stuck:
            page.refused.append(quarantine_row(one, "refused", str(error), "", head))
        if page.refused:
            self._store.quarantine(page.refused)
        page.quarantined = len(page.refused)
        self._count_ends(page)
        return page

    def _passed(self, some: Sequence[Placed], page: BatchResult) -> Iterator[list[Offer]]:
        """The chunks that may be stored, inflated in groups that fit into memory."""
        read = [(one, read_record(self._rules, one)) for one in some]
        page.refused += [row for _, row in read if isinstance(row, Quarantined)]
        passed = [(one, encoded) for one, encoded in read if isinstance(encoded, Encoded)]
        for group in grouped(passed, lambda both: both[1].inflated_bytes, GROUP_BYTES):
            found = [(one, inflated_record(self._rules, one, encoded)) for one, encoded in group]
            page.refused += [row for _, row in found if isinstance(row, Quarantined)]
            yield [(one, chunk) for one, chunk in found if isinstance(chunk, Chunk)]

    def _offer_all(self, offers: list[Offer], page: BatchResult, counted: set[Key]) -> Stuck:
        """What the store refuses even alone; the rest is settled. One append, unless something is refused."""
        if not offers:
            return []
        try:
            verdicts = self._store.append([chunk for _, chunk in offers], page.name)
        except StoreRefused as error:
            if len(offers) == 1:
                return [(offers[0][0], offers[0][1].header, error)]
            middle = len(offers) // 2
            halves = (offers[:middle], offers[middle:])
            return [one for half in halves for one in self._offer_all(half, page, counted)]
        self._settle(offers, verdicts, page, counted)
        return []

    def _offered_again(self, stuck: Stuck, page: BatchResult, counted: set[Key]) -> Stuck:
        """What stays refused after several tries: a server may say so for a moment, such as while it is set up."""
        for wait_s in AGAIN_AFTER_S:
            if not stuck:
                break
            if self._pause(wait_s):
                raise stuck[0][2]
            again, stuck = stuck, []
            for one, _, _ in again:  # each alone: no two of them are in memory
                for offers in self._passed([one], page):
                    stuck += self._offer_all(offers, page, counted)
        return stuck

    def _settle(self, offers: list[Offer], verdicts: Appended, page: BatchResult, counted: set[Key]) -> None:
        stored_ms, page.taken, own = self._clock_ms(), True, batch_number(page.name)
        for (one, chunk), kept in zip(offers, verdicts, strict=True):
            head = chunk.header
            if kept.verdict not in ("new", "had"):
                # Of a player who was erased nothing is repeated.
                known = None if kept.verdict == "gone" else head
                page.refused.append(quarantine_row(one, kept.verdict, kept.reason, kept.field, known))
                continue
            page.had += kept.verdict == "had"
            if chunk.key not in counted and (kept.verdict == "new" or kept.batch_id == own):
                counted.add(chunk.key)
                page.chunks += 1
                page.steps += head.steps
                page.kept.append(replace(read_header(one.data), header=head))
                # An import may be older than a column of 24 days can say: that is no lag.
                lag_ms = min(max(0, stored_ms - head.received_at_ms), MAX_INT)
                players = () if head.player is None else (mark(head.game, head.player),)
                page.count(head, steps=head.steps, chunks=1, players=players, lag_ms_sum=lag_ms, lag_ms_max=lag_ms)
                if head.ending != "running" and head.first_step == 0:
                    page.count(head, ended=1, returns=float(chunk.columns["reward"].sum(dtype="float64")))

    def _count_ends(self, page: BatchResult) -> None:
        """Returns of the seats that ended and have several chunks, which the store sums."""
        longer: dict[GameId, dict[tuple[EpisodeId, int], Header]] = {}
        for chunk in page.kept:
            head = chunk.header
            if head.ending != "running" and head.first_step > 0:
                longer.setdefault(head.game, {})[head.episode, head.seat] = head
        for game, ended in longer.items():
            wanted = tuple(dict.fromkeys(episode for episode, _ in ended))
            for record in self._store.episodes(Query(game, episodes=wanted)):
                for seat in record.seats:
                    if (last := ended.get((record.episode, seat.seat))) is not None:
                        page.count(last, ended=1, returns=seat.reward)


def read_record(rules: ChunkRules, placed: Placed) -> Encoded | Quarantined:
    """The chunk with the header that is stored and its body as it came, or the row of the quarantine that says why not.
    No I/O, and nothing is inflated."""
    header = None
    try:
        encoded = read_header(placed.data)
        header = encoded.header
        rules.spec(header)
        if header.player is not None and not is_pseudonym(header.player):
            do = "Send 32 hex digits that only you can trace back, or go through the gateway, which makes them"
            # The value may be a person's name, so the refusal does not repeat it.
            raise ChunkRefused("it is no pseudonym", where="chunk, player", do=do, field="player")
        stored = rules.accepted_header(
            header,
            header.columns,
            player=header.player,
            uploader=placed.uploader,
            received_at_ms=placed.arrived_ms,
        )
        return replace(encoded, header=stored)
    except SparringError as error:
        return _refused_row(placed, error, header)


def inflated_record(rules: ChunkRules, placed: Placed, encoded: Encoded) -> Chunk | Quarantined:
    """The whole chunk as it is stored, of a record whose header was accepted, or the row of the quarantine."""
    try:
        return rules.accepted_values(inflate(encoded))
    except SparringError as error:
        return _refused_row(placed, error, encoded.header)


def _refused_row(placed: Placed, error: SparringError, header: Header | None) -> Quarantined:
    verdict, field = (error.code, error.field) if isinstance(error, Refused) else ("wire", "")
    return quarantine_row(placed, verdict, str(error), field, header)


def quarantine_row(placed: Placed, verdict: str, reason: str, field: str, head: Header | None) -> Quarantined:
    """The row of a chunk that was not stored: why, and its position. Its bytes stay in the stream.

    `verdict` is "wire" where it does not decode, "chunk" where it breaks its spec, or the store's own: conflict,
    forbidden, gone, and refused where it took nothing of it, whatever state it was in. `head` is None where nothing
    could be read. The row's game is "" unless that is one of ours, so that a list of our games and "" misses nothing.
    """
    return Quarantined(
        game=head.game if head is not None and field != "game" else GameId(""),
        shard=placed.shard,
        position=placed.position,
        verdict=verdict,
        reason=reason[: 3 * MAX_TEXT],
        field=field,
        uploader=placed.uploader[:MAX_TEXT],
        episode="" if head is None else head.episode[:MAX_TEXT],
        seat=0 if head is None else min(head.seat, MAX_INT),
        first_step=0 if head is None else min(head.first_step, MAX_INT),
        arrived_ms=placed.arrived_ms,
        size_bytes=len(placed.data),
    )
