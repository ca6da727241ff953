"""One batch on its way into the store: judged, kept, the rest put aside with its reason, and counted.

Both drivers call `keep`, in one process or in many executors. Whatever it does may be done again: rows are known by
their key, quarantined ones by where they lay, figures by their batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparring.sink.counting import Minutes
from sparring.sink.judging import MAX_TEXT, Judge, Refusal
from sparring.store.protocol import Kept, Ledger, MinuteCount, Quarantined, Query, Store
from sparring.stream.protocol import Placed
from sparring.wire.chunk import Chunk, Key
from sparring.wire.ids import EpisodeId, GameId

APPEND_CHUNKS = 256  # given to the store at once


@dataclass(slots=True)
class Outcome:
    """What became of a batch, or of a part of it. `kept` holds what the batch brought."""

    chunks: int = 0
    steps: int = 0
    had: int = 0
    quarantined: int = 0
    kept: list[Chunk] = field(default_factory=list)
    minutes: Minutes = field(default_factory=Minutes)


class Keeper:
    """Where chunks go once they were read."""

    def __init__(self, judge: Judge, store: Store, ledger: Ledger, clock_ms: Callable[[], int]) -> None:
        self._judge, self._store, self._ledger, self._clock_ms = judge, store, ledger, clock_ms

    def keep(self, placed: Sequence[Placed], *, again: bool) -> Outcome:
        """Store what may be stored and quarantine the rest; both durable on return.

        `again` says that this batch may have been stored in part before: then what the store had counts as brought
        by it. Otherwise what it had was sent twice, and counted when it came first.
        """
        outcome = Outcome()
        aside: list[Quarantined] = []
        counted: set[Key] = set()
        for at in range(0, len(placed), APPEND_CHUNKS):
            self._keep_some(placed[at : at + APPEND_CHUNKS], again, outcome, aside, counted)
        if aside:
            self._ledger.quarantine(aside)
        outcome.quarantined = len(aside)
        self._count_ends(outcome)
        return outcome

    def _keep_some(
        self,
        some: Sequence[Placed],
        again: bool,
        outcome: Outcome,
        aside: list[Quarantined],
        counted: set[Key],
    ) -> None:
        judged = [(one, self._judge(one)) for one in some]
        passed = [(one, chunk) for one, chunk in judged if isinstance(chunk, Chunk)]
        aside += [put_aside(one, refusal) for one, refusal in judged if isinstance(refusal, Refusal)]
        verdicts = self._store.append([chunk for _, chunk in passed]) if passed else []
        stored_ms = self._clock_ms()
        for (one, chunk), kept in zip(passed, verdicts, strict=True):
            if kept.verdict not in ("new", "had"):
                aside.append(put_aside(one, refused(chunk, kept)))
                continue
            outcome.had += kept.verdict == "had"
            if kept.verdict == "new" or (again and chunk.key not in counted):
                counted.add(chunk.key)
                outcome.chunks += 1
                outcome.steps += chunk.header.steps
                outcome.kept.append(chunk)
                outcome.minutes.add(chunk.header, stored_ms)

    def _count_ends(self, outcome: Outcome) -> None:
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


def refused(chunk: Chunk, kept: Kept) -> Refusal:
    """The store's verdict as a refusal. Of somebody who was forgotten nothing is repeated."""
    return Refusal(kept.verdict, kept.reason, kept.field, None if kept.verdict == "gone" else chunk.header)


def put_aside(placed: Placed, refusal: Refusal) -> Quarantined:
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
        seat=0 if head is None else head.seat,
        first_step=0 if head is None else head.first_step,
        arrived_ms=placed.arrived_ms,
        size_bytes=len(placed.data),
    )
