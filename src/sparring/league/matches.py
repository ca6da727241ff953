"""A league's file, durable, in SQLite: a row for each match among members. league/state.py has what learners need."""

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
    distinct_games INTEGER NOT NULL, played_at_ms INTEGER NOT NULL, digest TEXT NOT NULL);"""


def league_path(data: Path, game: GameId) -> Path:
    """The file of a game's league, which is there once one was played."""
    return data / "league" / f"{folder_name(game, 'game')}.db"


class LeagueDatabase(Closable):
    """The file of one game's league, `<data>/league/GAME.db`, with `tables` in it; several processes may use it."""

    def __init__(self, data: Path, game: GameId, tables: str) -> None:
        self._path = league_path(data, game)
        with self._errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(tables)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """A disk that is full or damaged is a StoreFailed."""
        try:
            with disk_errors(self._path):
                yield
        except sqlite3.Error as error:
            do = "Free space or mend the disk, then do it again; what was stored before is kept"
            raise StoreFailed(f"the league's file cannot be used: {error}", where=str(self._path), do=do) from None


class MatchFile(LeagueDatabase):
    """The matches of one game."""

    def __init__(self, data: Path, game: GameId) -> None:
        super().__init__(data, game, _TABLE)

    def add(self, match: Match) -> bool:
        """Store it, on disk when this returns; False where it is there already: a result counts once."""
        row = astuple(match)
        with self._errors():
            values = ", ".join("?" * len(row))
            done = self._db.execute(f"INSERT INTO matches VALUES ({values}) ON CONFLICT (id) DO NOTHING", row)
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


def find_match(data: Path, beginning: str) -> tuple[GameId, Match]:
    """The match whose id begins so, of whichever game; Missing where there is none or several."""
    found = []
    for path in sorted((data / "league").glob("*.db")):
        game = GameId(unquote(path.stem))
        with MatchFile(data, game) as file:
            found += [(game, one) for one in file.beginning(beginning)]
    if len(found) == 1:
        return found[0]
    wrong = (
        f"several matches begin with {beginning!r}"
        if found
        else f"there is no match {beginning!r}, and no episode has such an id"
    )
    raise Missing(wrong, where="league", do="`spar league show GAME` lists the newest with their ids")
