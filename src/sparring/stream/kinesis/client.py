"""Calls to Kinesis through boto3: one client, every error a sentence, passing ones tried again until a deadline."""

import importlib
import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

from sparring.errors import Unreachable
from sparring.stream.kinesis import errors
from sparring.stream.kinesis.url import KinesisAddress

FIRST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0

logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials, each time
_boto3, _config = importlib.import_module("boto3"), importlib.import_module("botocore.config")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take with all its tries, and how long one try."""

    deadline_s: float = 8.0  # below the 10 s that a client waits for its gateway
    connect_s: float = 2.0
    read_s: float = 5.0


class Backoff:
    """The pauses of one call: anything up to a bound that doubles, so that writers do not come back together."""

    def __init__(self, client: "KinesisClient") -> None:
        self._client, self._until_s = client, time.monotonic() + client.timeouts.deadline_s
        self._failures = 0

    def wait(self) -> bool:
        """Pause after a failure; False at once where the deadline would pass meanwhile, or the stream is closed."""
        self._failures += 1
        bound_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures, 10))
        pause_s = self._client.rng.uniform(0.0, bound_s)
        if time.monotonic() + pause_s > self._until_s:
            return False
        return not self._client.closed.wait(pause_s)

    def succeeded(self) -> None:
        """The next pause is short again; the deadline stays."""
        self._failures = 0


class KinesisClient:
    """A client of one stream's server. Safe to call from several threads."""

    def __init__(self, address: KinesisAddress, timeouts: Timeouts, rng: random.Random) -> None:
        self.address, self.timeouts, self.rng = address, timeouts, rng
        self.closed = threading.Event()
        self._client = _client(address, timeouts)

    def __call__(self, operation: str, **given: Any) -> dict[str, Any]:
        """Call until it succeeds; an error that does not pass before the deadline is raised as a sentence."""
        backoff = Backoff(self)
        while True:
            try:
                return self.once(operation, **given)
            except errors.AnyFault as error:
                if not errors.passing(error) or not backoff.wait():
                    raise errors.explain(error, self.address) from None

    def once(self, operation: str, **given: Any) -> dict[str, Any]:
        """One try; raises botocore's own errors, or that the stream was closed meanwhile."""
        if self.closed.is_set():
            raise Unreachable("it is closed", where=self.address.where, do="Open it again")
        answer: dict[str, Any] = getattr(self._client, operation)(**given)
        return answer

    def close(self) -> None:
        """End the pauses and close the connections."""
        self.closed.set()
        self._client.close()


def _client(address: KinesisAddress, timeouts: Timeouts) -> Any:
    config = _config.Config(
        connect_timeout=timeouts.connect_s,
        read_timeout=timeouts.read_s,
        retries={"total_max_attempts": 1},  # ours know which records of a batch failed, and have a deadline
        max_pool_connections=32,
        tcp_keepalive=True,
    )
    try:
        session = _boto3.Session()
        if session.get_credentials() is None:  # said before anything is asked, and before a region that is missing too
            raise errors.no_credentials(address)
        where = {"region_name": address.region or None, "endpoint_url": address.endpoint or None}
        return session.client("kinesis", config=config, **where)
    except errors.AnyFault as error:
        raise errors.explain(error, address) from None
