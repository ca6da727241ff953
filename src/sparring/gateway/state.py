"""What the endpoints share: the config, the backends, and the small state of one gateway."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import HTTPConnection

from sparring.config import Config
from sparring.errors import Missing
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_rules import ChunkRules
from sparring.games.spec import GameSpec
from sparring.gateway.commits import Commits
from sparring.gateway.identity import Caller, Identity
from sparring.gateway.inference import InferenceServer
from sparring.gateway.intake import StreamIntake
from sparring.gateway.keys import Audit
from sparring.gateway.metrics import Metrics
from sparring.gateway.rate_limits import Quotas, Rates, SampleRate
from sparring.registry.registry import Registry
from sparring.store.protocol import LedgerStore
from sparring.stream.protocol import Stream
from sparring.wire.ids import GameId, PlayerId

STREAM_GROUP_CHUNKS = 500  # a stream's answer takes a round trip over the network: what one request holds goes at once


@dataclass(frozen=True, slots=True)
class GatewayState:
    """One gateway. `clock` gives Unix seconds."""

    config: Config
    store: LedgerStore
    registry: Registry
    catalogue: Catalogue
    rules: ChunkRules
    identity: Identity
    commits: Commits
    inference: InferenceServer
    audit: Audit
    metrics: Metrics
    sampling: SampleRate
    rates: Rates
    quotas: Quotas
    stream: Stream | None = None  # where chunks go instead of the store
    stream_intake: StreamIntake | None = None  # appends to it
    clock: Callable[[], float] = time.time

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    def sample_rate(self) -> float:
        """The share of episodes asked for just now."""
        return self.sampling.rate(time.monotonic())

    def forget(self, game: GameId, player: PlayerId) -> None:
        """That player was erased from the store: nothing of them is taken from now on."""
        if self.stream_intake is not None:
            self.stream_intake.erased(game, player)

    def spec(self, game: str, version: str | None = None) -> GameSpec:
        """That version of the game, by default the newest; Missing otherwise."""
        found = self.catalogue.newest(game) if version is None else self.catalogue.spec(game, version)
        if found is None:
            which = "" if version is None else f" in version {version[:40]!r}"
            do = "GET /v1/games lists those that are served"
            raise Missing(f"there is no game {game[:80]!r}{which} here", where="games", do=do)
        return found


def assemble(
    config: Config,
    store: LedgerStore,
    registry: Registry,
    catalogue: Catalogue,
    *,
    local: bool,
    stream: Stream | None = None,
) -> GatewayState:
    """Everything that one gateway needs; its writer thread runs from now until `commits.close()`."""
    data = Path(config.data)
    stream_intake = None if stream is None else StreamIntake(stream, store)
    group = config.store.group_chunks if stream is None else STREAM_GROUP_CHUNKS
    return GatewayState(
        config=config,
        store=store,
        registry=registry,
        catalogue=catalogue,
        rules=ChunkRules(catalogue.games(), config.store.keep_days),
        identity=Identity(data, local=local),
        commits=Commits(stream_intake or store, queue_chunks=config.gateway.queue_chunks, group_chunks=group),
        inference=InferenceServer(registry),
        audit=Audit(data / "audit.jsonl"),
        metrics=Metrics(),
        sampling=SampleRate(config.collect.budget_steps_per_s, config.collect.window_s),
        rates=Rates(config.gateway.requests_per_s, config.gateway.burst_requests),
        quotas=Quotas(config.gateway.player_steps_per_day),
        stream=stream,
        stream_intake=stream_intake,
    )


def caller_of(connection: HTTPConnection) -> Caller:
    """Who was let in."""
    caller: Caller = connection.scope["caller"]
    return caller


def request_id(connection: HTTPConnection) -> str:
    """The name of this request in logs and answers."""
    name: str = connection.scope["request_id"]
    return name
