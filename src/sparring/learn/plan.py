"""A plan: everything that decides what a run learns. It is written into run.json, and --resume reads it back."""

import difflib
import os
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from sparring.config import Config, ReplayConfig, read
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import Catalogue, spec_of
from sparring.games.spec import GameSpec
from sparring.learn.algorithms import ALIASES, open_algorithm, settings_of
from sparring.learn.presets import Preset, preset_for
from sparring.learn.protocol import Algorithm, policy_for
from sparring.nets.user_policy import open_policy
from sparring.replay.feeder import check_share

Source = Literal["sim", "store", "mix"]

SUITS = {"impala": "async", "a3c": "hogwild", "apex": "apex"}  # by --algo; every other plays in the learner's process
AWAY = {"trajectories": "sync", "transitions": "apex", "sequences": "apex"}  # what suits on a cluster otherwise
# The topologies whose actors, or learners, are services where they are far away.
ON_HOSTS = ("sync", "allreduce", "async", "apex", "central", "offline", "rllib")
TAKES = {  # what each topology can feed an algorithm with
    "single": ("transitions", "sequences", "trajectories"),
    "sync": ("trajectories",),
    "allreduce": ("trajectories",),
    "async": ("trajectories",),
    "central": ("trajectories", "transitions", "sequences"),
    "hogwild": ("trajectories",),
    "apex": ("transitions", "sequences"),
    "offline": ("transitions", "sequences", "records"),
    "rllib": ("rllib",),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run's plan. `steps` are ticks of all games together, or steps sampled where nobody plays."""

    game: str
    spec: GameSpec
    algorithm: Algorithm
    algo: str  # as it was named
    settings: Any
    source: Source
    topology: str
    seed: int
    steps: int
    envs: int  # of each actor
    actors: int  # processes that play; the learner's own does in "single"
    reward_clip: float
    policy: str  # that actors explore with: a name of own_policy.open_policy
    opponents: int
    opponent_share: float
    script_share: float
    replay: ReplayConfig
    on: str = "local://"  # the host that actors run on
    cpus_per_actor: float = 0.5  # there
    learners: int = 1  # that average their gradients, in "allreduce"
    discovery: str = ""  # where others find whoever plays, and scale them; no part of the record

    def record(self) -> dict[str, Any]:
        """As plain data, from which `from_record` makes the same plan."""
        return {
            "algo": self.algo,
            "settings": asdict(self.settings),
            "source": self.source,
            "topology": self.topology,
            "steps": self.steps,
            "envs": self.envs,
            "actors": self.actors,
            "reward_clip": self.reward_clip,
            "policy": self.policy,
            "opponents": self.opponents,
            "opponent_share": self.opponent_share,
            "script_share": self.script_share,
            "replay": asdict(self.replay),
            "on": self.on,
            "cpus_per_actor": self.cpus_per_actor,
            "learners": self.learners,
        }


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What a user asked for; None and empty: whatever suits."""

    game: str
    algo: str = "ppo"
    source: str = "sim"
    topology: str | None = None
    seed: int = 0
    steps: int | None = None
    envs: int | None = None
    settings: tuple[str, ...] = ()  # "key=value"
    actors: int | None = None
    on: str | None = None  # a host's URL
    learners: int | None = None


def plan(wish: TrainRequest, config: Config) -> Plan:
    """The plan for a wish: the user's words, then the preset, then the defaults."""
    algorithm = open_algorithm(wish.algo)
    source = _source(wish.source)
    preset = preset_for(wish.game, wish.algo if wish.algo in ALIASES else algorithm.name)
    spec = _spec(wish.game, source, config)
    settings = settings_of(algorithm, dict(preset.settings), assignments(wish.settings))
    _check_source(algorithm, source, wish.game)
    if source == "mix" and getattr(settings, "memory", "") != "" and algorithm.feeds == "trajectories":
        raise ConfigError(
            "steps of the store say nothing of what a memory held",
            where=f"[{algorithm.name}] memory",
            do="Leave out memory, or --from mix",
        )
    on = wish.on or config.train.on
    learners = _learners(wish, config)
    topology = _topology(replace(wish, on=on, topology=_with_learners(wish.topology, learners)), algorithm, source)
    if source == "mix":
        check_share(config.replay.store_share)
    set_envs = preset.envs if config.train.envs == type(config.train)().envs else config.train.envs
    envs = set_envs if wish.envs is None else wish.envs
    _check_counts(wish, envs)
    return Plan(
        game=wish.game,
        spec=spec,
        algorithm=algorithm,
        algo=wish.algo,
        settings=settings,
        source=source,
        topology=topology,
        seed=wish.seed,
        steps=wish.steps or preset.steps,
        envs=envs,
        actors=wish.actors or (1 if topology == "rllib" else config.train.actors),
        reward_clip=config.train.reward_clip or preset.reward_clip,
        policy=_policy(config.train.policy, algorithm, spec),
        opponents=config.train.opponents,
        opponent_share=config.train.opponent_share,
        script_share=config.train.script_share,
        replay=_replay(config.replay, preset),
        on=on,
        cpus_per_actor=config.train.cpus_per_actor,
        learners=learners,
        discovery=config.discovery_url,
    )


def _check_counts(wish: TrainRequest, envs: int) -> None:
    if envs < 1 or (wish.steps is not None and wish.steps < 1):
        raise ConfigError(f"--envs {envs}, --steps {wish.steps}", where="spar train", do="Count both from 1")
    if wish.actors is not None and wish.actors < 1:
        raise ConfigError(f"--actors {wish.actors}", where="spar train", do="Count them from 1")
    if wish.seed < 0:
        raise ConfigError(f"--seed {wish.seed}", where="spar train", do="Count seeds from 0")


def from_record(game: str, seed: int, record: dict[str, Any], config: Config) -> Plan:
    """The plan that `record` was made from."""
    algorithm = open_algorithm(record["algo"])
    source = _source(record["source"])
    spec = _spec(game, source, config)
    return Plan(
        game=game,
        spec=spec,
        algorithm=algorithm,
        algo=record["algo"],
        settings=settings_of(algorithm, record["settings"]),
        source=source,
        topology=record["topology"],
        seed=seed,
        steps=record["steps"],
        envs=record["envs"],
        actors=record.get("actors", 1),  # runs from before actors had processes
        reward_clip=record.get("reward_clip", 0.0),
        policy=record.get("policy") or policy_for(algorithm, spec.seats[0].action),
        opponents=record["opponents"],
        opponent_share=record["opponent_share"],
        script_share=record.get("script_share", 0.0),  # runs from before scripts were met
        replay=read(ReplayConfig, record["replay"], "run.json [replay]"),
        on=record.get("on", "local://"),  # runs from before there were hosts
        cpus_per_actor=record.get("cpus_per_actor", 0.5),
        learners=record.get("learners", 1),
        discovery=config.discovery_url,
    )


def assignments(texts: tuple[str, ...]) -> dict[str, Any]:
    """ "key=value" texts as a table; values are TOML, a bare word is a string."""
    import tomllib

    table: dict[str, Any] = {}
    for text in texts:
        key, sign, raw = text.partition("=")
        if not sign:
            raise ConfigError(f"{text!r} has no value", where="--algo-set", do="Write --algo-set key=value")
        try:
            table[key.strip()] = tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError:
            table[key.strip()] = raw
    return table


def _replay(config: ReplayConfig, preset: Preset) -> ReplayConfig:
    default = ReplayConfig()
    free = {item.name for item in fields(config) if getattr(config, item.name) == getattr(default, item.name)}
    return replace(config, **{key: value for key, value in preset.replay.items() if key in free})


def _source(text: str) -> Source:
    for source in get_args(Source):
        if text == source:
            return source  # type: ignore[no-any-return]
    near = difflib.get_close_matches(text, get_args(Source), n=1)
    do = f"Did you mean {near[0]!r}" if near else "Use sim, store or mix"
    raise ConfigError(f"there is no source {text!r}", where="--from", do=do)


def _topology(wish: TrainRequest, algorithm: Algorithm, source: Source) -> str:
    from sparring.learn.topologies import TOPOLOGIES

    wanted = "offline" if source == "store" and algorithm.feeds != "rllib" else _suiting(wish, algorithm)
    name = wish.topology or wanted
    if name not in TOPOLOGIES:
        near = difflib.get_close_matches(name, TOPOLOGIES, n=1)
        do = f"Did you mean {near[0]!r}" if near else f"Choose one of {', '.join(TOPOLOGIES)}"
        raise Missing(f"there is no topology {name!r}", where="--topology", do=do)
    leave = f"Leave it out: {wanted} suits"
    if name != "rllib" and (name == "offline") != (source == "store"):
        raise ConfigError(f"--topology {name} does not go with --from {source}", where="--topology", do=leave)
    if _away(wish) and name not in ON_HOSTS:
        raise ConfigError(
            f"{name} runs on one machine, and --on is {wish.on}",
            where="--topology",
            do=f"Use one of {', '.join(ON_HOSTS)}, or leave --on out",
        )
    if algorithm.feeds not in TAKES.get(name, (algorithm.feeds,)):
        raise ConfigError(
            f"{name} carries {' and '.join(TAKES[name])}, and {algorithm.name} is fed with {algorithm.feeds}",
            where="--topology",
            do=leave,
        )
    return name


def _learners(wish: TrainRequest, config: Config) -> int:
    learners = config.train.learners if wish.learners is None else wish.learners
    if learners < 1:
        raise ConfigError(f"--learners {learners}", where="spar train", do="Count them from 1")
    return learners


def _with_learners(topology: str | None, learners: int) -> str | None:
    """Several learners average their gradients: topology allreduce."""
    if learners == 1 or topology == "allreduce":
        return topology
    if topology not in (None, "sync"):
        do = "Leave out --topology, or --learners"
        raise ConfigError(f"{topology} has one learner, and --learners is {learners}", where="--learners", do=do)
    return "allreduce"


def _suiting(wish: TrainRequest, algorithm: Algorithm) -> str:
    """By the name that was asked for, then by the algorithm's; processes of their own need what POSIX has."""
    if algorithm.feeds == "rllib":
        return "rllib"
    suits = SUITS.get(wish.algo, SUITS.get(algorithm.name, "single")) if os.name == "posix" else "single"
    if _away(wish) and suits not in ON_HOSTS:
        return AWAY.get(algorithm.feeds, suits)
    return suits


def _away(wish: TrainRequest) -> bool:
    return wish.on is not None and not wish.on.startswith("local:")


def _policy(name: str, algorithm: Algorithm, spec: GameSpec) -> str:
    """The user's own where one is named, which must suit; the algorithm's otherwise."""
    action = spec.seats[0].action
    if name:
        open_policy(name, action)
    return name or policy_for(algorithm, action)


def _spec(game: str, source: Source, config: Config) -> GameSpec:
    """From the simulator; a game that exists in its players' clients alone can be learned from the store."""
    known = Catalogue.from_config(config).newest(game) if source == "store" else None
    return known or spec_of(game)


def _check_source(algorithm: Algorithm, source: Source, game: str) -> None:
    if algorithm.feeds == "rllib":
        from sparring.learn.rllib.names import check_source, offer_of

        check_source(offer_of(algorithm.name), source, game)
    if source != "store" and algorithm.feeds == "records":
        raise ConfigError(
            f"{algorithm.name} learns from what others played, and nothing else",
            where=f"--from {source}",
            do=f"Use `spar train {game} --algo {algorithm.name} --from store`",
        )
    if source == "store" and algorithm.feeds == "trajectories":
        raise ConfigError(
            f"{algorithm.name} learns only from what it has just played itself, and the store holds what others played",
            where="--from store",
            do=f"Use `spar train {game} --algo dqn --from store`, or `--from mix` with {algorithm.name}",
        )
    if source == "mix" and algorithm.feeds == "trajectories" and not hasattr(algorithm.settings, "records_steps"):
        raise ConfigError(
            f"{algorithm.name} learns only from what it has just played itself",
            where="--from mix",
            do=f"Use `spar train {game} --algo ppo --from mix`, or leave --from out",
        )
