"""A stream itself: made, described, given more or fewer shards, removed.

A reshard aims at hash ranges of equal size. Ranges within one of those are merged, and a range that reaches over the
end of one is split there: so between two moves there are never fewer shards than the lesser of both numbers.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from sparring import aws
from sparring.errors import Missing, SparringError, Unreachable
from sparring.stream.kinesis.client import SETTING, KinesisAddress, KinesisClient, Timeouts
from sparring.stream.kinesis.stream import OPENING, KinesisStream, listed, shard_of
from sparring.stream.protocol import BEGINNING, Page, Position

POLL_S = 0.25
WITHIN_S = 600.0
SPACE = 1 << 128  # of partition keys' hashes
NEAR = SPACE >> 64  # ranges that differ by less are the same: servers round differently

UNKNOWN_OPERATION = {"UnknownOperationException", "UnknownOperation", "NotImplementedError"}

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard as it is now. `kept_ms`: the age of its oldest record; `behind_ms`: of the first not yet read."""

    id: str
    parents: tuple[str, ...]
    closed: bool
    first_hash: int
    last_hash: int
    kept_ms: int
    empty: bool
    behind_ms: int | None = None  # None where no reader's position is known


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as it is now."""

    name: str
    status: str
    retention_hours: int
    mode: str  # PROVISIONED or ON_DEMAND
    shards: list[ShardState]


class HashRange(NamedTuple):
    """An open shard and the hashes that go to it, both ends included."""

    shard: str
    first: int
    last: int


def next_move(ranges: Sequence[HashRange], shards: int) -> tuple[str, dict[str, str]] | None:
    """The next call, and its arguments, from these open shards to `shards` of equal size; None when they are there."""
    ordered = sorted(ranges, key=lambda one: one.first)
    ends = [SPACE * at // shards for at in range(1, shards + 1)]
    for one, following in pairwise(ordered):
        if following.last < _end_after(ends, one.first) + NEAR:
            return "merge_shards", {"ShardToMerge": one.shard, "AdjacentShardToMerge": following.shard}
    for one in ordered:
        end = _end_after(ends, one.first)
        if one.last >= end + NEAR:
            return "split_shard", {"ShardToSplit": one.shard, "NewStartingHashKey": str(end)}
    return None


def _end_after(ends: Sequence[int], first: int) -> int:
    """Where the wanted range that holds `first` ends; the end itself is the next one's."""
    return ends[min(bisect_right(ends, first + NEAR), len(ends) - 1)]


def next_count(now: int, wanted: int) -> int:
    """How far one UpdateShardCount goes: at most to twice as many, and to half."""
    return min(wanted, 2 * now) if wanted > now else max(wanted, -(-now // 2))


def _age_ms(page: Page) -> int | None:
    """How long ago its first chunk came; None where it has none."""
    return max(0, int(time.time() * 1000) - page.placed[0].arrived_ms) if page.placed else None


class StreamAdmin:
    """Operations on one stream; a context manager. `report` is called at each step of a long operation."""

    def __init__(self, url: str, report: Report, *, setting: str = SETTING) -> None:
        self.address, self._report = KinesisAddress.read(url, setting), report
        self._named = {"StreamName": self.address.name}
        # A server that does not answer is told soon, instead of after all the tries of a call.
        with closing(KinesisClient(self.address, OPENING)) as quick, suppress(Missing):
            quick("describe_stream_summary", **self._named)
        self._stream = KinesisStream(self.address, Timeouts())
        self._client = self._stream.client

    def __enter__(self) -> "StreamAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def create(self, shards: int, retention_hours: int | None) -> bool:
        """Make it, unless it is there; give it that retention, where one is said. Returns when it is active."""
        made = self._find() is None
        if made:
            self._report(f"{self.address.name}: made with {shards} shards")
            self._client("create_stream", **self._named, ShardCount=shards)
        self._wait("ACTIVE")
        if retention_hours is not None:
            self._retain(retention_hours)
        return made

    def describe(self, positions: Mapping[str, Position] = MappingProxyType({})) -> StreamDescription:
        """Everything that is known of it; one small read of each shard, and one where a reader is, shard by shard."""
        found = self._summary()
        listing = sorted(listed(self._client), key=lambda one: str(one["ShardId"]))
        shards = [self._state(one, positions.get(one["ShardId"])) for one in listing]
        mode = found.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
        name, status, hours = found["StreamName"], found["StreamStatus"], found["RetentionPeriodHours"]
        return StreamDescription(name, status, int(hours), mode, shards)

    def reshard(self, shards: int) -> int:
        """Open shards of equal size, that many; how many there were. Readers follow; nothing is lost."""
        self._wait("ACTIVE")
        before = now = len(self._open())
        while now != shards:
            target = next_count(now, shards)
            if not self._update_count(target):
                self._by_hand(shards)
                break
            self._wait("ACTIVE", f"{now} → {target} shards")
            reached = len(self._open())
            if reached == now:
                do = "Look at `spar stream describe`, and try again"
                raise Unreachable(f"it still has {now} shards", where=self.address.where, do=do)
            now = reached
        return before

    def delete(self) -> None:
        """Remove it with all that it keeps. Returns when it is gone."""
        self._client("delete_stream", **self._named)
        until_s = time.monotonic() + WITHIN_S
        while self._find() is not None:
            self._pause(until_s, "it is still being removed")

    def _find(self) -> dict[str, Any] | None:
        try:
            return self._summary()
        except Missing:
            return None

    def _summary(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._client("describe_stream_summary", **self._named)["StreamDescriptionSummary"]
        return answer

    def _retain(self, hours: int) -> None:
        now = int(self._summary()["RetentionPeriodHours"])
        if hours == now:
            return
        verb = "increase" if hours > now else "decrease"
        self._report(f"{self.address.name}: kept for {hours} hours instead of {now}")
        self._client(f"{verb}_stream_retention_period", **self._named, RetentionPeriodHours=hours)
        self._wait("ACTIVE")

    def _update_count(self, shards: int) -> bool:
        """Ask for that many; False where the server does not know how."""
        try:
            wanted = {"TargetShardCount": shards, "ScalingType": "UNIFORM_SCALING"}
            self._client.once("update_shard_count", **self._named, **wanted)
        except aws.AnyFault as error:
            if aws.code_of(error) in UNKNOWN_OPERATION:
                return False
            raise aws.explain(error, self.address) from None
        return True

    def _by_hand(self, shards: int) -> None:
        while (move := next_move(self._open(), shards)) is not None:
            operation, given = move
            what = f"{operation.partition('_')[0]} {', '.join(one for one in given.values() if 'shard' in one)}"
            self._report(f"{self.address.name}: {what}")
            self._client(operation, **self._named, **given)
            self._wait("ACTIVE", what)

    def _open(self) -> list[HashRange]:
        keys = {one["ShardId"]: one["HashKeyRange"] for one in listed(self._client) if not shard_of(one).closed}
        return [HashRange(name, int(at["StartingHashKey"]), int(at["EndingHashKey"])) for name, at in keys.items()]

    def _state(self, one: dict[str, Any], position: Position | None) -> ShardState:
        shard, keys = shard_of(one), one["HashKeyRange"]
        oldest = _age_ms(self._stream.page(shard, BEGINNING, limit=1))
        behind_ms = None if position is None else _age_ms(self._stream.page(shard, position, limit=1)) or 0
        first, last = int(keys["StartingHashKey"]), int(keys["EndingHashKey"])
        return ShardState(shard.id, shard.parents, shard.closed, first, last, oldest or 0, oldest is None, behind_ms)

    def _wait(self, status: str, what: str = "") -> None:
        until_s, seen = time.monotonic() + WITHIN_S, ""
        while (now := str(self._summary()["StreamStatus"])) != status:
            if now != seen:
                self._report(f"{self.address.name}: {now}{f' ({what})' if what else ''}")
                seen = now
            self._pause(until_s, f"it is still {now}")

    def _pause(self, until_s: float, wrong: str) -> None:
        if time.monotonic() > until_s:
            raise SparringError(wrong, where=self.address.where, do="Look again later with `spar stream describe`")
        self._client.closed.wait(POLL_S)
