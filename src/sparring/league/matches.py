"""The results of a game's league, durable: one SQLite file, a row for each match."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from urllib.parse import unquote

from sparring.closable import Closable
from sparring.durable import disk_errors, folder_name
from sparring.errors import Missing, StoreFailed
from sparring.league.payoff import Match
from sparring.wire.ids import GameId

BUSY_S = 10.0
_TABLE = """CREATE TABLE IF NOT EXISTS matches (
    id TEXT PRIMARY KEY, first TEXT NOT NULL, second TEXT NOT NULL, seed INTEGER NOT NULL,
    wins INTEGER NOT NULL, draws INTEGER NOT NULL, losses INTEGER NOT NULL,
    distinct_games INTEGER NOT NULL, played_at_ms INTEGER NOT NULL)"""
_ADDED = {"digest": "TEXT NOT NULL DEFAULT ''"}  # columns of later versions, in the order of Match's fields


def match_path(data: Path, game: GameId) -> Path:
    """The file of a game's matches, which is there once one was played."""
    return data / "league" / f"{folder_name(game, 'game')}.db"


class MatchFile(Closable):
    """The matches of one game in `<data>/league/GAME.db`; several processes may add to it."""

    def __init__(self, data: Path, game: GameId) -> None:
        self._path = match_path(data, game)
        with self._errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)
            self._migrate()

    def add(self, match: Match) -> bool:
        """Store it, on disk when this returns; False where it is there already: a result counts once."""
        row = astuple(match)
        with self._errors():
            done = self._db.execute(f"INSERT OR IGNORE INTO matches VALUES ({', '.join('?' * len(row))})", row)
        return done.rowcount == 1

    def all(self) -> list[Match]:
        """Every match, oldest first."""
        with self._errors():
            return [Match(*row) for row in self._db.execute("SELECT * FROM matches ORDER BY played_at_ms, id")]

    def beginning(self, text: str) -> list[Match]:
        """The matches whose ids begin so, two at most."""
        with self._errors():
            like = "SELECT * FROM matches WHERE substr(id, 1, ?) = ? LIMIT 2"
            return [Match(*row) for row in self._db.execute(like, (len(text), text))]

    def close(self) -> None:
        self._db.close()

    def _migrate(self) -> None:
        """Add the columns that a file of an earlier version lacks; another process may do so at the same time."""
        if not self._missing():
            return
        self._db.execute("BEGIN IMMEDIATE")
        for column in self._missing():
            self._db.execute(f"ALTER TABLE matches ADD COLUMN {column} {_ADDED[column]}")
        self._db.execute("COMMIT")

    def _missing(self) -> list[str]:
        there = {row[1] for row in self._db.execute("PRAGMA table_info(matches)")}
        return [column for column in _ADDED if column not in there]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """A disk that is full or damaged is a StoreFailed."""
        try:
            with disk_errors(self._path):
                yield
        except sqlite3.Error as error:
            do = "Free space or mend the disk, then do it again; matches that were stored before are kept"
            raise StoreFailed(f"the league's file cannot be used: {error}", where=str(self._path), do=do) from None


def find_match(data: Path, beginning: str) -> tuple[GameId, Match]:
    """The match whose id begins so, of whichever game; Missing where there is none or several."""
    found = []
    for path in sorted((data / "league").glob("*.db")):
        game = GameId(unquote(path.stem))
        with MatchFile(data, game) as file:
            found += [(game, one) for one in file.beginning(beginning)]
    if len(found) == 1:
        return found[0]
    wrong = f"several matches begin with {beginning!r}" if found else f"there is no match {beginning!r}"
    raise Missing(wrong, where="league", do="`spar league show GAME` lists the newest with their ids")
