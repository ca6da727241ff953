"""The results of a game's league, durable: one SQLite file, a row for each match."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparring.closable import Closable
from sparring.durable import disk_errors, folder_name
from sparring.errors import StoreFailed
from sparring.league.payoff import Match
from sparring.wire.ids import GameId

BUSY_S = 10.0
_TABLE = """CREATE TABLE IF NOT EXISTS matches (
    id TEXT PRIMARY KEY, first TEXT NOT NULL, second TEXT NOT NULL, seed INTEGER NOT NULL,
    wins INTEGER NOT NULL, draws INTEGER NOT NULL, losses INTEGER NOT NULL,
    distinct_games INTEGER NOT NULL, played_at_ms INTEGER NOT NULL)"""


class MatchFile(Closable):
    """The matches of one game in `<data>/league/GAME.db`; several processes may add to it."""

    def __init__(self, data: Path, game: GameId) -> None:
        self._path = data / "league" / f"{folder_name(game, 'game')}.db"
        with self._errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)

    def add(self, match: Match) -> bool:
        """Store it, on disk when this returns; False where it is there already: a result counts once."""
        row = (match.id, match.first, match.second, match.seed, match.wins, match.draws, match.losses)
        with self._errors():
            done = self._db.execute(
                "INSERT OR IGNORE INTO matches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, match.distinct, match.played_at_ms),
            )
        return done.rowcount == 1

    def all(self) -> list[Match]:
        """Every match, oldest first."""
        with self._errors():
            return [Match(*row) for row in self._db.execute("SELECT * FROM matches ORDER BY played_at_ms, id")]

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """A disk that is full or damaged is a StoreFailed."""
        try:
            with disk_errors(self._path):
                yield
        except sqlite3.Error as error:
            do = "Free space or mend the disk, then do it again; matches that were stored before are kept"
            raise StoreFailed(f"the league's file cannot be used: {error}", where=str(self._path), do=do) from None
