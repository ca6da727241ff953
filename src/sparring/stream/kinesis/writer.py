"""Records into Kinesis: requests of many records, each of which may be refused alone and is tried again."""

from collections import Counter
from collections.abc import Sequence

from sparring.errors import StoreFailed
from sparring.stream.kinesis import errors as faults
from sparring.stream.kinesis.batches import Outgoing, Waves
from sparring.stream.kinesis.client import Backoff, KinesisClient


def write(calls: KinesisClient, records: Sequence[Outgoing]) -> None:
    """All of the records are in the stream on return. Otherwise raises a sentence, and some of them may be in it.

    Whoever sends such records again finds them twice in the stream, never lost and never in another order.
    """
    waves, backoff = Waves(records), Backoff(calls)
    while batch := waves.next():
        refused: Counter[str] = Counter()
        try:
            for one, code in zip(batch, _put(calls, batch), strict=True):
                if code:
                    refused[code] += 1
                    waves.refused(one)
                else:
                    waves.taken(one)
        except faults.AnyFault as error:
            if not faults.passing(error) or not backoff.wait():
                raise faults.said(error, calls.address) from None
            continue
        if not refused:
            backoff.succeeded()
        elif not backoff.wait():
            raise _given_up(calls, waves.left, len(records), refused)


def _put(calls: KinesisClient, batch: list[Outgoing]) -> list[str]:
    """For each record what Kinesis refused it with, "" where it was taken."""
    entries = [{"Data": one.data, "PartitionKey": one.episode} for one in batch]
    answer = calls.once("put_records", StreamName=calls.address.name, Records=entries)
    return [str(one.get("ErrorCode") or "") for one in answer["Records"]]


def _given_up(calls: KinesisClient, left: int, of: int, refused: Counter[str]) -> StoreFailed:
    why = ", ".join(sorted(refused))
    do = "Look at the server's log"
    if faults.THROTTLED & set(refused):
        do = "Add shards with `spar stream reshard`"
    wrong = f"{left} of {of} records were not taken within {calls.patience.deadline_s:g} s ({why})"
    return StoreFailed(wrong, where=calls.address.where, do=f"{do}, and send them again later")
