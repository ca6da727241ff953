"""league.toml: who learns in a league, and which services it is made of. Every key has a default."""

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparring.config import read
from sparring.errors import ConfigError
from sparring.league.roles import LEAGUE_EXPLOITER, MAIN, MAIN_EXPLOITER, Learner, Role, RoleRules

NAME = "league.toml"
ROLES: dict[Role, RoleRules] = {
    "main": MAIN,
    "main-exploiter": MAIN_EXPLOITER,
    "league-exploiter": LEAGUE_EXPLOITER,
}


@dataclass(frozen=True, slots=True)
class OwnService:
    """A service of the studio's own that runs beside the league's; its name is that of its table."""

    service: str = ""  # module:Class with @register methods
    count: int = 1
    given: dict[str, Any] = field(default_factory=dict)  # arguments of its constructor


@dataclass(frozen=True, slots=True)
class EvaluatorConfig:
    """The services that play matches among members, and the promotion gate's games."""

    count: int = 1
    core_share: float = 0.25  # of a core that each takes: the rest of the time it sleeps
    match_games: int = 64  # of one match
    service: str = "sparring.league.evaluator:EvaluatorService"

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 < self.core_share <= 1 or self.match_games < 2:
            wrong = f"count = {self.count}, core_share = {self.core_share:g}, match_games = {self.match_games}"
            do = "Count from 0, give a share of 1 at most, and matches of 2 games or more"
            raise ConfigError(wrong, where=f"{NAME} [evaluator]", do=do)


@dataclass(frozen=True, slots=True)
class LeagueFile:
    """What league.toml says."""

    on: str = "local://"  # where services run: local://, ray://auto, ray://HOST:PORT
    members: int = 24  # frozen models that are met; beyond that, those with the least share in the Nash mixture retire
    live_every_s: float = 10.0  # a learner's newest weights are offered to the league this often
    guests: int = 4  # models of the registry that are members from the start, champions first
    seed: int = 0
    promote: bool = True  # frozen main agents stand for champion at the gate; at the end the ladder is rebuilt
    learner: str = "sparring.learn.league.learner:LearnerService"  # the class that learns
    main: RoleRules = MAIN
    main_exploiter: RoleRules = MAIN_EXPLOITER
    league_exploiter: RoleRules = LEAGUE_EXPLOITER
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    train: dict[str, Any] = field(default_factory=dict)  # settings of [train] in spar.toml, for all learners
    services: dict[str, Any] = field(default_factory=dict)  # [services.NAME]: an OwnService

    def __post_init__(self) -> None:
        if self.main.count < 1:
            raise ConfigError("no main agent learns", where=f"{NAME} [main]", do="Set count to 1 or more")
        if self.members < 1 or not self.live_every_s > 0:
            wrong = f"members = {self.members}, live_every_s = {self.live_every_s:g}"
            raise ConfigError(wrong, where=NAME, do="Give more than 0")

    def rules(self, role: Role) -> RoleRules:
        rules: RoleRules = getattr(self, role.replace("-", "_"))
        return rules

    def learners(self) -> list[Learner]:
        """Every learner of the league, as it begins."""
        return [Learner(f"{role}-{place}", role) for role in ROLES for place in range(self.rules(role).count)]

    def own_services(self) -> dict[str, OwnService]:
        return {name: read(OwnService, table, f"{NAME} [services.{name}]") for name, table in self.services.items()}


def parse_league(table: dict[str, Any], where: str = NAME) -> LeagueFile:
    """The file of a TOML table. A role's table changes the role's own defaults."""
    table = dict(table)
    for role, rules in ROLES.items():
        key = role.replace("-", "_")
        if not isinstance(said := table.get(key, {}), dict):
            raise ConfigError(f"{key} = {said!r}", where=where, do=f"Write a table: [{key}]")
        table[key] = asdict(rules) | said
    found: LeagueFile = read(LeagueFile, table, where)
    for name, service in found.own_services().items():
        if ":" not in service.service or service.count < 1:
            wrong = f"service = {service.service!r}, count = {service.count}"
            do = 'Write service = "module:Class", and a count from 1'
            raise ConfigError(wrong, where=f"{where} [services.{name}]", do=do)
    return found


def read_league(path: Path | None) -> LeagueFile:
    """The league in `path`; without one, that of ./league.toml where there is one."""
    file = path or Path(NAME)
    if not file.exists():
        if path is not None:
            raise ConfigError("there is no such file", where=str(file), do="Write it (docs/league.md), or drop --file")
        return parse_league({})
    try:
        return parse_league(tomllib.loads(file.read_text()), str(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"it is not TOML: {error}", where=str(file), do="Correct that line") from None
