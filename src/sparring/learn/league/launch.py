"""Start a league: its services on one host, by league.toml.

    league      state and decisions               league/service.py       one
    pool        hot weights, with memory://       pool/memory.py          one
    learner     training runs                     learn/league/learner.py one for each learner
    evaluator   matches, the promotion gate       league/evaluator.py     as many as said
    NAME        a studio's own                    [services.NAME]

The host starts again what dies. Everything that must last is in the league's SQLite file, the runs' checkpoints and
the registry, so a league that is stopped, or killed whole, goes on when it is started again.
"""

import fcntl
import logging
import os
import time
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from sparring.closable import Closable
from sparring.config import Config, TrainConfig, open_data_folder, read
from sparring.durable import disk_errors, folder_name
from sparring.errors import ConfigError, Unreachable
from sparring.games.catalogue import open_game, spec_of
from sparring.hosts.protocol import Handle, Resources, open_host, path_of
from sparring.league.league_file import NAME, ROLES, LeagueFile
from sparring.league.matches import league_path
from sparring.league.roles import RoleRules
from sparring.league.rounds import check_game
from sparring.league.service import SERVICE as LEAGUE
from sparring.league.service import LeagueService
from sparring.learn.actors.remote import keeps_ending
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import Plan, TrainRequest, plan
from sparring.nets.tree_search import obstacle
from sparring.pool import open_pool
from sparring.pool.memory import serve_pool
from sparring.user_code import load_code

log = logging.getLogger(__name__)

LEARNER, EVALUATOR = "learner", "evaluator"
ANSWER_S = 30.0
# The settings that say what a network looks like.
NETWORK = (
    "network",
    "hidden_units",
    "activation",
    "image_layers",
    "memory",
    "separate_value",
    "normalise_observations",
)


def with_algorithms(file: LeagueFile, game: str, config: Config) -> LeagueFile:
    """The file with an algorithm for every role. One that begins with a main agent's weights has its network."""
    main = file.main
    if not main.algo:
        searches = main.source == "sim" and not obstacle(open_game(game, 1), spec_of(game))
        main = replace(main, algo="alphazero" if searches else "ppo")
    of_main = _plan(game, main, config).settings

    def completed(rules: RoleRules) -> RoleRules:
        algo = rules.algo or "ppo"
        if algo == main.algo or rules.start != "main":
            return replace(rules, algo=algo)
        known = {item.name for item in fields(open_algorithm(algo).settings)}
        says = ("network",) if getattr(of_main, "network", "") else NETWORK  # one of their own says all by itself
        network = {key: getattr(of_main, key) for key in says if key in known and hasattr(of_main, key)}
        return replace(rules, algo=algo, settings=network | rules.settings)

    exploiters = completed(file.main_exploiter), completed(file.league_exploiter)
    return replace(file, main=main, main_exploiter=exploiters[0], league_exploiter=exploiters[1])


def _plan(game: str, rules: RoleRules, config: Config) -> Plan:
    """What a learner of that role would do; ConfigError where it cannot."""
    settings = rules.algo_settings()
    return plan(TrainRequest(game, rules.algo, rules.source, rules.topology or None, settings=settings), config)


class RunningLeague(Closable):
    """A league whose services run; closing it stops them."""

    def __init__(self, game: str, file: LeagueFile, config: Config, *, fresh: bool = False) -> None:
        """Check everything first, then start: what is wrong is said before anything runs or is written. `fresh` puts
        the game's league aside and begins another; its models and runs stay where they are."""
        spec = check_game(game)
        config = with_league(config, file)
        file = with_algorithms(file, game, config)
        for role in ROLES:
            if (rules := file.rules(role)).count:
                _plan(game, rules, config)
        services = {name: (_class(one.service, name), one) for name, one in file.own_services().items()}
        learner, evaluator = _class(file.learner, LEARNER), _class(file.evaluator.service, EVALUATOR)
        if not config.league.pool_url.startswith("memory:"):
            open_pool(config.league.pool_url).close()  # says that its server is away
        open_data_folder(Path(config.data))
        path = league_path(Path(config.data), spec.id)
        self._lock = _only_one(path.with_suffix(".lock"), game)
        for old in path.parent.glob(f"{path.name}*") if fresh else ():
            old.rename(old.with_name(old.name.replace(".db", f".db-{int(time.time())}", 1)))
        name = f"league-{folder_name(spec.id, 'game')}"
        given = {"game": game, "config": msgspec.msgpack.encode(config)}
        self._host = open_host(file.on, Path(config.data) / "logs" / name, config.discovery_url, group=name)
        try:
            table = {key: value for key, value in asdict(file).items() if key != "services"}
            state = {"game": game, "data": config.data, "league": table}
            urls = {"registry_url": config.registry_url, "pool_url": config.league.pool_url}
            one = Resources(cpus=0.1, place="here", least=1, most=1)
            (self._league,) = self._host.start(LeagueService, LEAGUE, 1, one, {**state, **urls})
            serve_pool(self._host, config.league.pool_url)
            learners = [
                {**given, "learner": each.name, "rules": asdict(file.rules(each.role)), "seed": file.seed + place}
                for place, each in enumerate(file.learners())
            ]
            fixed = Resources(cpus=0.5, least=len(learners), most=len(learners))
            self._learners = self._host.start(learner, LEARNER, len(learners), fixed, learners)
            if file.evaluator.count:
                more = {**given, "core_share": file.evaluator.core_share}
                self._host.start(evaluator, EVALUATOR, file.evaluator.count, Resources(cpus=0.25), more)
            for name, (service, said) in services.items():
                self._host.start(service, name, said.count, Resources(cpus=0.1), said.given)
        except BaseException:
            self.close()
            raise

    @property
    def discovery(self) -> str:
        """Where its services are found."""
        return self._host.discovery

    def status(self) -> dict[str, Any]:
        """What the league says of itself, with the progress of each learner. Raises what ended a learner, and
        TrainingStopped where a service cannot be kept alive."""
        for event in self._host.watch():
            log.info(f"{event.service} {event.index} {event.kind} {event.why}".rstrip())
            if event.kind == "gave up":
                raise keeps_ending(event, "Look at its log in the data folder's logs/")
        found: dict[str, Any] = {"progress": []}
        with suppress(Unreachable):  # while a service starts
            found |= _answer(self._league)
        for learner in self._learners:
            with suppress(Unreachable):
                found["progress"].append(_answer(learner))
        return found

    def close(self) -> None:
        self._host.close()
        os.close(self._lock)


def _only_one(path: Path, game: str) -> int:
    """A descriptor that holds the league's lock; ConfigError where another process has it."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        do = "Watch it with `spar league show`, or give this one another folder with --data"
        raise ConfigError(f"a league of {game} runs there already", where=str(path.parent), do=do) from None
    return lock


def with_league(config: Config, file: LeagueFile) -> Config:
    """The settings of a league's learners: [train] of league.toml above what spar.toml says."""
    read(TrainConfig, file.train, f"{NAME} [train]")  # says which key is wrong
    overrides = {f"train.{key}": value for key, value in file.train.items()}
    above = config.layered(overrides, NAME, above=True)
    live = {"train.publish_every_s": file.live_every_s, "train.track": (), "train.torch_threads": 1}
    return above.layered(live, NAME, above=True)


def _class(path: str, name: str) -> type:
    found = load_code(path, f"service {name}")
    if not isinstance(found, type):
        raise ConfigError(f"{path} is no class", where=f"{NAME}: service {name}", do="Write module:Class")
    path_of(found)  # says what is wrong with it
    return found


def _answer(handle: Handle) -> dict[str, Any]:
    answer: dict[str, Any] = handle.ask("status").result(ANSWER_S)
    return answer
