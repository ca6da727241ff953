"""The settings in `spar.toml`: frozen dataclasses are their declaration, defaults, types and documentation.

Unknown keys are refused with a suggestion; `--set section.key=value` overrides. Each field's
comment is its line in docs/settings.md, which is generated from here.
"""

import difflib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from sparring.durable import disk_errors, replace_file
from sparring.errors import ConfigError

DATA_FORMAT = 2  # of the data folder
DEFAULT = "default"  # the origin of a value that was not set
SamplerName = Literal["uniform", "prioritised", "newest", "by-episode", "by-source"]
RemoverName = Literal["fifo", "lowest-priority"]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The HTTP and WebSocket server that games talk to."""

    host: str = "127.0.0.1"  # address to bind; anything but loopback needs keys and TLS
    port: int = 8700  # 0 picks a free one
    tls_cert: str = ""  # PEM file; "self-signed" makes a certificate in the data folder and prints its fingerprint
    tls_key: str = ""  # PEM file of the certificate's private key
    max_upload_bytes: int = 4 << 20  # of one request's body; a larger one is refused before it is read
    bodies_bytes: int = 128 << 20  # of all requests under way, one caller's at most half; and of models being sent
    decode_bytes: int = 128 << 20  # of all chunks that are decoded and not yet stored; one caller's at most half
    state_bytes: int = 64 << 10  # of the recurrent state in a chunk whose model the registry does not have
    body_deadline_s: float = 20.0  # a request's headers, and then its body, must arrive within this
    connections: int = 4_096  # open at once; fewer where the file limit (ulimit -n) does not allow them
    connections_per_address: int = 256  # that showed no valid key or token; its oldest is then closed for a new one
    connections_per_caller: int = 128  # of a key or player token that are never closed to make room for others
    sockets_per_player: int = 16  # play sockets of one player token; above it they get 503
    queue_chunks: int = 1_024  # chunks that may wait for their commit; above it uploads get 503
    requests_per_s: float = 2_000.0  # per key, or per address without one; above it requests get 429
    burst_requests: int = 4_000  # requests at once before requests_per_s limits them
    player_steps_per_day: int = 5_000_000  # quota of one player or player token; above it uploads get 429
    player_bytes_per_day: int = 1 << 30  # the same in bytes as they are stored
    key_steps_per_day: int = 10_000_000_000  # quota of one API key, or of all callers without one; above it 429
    key_bytes_per_day: int = 1 << 40  # the same in bytes as they are stored
    max_search_ms: int = 200  # a caller may ask for at most this; 0: no searches
    token_lifetime_s: float = 86_400.0  # of a player token, unless the request asks for less
    trusted_proxies: tuple[str, ...] = ()  # addresses or networks whose X-Forwarded-For names the caller: "10.0.0.0/8"
    identity_url: str = "file:///{data}"  # identity.key and API keys, one place for all gateways; or s3://BUCKET/PREFIX

    def __post_init__(self) -> None:
        for name in ("connections", "connections_per_address", "connections_per_caller", "sockets_per_player"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}", where="[gateway]", do="Count from 1")


@dataclass(frozen=True, slots=True)
class CollectConfig:
    """How much of the play games are asked to upload."""

    budget_steps_per_s: float = 100_000.0  # of all players together; above it the sample rate falls
    window_s: float = 10.0  # over which the upload rate is measured


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """An optional stream between gateway and store."""

    url: str = ""  # kinesis://NAME?region=…&endpoint=…; "": the gateway appends straight to the store


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """The process that moves chunks from the stream into the store."""

    trigger_s: float = 1.0  # one batch per this time
    lake_url: str = ""  # s3://bucket/prefix?endpoint=…: the sink writes Parquet for training there too; "": no


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where experience is stored."""

    url: str = "sqlite:///{data}/experience.db"  # {data} is the data folder
    keep_days: float = 0.0  # chunks older than this are deleted; 0 keeps all
    keep_bytes: int = 0  # above this size the oldest chunks are deleted; 0 keeps all
    group_chunks: int = 64  # at most this many chunks in one commit


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Where models are stored, and how champions are chosen and signed."""

    url: str = "file:///{data}/models"  # {data} is the data folder
    champion_days: float = 7.0  # a champion's manifest expires after this; `spar serve` re-signs it in time
    gate_episodes: int = 2000  # episodes that the promotion gate plays at most; fewer of long games, unless this is set
    rollout_share: float = 1.0  # share of clients that get a new champion at once
    signing_key: str = "{data}/models/signing.key"  # with s3://: file of the key that signs champions


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The replay table that a learner samples from."""

    sampler: SamplerName = "uniform"  # how steps are sampled
    remover: RemoverName = "fifo"  # which steps are removed when the table is full
    capacity_steps: int = 100_000  # steps that the table holds
    capacity_bytes: int = 0  # a limit in bytes as well; 0: half of the machine's memory
    priority_exponent: float = 0.6  # prioritised: α; 0 is uniform, 1 in proportion to the error
    importance_exponent: float = 0.4  # prioritised: β; 1 corrects the bias fully, 0 not at all
    importance_samples: int = 0  # prioritised: samples until importance_exponent has risen to 1; 0: it stays
    source_shares: tuple[str, ...] = ()  # by-source: "play=0.5", …; empty: equal shares
    uploader_share: float = 1.0  # largest share of a batch from one uploader; 1: no limit
    min_steps: int = 1_000  # nothing is sampled before this many steps were inserted
    samples_per_insert: float = 8.0  # steps sampled per step inserted; the rate limiter makes the faster side wait
    slack_samples: float = 10_000.0  # how far samples and inserts may drift from that ratio before one side waits
    store_share: float = 0.25  # with --from mix: share of inserted steps that come from the store
    shards: int = 0  # with topology apex: services that hold the table; 0: the learner's own process


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run."""

    envs: int = 16  # games played at once by one actor
    actors: int = 2  # actor processes, in topologies that have any
    learners: int = 1  # processes that average their gradients (ppo, mappo, impala: topology allreduce)
    gradient_share: float = 1.0  # of its gradient's entries that each learner sends, the largest; the rest come later
    on: str = "local://"  # where actors run: local://, ray://auto or ray://HOST:PORT
    cpus_per_actor: float = 0.5  # CPUs that a cluster reserves for each actor and each replay shard
    reward_clip: float = 0.0  # rewards are clipped to ± this for learning; reported returns are not; 0: no clipping
    policy: str = ""  # a policy of your own, as module:name (docs/training.md); "": the algorithm's
    checkpoint_every_s: float = 30.0  # a killed run loses at most this much work
    publish_every_s: float = 60.0  # a model is published, and tried by the promotion gate, this often
    log_every_s: float = 1.0  # a line of metrics this often
    track: tuple[str, ...] = ("tensorboard",)  # who gets the metrics: tensorboard, wandb, mlflow or module:name
    track_project: str = ""  # project of wandb, experiment of mlflow; "": the game
    opponents: int = 8  # past versions kept as opponents, in games with several seats
    opponent_share: float = 0.3  # share of games against a past version
    script_share: float = 0.3  # share of games against the game's scripts, where it has any but random
    torch_threads: int = 0  # 0: one, and torch's choice where a row costs more than a million multiplications
    delta_conv: bool = True  # convolutions skip windows of an image that did not change; same results, faster

    def __post_init__(self) -> None:
        if self.actors < 1 or not self.reward_clip >= 0:
            do = "Count actors from 1, and keep reward_clip at 0 or more"
            raise ConfigError(f"actors = {self.actors}, reward_clip = {self.reward_clip:g}", where="[train]", do=do)
        if not 0 < self.gradient_share <= 1:
            do = "Give a share above 0, and 1 at most"
            raise ConfigError(f"gradient_share = {self.gradient_share:g}", where="[train]", do=do)
        shares = (self.opponent_share, self.script_share)
        if min(shares) < 0 or sum(shares) > 1:
            wrong = f"opponent_share = {shares[0]:g} and script_share = {shares[1]:g}"
            raise ConfigError(wrong, where="[train]", do="Keep both at 0 or more, and their sum at 1 or less")


@dataclass(frozen=True, slots=True)
class LeagueConfig:
    """A league's members and their processes."""

    pool_url: str = "memory://"  # where its processes read models of members: memory://, redis://HOST:PORT/DATABASE


@dataclass(frozen=True, slots=True)
class NodesConfig:
    """Other machines in a training run (docs/nodes.md). The parent decides; the last four are each side's own."""

    contribute: Literal["weights", "experience"] = "weights"  # experience: seeded play, a share of it played again
    lease_ticks: int = 512  # experience: decisions of each game that a node plays with one seed
    merge: str = "average"  # elastic(α, β), gradient, average; for nodes of others median, trimmed(s), krum(f)
    codec: str = "f32-delta"  # of weights: f32, f16, int8, f32-delta, f16-delta, int8-delta, topk(share)
    exchange_s: float = 2.0  # a node contributes this often
    round_s: float = 10.0  # with rules of rounds: the longest wait; shorter once usual response times are known
    max_staleness: int = 4  # rounds, or merges of each node, after which a contribution is refused
    max_norm: float = 0.0  # of a contribution; 0: norm_factor times the median of those accepted last
    norm_factor: float = 8.0  # see max_norm
    topk_momentum: float = 0.0  # with topk: momentum of what was not sent yet, as Deep Gradient Compression
    silent_s: float = 60.0  # a node that sends no whole message for so long is disconnected
    handshake_s: float = 10.0  # within which a connection shows its token and says hello
    connections: int = 256  # open at once; at most half of them without a token
    reconnect_s: float = 30.0  # longest wait between two tries to connect
    orphan_s: float = 120.0  # a node that lost its parent plays on for so long
    max_bytes_per_s: float = 0.0  # of a node, both ways together: it then contributes less often; 0: no limit
    max_message_bytes: int = 256 << 20  # that a node accepts of its parent

    def __post_init__(self) -> None:
        for name in ("exchange_s", "round_s", "silent_s", "handshake_s", "reconnect_s", "norm_factor"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name):g}", where="[nodes]", do="Give more than 0")
        if self.connections < 4 or self.max_staleness < 0 or self.lease_ticks < 1:
            wrong = f"connections = {self.connections}, max_staleness = {self.max_staleness}, "
            wrong += f"lease_ticks = {self.lease_ticks}"
            raise ConfigError(wrong, where="[nodes]", do="Allow at least 4 connections, a staleness of 0 and 1 tick")
        if self.contribute not in ("weights", "experience"):
            do = "Use weights or experience"
            raise ConfigError(f"contribute = {self.contribute!r}", where="[nodes]", do=do)
        if not 0 <= self.topk_momentum < 1:
            raise ConfigError(f"topk_momentum = {self.topk_momentum:g}", where="[nodes]", do="Give 0 or more, below 1")


@dataclass(frozen=True, slots=True)
class ServicesConfig:
    """How services find and call each other."""

    discovery: str = "local://"  # or local:///folder, consul://HOST:PORT; SPARRING_DISCOVERY replaces the default
    bind: str = "127.0.0.1"  # with consul://: the address at which others call this machine; needs keys off loopback
    keys: str = ""  # with consul://: folder of CURVE keys (`spar services keys create`); "": made for this machine


@dataclass(frozen=True, slots=True)
class Config:
    """Everything in spar.toml."""

    data: str = "data"  # the data folder, relative to the config file
    games: tuple[str, ...] = ()  # TOML specs (paths relative to the config file) or ids, beside the built-in games
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    sink: SinkConfig = field(default_factory=SinkConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)
    services: ServicesConfig = field(default_factory=ServicesConfig)
    nodes: NodesConfig = field(default_factory=NodesConfig)
    set_by: Mapping[str, str] = field(
        default_factory=dict, compare=False, metadata={"setting": False}
    )  # key → who set it

    def origin(self, key: str) -> str:
        """Where the value of "section.key" comes from: "default", a file's name, "--set", or "program"."""
        section, _, name = key.rpartition(".")
        part, default = (getattr(self, section), getattr(Config(), section)) if section else (self, Config())
        changed = getattr(part, name) != getattr(default, name)  # by a program that made this object itself
        return self.set_by.get(key, "program" if changed else DEFAULT)

    def layered(self, values: Mapping[str, Any], origin: str, *, above: bool = False) -> "Config":
        """A copy with these values for "section.key". A value that was set before stays, unless `above`."""
        sections: dict[str, dict[str, Any]] = {}
        set_by = dict(self.set_by)
        for key, value in values.items():
            if above or self.origin(key) == DEFAULT:
                section, _, name = key.partition(".")
                sections.setdefault(section, {})[name], set_by[key] = value, origin
        return replace(self, set_by=set_by, **{name: replace(getattr(self, name), **v) for name, v in sections.items()})

    @property
    def store_url(self) -> str:
        return self.store.url.replace("{data}", self.data)

    @property
    def identity_url(self) -> str:
        return self.gateway.identity_url.replace("{data}", self.data)

    @property
    def discovery_url(self) -> str:
        """services.discovery with its options; unless that was set, SPARRING_DISCOVERY where there is one."""
        said = self.services
        if self.origin("services.discovery") == DEFAULT:
            return os.environ.get("SPARRING_DISCOVERY") or said.discovery
        if not said.discovery.startswith("consul://"):
            return said.discovery
        options = {"bind": said.bind, "keys": said.keys}
        given = {name: value for name, value in options.items() if value and f"{name}=" not in said.discovery}
        return f"{said.discovery}{'&' if '?' in said.discovery else '?'}{urlencode(given)}"

    @property
    def registry_url(self) -> str:
        """registry.url; with s3:// also where this machine keeps the signing key, which no bucket holds."""
        url = self.registry.url.replace("{data}", self.data)
        if not url.startswith("s3://") or "key=" in url or not self.registry.signing_key:
            return url
        key = self.registry.signing_key.replace("{data}", self.data)
        return f"{url}{'&' if '?' in url else '?'}{urlencode({'key': key})}"


def load(path: Path | None = None, overrides: tuple[str, ...] = ()) -> Config:
    """The config in `path` (by default ./spar.toml where there is one), then `overrides` ("section.key=value")."""
    file = path or Path("spar.toml")
    if path is not None and not file.exists():
        raise ConfigError("there is no such file", where=str(file), do="Run `spar init`, or drop --config")
    table: dict[str, Any] = {}
    if file.exists():
        try:
            table = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"it is not TOML: {error}", where=str(file), do="Correct that line") from None
    set_by = dict.fromkeys(_keys(table), file.name)
    for text in overrides:
        set_by[_override(table, text)] = "--set"
    config: Config = read(Config, table, str(file) if file.exists() else "--set")
    games = tuple(str((file.parent / game).resolve()) if game.endswith(".toml") else game for game in config.games)
    keys = config.services.keys and str((file.parent / config.services.keys).resolve())
    services = replace(config.services, keys=keys)
    data = str((file.parent / config.data).resolve())
    return replace(config, data=data, games=games, services=services, set_by=set_by)


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of a TOML table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def check_data_folder(folder: Path) -> bool:
    """Whether the folder says its format (format.json); ConfigError where that is not this version's.

    Older versions wrote no format.json, but runs (by `spar train`) and an identity key (by `spar serve`).
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError("it is a file", where=f"data folder {folder}", do="Name a folder with --data")
    marker = folder / "format.json"
    if not marker.exists() and not (folder / "identity.key").exists() and not any(folder.glob("runs/*/run.json")):
        return False
    try:
        found = json.loads(marker.read_bytes())["format"] if marker.exists() else 1
    except (ValueError, KeyError, TypeError):
        found = "unknown"
    if found != DATA_FORMAT:
        wrong = f"its format is {found}, and this Sparring reads {DATA_FORMAT}"
        do = "Name a new folder with --data, or use the version of Sparring that made this one"
        raise ConfigError(wrong, where=f"data folder {folder}", do=do)
    return True


def open_data_folder(folder: Path) -> None:
    """Make the data folder and its format.json where they are not there yet; ConfigError as `check_data_folder`."""
    if not check_data_folder(folder):
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / "format.json", json.dumps({"format": DATA_FORMAT}).encode())


def read(cls: type, table: dict[str, Any], where: str) -> Any:
    """Build the frozen dataclass `cls` from a TOML table, or say which key is wrong and where."""
    kinds, values = get_type_hints(cls), {}
    kinds = {item.name: kinds[item.name] for item in fields(cls) if item.metadata.get("setting", True)}
    for key, value in table.items():
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1)
            do = f"Did you mean {near[0]!r}" if near else f"The keys here are {', '.join(kinds)}"
            raise ConfigError(f"unknown key {key!r}", where=where, do=do)
        values[key] = _value(kinds[key], key, value, where)
    return cls(**values)


def _value(kind: Any, key: str, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} = {value!r}", where=where, do=f"Write a table: [{key}]")
        return read(kind, value, f"{where} [{key}]")  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        item_kind, *_ = get_args(kind)
        if not isinstance(value, list) or not all(type(item) is item_kind for item in value):
            word = "strings" if item_kind is str else "whole numbers"
            raise ConfigError(f"{key} = {value!r}", where=where, do=f"Write a list of {word}")
        return tuple(value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            known = ", ".join(map(repr, get_args(kind)))
            raise ConfigError(f"{key} = {value!r}", where=where, do=f"Use one of {known}")
        return value
    if kind is float and type(value) is int:
        return float(value)
    kind = get_origin(kind) or kind  # a dict, whatever is in it
    if type(value) is not kind:
        wrong = f"{key} = {value!r} should be {kind.__name__}, not {type(value).__name__}"
        raise ConfigError(wrong, where=where, do="Correct the value")
    return value


def _override(table: dict[str, Any], text: str) -> str:
    """Set "section.key=value" in the table; the key."""
    path, sign, raw = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r} has no value", where="--set", do="Write --set section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw  # a bare word is a string
    *sections, key = path.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{section} = {table!r} is no section", where="--set", do="Name a section, then a key")
    table[key] = value
    return path.strip()
