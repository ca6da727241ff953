"""One file, `spar.toml`, chooses the parts: frozen dataclasses are its declaration, defaults, types and docs.

Unknown keys are refused with a suggestion; `--set section.key=value` overrides. Each field's
comment is its line in docs/settings.md, which is generated from here.
"""

import difflib
import json
import os
import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from sparring.durable import replace_file
from sparring.errors import ConfigError

DATA_FORMAT = 2  # of the data folder
SamplerName = Literal["uniform", "prioritised", "newest", "by-episode", "by-source"]
RemoverName = Literal["fifo", "lowest-priority"]


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The only door: HTTP and WebSocket."""

    host: str = "127.0.0.1"  # address to bind; anything but loopback needs keys and TLS
    port: int = 8700  # 0 picks a free one
    tls_cert: str = ""  # PEM file; "self-signed" makes a pair in the data folder and prints its fingerprint
    tls_key: str = ""  # PEM file of the certificate's private key
    max_upload_bytes: int = 4 << 20  # of one request's body, refused before it is read
    body_deadline_s: float = 20.0  # a request's head, and then its body, must arrive within this
    queue_chunks: int = 1_024  # that may wait for their commit; more answers 503
    requests_per_s: float = 2_000.0  # per key, or per address without one; more answers 429
    burst_requests: int = 4_000  # that may come at once before requests_per_s holds
    player_steps_per_day: int = 5_000_000  # one player's quota; more answers 429
    token_lifetime_s: float = 86_400.0  # of a player token, unless asked for less


@dataclass(frozen=True, slots=True)
class CollectConfig:
    """How much play is asked for."""

    budget_steps_per_s: float = 100_000.0  # all players together; above it the sample rate falls
    window_s: float = 10.0  # over which the offered rate is measured


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Between gateway and store."""

    url: str = ""  # kinesis://NAME?region=…&endpoint=…; "": the gateway appends straight to the store


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """From the stream into the store."""

    trigger_s: float = 1.0  # a batch begins this often
    lake_url: str = ""  # s3://bucket/prefix?endpoint=…: training-ready Parquet is written there too; "": nowhere


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Experience, kept."""

    url: str = "sqlite:///{data}/experience.db"  # {data} is the data folder
    keep_days: float = 0.0  # older chunks are removed; 0 keeps all
    keep_bytes: int = 0  # the oldest chunks are removed above this; 0 keeps all
    group_chunks: int = 64  # at most this many in one commit


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Models by content."""

    url: str = "file:///{data}/models"  # {data} is the data folder
    champion_days: float = 7.0  # a champion's manifest expires after this; serve signs again in time
    gate_episodes: int = 200  # played by the promotion gate; fewer of long games, unless it is set
    rollout_share: float = 1.0  # of clients that get a new champion at once
    signing_key: str = "{data}/models/signing.key"  # of s3://: this machine's file of the key that signs champions


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """What a learner samples."""

    sampler: SamplerName = "uniform"  # which steps are learned
    remover: RemoverName = "fifo"  # which steps make room for new ones
    capacity_steps: int = 100_000  # steps above this are removed
    capacity_bytes: int = 0  # steps above this are removed, too; 0 counts steps alone
    priority_exponent: float = 0.6  # of prioritised: 0 is uniform, 1 in proportion to the error
    importance_exponent: float = 0.4  # of prioritised: 1 corrects what it distorts whole, 0 not at all
    importance_samples: int = 0  # of prioritised: drawn while importance_exponent rises to 1; 0 keeps it
    source_shares: tuple[str, ...] = ()  # of by-source: "play=0.5", …; equal where it is empty
    uploader_share: float = 1.0  # of a batch that one uploader's records may have; 1 sets no limit
    min_steps: int = 1_000  # nothing is sampled before this many have arrived
    samples_per_insert: float = 8.0  # steps learned from per step inserted
    slack_samples: float = 10_000.0  # how far the two may drift before one side waits
    store_share: float = 0.25  # of each batch from the store, with --from mix
    shards: int = 0  # services that hold replay, in apex; 0: the learner's own process does


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A run."""

    envs: int = 16  # games played at once by one actor
    actors: int = 2  # processes that play, in topologies that have any beside the learner
    learners: int = 1  # that share the work and average their gradients (ppo, impala: topology ring)
    on: str = "local://"  # where actors run: local://, ray://auto or ray://HOST:PORT
    cpus_per_actor: float = 0.5  # that a cluster sets aside for each actor and each shard of replay
    reward_clip: float = 0.0  # rewards beyond ± this are learned as this; returns are told as earned; 0: no limit
    policy: str = ""  # a policy of your own, as module:name (docs/training.md); "": the algorithm's
    checkpoint_every_s: float = 30.0  # a killed run loses at most this
    publish_every_s: float = 60.0  # a model is published and stands for promotion this often
    log_every_s: float = 1.0  # a line of metrics
    opponents: int = 8  # past selves kept to play against, in games with several seats
    opponent_share: float = 0.3  # of games played against a past self
    script_share: float = 0.3  # of games played against the game's own scripts, where it has any beside random
    torch_threads: int = 0  # 0 leaves it to torch

    def __post_init__(self) -> None:
        if self.actors < 1 or not self.reward_clip >= 0:
            raise ConfigError(
                f"actors = {self.actors}, reward_clip = {self.reward_clip:g}",
                where="[train]",
                do="Count actors from 1, and keep reward_clip at 0 or more",
            )
        shares = (self.opponent_share, self.script_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ConfigError(
                f"opponent_share = {shares[0]:g} and script_share = {shares[1]:g}",
                where="[train]",
                do="Keep both at 0 or more, and their sum at 1 or less",
            )


@dataclass(frozen=True, slots=True)
class ServicesConfig:
    """How services find and call each other."""

    discovery: str = "local://"  # or local:///folder, consul://HOST:PORT; SPARRING_DISCOVERY stands in for the default
    bind: str = "127.0.0.1"  # of consul://: the address of this machine at which others call; needs keys off loopback
    keys: str = ""  # of consul://: folder of CURVE keys (`spar services keys create`); "": made for this machine


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
    services: ServicesConfig = field(default_factory=ServicesConfig)

    @property
    def store_url(self) -> str:
        return self.store.url.replace("{data}", self.data)

    @property
    def discovery_url(self) -> str:
        """services.discovery with its options; where that is the default, SPARRING_DISCOVERY if it is set."""
        said = self.services
        if said.discovery == ServicesConfig().discovery:
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
            raise ConfigError(f"it is not TOML: {error}", where=str(file), do="Mend that line") from None
    for text in overrides:
        _override(table, text)
    config: Config = read(Config, table, str(file) if file.exists() else "--set")
    games = tuple(str((file.parent / game).resolve()) if game.endswith(".toml") else game for game in config.games)
    keys = config.services.keys and str((file.parent / config.services.keys).resolve())
    services = replace(config.services, keys=keys)
    return replace(config, data=str((file.parent / config.data).resolve()), games=games, services=services)


def check_data_folder(folder: Path) -> bool:
    """Whether the folder says its format (format.json); ConfigError where it is not this version's.

    Versions before the marker left runs or an identity key without it.
    """
    marker = folder / "format.json"
    if not marker.exists() and not any((folder / name).exists() for name in ("runs", "identity.key")):
        return False
    try:
        found = json.loads(marker.read_bytes())["format"] if marker.exists() else 1
    except (ValueError, KeyError, TypeError):
        found = "unknown"
    if found != DATA_FORMAT:
        raise ConfigError(
            f"its format is {found}, and this Sparring reads {DATA_FORMAT}",
            where=f"data folder {folder}",
            do="Name a new folder with --data, or use the version of Sparring that made this one",
        )
    return True


def open_data_folder(folder: Path) -> None:
    """Make the data folder and its format.json where they are not there yet; ConfigError as `check_data_folder`."""
    if not check_data_folder(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "format.json", json.dumps({"format": DATA_FORMAT}).encode())


def read(cls: type, table: dict[str, Any], where: str) -> Any:
    """Build the frozen dataclass `cls` from a TOML table, or say which key is wrong and where."""
    kinds, values = get_type_hints(cls), {}
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
    if type(value) is not kind:
        raise ConfigError(
            f"{key} = {value!r} should be {kind.__name__}, not {type(value).__name__}", where=where, do="Mend the value"
        )
    return value


def _override(table: dict[str, Any], text: str) -> None:
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


def settings(cls: type = Config, prefix: str = "") -> list[tuple[str, str, Any]]:
    """Every key as (path, type, default), in the order of declaration."""
    rows: list[tuple[str, str, Any]] = []
    kinds = get_type_hints(cls)
    for item in fields(cls):
        kind = kinds[item.name]
        if is_dataclass(kind):
            rows += settings(kind, f"{prefix}{item.name}.")  # type: ignore[arg-type]
        else:
            rows.append((prefix + item.name, str(getattr(kind, "__name__", kind)), item.default))
    return rows
