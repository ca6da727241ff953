"""One batch on its way into the store: judged, kept, the rest put aside with its reason, and counted.

Both drivers call `keep`, in one process or in many executors. Whatever it does may be done again: rows are known by
their key, quarantined ones by where they lay, figures by their batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparring.errors import StoreRefused
from sparring.sink.chunk_judge import MAX_TEXT, ChunkJudge, Refusal
from sparring.sink.minute_counts import Minutes
from sparring.store.protocol import Appended, AppendResult, Ledger, MinuteCount, Quarantined, Query, Store
from sparring.stream.protocol import Placed
from sparring.wire.chunk import Chunk, Key
from sparring.wire.ids import EpisodeId, GameId

APPEND_CHUNKS = 256  # given to the store at once
AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0)  # a chunk that the store refuses is offered so often again before it is put aside
MAX_COUNT = (1 << 31) - 1  # Cassandra's columns of counts end here; a row put aside names no larger one

Offer = tuple[Placed, Chunk]


@dataclass(slots=True)
class BatchResult:
    """What became of a batch, or of a part of it. `kept` holds what the batch brought."""

    chunks: int = 0
    steps: int = 0
    had: int = 0
    quarantined: int = 0
    kept: list[Chunk] = field(default_factory=list)
    minutes: Minutes = field(default_factory=Minutes)


@dataclass(slots=True)
class _Work:
    """A batch in progress."""

    outcome: BatchResult = field(default_factory=BatchResult)
    aside: list[Quarantined] = field(default_factory=list)
    counted: set[Key] = field(default_factory=set)
    taken: bool = False  # the store gave a verdict on a chunk of it


class BatchWriter:
    """Where chunks go once they were read."""

    def __init__(
        self,
        judge: ChunkJudge,
        store: Store,
        ledger: Ledger,
        clock_ms: Callable[[], int],
        pause: Callable[[float], bool | None],
    ) -> None:
        """`pause(seconds)` waits, and answers whether to give up instead."""
        self._judge, self._store, self._ledger = judge, store, ledger
        self._clock_ms, self._pause = clock_ms, pause

    def keep(self, placed: Sequence[Placed], *, again: bool) -> BatchResult:
        """Store what may be stored and quarantine the rest; both durable on return.

        `again` says that this batch may have been stored in part before: then what the store had counts as brought
        by it. Otherwise what it had was sent twice, and counted when it came first.

        A chunk that the store itself refuses, again and again, is put aside while it takes others; where it takes
        none of several, the fault is the store's: StoreRefused, and nothing is put aside.
        """
        work, stuck = _Work(), list[tuple[Offer, StoreRefused]]()
        for at in range(0, len(placed), APPEND_CHUNKS):
            stuck += self._offer_all(self._passed(placed[at : at + APPEND_CHUNKS], work), work, again)
        stuck = self._offered_again(stuck, work)
        if len(stuck) > 1 and not work.taken:
            raise stuck[0][1]
        work.aside += [quarantine_row(one, not_taken(chunk, error)) for (one, chunk), error in stuck]
        if work.aside:
            self._ledger.quarantine(work.aside)
        work.outcome.quarantined = len(work.aside)
        self._count_ends(work.outcome)
        return work.outcome

    def _passed(self, some: Sequence[Placed], work: _Work) -> list[Offer]:
        judged = [(one, self._judge(one)) for one in some]
        work.aside += [quarantine_row(one, refusal) for one, refusal in judged if isinstance(refusal, Refusal)]
        return [(one, chunk) for one, chunk in judged if isinstance(chunk, Chunk)]

    def _offer_all(self, offers: list[Offer], work: _Work, again: bool) -> list[tuple[Offer, StoreRefused]]:
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
            return [one for half in halves for one in self._offer_all(half, work, again=True)]
        self._settle(offers, verdicts, work, again)
        return []

    def _offered_again(self, stuck: list[tuple[Offer, StoreRefused]], work: _Work) -> list[tuple[Offer, StoreRefused]]:
        """What stays refused after several tries: a server may say so for a moment, such as while it is set up."""
        for wait_s in AGAIN_AFTER_S:
            if not stuck:
                break
            if self._pause(wait_s):
                raise stuck[0][1]
            stuck = [still for offer, _ in stuck for still in self._offer_all([offer], work, again=True)]
        return stuck

    def _settle(self, offers: list[Offer], verdicts: Appended, work: _Work, again: bool) -> None:
        outcome, stored_ms, work.taken = work.outcome, self._clock_ms(), True
        for (one, chunk), kept in zip(offers, verdicts, strict=True):
            if kept.verdict not in ("new", "had"):
                work.aside.append(quarantine_row(one, refused(chunk, kept)))
                continue
            outcome.had += kept.verdict == "had"
            if kept.verdict == "new" or (again and chunk.key not in work.counted):
                work.counted.add(chunk.key)
                outcome.chunks += 1
                outcome.steps += chunk.header.steps
                outcome.kept.append(chunk)
                outcome.minutes.add(chunk.header, stored_ms)

    def _count_ends(self, outcome: BatchResult) -> None:
        """Returns of the seats that ended: summed here where one chunk holds all of it, by the store otherwise."""
        elsewhere: dict[GameId, dict[tuple[EpisodeId, int], Chunk]] = {}
        for chunk in outcome.kept:
            head = chunk.header
            if head.ending == "running":
                continue
            if head.first_step == 0:
                outcome.minutes.end(head, float(chunk.columns["reward"].sum(dtype="float64")))
            else:
                elsewhere.setdefault(head.game, {})[head.episode, head.seat] = chunk
        for game, ended in elsewhere.items():
            wanted = tuple(dict.fromkeys(episode for episode, _ in ended))
            for record in self._store.episodes(Query(game, episodes=wanted)):
                for seat in record.seats:
                    if (last := ended.get((record.episode, seat.seat))) is not None:
                        outcome.minutes.end(last.header, seat.reward)


def count(ledger: Ledger, batch: str, minutes: Minutes) -> None:
    """Write a batch's figures; the same batch again overwrites them."""
    rows = [
        MinuteCount(
            game=game,
            minute_ms=minute_ms,
            batch=batch,
            steps=tally.steps,
            chunks=tally.chunks,
            players=tuple(sorted(tally.players)),
            ended=tally.ended,
            returns=tally.returns,
            lag_ms_sum=tally.lag_ms_sum,
            lag_ms_max=tally.lag_ms_max,
        )
        for game, minute_ms, tally in minutes
    ]
    if rows:
        ledger.count_minutes(rows)


def refused(chunk: Chunk, kept: AppendResult) -> Refusal:
    """The store's verdict as a refusal. Of somebody who was forgotten nothing is repeated."""
    return Refusal(kept.verdict, kept.reason, kept.field, None if kept.verdict == "gone" else chunk.header)


def not_taken(chunk: Chunk, error: StoreRefused) -> Refusal:
    """What the store said when it was offered this chunk alone."""
    return Refusal("refused", str(error)[: 3 * MAX_TEXT], "", chunk.header)


def quarantine_row(placed: Placed, refusal: Refusal) -> Quarantined:
    """The row of something that was not stored: why, and where it lies. Its bytes stay in the stream.

    Its game is "" unless that is one of ours, so that whoever lists games and "" misses nothing.
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
        seat=0 if head is None else min(head.seat, MAX_COUNT),
        first_step=0 if head is None else min(head.first_step, MAX_COUNT),
        arrived_ms=placed.arrived_ms,
        size_bytes=len(placed.data),
    )
