"""Records into Kinesis: requests of many records, each of which may be refused alone and is tried again."""

from collections import Counter
from collections.abc import Sequence

from sparring.errors import StoreFailed
from sparring.stream.kinesis import errors
from sparring.stream.kinesis.batches import OutgoingRecord, SendQueue
from sparring.stream.kinesis.client import Backoff, KinesisClient


def write(client: KinesisClient, records: Sequence[OutgoingRecord]) -> None:
    """All of the records are in the stream on return. Otherwise raises a sentence, and some of them may be in it.

    Whoever sends such records again finds them twice in the stream, never lost and never in another order.
    """
    queue, backoff = SendQueue(records), Backoff(client)
    while batch := queue.next():
        refused: Counter[str] = Counter()
        try:
            for one, code in zip(batch, _put(client, batch), strict=True):
                if code:
                    refused[code] += 1
                    queue.refused(one)
                else:
                    queue.taken(one)
        except errors.AnyFault as error:
            if not errors.passing(error) or not backoff.wait():
                raise errors.explain(error, client.address) from None
            continue
        if not refused:
            backoff.succeeded()
        elif not backoff.wait():
            raise _given_up(client, queue.left, len(records), refused)


def _put(client: KinesisClient, batch: list[OutgoingRecord]) -> list[str]:
    """For each record what Kinesis refused it with, "" where it was taken."""
    entries = [{"Data": one.data, "PartitionKey": one.episode} for one in batch]
    answer = client.once("put_records", StreamName=client.address.name, Records=entries)
    return [str(one.get("ErrorCode") or "") for one in answer["Records"]]


def _given_up(client: KinesisClient, left: int, of: int, refused: Counter[str]) -> StoreFailed:
    why = ", ".join(sorted(refused))
    do = "Look at the server's log"
    if errors.THROTTLED & set(refused):
        do = "Add shards with `spar stream reshard`"
    wrong = f"{left} of {of} records were not taken within {client.timeouts.deadline_s:g} s ({why})"
    return StoreFailed(wrong, where=client.address.where, do=f"{do}, and send them again later")
