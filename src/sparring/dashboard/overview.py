"""What the pages show of games and models, read from store, registry and runs."""

import base64
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from sparring.dashboard.runs import Runs
from sparring.errors import Missing, ModelDamaged
from sparring.games.catalogue import Catalogue
from sparring.games.spec import GameSpec
from sparring.registry.champions.log import ChampionEntry
from sparring.registry.protocol import Evidence, ListedModel
from sparring.registry.registry import Registry
from sparring.store.protocol import GameStats, LedgerStore, Minute
from sparring.wire.champion import Champion
from sparring.wire.ids import GameId, ModelId

PLAYABLE = ("connect-four", "duel", "cartpole")  # those that have a page of their own
MAX_PROMOTIONS = 50
MINUTES_BACK = 60

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class GameSummary:
    """One game on the first page. `people_steps` counts both seats of games that a person played."""

    id: GameId
    version: str
    turns: str
    seats: int
    playable: bool
    steps: int
    people_steps: int
    episodes: int
    last_received_ms: int | None
    models: int
    champion: Champion | None
    running: int


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One row of the models' page."""

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


@dataclass(frozen=True, slots=True)
class Promotion:
    """One line of the log."""

    game: GameId
    model: ModelId
    counter: int
    at_ms: int
    kind: str
    evidence: Evidence


class Fresh(Generic[Value]):
    """A value made at most once in `life_s`, however many pages poll for it."""

    def __init__(self, make: Callable[[], Value], life_s: float, clock: Callable[[], float]) -> None:
        self._make, self._life_s, self._clock = make, life_s, clock
        self._lock = threading.Lock()
        self._held: tuple[float, Value] | None = None

    def __call__(self) -> Value:
        with self._lock:
            if self._held is None or self._clock() - self._held[0] >= self._life_s:
                self._held = self._clock(), self._make()
            return self._held[1]


class Overview:
    """Reads, and never writes."""

    def __init__(self, store: LedgerStore, registry: Registry, catalogue: Catalogue, runs: Runs) -> None:
        self.store, self.registry, self.catalogue, self.runs = store, registry, catalogue, runs

    def games(self) -> list[GameSummary]:
        """Every game, in its newest version."""
        learning = [run.game for run in self.runs.list() if run.state == "running"]
        return [self._game(spec, learning.count(spec.id)) for spec in self._newest()]

    def models(self, game: str) -> list[ModelSummary]:
        """Every model of the game: the champion first, then by what its evaluation said, then the newest."""
        spec = self.known(game)
        champion = self._champion(spec)
        rows = [_model(listed, champion) for listed in self.registry.models(spec.id)]
        return sorted(
            rows,
            key=lambda row: (not row.champion, -(row.evidence.mean if row.evidence else -math.inf), -row.created_at_ms),
        )

    def promotions(self) -> list[Promotion]:
        """Who became champion of what, the newest first. Re-signs are left out."""
        found: list[Promotion] = []
        for spec in self._newest():
            for version in self.registry.versions(spec.id):
                try:
                    found += [_promotion(entry) for entry in self.registry.history(spec.id, version)]
                except ModelDamaged:
                    continue  # the registry reports it to every caller that asks for that champion
        shown = [promotion for promotion in found if promotion.kind != "re-sign"]
        return sorted(shown, key=lambda promotion: -promotion.at_ms)[:MAX_PROMOTIONS]

    def stats(self, game: str) -> GameStats:
        """What the store counts."""
        return self.store.stats(self.known(game).id)

    def minutes(self, now_ms: int) -> dict[GameId, list[Minute]]:
        """What came through a sink in the last hour, of each game that had any."""
        since_ms = (now_ms // 60_000 - MINUTES_BACK + 1) * 60_000
        found = {spec.id: self.store.minutes(spec.id, since_ms) for spec in self._newest()}
        return {game: minutes for game, minutes in found.items() if minutes}

    def known(self, game: str) -> GameSpec:
        """The newest spec of the game, or Missing."""
        spec = self.catalogue.newest(game)
        if spec is None:
            raise Missing("there is no such game here", where=f"game {game[:80]!r}", do="/api/games lists them")
        return spec

    def _newest(self) -> list[GameSpec]:
        return list({spec.id: spec for spec in self.catalogue.games()}.values())

    def _game(self, spec: GameSpec, running: int) -> GameSummary:
        stats = self.store.stats(spec.id)
        return GameSummary(
            id=spec.id,
            version=spec.version,
            turns=spec.turns,
            seats=len(spec.seats),
            playable=spec.id in PLAYABLE,
            steps=stats.steps,
            people_steps=stats.steps_by_source.get("play", 0),
            episodes=stats.episodes,
            last_received_ms=stats.last_received_ms,
            models=len(self.registry.models(spec.id)),
            champion=self._champion(spec),
            running=running,
        )

    def _champion(self, spec: GameSpec) -> Champion | None:
        try:
            signed = self.registry.champion(spec.id, spec.version)
        except ModelDamaged:
            return None
        return None if signed is None else msgspec.json.decode(base64.b64decode(signed.payload), type=Champion)


def _model(listed: ListedModel, champion: Champion | None) -> ModelSummary:
    card = listed.card
    counter = champion.counter if champion is not None and champion.model == card.id else None
    return ModelSummary(
        id=card.id,
        version=card.version,
        champion=counter is not None,
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


def _promotion(entry: ChampionEntry) -> Promotion:
    said = entry.champion
    return Promotion(said.game, said.model, said.counter, said.issued_at_ms, entry.kind, entry.evidence)
