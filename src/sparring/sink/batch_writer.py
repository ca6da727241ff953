"""One batch on its way into the store: judged, stored, the rest quarantined with its reason, and counted.

Both drivers call `write`, in one process or in many executors. Everything it does may be done again: rows have their
key, quarantined ones their position in the stream, counts and files of the lake the batch's name.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparring.errors import StoreRefused
from sparring.sink.chunk_judge import MAX_TEXT, ChunkJudge, Refusal
from sparring.store.minute_counts import merged
from sparring.store.protocol import Appended, LedgerStore, MinuteCount, Quarantined, Query
from sparring.store.rows import mark
from sparring.stream.protocol import Placed
from sparring.wire.chunk import Chunk, Header, Key
from sparring.wire.ids import EpisodeId, GameId

if TYPE_CHECKING:
    from sparring.sink.lake import Lake

APPEND_CHUNKS = 256  # given to the store at once
AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0)  # a chunk that the store refuses is offered so often again, then quarantined
MAX_INT = (1 << 31) - 1  # Cassandra's columns of counts end here; a quarantined row names no larger number
MINUTE_MS = 60_000

Offer = tuple[Placed, Chunk]


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
        self.batches += other.batches
        self.chunks += other.chunks
        self.steps += other.steps
        self.had += other.had
        self.quarantined += other.quarantined


@dataclass(slots=True)
class BatchResult(Totals):
    """What became of a batch, or of one page of it; with the chunks that it brought, and their counts by minute."""

    kept: list[Chunk] = field(default_factory=list)
    minutes: list[MinuteCount] = field(default_factory=list)

    @property
    def lag_ms(self) -> int:
        """Of the slowest chunk, from its receipt to being stored."""
        return max((one.lag_ms_max for one in self.minutes), default=0)


@dataclass(slots=True)
class _Page:
    """A page in progress."""

    batch: str
    result: BatchResult = field(default_factory=BatchResult)
    quarantined: list[Quarantined] = field(default_factory=list)
    counted: set[Key] = field(default_factory=set)
    taken: bool = False  # the store gave a verdict on a chunk of it

    def count(self, head: Header, **counts: object) -> None:
        """Add to the counts of the minute in which the chunk came in."""
        minute_ms = head.received_at_ms // MINUTE_MS * MINUTE_MS
        self.result.minutes.append(MinuteCount(head.game, minute_ms, self.batch, **counts))  # type: ignore[arg-type]


class BatchWriter:
    """Writes what was read from a stream."""

    def __init__(
        self,
        judge: ChunkJudge,
        store: LedgerStore,
        clock_ms: Callable[[], int],
        pause: Callable[[float], bool | None],
        lake: "Lake | None" = None,
    ) -> None:
        """`pause(seconds)` waits, and answers whether to give up instead."""
        self._judge, self._store, self._lake = judge, store, lake
        self._clock_ms, self._pause = clock_ms, pause

    def write(self, batch: str, pages: Iterable[tuple[Sequence[Placed], bool]]) -> BatchResult:
        """Write the pages of one batch, each with `again` (see `store`); all of it is durable on return."""
        done = BatchResult(batches=1)
        for placed, again in pages:
            page = self.store(batch, placed, again=again)
            done.add(page)
            done.minutes = merged([*done.minutes, *page.minutes])
            if self._lake is not None:
                done.kept += page.kept
        if self._lake is not None and done.kept:
            self._lake.write(batch, done.kept)
        if done.minutes:
            self._store.count_minutes(done.minutes)
        return done

    def store(self, batch: str, placed: Sequence[Placed], *, again: bool) -> BatchResult:
        """Store what may be stored and quarantine the rest; both durable on return. The counts are not written yet.

        `again` says that this batch may have been stored in part before: then what the store had counts as brought
        by it. Otherwise what it had was sent twice, and counted when it came first.

        A chunk that the store itself refuses, again and again, is quarantined while it takes others; where it takes
        none of several, the fault is the store's: StoreRefused, and nothing is quarantined.
        """
        page, stuck = _Page(batch), list[tuple[Offer, StoreRefused]]()
        for at in range(0, len(placed), APPEND_CHUNKS):
            stuck += self._offer_all(self._passed(placed[at : at + APPEND_CHUNKS], page), page, again)
        stuck = self._offered_again(stuck, page)
        if len(stuck) > 1 and not page.taken:
            raise stuck[0][1]
        for (one, chunk), error in stuck:
            refusal = Refusal("refused", str(error)[: 3 * MAX_TEXT], "", chunk.header)
            page.quarantined.append(quarantine_row(one, refusal))
        if page.quarantined:
            self._store.quarantine(page.quarantined)
        page.result.quarantined = len(page.quarantined)
        self._count_ends(page)
        return page.result

    def _passed(self, some: Sequence[Placed], page: _Page) -> list[Offer]:
        judged = [(one, self._judge(one)) for one in some]
        page.quarantined += [quarantine_row(one, refusal) for one, refusal in judged if isinstance(refusal, Refusal)]
        return [(one, chunk) for one, chunk in judged if isinstance(chunk, Chunk)]

    def _offer_all(self, offers: list[Offer], page: _Page, again: bool) -> list[tuple[Offer, StoreRefused]]:
        """What the store refuses even alone; the rest is settled. One append, unless something is refused."""
        if not offers:
            return []
        try:
            verdicts = self._store.append([chunk for _, chunk in offers])
        except StoreRefused as error:
            if len(offers) == 1:
                return [(offers[0], error)]
            middle = len(offers) // 2
            halves = (offers[:middle], offers[middle:])
            # What the append that failed has left there counts as brought by this batch.
            return [one for half in halves for one in self._offer_all(half, page, again=True)]
        self._settle(offers, verdicts, page, again)
        return []

    def _offered_again(self, stuck: list[tuple[Offer, StoreRefused]], page: _Page) -> list[tuple[Offer, StoreRefused]]:
        """What stays refused after several tries: a server may say so for a moment, such as while it is set up."""
        for wait_s in AGAIN_AFTER_S:
            if not stuck:
                break
            if self._pause(wait_s):
                raise stuck[0][1]
            stuck = [still for offer, _ in stuck for still in self._offer_all([offer], page, again=True)]
        return stuck

    def _settle(self, offers: list[Offer], verdicts: Appended, page: _Page, again: bool) -> None:
        result, stored_ms, page.taken = page.result, self._clock_ms(), True
        for (one, chunk), kept in zip(offers, verdicts, strict=True):
            head = chunk.header
            if kept.verdict not in ("new", "had"):
                # Of a player who was erased nothing is repeated.
                known = None if kept.verdict == "gone" else head
                page.quarantined.append(quarantine_row(one, Refusal(kept.verdict, kept.reason, kept.field, known)))
                continue
            result.had += kept.verdict == "had"
            if kept.verdict == "new" or (again and chunk.key not in page.counted):
                page.counted.add(chunk.key)
                result.chunks += 1
                result.steps += head.steps
                result.kept.append(chunk)
                # An import may be older than a column of 24 days can say: that is no lag.
                lag_ms = min(max(0, stored_ms - head.received_at_ms), MAX_INT)
                players = () if head.player is None else (mark(head.game, head.player),)
                page.count(head, steps=head.steps, chunks=1, players=players, lag_ms_sum=lag_ms, lag_ms_max=lag_ms)

    def _count_ends(self, page: _Page) -> None:
        """Returns of the seats that ended: summed here where one chunk holds all of it, by the store otherwise."""
        longer: dict[GameId, dict[tuple[EpisodeId, int], Header]] = {}
        for chunk in page.result.kept:
            head = chunk.header
            if head.ending == "running":
                continue
            if head.first_step == 0:
                page.count(head, ended=1, returns=float(chunk.columns["reward"].sum(dtype="float64")))
            else:
                longer.setdefault(head.game, {})[head.episode, head.seat] = head
        for game, ended in longer.items():
            wanted = tuple(dict.fromkeys(episode for episode, _ in ended))
            for record in self._store.episodes(Query(game, episodes=wanted)):
                for seat in record.seats:
                    if (last := ended.get((record.episode, seat.seat))) is not None:
                        page.count(last, ended=1, returns=seat.reward)


def quarantine_row(placed: Placed, refusal: Refusal) -> Quarantined:
    """The row of a chunk that was not stored: why, and its position. Its bytes stay in the stream.

    Its game is "" unless that is one of ours, so that a list of our games and "" misses nothing.
    """
    head = refusal.header
    return Quarantined(
        game=head.game if head is not None and refusal.field != "game" else GameId(""),
        shard=placed.shard,
        position=placed.position,
        verdict=refusal.verdict,
        reason=refusal.reason,
        field=refusal.field,
        uploader=placed.uploader[:MAX_TEXT],
        episode="" if head is None else head.episode[:MAX_TEXT],
        seat=0 if head is None else min(head.seat, MAX_INT),
        first_step=0 if head is None else min(head.first_step, MAX_INT),
        arrived_ms=placed.arrived_ms,
        size_bytes=len(placed.data),
    )
