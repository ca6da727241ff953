"""A league's state, durable: learners, members and the results of learners' games, in the SQLite file of its matches.

Everything that was acknowledged is on disk. A result has an id, so that one that is sent twice counts once.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from sparring.league.matches import LeagueDatabase
from sparring.league.matchmaking import WinRates
from sparring.league.roles import Learner, Member
from sparring.wire.ids import GameId

_TABLES = """
CREATE TABLE IF NOT EXISTS learners (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, generation INTEGER NOT NULL, steps INTEGER NOT NULL,
    frozen_steps INTEGER NOT NULL, live TEXT NOT NULL, run TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS members (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, learner TEXT NOT NULL, steps INTEGER NOT NULL,
    frozen_at_ms INTEGER NOT NULL, retired INTEGER NOT NULL, judged INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    id TEXT PRIMARY KEY, learner TEXT NOT NULL, generation INTEGER NOT NULL, opponent TEXT NOT NULL,
    wins INTEGER NOT NULL, draws INTEGER NOT NULL, losses INTEGER NOT NULL, at_ms INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS results_of ON results (learner, generation);
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What a learner won, drew and lost in some games against one opponent."""

    id: str
    opponent: str
    wins: int
    draws: int
    losses: int


class LeagueState(LeagueDatabase):
    """One process writes learners, members and results; any may read."""

    def __init__(self, data: Path, game: GameId) -> None:
        super().__init__(data, game, _TABLES)

    def learners(self) -> list[Learner]:
        with self._errors():
            return [Learner(*row) for row in self._db.execute("SELECT * FROM learners ORDER BY name")]

    def put_learner(self, learner: Learner) -> None:
        with self._errors():
            self._db.execute("INSERT OR REPLACE INTO learners VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(learner))

    def members(self) -> list[Member]:
        """Every member that ever was, oldest first."""
        with self._errors():
            rows = self._db.execute("SELECT * FROM members ORDER BY frozen_at_ms, name").fetchall()
        return [replace(Member(*row), retired=bool(row[5]), judged=bool(row[6])) for row in rows]

    def put_members(self, members: Sequence[Member], learner: Learner | None = None) -> None:
        """Write them, and the learner that the newest was frozen from, together or not at all."""
        with self._transaction():
            rows = [astuple(one) for one in members]
            self._db.executemany("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if learner is not None:
                self._db.execute("INSERT OR REPLACE INTO learners VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(learner))

    def add_results(self, learner: str, generation: int, results: Sequence[Result]) -> list[Result]:
        """Store them, on disk when this returns; those that were not there yet."""
        now_ms, fresh = int(time.time() * 1000), []
        with self._transaction():
            for one in results:
                done = self._db.execute(
                    "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                    (one.id, learner, generation, one.opponent, one.wins, one.draws, one.losses, now_ms),
                )
                if done.rowcount:
                    fresh.append(one)
        return fresh

    def win_rates(self, learner: Learner) -> WinRates:
        """Of this generation of the learner, by all results that are stored."""
        rates = WinRates()
        query = (
            "SELECT opponent, wins, draws, losses FROM results WHERE learner = ? AND generation = ? ORDER BY at_ms, id"
        )
        with self._errors():
            for row in self._db.execute(query, (learner.name, learner.generation)):
                rates.add(*row)
        return rates

    def games(self) -> int:
        """How many games of learners are stored."""
        with self._errors():
            (found,) = self._db.execute("SELECT COALESCE(SUM(wins + draws + losses), 0) FROM results").fetchone()
        return int(found)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # on a full disk SQLite may have rolled back already
                    self._db.execute("ROLLBACK")
                raise
