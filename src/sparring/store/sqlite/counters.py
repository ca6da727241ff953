"""Counters of each game, kept up to date: a call costs the chunks stored since the last one, not all of them.

Ids rise with each commit and are never used twice, in whichever process it happens, so "since" is an id.
A removal (erase, retention) starts the count anew.
"""

import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass, field

from sparring.store.protocol import GameStats
from sparring.wire.ids import GameId

_SUMS = """SELECT source, version, count(*), sum(steps), sum(size_bytes), min(received_at_ms), max(received_at_ms)
    FROM chunks WHERE id > ? AND id <= ? AND +game = ? GROUP BY source, version"""
# Each episode with a new chunk: whether it was there before, and whether it is whole now.
_EPISODES = """SELECT episode, min(first) <= ?, min(whole) FROM (
        SELECT episode, min(id) AS first, min(first_step) = 0 AND sum(steps) = max(first_step + steps)
        AND max(ending <> 'running') AS whole FROM chunks
        WHERE game = ? AND episode IN (SELECT episode FROM chunks WHERE id > ? AND id <= ? AND +game = ?) AND id <= ?
        GROUP BY episode, seat)
    GROUP BY episode"""
_PLAYERS = """SELECT count(*) FROM (SELECT DISTINCT mark FROM chunks WHERE id > ? AND id <= ? AND +game = ?) new
    WHERE new.mark IS NOT NULL AND NOT EXISTS (SELECT 1 FROM chunks old WHERE old.mark = new.mark AND old.id <= ?)"""


@dataclass(slots=True)
class _GameCounts:
    """What is counted of one game, up to the chunk `newest`."""

    removals: int
    newest: int = 0
    chunks: int = 0
    size_bytes: int = 0
    episodes: int = 0
    players: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    incomplete: set[str] = field(default_factory=set)
    by_source: Counter[str] = field(default_factory=Counter)
    by_version: Counter[str] = field(default_factory=Counter)

    def catch_up(self, db: sqlite3.Connection, game: GameId, newest: int) -> None:
        since, until = self.newest, newest
        for source, version, chunks, steps, size, first_ms, last_ms in db.execute(_SUMS, (since, until, game)):
            self.chunks += chunks
            self.size_bytes += size
            self.by_source[source] += steps
            self.by_version[version] += steps
            self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
            self.last_ms = last_ms if self.last_ms is None else max(last_ms, self.last_ms)
        for episode, existed, whole in db.execute(_EPISODES, (since, game, since, until, game, until)):
            self.episodes += not existed
            (self.incomplete.discard if whole else self.incomplete.add)(episode)
        self.players += db.execute(_PLAYERS, (since, until, game, since)).fetchone()[0]
        self.newest = until

    def stats(self, game: GameId) -> GameStats:
        return GameStats(
            game=game,
            chunks=self.chunks,
            steps=self.by_source.total(),
            episodes=self.episodes,
            incomplete_episodes=len(self.incomplete),
            players=self.players,
            encoded_bytes=self.size_bytes,
            first_received_ms=self.first_ms,
            last_received_ms=self.last_ms,
            steps_by_source=dict(self.by_source),
            steps_by_version=dict(self.by_version),
        )


class Counters:
    """The tallies of all games asked for."""

    def __init__(self) -> None:
        self._tallies: dict[GameId, _GameCounts] = {}
        self._lock = threading.Lock()

    def stats(self, db: sqlite3.Connection, game: GameId) -> GameStats:
        """What is kept of one game now."""
        with self._lock:
            removals, newest = db.execute(
                "SELECT (SELECT value FROM counters WHERE name = 'removals'), coalesce(max(id), 0) FROM chunks"
            ).fetchone()
            tally = self._tallies.get(game)
            if tally is None or tally.removals != removals:
                tally = _GameCounts(removals)
            if newest > tally.newest:
                tally.catch_up(db, game, newest)
            if tally.chunks:  # a name that nobody plays is not remembered
                self._tallies[game] = tally
            else:
                self._tallies.pop(game, None)
            return tally.stats(game)
