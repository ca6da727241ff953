"""One reader of bench/pool.py:    pool_reader.py URL

The ids of all models are the first line of standard input. Each further line is a turn: the way to read, for how many
seconds, and the pause between two reads. It answers "ready", and to a turn with the time of every read, in ms.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

READ_BYTES = 1 << 20  # as of the pool's own connections


def reader_of(url: str) -> Callable[[str], object]:
    """What reads a model by its id; of a URL without a database what a bare redis-py does."""
    parts = urlsplit(url)
    if parts.scheme == "redis" and not parts.path:
        import redis

        return redis.Redis(parts.hostname or "", parts.port or 0, protocol=2, socket_read_size=READ_BYTES).get
    from sparring.pool import open_pool
    from sparring.wire.ids import ModelId

    pool = open_pool(url)
    return lambda one: pool.get(ModelId(one))


def latencies(get: Callable[[str], object], ids: list[str], seconds: float, every_s: float) -> list[float]:
    """In ms; without a pause there may be many, and the last hundred thousand are enough."""
    draw, taken, until = random.Random(), [], time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        get(draw.choice(ids))
        taken.append(1000 * (time.perf_counter() - begun))
        if every_s:
            time.sleep(every_s * (0.5 + draw.random()))
    return taken[-100_000:]


def main(url: str) -> None:
    ids = json.loads(sys.stdin.readline())
    uncached = reader_of(f"{url}?cache_bytes=0" if urlsplit(url).path or url == "memory://" else url)
    again = reader_of(url)
    for one in ids:
        assert uncached(one)
        assert again(one)
    print("ready", flush=True)
    for line in sys.stdin:
        way, seconds, every_s = json.loads(line)
        print(json.dumps(latencies(again if way == "again" else uncached, ids, seconds, every_s)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
