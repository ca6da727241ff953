"""The sink's tables: what was put aside, and counts by the minute; partitioned by game and day."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from typing import Any

from sparring.store.cassandra.partitions import DAY_MS
from sparring.store.cassandra.session import CassandraSession
from sparring.store.minute_counts import packed, summed, unpacked
from sparring.store.protocol import Minute, MinuteCount, Quarantined
from sparring.wire.ids import GameId

FIRST_ROWS, ROWS = 256, 2_048

_ASIDE = [one.name for one in fields(Quarantined)]
_COUNT = ["batch_id" if one.name == "batch" else one.name for one in fields(MinuteCount)]  # the one is a CQL word
_PLAYERS = _COUNT.index("players")
_PUT_ASIDE = f"INSERT INTO quarantine ({', '.join(_ASIDE)}, day) VALUES ({', '.join('?' * (len(_ASIDE) + 1))})"
_PUT_COUNT = f"INSERT INTO minutes ({', '.join(_COUNT)}, day) VALUES ({', '.join('?' * (len(_COUNT) + 1))})"
_GET_ASIDE = f"SELECT {', '.join(_ASIDE)} FROM quarantine WHERE game = ? AND day = ?"
_GET_COUNT = f"SELECT {', '.join(_COUNT)} FROM minutes WHERE game = ? AND day = ? AND minute_ms >= ?"
_PUT_DAY = "INSERT INTO ledger_days (name, game, day) VALUES (?, ?, ?)"
_GET_DAYS = "SELECT day FROM ledger_days WHERE name = ? AND game = ?"
_ALL_DAYS = "SELECT game, day FROM ledger_days WHERE name = ?"
_TRIM = {
    "quarantine": "DELETE FROM quarantine WHERE game = ? AND day = ? AND arrived_ms < ?",
    "minutes": "DELETE FROM minutes WHERE game = ? AND day = ? AND minute_ms < ?",
}
_TRIM_DAY = "DELETE FROM ledger_days WHERE name = ? AND game = ? AND day = ?"


class LedgerTables:
    """Rows known by where they came from, so that writing them again changes nothing."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session
        self._known: set[tuple[str, str, int]] = set()

    def quarantine(self, rows: Sequence[Quarantined]) -> None:
        self._put("quarantine", _PUT_ASIDE, [(row.game, row.arrived_ms, astuple(row)) for row in rows])

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        for (day,) in self._session.one(self._session.scan(_GET_DAYS, ("quarantine", game))):
            rows = self._session.pages(self._session.scan(_GET_ASIDE, (game, day)), FIRST_ROWS, ROWS)
            yield from (Quarantined(*row) for row in rows)

    def count(self, rows: Sequence[MinuteCount]) -> None:
        listed = []
        for row in rows:
            values = list(astuple(row))
            values[_PLAYERS] = packed(row.players)
            listed.append((row.game, row.minute_ms, tuple(values)))
        self._put("minutes", _PUT_COUNT, listed)

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        days = [day for (day,) in self._session.one(self._session.scan(_GET_DAYS, ("minutes", game)))]
        jobs = [self._session.scan(_GET_COUNT, (game, day, since_ms)) for day in days if (day + 1) * DAY_MS > since_ms]
        counts = []
        for row in (row for rows in self._session.all(jobs, at_once=4) for row in rows):
            values = list(row)
            values[_PLAYERS] = unpacked(row[_PLAYERS])
            counts.append(MinuteCount(*values))
        return summed(counts)

    def trim(self, before_ms: int) -> None:
        for name, cql in _TRIM.items():
            for game, day in self._session.one(self._session.look(_ALL_DAYS, (name,))):
                if day * DAY_MS < before_ms:
                    self._session.one(self._session.write(cql, (game, day, before_ms)))
                if (day + 2) * DAY_MS < before_ms:  # nobody writes there any more
                    self._session.one(self._session.write(_TRIM_DAY, (name, game, day)))

    def _put(self, name: str, cql: str, rows: list[tuple[GameId, int, tuple[Any, ...]]]) -> None:
        days = {(name, str(game), at_ms // DAY_MS) for game, at_ms, _ in rows} - self._known
        self._session.all(self._session.write(_PUT_DAY, day) for day in sorted(days))
        self._known |= days
        self._session.all(self._session.write(cql, (*values, at_ms // DAY_MS)) for _, at_ms, values in rows)
