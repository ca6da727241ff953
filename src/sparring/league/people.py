"""People's games as results of a league: episodes in the store in which a person sat against a model, a script or
another person. A member is `person:` and the beginning of the pseudonym, or `people`, all of them together."""

import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from sparring.games.spec import GameSpec
from sparring.league.payoff import Match
from sparring.league.ratings import Result
from sparring.store.protocol import EpisodeRecord, GameStats, Query, Store
from sparring.wire.ids import PlayerId

PEOPLE = "people"
PERSON = "person:"
DIGITS = 8  # of a pseudonym
HOUR_MS = 3_600_000
MAX_EPISODES = 100_000  # the newest that are read
MAX_PERSONS = 50  # that are members of their own, those with most games; the others are `people`
OVERLAP_MS = 600_000  # read again each time: an episode's seats may arrive so long after one another


@dataclass(frozen=True, slots=True)
class Sitting:
    """Who sat in each team of an episode and each team's place, in the hour of `at_ms`."""

    at_ms: int
    teams: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PeopleResults:
    """People's games as they were at one moment."""

    sittings: Counter[Sitting]

    @property
    def games(self) -> int:
        return self.sittings.total()

    @property
    def persons(self) -> int:
        return len(self._by_person())

    def results(self, *, apart: bool) -> list[tuple[int, Result]]:
        """Games by the hour, oldest first, with the time; `apart` shows the most frequent persons by themselves."""
        shown = {name for name, _ in self._by_person().most_common(MAX_PERSONS)} if apart else set()
        found: Counter[Sitting] = Counter()
        for one, games in self.sittings.items():
            teams = tuple(
                tuple(name if name in shown or not name.startswith(PERSON) else PEOPLE for name in team)
                for team in one.teams
            )
            names = [name for team in teams for name in team]
            if len(set(names)) == len(names):  # two of `people` against each other say nothing of them
                found[Sitting(one.at_ms, teams, one.places)] += games
        return [
            (one.at_ms, Result(one.teams, one.places, games))
            for one, games in sorted(found.items(), key=lambda item: item[0].at_ms)
        ]

    def _by_person(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one, games in self.sittings.items():
            for name in {name for team in one.teams for name in team if name.startswith(PERSON)}:
                found[name] += games
        return found


class PeopleGames:
    """The games of people in one store. Nothing is kept but in memory, so what is erased there is gone at the next
    whole reading: whenever the store has fewer episodes than before, and in a new process. Any thread may call."""

    def __init__(self, store: Store, spec: GameSpec) -> None:
        self._store, self._spec = store, spec
        self._updating = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.now = PeopleResults(Counter())  # another object after each reading that found something
        self._recent: dict[str, int] = {}  # episode → when it was received, of those that may come again
        self._since_ms, self._episodes = 0, 0

    def update(self) -> None:
        """Read what came since the last call; the first call reads the newest MAX_EPISODES, some 10,000 a second."""
        with self._updating:
            stats = self._store.stats(self._spec.id)
            if stats.episodes < self._episodes:
                self._forget()
            if stats.episodes == self._episodes:
                return
            query = Query(self._spec.id, sources=("play",), since_ms=max(self._since_ms, _newest_since(stats)))
            fresh: Counter[Sitting] = Counter()
            for record in deque(self._store.episodes(query), MAX_EPISODES):
                sitting = None if record.episode in self._recent else _sitting(record, self._spec)
                if sitting is not None:
                    fresh[sitting] += 1
                    self._recent[record.episode] = record.received_at_ms
            self._episodes = stats.episodes
            self._since_ms = max(self._since_ms, (stats.last_received_ms or 0) - OVERLAP_MS)
            self._recent = {one: at_ms for one, at_ms in self._recent.items() if at_ms >= self._since_ms}
            self.now = PeopleResults(self.now.sittings + fresh)


def pairs(results: Iterable[tuple[int, Result]]) -> list[Match]:
    """Each two opponents of each result, as a match without a seed."""
    found: Counter[tuple[int, str, str]] = Counter()
    draws: Counter[tuple[int, str, str]] = Counter()
    for at_ms, one in results:
        for (ours, place), (theirs, other) in combinations(zip(one.teams, one.places, strict=True), 2):
            for a in ours:
                for b in theirs:
                    winner, loser = (a, b) if place <= other else (b, a)
                    (draws if place == other else found)[at_ms, winner, loser] += one.games
    matches = [Match("", a, b, 0, games, 0, 0, 0, at_ms) for (at_ms, a, b), games in found.items()]
    matches += [Match("", a, b, 0, 0, games, 0, 0, at_ms) for (at_ms, a, b), games in draws.items()]
    return sorted(matches, key=lambda one: one.played_at_ms)


def _newest_since(stats: GameStats) -> int:
    """Since when there are some MAX_EPISODES, if they came at an even pace; 0: all of them."""
    if stats.episodes <= MAX_EPISODES or stats.first_received_ms is None or stats.last_received_ms is None:
        return 0
    first_ms, last_ms = stats.first_received_ms, stats.last_received_ms
    return last_ms - (last_ms - first_ms) * MAX_EPISODES // stats.episodes


def _sitting(record: EpisodeRecord, spec: GameSpec) -> Sitting | None:
    """None where a seat is missing, unfinished or without a result, where no person sat, or one sat twice."""
    if len(record.seats) != len(spec.seats) or not any(seat.actor == "person" for seat in record.seats):
        return None
    teams: dict[int | None, list[str]] = {}
    best: dict[int | None, float] = {}
    for seat in record.seats:
        if seat.outcome is None or not seat.complete:
            return None
        team = spec.seats[seat.seat].team
        teams.setdefault(team, []).append(_name(seat.actor, seat.player))
        best[team] = max(best.get(team, seat.outcome), seat.outcome)
    names = [name for team in teams.values() for name in team]
    if len(teams) < 2 or len(set(names)) < len(names):
        return None
    places = tuple(1 + sum(other > score for other in best.values()) for score in best.values())
    return Sitting(record.received_at_ms // HOUR_MS * HOUR_MS, tuple(map(tuple, teams.values())), places)


def _name(actor: str, player: PlayerId | None) -> str:
    if actor != "person":
        return actor.removeprefix("model:")
    return f"{PERSON}{player[:DIGITS] if player else 'unknown'}"
