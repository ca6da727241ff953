"""Calls to Kinesis through boto3: one client, every error a sentence, passing ones tried again until a deadline."""

import logging
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import NoCredentialsError

from sparring import aws
from sparring.errors import Missing, StoreFailed, Unreachable
from sparring.urls import read_url

SETTING = "[stream] url"
FORM = "kinesis://NAME?region=…&endpoint=…"
FIRST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
THROTTLED = "ProvisionedThroughputExceededException"
_ABSENT = "there is no such stream at {place}", "Run `spar stream create` for it, or correct its name and region= in it"
_FEW_SHARDS = "Add shards with `spar stream reshard`, and send it again later"
_REFUSALS: dict[str, aws.Refusal] = {
    "ResourceNotFoundException": (Missing, *_ABSENT),
    THROTTLED: (StoreFailed, "it is asked for more than its shards give", _FEW_SHARDS),
}

logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials, each time


@dataclass(frozen=True, slots=True)
class KinesisAddress(aws.AwsAddress):
    """One stream: kinesis://NAME?region=…&endpoint=…"""

    name: str

    service = "Kinesis"
    policy_page = "docs/deploy.md"
    refusals = _REFUSALS

    @classmethod
    def read(cls, url: str, setting: str = SETTING) -> "KinesisAddress":
        """The address in `url`; ConfigError with the right form where it is none."""
        parts, said = read_url(url, setting, "[A-Za-z0-9_.-]{1,128}/?", FORM, aws.SECRETS, aws.OPTIONS)
        endpoint = said.get("endpoint", "").rstrip("/")
        return cls(parts.netloc, region=said.get("region", ""), endpoint=endpoint, setting=setting)

    def __str__(self) -> str:
        return f"kinesis://{self.name}"


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
        pause_s = random.uniform(0.0, bound_s)
        if time.monotonic() + pause_s > self._until_s:
            return False
        return not self._client.closed.wait(pause_s)


class KinesisClient:
    """A client of one stream's server. Safe to call from several threads."""

    def __init__(self, address: KinesisAddress, timeouts: Timeouts) -> None:
        self.address, self.timeouts = address, timeouts
        self.closed = threading.Event()
        config = Config(
            connect_timeout=timeouts.connect_s,
            read_timeout=timeouts.read_s,
            retries={"total_max_attempts": 1},  # ours know which records of a batch failed, and have a deadline
            max_pool_connections=32,
            tcp_keepalive=True,
        )
        try:
            session = boto3.Session()
            if session.get_credentials() is None:  # said before a region that is missing, too
                raise NoCredentialsError
            where = {"region_name": address.region or None, "endpoint_url": address.endpoint or None}
            self._client: Any = session.client("kinesis", config=config, **where)
        except aws.AnyFault as error:
            raise aws.explain(error, address) from None

    def __call__(self, operation: str, **given: Any) -> dict[str, Any]:
        """Call until it succeeds; an error that does not pass before the deadline is raised as a sentence."""
        backoff = Backoff(self)
        while True:
            try:
                return self.once(operation, **given)
            except aws.AnyFault as error:
                if not aws.passing(error) or not backoff.wait():
                    raise aws.explain(error, self.address) from None

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
