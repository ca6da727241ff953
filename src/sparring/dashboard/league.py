"""What the page "League" polls: the standings of a game's league with its newest matches, and a match's games, played
again from its seed."""

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sparring.errors import Missing, SparringError
from sparring.games.spec import GameSpec
from sparring.league.match_replay import MatchReplay, replay_match
from sparring.league.matches import MatchFile, league_path
from sparring.league.payoff import Match
from sparring.league.people import PeopleGames
from sparring.league.standings import Ladder, Standings
from sparring.registry.registry import Registry
from sparring.store.protocol import Store
from sparring.wire.ids import GameId

log = logging.getLogger(__name__)

FRESH_S = 3.0  # standings are made at most this often
PEOPLE_EVERY_S = 15.0  # and what people played is read, beside the requests: 100,000 episodes take some 10 s once
NEWEST = 20  # matches
REPLAYS = 4  # matches whose moves are remembered


class League(msgspec.Struct, frozen=True, kw_only=True):
    """A game's league; `standings` is None where nobody played yet."""

    game: GameId
    standings: Standings | None
    newest: list[Match]


class MatchGame(msgspec.Struct, frozen=True, kw_only=True):
    """One game of a match: what each seat did at each tick (None: it was not asked), from its seed on."""

    match: Match
    number: int  # from 0
    points: list[float]  # of the first member, in each game of the match
    seed: str  # an integer of 64 bits, which JavaScript's numbers cannot hold
    seats: tuple[int, ...]  # of the first member
    ticks: list[list[Any]]
    same: bool  # whether the match went again as it was stored


class MatchQuery(msgspec.Struct, frozen=True):
    """Which of the match's games, from 0."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)] = 0


@dataclass(slots=True)
class _Watched:
    """What is remembered of one game's league."""

    people: PeopleGames
    ladder: Ladder = field(default_factory=Ladder)
    lock: threading.Lock = field(default_factory=threading.Lock)
    made_s: float = -1e9
    read_s: float = -1e9
    of: tuple[int, int] = (-1, -1)  # matches and people's games behind `league`
    league: League | None = None


def _read(people: PeopleGames) -> None:
    try:
        people.update()
    except SparringError as error:  # the page goes on with what was read before
        log.warning("people's games cannot be read: %s", error)


class LeagueReader:
    """Reads leagues; never writes. Called on threads."""

    def __init__(self, data: Path, store: Store, registry: Registry) -> None:
        self._data, self._store, self._registry = data, store, registry
        self._lock = threading.Lock()
        self._watched: dict[GameId, _Watched] = {}
        self._replaying = threading.Lock()
        self._replays: OrderedDict[tuple[GameId, str], MatchReplay] = OrderedDict()

    def league(self, spec: GameSpec) -> League:
        """Its standings now, with people as one member."""
        with self._lock:
            one = self._watched.setdefault(spec.id, _Watched(PeopleGames(self._store, spec)))
        with one.lock:
            if time.monotonic() - one.read_s >= PEOPLE_EVERY_S:
                one.read_s = time.monotonic()
                threading.Thread(target=_read, args=(one.people,), name="people's games", daemon=True).start()
            if one.league is None or time.monotonic() - one.made_s >= FRESH_S:
                one.league, one.made_s = self._made(spec.id, one), time.monotonic()
            return one.league

    def _made(self, game: GameId, one: _Watched) -> League:
        matches, people = self._matches(game), one.people.now
        of = len(matches), people.games
        if one.league is not None and one.of == of:
            return one.league
        if of[1] < one.of[1]:  # people were erased: what was rated by them goes too
            one.ladder = Ladder()
        one.of = of
        standings = one.ladder.standings(matches, people) if any(of) else None
        return League(game=game, standings=standings, newest=matches[: -NEWEST - 1 : -1])

    def match_game(self, game: GameId, match: str, number: int) -> MatchGame:
        """That game of the match; Missing where there is none."""
        with self._replaying:  # one at a time: it takes a core for a moment
            found = self._replays.pop((game, match), None) or self._replay(game, match)
            self._replays[game, match] = found
            while len(self._replays) > REPLAYS:
                self._replays.popitem(last=False)
        if number >= len(found.moves):
            do = f"Ask for 0 to {len(found.moves) - 1}"
            raise Missing(f"it has {len(found.moves)} games", where=f"match {match[:40]}", do=do)
        moves = found.moves[number]
        return MatchGame(
            match=found.stored,
            number=number,
            points=found.beaten.tolist(),
            seed=str(moves.seed),
            seats=moves.seats,
            ticks=moves.ticks,
            same=not found.differences(),
        )

    def _replay(self, game: GameId, match: str) -> MatchReplay:
        found = next((one for one in self._matches(game) if one.id == match), None)
        if found is None:
            raise Missing("there is no such match", where=f"match {match[:40]!r}", do=f"See /api/league/{game}")
        return replay_match(game, found, self._registry)

    def _matches(self, game: GameId) -> list[Match]:
        if not league_path(self._data, game).exists():
            return []
        with MatchFile(self._data, game) as file:
            return file.all()
