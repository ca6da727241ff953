"""Chunks whose every number can be derived again, put on a stream, and looked for in a store.

Import it as `from sink.flow import …`.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3

from derived import GAME, chunks_of, differences
from servers.aws_servers import Kinesis
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.stream import open_stream
from sparring.wire.chunk import Chunk, Key

SEED = 7
_numbers = itertools.count()


def new_stream(server: Kinesis, shards: int) -> str:
    """A new stream there; its URL once it is active."""
    name = f"sink-{os.getpid()}-{next(_numbers)}"
    client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1")
    client.create_stream(StreamName=name, ShardCount=shards)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    client.close()
    return server.url(name)


def put_raw(server: Kinesis, url: str, data: bytes, key: str = "raw") -> None:
    """A record as somebody else would write it."""
    client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1")
    client.put_record(StreamName=url.partition("://")[2].partition("?")[0], Data=data, PartitionKey=key)
    client.close()


def episodes(clients: int, each: int, *, first: int = 0, steps: int = 100) -> Iterator[list[Chunk]]:
    """Whole episodes of several clients, those of one time beside each other."""
    for episode in range(first, first + each):
        for client in range(clients):
            yield chunks_of(SEED, client, episode, steps=steps)


def put(url: str, chunks: Sequence[Chunk]) -> None:
    """Onto the stream, as a trusted game server does."""
    with open_stream(url) as stream:
        stream.append(chunks)


@dataclass(frozen=True, slots=True)
class Found:
    """What a store holds, held against what was sent."""

    steps: int
    lost: int
    twice: int
    ghosts: int
    corrupt: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.twice or self.ghosts or self.corrupt)


def judged(store_url: str, sent: Sequence[Chunk]) -> Found:
    """Every stored row derived again from its seed; every sent one looked for."""
    expected = {chunk.key for chunk in sent}
    with open_store(store_url) as store:
        found: Counter[Key] = Counter()
        steps: Counter[tuple[Any, ...]] = Counter()  # each step by itself: chunks that overlap would be seen
        corrupt = 0
        for chunk in store.read(Query(GAME)):
            found[chunk.key] += 1
            corrupt += bool(differences(chunk))
            head = chunk.header
            steps.update((head.episode, head.seat, head.first_step + at) for at in range(head.steps))
        counted = store.stats(GAME).steps
    assert counted == steps.total()
    twice = sum(count - 1 for count in steps.values())
    return Found(counted, len(expected - found.keys()), twice, len(found.keys() - expected), corrupt)


@contextmanager
def sink(data: Path, url: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`spar sink` in a process of its own, which does not outlive the block."""
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "sparring", "sink", "--data", str(data), "--set", f"stream.url={url}", "--json"]
    with (data / "sink.log").open("ab") as log:
        # A session of its own: whatever it starts can be killed with it.
        process = subprocess.Popen(
            [*command, *words], cwd=data, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def trickle(url: str, chunks: Sequence[Chunk], seconds: float) -> None:
    """Put them there a few at a time, over about so many seconds."""
    pieces = 60
    size = -(-len(chunks) // pieces)
    with open_stream(url) as stream:
        for at in range(0, len(chunks), size):
            stream.append(chunks[at : at + size])
            time.sleep(seconds / pieces)


class Feed:
    """Puts chunks on a stream by a thread of its own, a piece at a time, as far as it is allowed to."""

    def __init__(self, url: str, chunks: Sequence[Chunk], piece: int, every_s: float) -> None:
        self._url, self._chunks, self._piece, self._every_s = url, chunks, piece, every_s
        self._allowed, self._closed, self._changed = 0, False, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="feed")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def allow(self, share: float) -> None:
        """Go on to this share of all chunks."""
        with self._changed:
            self._allowed = max(self._allowed, round(share * len(self._chunks)))
            self._changed.notify()

    def finish(self) -> None:
        """Return when all are there."""
        self.allow(1.0)
        self._thread.join()

    def _run(self) -> None:
        at = 0
        with open_stream(self._url) as stream:
            while at < (until := self._next(at)):
                stream.append(self._chunks[at:until])
                at = until
                time.sleep(self._every_s)

    def _next(self, at: int) -> int:
        """Up to where to go on from there, once that is allowed; `at` itself at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._allowed > at or at == len(self._chunks))
            return at if self._closed else min(at + self._piece, self._allowed)


def wait_for(file: Path, text: str, *, after: int = 0, seconds: float = 60.0) -> None:
    """Until the file says so, behind its first `after` bytes."""
    until_s = time.monotonic() + seconds
    while text not in file.read_text()[after:]:
        assert time.monotonic() < until_s, file.read_text()[-3000:]
        time.sleep(0.05)


def once(data: Path, url: str, *words: str) -> dict[str, Any]:
    """What `spar sink --once` says at its end."""
    with sink(data, url, "--once", *words) as process:
        said, _ = process.communicate(timeout=600)
        log = (data / "sink.log").read_text()
        assert process.returncode == 0, log[-3000:]
        result: dict[str, Any] = json.loads(said.splitlines()[-1])
        return result


def spar(data: Path, *words: str) -> dict[str, Any]:
    """What a command answers."""
    command = [sys.executable, "-m", "sparring", *words, "--data", str(data), "--json"]
    found = subprocess.run(command, cwd=data, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def store_of(data: Path) -> str:
    """The URL of the data folder's own store."""
    return f"sqlite:///{data}/experience.db"
