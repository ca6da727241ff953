"""A plan: everything that decides what a run learns. It is written into run.json, and --resume reads it back."""

import logging
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from sparring.config import DEFAULT, Config, NodesConfig, ReplayConfig, read
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import Catalogue, is_registered, spec_of
from sparring.games.game_state import did_you_mean
from sparring.games.seat_kinds import kind_names, of_seats
from sparring.games.spec import GameSpec
from sparring.learn.algorithms import ALIASES, open_algorithm, settings_of
from sparring.learn.presets import Preset, preset_for
from sparring.learn.protocol import Algorithm, policy_for
from sparring.nets.policies import BUILT_IN
from sparring.nets.user_code import open_policy
from sparring.replay.feeder import check_share
from sparring.user_code import is_given

log = logging.getLogger(__name__)

Source = Literal["sim", "store", "mix"]

DEFAULT_STEPS = 1_000_000
PRESET, COMMAND_LINE, PROGRAM = "preset", "command line", "program"  # origins of a setting, beside those of config.py

# The default topology by --algo; every other algorithm plays in the learner's process, or, on a cluster, by its feed.
DEFAULT_TOPOLOGY = {"impala": "async", "alphazero": "async", "a3c": "hogwild", "apex": "apex"}
CLUSTER_TOPOLOGY = {"trajectories": "sync", "transitions": "apex", "sequences": "apex"}
ON_HOSTS = ("sync", "allreduce", "async", "apex", "central", "offline", "rllib")  # can have parts on other machines
LEARN_ELSEWHERE = ("hogwild", "allreduce", "rllib", "nodes")  # other processes need the code of the network
SEARCHES = ("async", "sync", "single", "allreduce")  # whose actors can look ahead
LAYERS = ("hidden_units", "activation", "image_layers")  # settings of the built-in network,
PARTS = ("dueling", "memory", "separate_value")  # and of that alone
BUILT_IN_CRITICS = ("sac", "cql", "iql", "mmd", "mappo")  # whose LAYERS are also those of critics beside the network
FEEDS_OF = {  # what each topology can feed an algorithm with
    "single": ("transitions", "sequences", "trajectories"),
    "kinds": ("transitions", "sequences", "trajectories", "records"),
    "sync": ("trajectories",),
    "allreduce": ("trajectories",),
    "async": ("trajectories",),
    "central": ("trajectories", "transitions", "sequences"),
    "hogwild": ("trajectories",),
    "apex": ("transitions", "sequences"),
    "offline": ("transitions", "sequences", "records"),
    "rllib": ("rllib",),
    "nodes": ("trajectories", "transitions"),
}
NODE_ALGORITHMS = ("a3c", "ppo", "dqn")  # whose whole learning is in one network, which nodes exchange


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One effective setting, and who decided it: "default", "preset", the config file's name, "command line" …"""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class NodesPlan:
    """Which nodes learn, in topology "nodes"."""

    config: NodesConfig
    data: str  # the data folder: certificate, token, orders to nodes
    dial: tuple[str, ...] = ()  # URLs of nodes that listen
    accept: str = ""  # HOST:PORT where nodes may join
    cert: str = ""  # a certificate to accept them with, and its key; "": made on first start
    key: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run's plan. `steps` are ticks of all games together, or steps sampled where no game is played."""

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
    actors: int  # processes that play; in "single" the learner's own process does
    reward_clip: float
    policy: str  # that actors explore with: a name that nets/user_code.py opens
    opponents: int
    opponent_share: float
    script_share: float
    replay: ReplayConfig
    on: str = "local://"  # the host that actors run on
    cpus_per_actor: float = 0.5  # there
    learners: int = 1  # that average their gradients, in "allreduce"
    gradient_share: float = 1.0  # of a gradient's entries that each of them sends
    delta_conv: bool = True  # convolutions skip windows that did not change
    discovery: str = ""  # where other processes find the actors, to scale them; not recorded
    league: str = ""  # the learner of a league that this run is, DISCOVERY#NAME/GENERATION; not recorded
    nodes: NodesPlan | None = None  # other machines that learn; not recorded, as it holds their tokens
    explained: tuple[SettingRow, ...] = ()  # every setting with its origin; not recorded: settings.json has it
    kind: tuple[int, ...] = ()  # of a part of topology "kinds": the seats that it learns, which `spec` alone has,
    whole: GameSpec | None = None  # and the whole game

    def kinds(self) -> list["Plan"]:
        """For each kind of seats the plan of its learner."""
        found = []
        for seats in self.spec.kinds:
            spec = of_seats(self.spec, seats)
            own = "" if self.policy in BUILT_IN else self.policy
            policy = _policy(own, self.algorithm, spec)
            found.append(replace(self, spec=spec, policy=policy, kind=seats, whole=self.spec))
        return found

    def record(self) -> dict[str, Any]:
        """As plain data, from which `from_record` makes the same plan."""
        found = {name: getattr(self, name) for name in RECORDED}
        return found | {"settings": asdict(self.settings), "replay": asdict(self.replay)}


_NOT_RECORDED = ("game", "spec", "algorithm", "seed", "discovery", "league", "nodes", "explained", "kind", "whole")
RECORDED = [item.name for item in fields(Plan) if item.name not in _NOT_RECORDED]


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What a user asked for; None and empty: the default of the game and algorithm."""

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
    league: str = ""  # the learner of a league, DISCOVERY#NAME/GENERATION: the league says whom it meets
    nodes: NodesPlan | None = None  # other machines that learn
    origin: str = COMMAND_LINE  # who asked


def default_algo(source: str) -> str:
    return "iql" if source == "store" else "ppo"


def without_token(text: str) -> str:
    """A word of a command, or a node's URL, as a run's folder keeps it."""
    return re.sub(r"(wss?://)[^@/]*@", r"\1…@", text)


def with_nodes(
    config: Config, origin: str, nodes: Sequence[str], accept: str, contribute: str | None, cert: str, key: str
) -> tuple[Config, NodesPlan | None]:
    """The settings with what nodes send, and which nodes learn: None where none are asked for."""
    if not nodes and not accept:
        given = {"--contribute": contribute, "--nodes-cert": cert, "--nodes-key": key}
        if idle := next((name for name, value in given.items() if value), None):
            raise ConfigError("no nodes are asked for", where=idle, do="Give --nodes or --accept-nodes, too")
        return config, None
    if contribute:
        config = config.layered({"nodes.contribute": contribute}, origin, above=True)
    return config, NodesPlan(config.nodes, config.data, tuple(nodes), accept, cert, key)


def plan(request: TrainRequest, config: Config) -> Plan:
    """The plan for a request: what the user says, then the preset, then the defaults."""
    algorithm = open_algorithm(request.algo)
    source = _source(request.source)
    spec = _spec(request.game, source, config)
    preset = preset_for(request.game, request.algo if request.algo in ALIASES else algorithm.name, spec)
    said = assignments(request.settings)
    settings = settings_of(algorithm, dict(preset.settings), said)
    _check_network(request.algo, algorithm, settings, said)
    steps = request.steps or preset.steps or DEFAULT_STEPS
    for key in ("schedule_steps", "magnet_steps"):  # what falls does so over the whole run
        if getattr(settings, key, None) == 0:
            settings = replace(settings, **{key: steps})
    _check_source(algorithm, settings, source, request.game)
    envs = config.train.envs if request.envs is None else request.envs
    _check_counts(request, envs, config.train.learners if request.learners is None else request.learners)
    config = _with_request(_with_preset(config, preset, _wanted(algorithm, settings)), request)
    train, replay = config.train, config.replay
    in_process = is_registered(request.game) or is_given(getattr(settings, "network", ""))
    if several := len(spec.kinds) > 1:
        _check_kinds(request, algorithm, spec, config)
        config = config.layered({"train.opponents": 0, "train.script_share": 0.0}, "topology kinds", above=True)
        train = config.train
    topology = "kinds" if several else _topology(request, algorithm, source, train.on, train.learners, in_process)
    if topology in ("single", "kinds") and (request.actors or 1) > 1:
        log.warning("--actors %d is not used: in topology %s the learner's process plays", request.actors, topology)
    if topology == "rllib":
        config = config.layered({"train.actors": 1}, "topology rllib")
    if source == "mix":
        check_share(replay.store_share)
    by = request.origin

    def origin_of(key: str) -> str:
        return by if key in said else PRESET if key in preset.settings else DEFAULT

    rows = [
        SettingRow("algo", request.algo, by if request.algo != default_algo(source) else DEFAULT),
        SettingRow("source", source, by if source != "sim" else DEFAULT),
        SettingRow(
            "topology", topology, by if request.topology else "game" if several else f"algorithm {request.algo}"
        ),
        SettingRow("steps", steps, by if request.steps else PRESET if preset.steps else DEFAULT),
        SettingRow("seed", request.seed, by if request.seed else DEFAULT),
        *_rows(algorithm.name, asdict(settings), origin_of),
        *_rows("train", asdict(config.train), lambda key: config.origin(f"train.{key}")),
        *_rows("replay", asdict(replay), lambda key: config.origin(f"replay.{key}")),
    ]
    if nodes := request.nodes:
        rows.append(SettingRow("nodes", [without_token(url) for url in nodes.dial], by if nodes.dial else DEFAULT))
        asked = {"accept_nodes": nodes.accept, "nodes_cert": nodes.cert, "nodes_key": nodes.key}
        rows += [SettingRow(key, value, by if value else DEFAULT) for key, value in asked.items()]
        rows += _rows("nodes", asdict(config.nodes), lambda key: config.origin(f"nodes.{key}"))
    return Plan(
        game=request.game,
        spec=spec,
        algorithm=algorithm,
        algo=request.algo,
        settings=settings,
        source=source,
        topology=topology,
        seed=request.seed,
        steps=steps,
        envs=train.envs,
        actors=config.train.actors,
        reward_clip=train.reward_clip,
        policy=_policy(train.policy, algorithm, spec),
        opponents=0 if request.league else train.opponents,
        opponent_share=train.opponent_share,
        script_share=train.script_share,
        replay=replay,
        on=train.on,
        cpus_per_actor=train.cpus_per_actor,
        learners=train.learners,
        gradient_share=train.gradient_share,
        delta_conv=train.delta_conv,
        discovery=config.discovery_url,
        league=request.league,
        nodes=request.nodes,
        explained=tuple(rows),
    )


def _wanted(algorithm: Algorithm, settings: Any) -> dict[str, Any]:
    """What an algorithm wants of [replay] and [train], by their full keys."""
    replay = algorithm.replay(settings) if hasattr(algorithm, "replay") else {}
    train: Mapping[str, Any] = getattr(algorithm, "train", {})
    return {f"replay.{key}": value for key, value in replay.items()} | {f"train.{k}": v for k, v in train.items()}


def _with_preset(config: Config, preset: Preset, wanted: Mapping[str, Any]) -> Config:
    """The preset's values above what the algorithm wants, and both under all that the user set, even where that is the
    default."""
    values: dict[str, Any] = {**wanted, "train.envs": preset.envs, "train.reward_clip": preset.reward_clip}
    values |= {f"replay.{key}": value for key, value in preset.replay.items()}
    return config.layered({key: value for key, value in values.items() if value is not None}, PRESET)


def _with_request(config: Config, request: TrainRequest) -> Config:
    names = ("envs", "actors", "learners", "on")
    values = {f"train.{name}": value for name in names if (value := getattr(request, name)) is not None}
    return config.layered(values, request.origin, above=True)


def _rows(section: str, values: Mapping[str, Any], origin: Callable[[str], str]) -> Iterator[SettingRow]:
    for key, value in values.items():
        yield SettingRow(f"{section}.{key}", list(value) if isinstance(value, tuple) else value, origin(key))


def from_record(game: str, seed: int, record: dict[str, Any], config: Config) -> Plan:
    """The plan that `record` was made from."""
    algorithm, source = open_algorithm(record["algo"]), _source(record["source"])
    values = {name: record[name] for name in RECORDED} | {
        "settings": settings_of(algorithm, record["settings"]),
        "replay": read(ReplayConfig, record["replay"], "run.json [replay]"),
    }
    spec = _spec(game, source, config)
    return Plan(game=game, spec=spec, algorithm=algorithm, seed=seed, discovery=config.discovery_url, **values)


def assignments(texts: tuple[str, ...]) -> dict[str, Any]:
    """ "key=value" texts as a table; values are TOML, a bare word is a string."""
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


def _check_counts(request: TrainRequest, envs: int, learners: int) -> None:
    def refused(wrong: str, do: str) -> ConfigError:
        return ConfigError(wrong, where="spar train", do=do)

    if envs < 1 or (request.steps is not None and request.steps < 1):
        raise refused(f"--envs {envs}, --steps {request.steps}", "Count both from 1")
    if request.actors is not None and request.actors < 1:
        raise refused(f"--actors {request.actors}", "Count them from 1")
    if learners < 1:
        raise refused(f"--learners {learners}", "Count them from 1")
    if not 0 <= request.seed < 1 << 63:
        raise refused(f"--seed {request.seed}", "Count seeds from 0, in 63 bits")


def _check_network(algo: str, algorithm: Algorithm, settings: Any, said: Mapping[str, Any]) -> None:
    """ConfigError where the user named a network of their own, and says what only the built-in one has. An algorithm of
    their own may read any setting."""
    if not getattr(settings, "network", "") or ":" in algo:
        return
    unused = PARTS if algorithm.name in BUILT_IN_CRITICS else LAYERS + PARTS
    if wrong := next((key for key in unused if said.get(key)), None):
        do = f"Leave out {wrong}, and give the network that shape in its own code; or leave out network"
        why = f"{wrong} shapes the built-in network, and network names another"
        raise ConfigError(why, where=f"[{algorithm.name}] {wrong}", do=do)


def _check_kinds(request: TrainRequest, algorithm: Algorithm, spec: GameSpec, config: Config) -> None:
    """ConfigError where a game whose seats are of several kinds cannot be learned so."""
    names, train = kind_names(spec), config.train
    why = f"its seats are of {len(names)} kinds ({', '.join(names)}), each with a network of its own"
    plain = "Leave it out: one process plays and learns all kinds"
    wrong, do = "", plain
    if algorithm.feeds == "rllib":
        wrong = f"{request.algo} learns one network for all seats"
        do = "Use ppo, mappo, impala, a3c, dqn, r2d2, mmd or sac"
    elif request.league:
        wrong, do = "a league's members play all seats", "Use `spar train`"
    elif request.nodes is not None:
        wrong = "nodes exchange one network"
    elif request.topology not in (None, "kinds"):
        wrong = f"--topology {request.topology} learns one network"
    elif train.learners > 1:
        wrong = "several learners average the gradients of one network"
    elif not train.on.startswith("local:"):
        wrong = f"they are played in the learner's process, and --on is {train.on}"
    else:
        for key in ("opponents", "script_share"):
            if getattr(train, key) and config.origin(f"train.{key}") not in (DEFAULT, PRESET):
                wrong = f"train.{key} is {getattr(train, key)}, and each kind meets the newest weights of the others"
    if wrong:
        raise ConfigError(f"{why}; {wrong}", where=f"game {spec.id}", do=do)


def _source(text: str) -> Source:
    if text not in get_args(Source):
        do = did_you_mean(text, get_args(Source), "Use sim, store or mix")
        raise ConfigError(f"there is no source {text!r}", where="--from", do=do)
    return cast(Source, text)


def _topology(
    request: TrainRequest, algorithm: Algorithm, source: Source, on: str, learners: int, in_process: bool
) -> str:
    """`in_process`: no other process could open the game, or load the network's code."""
    from sparring.learn.topologies import TOPOLOGIES

    remote = not on.startswith("local:")
    default = "nodes" if request.nodes else _default_topology(in_process, request.algo, algorithm, source, remote)
    name = request.topology or default
    if learners > 1 and name != "allreduce":  # several synchronous learners average their gradients by ring all-reduce
        if request.topology not in (None, "sync"):
            wrong, do = f"{name} has one learner, and --learners is {learners}", "Leave out --topology, or --learners"
            raise ConfigError(wrong, where="--learners", do=do)
        name = "allreduce"
    if name not in TOPOLOGIES:
        do = did_you_mean(name, TOPOLOGIES, f"Choose one of {', '.join(TOPOLOGIES)}")
        raise Missing(f"there is no topology {name!r}", where="--topology", do=do)
    wrong, do = "", f"Leave it out: {default} suits"
    if name != "rllib" and (name == "offline") != (source == "store"):
        wrong = f"--topology {name} does not go with --from {source}"
    elif remote and name not in ON_HOSTS:
        wrong, do = f"{name} runs on one machine, and --on is {on}", f"Use one of {', '.join(ON_HOSTS)}, or no --on"
    elif (name == "nodes") != (request.nodes is not None):
        wrong = f"--topology {name} {'needs nodes' if name == 'nodes' else 'has no nodes'}"
        do = "Give --nodes URL or --accept-nodes HOST:PORT, and no other --topology"
    elif name == "nodes" and (algorithm.name not in NODE_ALGORITHMS or source != "sim"):
        wrong = f"nodes do not learn {algorithm.name} --from {source}"
        do = f"Use one of {', '.join(NODE_ALGORITHMS)}, from simulation"
    elif name == "kinds":
        wrong = f"all seats of {request.game} are of one kind"
    elif is_registered(request.game) and name != "single":
        wrong = f"{request.game} was made in this process, and {name} plays in others"
        do = "Leave out --topology, or give the environment as gym:module:ID, which any process can open"
    elif in_process and name in LEARN_ELSEWHERE:
        wrong, do = f"the network was given in this process, and {name} learns in others", "Put it into a module"
    elif hasattr(algorithm, "search") and name not in SEARCHES:
        wrong = f"{algorithm.name} searches where its games are played, and {name} plays or learns elsewhere"
        do = f"Use one of {', '.join(SEARCHES)}"
    elif algorithm.feeds not in FEEDS_OF.get(name, (algorithm.feeds,)):
        wrong = f"{name} carries {' and '.join(FEEDS_OF[name])}, and {algorithm.name} is fed with {algorithm.feeds}"
    if wrong:
        raise ConfigError(wrong, where="--topology", do=do)
    return name


def _default_topology(in_process: bool, algo: str, algorithm: Algorithm, source: Source, remote: bool) -> str:
    """By the name that was asked for, then by the algorithm's; actors in processes of their own need POSIX."""
    if algorithm.feeds == "rllib":
        return "rllib"
    if source == "store":
        return "offline"
    if in_process:
        return "single"
    by_algo = DEFAULT_TOPOLOGY.get(algo, DEFAULT_TOPOLOGY.get(algorithm.name, "single"))
    name = by_algo if os.name == "posix" else "single"
    return CLUSTER_TOPOLOGY.get(algorithm.feeds, name) if remote and name not in ON_HOSTS else name


def _policy(name: str, algorithm: Algorithm, spec: GameSpec) -> str:
    """The user's own policy where one is named, which must suit; the algorithm's otherwise."""
    action = spec.seats[0].action
    if name:
        open_policy(name, action)
    return name or policy_for(algorithm, action)


def _spec(game: str, source: Source, config: Config) -> GameSpec:
    """From the simulator; a game that exists in its players' clients alone can be learned from the store."""
    known = Catalogue.from_config(config).newest(game) if source == "store" else None
    return known or spec_of(game)


def _check_source(algorithm: Algorithm, settings: Any, source: Source, game: str) -> None:
    name, feeds = algorithm.name, algorithm.feeds
    wrong, where, do = "", f"--from {source}", ""
    if feeds == "rllib":
        from sparring.learn.rllib.algorithm import check_source

        check_source(name, source, game)
    elif source != "store" and feeds == "records":
        wrong = f"{name} learns from what others played, and nothing else"
        do = f"Use `spar train {shlex.quote(game)} --algo {name} --from store`"
    elif source == "store" and feeds == "trajectories":
        wrong = f"{name} learns only from what it has just played itself, and the store holds what others played"
        mixes = name if hasattr(algorithm.settings, "records_steps") else "ppo"
        do = f"Use `spar train {shlex.quote(game)} --algo dqn --from store`, or `--from mix` with {mixes}"
    elif source == "mix" and feeds == "trajectories":
        if not hasattr(algorithm.settings, "records_steps"):
            wrong = f"{name} learns only from what it has just played itself"
            do = f"Use `spar train {shlex.quote(game)} --algo ppo --from mix`, or leave --from out"
        elif getattr(settings, "memory", ""):
            wrong = "steps of the store do not record the state of a recurrent network"
            where, do = f"[{name}] memory", "Leave out memory, or --from mix"
    if wrong:
        raise ConfigError(wrong, where=where, do=do)
