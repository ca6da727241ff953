"""The pages: HTML and modules as they lie in `web/`, and the data that they poll.

Everything comes from this server: no other host, no build step, nothing inline, so that the gateway's strict content
security policy holds. The gateway's table of endpoints names each `get_…` method of `Dashboard` with its path, and
decides who may read. Their answers are typed, so that /openapi.json describes them.
"""

import base64
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from sparring.config import Config
from sparring.dashboard.league import League, LeagueReader, MatchGame
from sparring.errors import Missing, ModelDamaged
from sparring.games.catalogue import Catalogue
from sparring.games.spec import GameSpec
from sparring.learn.runs.summary import MetricsPage, RunSummary, list_runs, metrics_after
from sparring.nodes.board import Board, Orders, ParentState
from sparring.registry.protocol import Evidence, ListedModel
from sparring.registry.registry import Registry
from sparring.store.protocol import GameStats, Minute, Store
from sparring.wire.champion import Champion, read_champion
from sparring.wire.ids import GameId, ModelId
from sparring.wire.strengths import verify_strengths

FRESH_S = 1.0  # pages poll every second or two; many of them cost as much as one
MINUTES_FRESH_S = 5.0  # an hour of them is some thousand rows
WEB = Path(str(resources.files("sparring.dashboard"))) / "web"
PLAYABLE = ("connect-four", "duel", "cartpole")  # those that have a page of their own
PAGES = {"/": "index.html"} | {f"/{name}": f"{name}.html" for name in ("models", "learning", "league", "nodes")}
FILES = StaticFiles(directory=WEB)
MAX_PROMOTIONS = 50
MINUTES_BACK = 60

Value = TypeVar("Value")


def page_routes() -> list[Route]:
    """The pages and what they load."""
    return [
        *(Route(path, partial(_file, name)) for path, name in PAGES.items()),
        Route("/play/{game}", _play),
        Route("/league/{game:path}/{match}", partial(_file, "watch.html")),
        Route("/web/{path:path}", _module),
    ]


async def _play(request: Request) -> Response:
    if request.path_params["game"] not in PLAYABLE:
        return FileResponse(WEB / "missing.html", 404)
    return await _file("play.html", request)


async def _module(request: Request) -> Response:
    return await _file(request.path_params["path"], request)


async def _file(name: str, request: Request) -> Response:
    """With an ETag; 304 where the browser has it, HTTPException where there is no such file."""
    return await FILES.get_response(name, request.scope)


class Fresh(Generic[Value]):
    """A value made at most once in `life_s`, however many pages poll for it."""

    def __init__(self, make: Callable[[], Value], life_s: float) -> None:
        self._make, self._life_s = make, life_s
        self._lock = threading.Lock()
        self._held: tuple[float, Value] | None = None

    def __call__(self) -> Value:
        with self._lock:
            if self._held is None or time.monotonic() - self._held[0] >= self._life_s:
                self._held = time.monotonic(), self._make()
            return self._held[1]


class StyleRow(msgspec.Struct, frozen=True):
    """A style that a game sells."""

    name: str
    means: str


class GameRow(msgspec.Struct, frozen=True, kw_only=True):
    """A game in its newest version, what the store holds of it, and its champion."""

    id: GameId
    version: str
    turns: str
    seats: int
    playable: bool  # it has a page of its own
    steps: int
    people_steps: int  # of both seats of games that a person played
    episodes: int
    last_received_ms: int | None
    models: int
    champion: Champion | None
    styles: list[StyleRow]
    running: int  # training runs


class GameRows(msgspec.Struct, frozen=True):
    """Every game; `trust` is the key that signs champions here."""

    games: list[GameRow]
    running: int
    trust: str


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its lineage and its newest evaluation; `counter` is the champion's."""

    id: ModelId
    version: str
    champion: bool
    counter: int | None
    created_at_ms: int
    algorithm: str
    policy: str
    steps: dict[str, int]
    parents: tuple[ModelId, ...]
    run: str
    files: tuple[str, ...]
    evidence: Evidence | None


class ModelRows(msgspec.Struct, frozen=True):
    """A game's models: the champion first, then by what their evaluation said, then the newest."""

    models: list[ModelRow]


class Promotion(msgspec.Struct, frozen=True):
    """When a model became champion, and why."""

    game: GameId
    model: ModelId
    counter: int
    at_ms: int
    kind: str
    evidence: Evidence


class Promotions(msgspec.Struct, frozen=True):
    """Who became champion of what, the newest first."""

    promotions: list[Promotion]


class RunRows(msgspec.Struct, frozen=True):
    """Every training run: those that learn now first, then the newest."""

    runs: list[RunSummary]


class Minutes(msgspec.Struct, frozen=True):
    """What came through a sink in the last hour, of each game that had any."""

    games: dict[GameId, list[Minute]]
    now_ms: int


class NodeRows(msgspec.Struct, frozen=True):
    """The runs here that have nodes, and what an operator decided; addresses and keys to those who may order."""

    parents: list[ParentState]
    orders: Orders
    may_order: bool
    now_ms: int


class GameQuery(msgspec.Struct, frozen=True):
    """Which game."""

    game: str


class MetricsQuery(msgspec.Struct, frozen=True):
    """From which byte of the metrics on: the `next` of the answer before."""

    after: Annotated[int, msgspec.Meta(ge=0, lt=1 << 50)] = 0


class Dashboard:
    """Reads store, registry and the folders of runs, and never writes. Called on threads."""

    def __init__(self, config: Config, store: Store, registry: Registry, catalogue: Catalogue) -> None:
        self._store, self._registry, self._catalogue = store, registry, catalogue
        self._folder = Path(config.data) / "runs"
        self._leagues = LeagueReader(Path(config.data), store, registry)
        self._runs = Fresh(lambda: list_runs(self._folder), FRESH_S)
        self._games = Fresh(self._all_games, FRESH_S)
        self._promotions = Fresh(self._all_promotions, FRESH_S)
        self._board = Board(config.data)
        self._nodes = Fresh(lambda: (self._board.parents(), self._board.orders()), FRESH_S)
        self._minutes = Fresh(self._last_hour, MINUTES_FRESH_S)

    def get_game_rows(self, request: Request) -> GameRows:
        """Every game; of a player token, its own."""
        own = request.scope["caller"].game
        games = [game for game in self._games() if own in (None, game.id)]
        return GameRows(games, sum(game.running for game in games), self._registry.trust)

    def get_model_rows(self, request: Request) -> ModelRows:
        spec = self._known(request.scope["query"].game)
        champion = self._champion(spec)
        rows = [_model(listed, champion) for listed in self._registry.models(spec.id)]
        mean = {row.id: row.evidence.mean if row.evidence else -math.inf for row in rows}
        return ModelRows(sorted(rows, key=lambda row: (not row.champion, -mean[row.id], -row.created_at_ms)))

    def get_promotions(self, request: Request) -> Promotions:
        return Promotions(self._promotions())

    def get_run_rows(self, request: Request) -> RunRows:
        return RunRows(self._runs())

    def get_run_metrics(self, request: Request) -> MetricsPage:
        return metrics_after(self._folder, request.path_params["run"], request.scope["query"].after)

    def get_league(self, request: Request) -> League:
        return self._leagues.league(self._known(request.path_params["game"]))

    def get_match_game(self, request: Request) -> MatchGame:
        spec, number = self._known(request.path_params["game"]), request.scope["query"].number
        return self._leagues.match_game(spec.id, request.path_params["match"], number)

    def get_node_rows(self, request: Request) -> NodeRows:
        parents, orders = self._nodes()
        if not (admin := request.scope["caller"].may("admin")):
            parents = [replace(one, nodes=[replace(node, peer="", holder="") for node in one.nodes]) for one in parents]
            orders = Orders(drained=orders.drained, banned=dict.fromkeys(orders.banned, ""))
        return NodeRows(parents, orders, admin, int(time.time() * 1000))

    def get_stats(self, request: Request) -> GameStats:
        return self._store.stats(self._known(request.scope["query"].game).id)

    def get_minutes(self, request: Request) -> Minutes:
        return Minutes(self._minutes(), int(time.time() * 1000))

    def _all_games(self) -> list[GameRow]:
        learning = [run.game for run in self._runs() if run.state == "running"]
        return [self._game(spec, learning.count(spec.id)) for spec in self._newest()]

    def _all_promotions(self) -> list[Promotion]:
        found = []
        for spec in self._newest():
            for version in self._registry.versions(spec.id):
                try:
                    found += self._registry.history(spec.id, version)
                except ModelDamaged:
                    continue  # the registry reports it to every caller that asks for that champion
        rows = [
            Promotion(
                one.champion.game,
                one.champion.model,
                one.champion.counter,
                one.champion.issued_at_ms,
                one.kind,
                one.evidence,
            )
            for one in found
            if one.kind != "re-sign"
        ]
        return sorted(rows, key=lambda row: -row.at_ms)[:MAX_PROMOTIONS]

    def _last_hour(self) -> dict[GameId, list[Minute]]:
        since_ms = (int(time.time() * 1000) // 60_000 - MINUTES_BACK + 1) * 60_000
        found = {spec.id: self._store.minutes(spec.id, since_ms) for spec in self._newest()}
        return {game: minutes for game, minutes in found.items() if minutes}

    def _known(self, game: str) -> GameSpec:
        """The newest spec of the game, or Missing."""
        spec = self._catalogue.newest(game)
        if spec is None:
            raise Missing("there is no such game here", where=f"game {game[:80]!r}", do="/api/games lists them")
        return spec

    def _newest(self) -> list[GameSpec]:
        return list({spec.id: spec for spec in self._catalogue.games()}.values())

    def _game(self, spec: GameSpec, running: int) -> GameRow:
        stats = self._store.stats(spec.id)
        return GameRow(
            id=spec.id,
            version=spec.version,
            turns=spec.turns,
            seats=len(spec.seats),
            playable=spec.id in PLAYABLE,
            steps=stats.steps,
            people_steps=stats.steps_by_source.get("play", 0),
            episodes=stats.episodes,
            last_received_ms=stats.last_received_ms,
            models=len(self._registry.models(spec.id)),
            champion=self._champion(spec),
            styles=self._styles(spec),
            running=running,
        )

    def _champion(self, spec: GameSpec) -> Champion | None:
        try:
            signed = self._registry.champion(spec.id, spec.version, 0 if len(spec.kinds) > 1 else None)
        except ModelDamaged:
            return None
        return None if signed is None else read_champion(base64.b64decode(signed.payload))

    def _styles(self, spec: GameSpec) -> list[StyleRow]:
        try:
            signed = self._registry.strengths(spec.id, spec.version)
            sold = () if signed is None else verify_strengths(signed, self._registry.trust, spec).styles
        except ModelDamaged:
            return []
        return [StyleRow(one.name, one.means) for one in sold]


def _model(listed: ListedModel, champion: Champion | None) -> ModelRow:
    card = listed.card
    counter = champion.counter if champion is not None and champion.model == card.id else None
    return ModelRow(
        id=card.id,
        version=card.version,
        champion=counter is not None or (bool(card.kind) and listed.champion),
        counter=counter,
        created_at_ms=card.created_at_ms,
        algorithm=card.lineage.algorithm,
        policy=card.policy,
        steps=card.lineage.steps,
        parents=card.lineage.parents,
        run=card.lineage.run,
        files=("card.json", *card.files),
        evidence=listed.evidence,
    )
