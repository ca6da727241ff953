"""What the endpoints share: config, backends, the counters that Prometheus reads, the small state of one gateway."""

import asyncio
import ipaddress
import time
from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.types import Scope

from sparring.config import Config
from sparring.dashboard.app import Dashboard
from sparring.errors import ChunkRefused, ConfigError, Missing
from sparring.games.catalogue import Catalogue
from sparring.games.chunk_checks import ChunkRules
from sparring.games.spec import GameSpec
from sparring.games.step_buffer import MemoryBudget
from sparring.gateway.commits import Commits
from sparring.gateway.connections import Connections, network_of, parsed_address
from sparring.gateway.credentials import open_identity
from sparring.gateway.http_errors import TooMany
from sparring.gateway.identity import NO_CALLER, Audit, Caller, Identity, admit, check_host
from sparring.gateway.inference import InferenceServer, StateSizes
from sparring.gateway.intake import StreamIntake
from sparring.gateway.rate_limits import Quotas, Rates, SampleRate
from sparring.gateway.request_body import BodyBudget, ByteBudget
from sparring.registry.registry import Registry
from sparring.store.protocol import Store
from sparring.stream.protocol import Stream
from sparring.wire.ids import ModelId

STREAM_GROUP_CHUNKS = 500  # a stream's answer takes a round trip over the network: what one request holds goes at once
FORWARDED = {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"}  # by a proxy
MAX_ADDRESS_CHARACTERS = 64
PLAYER_STEPS_BYTES = 64 << 20  # of one player's token, on all its play sockets
OWN_PER_S, OWN_AT_ONCE = 1.0, 30.0  # times that a caller reads or erases all that is stored of a player
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics(Collector):
    """What Prometheus reads, in a registry of its own. The series of each set of labels is looked up once."""

    def __init__(self, state: "GatewayState") -> None:
        self.registry, self._state = CollectorRegistry(), state
        about = "Requests answered, by endpoint and status"
        requests = Counter("spar_requests_total", about, ("endpoint", "status"), registry=self.registry)
        about = "Time from the request's head to its answer"
        self._seconds = Histogram("spar_request_seconds", about, registry=self.registry, buckets=BUCKETS_S)
        chunks = Counter("spar_chunks_total", "Chunks judged, by verdict", ("verdict",), registry=self.registry)
        about = "Steps kept for the first time, or taken by the stream"
        self._steps = Counter("spar_steps_total", about, registry=self.registry)
        about = "Actions chosen, by whether a model or chance chose"
        acts = Counter("spar_acts_total", about, ("by",), registry=self.registry)
        self._requests, self._chunks, self._acts = cache(requests.labels), cache(chunks.labels), cache(acts.labels)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # memory, CPU, open files, start time

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests(endpoint, status).inc()
        self._seconds.observe(seconds)

    def count_chunks(self, verdicts: Mapping[str, int], new_steps: int) -> None:
        """The chunks of one upload were judged: verdict → chunks, and the steps of those that are new or taken."""
        for verdict, chunks in verdicts.items():
            self._chunks(verdict).inc(chunks)
        self._steps.inc(new_steps)

    def count_act(self, model: str | None) -> None:
        """An action was chosen by that model, or at random."""
        self._acts("chance" if model is None else "model").inc()

    def collect(self) -> Iterator[Metric]:
        """What is measured at the moment when Prometheus asks."""
        state, flow, now_s = self._state, self._state.commits.flow(), time.monotonic()
        yield GaugeMetricFamily("spar_queue_chunks", "Chunks that wait for their commit", flow.waiting_chunks)
        about = "Chunks that may wait; more are sent away with 503"
        yield GaugeMetricFamily("spar_queue_capacity_chunks", about, flow.capacity_chunks)
        yield GaugeMetricFamily("spar_queue_oldest_seconds", "How long the first of them has waited", flow.oldest_s)
        yield CounterMetricFamily("spar_commits_total", "Commits to the store, or appends to the stream", flow.commits)
        about = "1 where a stream takes what is uploaded, 0 where the store does"
        yield GaugeMetricFamily("spar_into_stream", about, int(state.stream is not None))
        yield GaugeMetricFamily("spar_sample_rate", "Share of episodes asked for", state.sampling.rate(now_s))
        about = "What all players play, estimated from what they sent"
        yield GaugeMetricFamily("spar_played_steps_per_second", about, state.sampling.played_steps_per_s(now_s))
        yield GaugeMetricFamily("spar_sockets", "Open play sockets", state.sockets.total())
        yield GaugeMetricFamily("spar_connections", "Open connections", len(state.connections))
        about = "Connections and play sockets that were closed or refused at a limit"
        refused = CounterMetricFamily("spar_connections_refused_total", about, labels=("limit",))
        for limit, times in state.connections.closed_early.items():
            refused.add_metric((limit,), times)
        yield refused


@dataclass(frozen=True, eq=False)
class FileContent:
    """A model's file while it is being sent."""

    content: bytes


class GatewayState:
    """One gateway; its writer thread runs from now until `commits.close()`. `local`: it is bound to loopback."""

    def __init__(
        self,
        config: Config,
        store: Store,
        registry: Registry,
        catalogue: Catalogue,
        *,
        local: bool,
        stream: Stream | None = None,
    ) -> None:
        """With `stream`, chunks go there instead of into the store."""
        data, limits = Path(config.data), config.gateway
        self.config, self.store, self.registry, self.catalogue = config, store, registry, catalogue
        self.stream = stream
        self.stream_intake = None if stream is None else StreamIntake(stream, store)
        self.rules = ChunkRules(catalogue.games(), config.store.keep_days)
        self.identity = Identity(open_identity(config), store, local=local)
        group = config.store.group_chunks if stream is None else STREAM_GROUP_CHUNKS
        self.commits = Commits(self.stream_intake or store, queue_chunks=limits.queue_chunks, group_chunks=group)
        self.inference = InferenceServer(registry, catalogue.open_game)
        self.audit = Audit(data / "audit.jsonl")
        self.dashboard = Dashboard(config, store, registry, catalogue)
        self.exports: set[str] = set()  # callers that are being sent what is stored of them
        self._own = Rates(OWN_PER_S, OWN_AT_ONCE)
        self.ready: tuple[float, asyncio.Task[None]] | None = None  # when the store was asked last, and what it said
        self._play_memory: WeakValueDictionary[str, MemoryBudget] = WeakValueDictionary()  # by player token
        self.sockets: Counts[str] = Counts()  # caller → open play sockets
        most = (limits.connections, limits.connections_per_address, limits.connections_per_caller)
        self.connections = Connections(*most, self._is_proxy)
        self.bodies = BodyBudget(limits.bodies_bytes)
        self.files: WeakValueDictionary[tuple[ModelId, str], FileContent] = WeakValueDictionary()  # being sent
        self.reading: dict[tuple[ModelId, str], asyncio.Task[FileContent]] = {}  # read from the registry just now
        self.sampling = SampleRate(config.collect.budget_steps_per_s, config.collect.window_s)
        self._proxies = [_network(text) for text in limits.trusted_proxies]
        self.rates = Rates(limits.requests_per_s, limits.burst_requests)
        self.decoding = ByteBudget(limits.decode_bytes)
        self.player_quotas = Quotas(limits.player_steps_per_day, limits.player_bytes_per_day)
        self.key_quotas = Quotas(limits.key_steps_per_day, limits.key_bytes_per_day)
        self.states = StateSizes(registry, limits.state_bytes)
        self.metrics = Metrics(self)

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def sample_rate(self) -> float:
        """The share of episodes asked for just now."""
        return self.sampling.rate(time.monotonic())

    def admitted_caller(self, scope: Scope, required_scope: str) -> Caller:
        """Who calls, after the rate limit and the checks of scope, game, Host and Origin; raises the refusal otherwise.
        The one place where these are checked."""
        headers = Headers(scope=scope)
        credential = headers.get("authorization", "") or _from_subprotocol(headers)
        address = self.address(scope)
        caller = self.identity.caller(credential, address)
        self.take_rate(caller.id if credential else address)
        admit(caller, required_scope, scope.get("path_params", {}).get("game"))
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD", "OPTIONS")
        forwarded = not FORWARDED.isdisjoint(headers.keys())
        check_host(caller, headers.get("host", ""), headers.get("origin") if changes else None, forwarded=forwarded)
        if caller is not NO_CALLER and (connection := scope.get("state", {}).get("connection")) is not None:
            self.connections.protect(connection, caller.id)
        return caller

    def play_memory(self, caller: Caller) -> MemoryBudget | None:
        """What the steps of all seats that a player's token has open may take until they are stored; None for a key."""
        if caller.player is None:
            return None
        return self._play_memory.setdefault(caller.id, MemoryBudget(PLAYER_STEPS_BYTES))

    def address(self, scope: Scope) -> str:
        """Where the request comes from, as `network_of` counts addresses. What trusted proxies appended to
        X-Forwarded-For is believed, from the right, up to the first address that is no trusted proxy's: a caller can
        write anything to the left of that."""
        found = str((scope.get("client") or ("", 0))[0])
        said = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",") if self._proxies else []
        while said and self._is_proxy(found):
            found = said.pop().strip()[:MAX_ADDRESS_CHARACTERS]
        return network_of(found)

    def _is_proxy(self, address: str) -> bool:
        there = parsed_address(address) if self._proxies else None
        return there is not None and any(there in network for network in self._proxies)

    def take_rate(self, who: str, requests: float = 1.0) -> None:
        """One request or message of that caller, or what costs as many; TooMany where there were too many."""
        if (wait_s := self.rates.take(who, time.monotonic(), requests)) > 0.0:
            raise TooMany("too many requests", where="rate", limit=self.rates.per_s, retry_s=wait_s)

    def take_search(self, caller: Caller, search_ms: float | None) -> None:
        """A search of that length: every millisecond of it counts as a request. ChunkRefused where it is too long."""
        most = self.config.gateway.max_search_ms
        if search_ms is not None and not 0.0 <= search_ms <= most:
            wrong, do = "a search does not take so long here", f"Send 0 to {most}, or act locally"
            where, field = "gateway.max_search_ms", "search_ms"
            raise ChunkRefused(wrong, where=where, do=do, field=field, value=search_ms, limit=most)
        if search_ms:
            self.take_rate(caller.id, search_ms)

    def take_own(self, caller: Caller) -> None:
        """One reading or erasing of all that is stored of a player; TooMany where there were too many."""
        if (wait_s := self._own.take(caller.id, time.monotonic())) > 0.0:
            raise TooMany("too many requests for a player's records", where="rate", limit=OWN_PER_S, retry_s=wait_s)

    def spec(self, game: str, version: str | None = None) -> GameSpec:
        """That version of the game, by default the newest; Missing otherwise."""
        found = self.catalogue.newest(game) if version is None else self.catalogue.spec(game, version)
        if found is None:
            which = "" if version is None else f" in version {version[:40]!r}"
            do = "GET /v1/games lists those that are served"
            raise Missing(f"there is no game {game[:80]!r}{which} here", where="games", do=do)
        return found


def _network(text: str) -> "ipaddress.IPv4Network | ipaddress.IPv6Network":
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        do = 'Write addresses or networks, such as "10.0.0.0/8"'
        raise ConfigError(str(error), where="gateway.trusted_proxies", do=do) from None


def _from_subprotocol(headers: Headers) -> str:
    """A browser's WebSocket cannot send Authorization; it offers the subprotocol `bearer.<token>` instead."""
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith("bearer."):
            return "Bearer " + offered.strip().removeprefix("bearer.")
    return ""
