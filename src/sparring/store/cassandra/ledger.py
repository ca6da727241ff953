"""The sink's tables: quarantined chunks, and counts by the minute; partitioned by game and day."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from typing import Any

from sparring.store import minute_counts
from sparring.store.cassandra.partitions import DAY_MS
from sparring.store.cassandra.session import CassandraSession
from sparring.store.protocol import Minute, MinuteCount, Quarantined
from sparring.wire.ids import GameId

PAGES = (256, 2_048)  # rows in the first page and in later ones

_QUARANTINED = [one.name for one in fields(Quarantined)]
_COUNT = ["batch_id" if name == "batch" else name for name in minute_counts.COLUMNS]  # the one is a CQL word
_PUT_QUARANTINED = (
    f"INSERT INTO quarantine ({', '.join(_QUARANTINED)}, day) VALUES ({', '.join('?' * (len(_QUARANTINED) + 1))})"
)
_PUT_COUNT = f"INSERT INTO minutes ({', '.join(_COUNT)}, day) VALUES ({', '.join('?' * (len(_COUNT) + 1))})"
_GET_QUARANTINED = f"SELECT {', '.join(_QUARANTINED)} FROM quarantine WHERE game = ? AND day = ?"
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
        self._put("quarantine", _PUT_QUARANTINED, [(row.game, row.arrived_ms, astuple(row)) for row in rows])

    def quarantined(self, game: GameId) -> Iterator[Quarantined]:
        for (day,) in self._session.one(self._session.scan(_GET_DAYS, ("quarantine", game))):
            rows = self._session.pages(self._session.scan(_GET_QUARANTINED, (game, day)), *PAGES)
            yield from (Quarantined(*row) for row in rows)

    def count(self, rows: Sequence[MinuteCount]) -> None:
        self._put("minutes", _PUT_COUNT, [(row.game, row.minute_ms, minute_counts.to_row(row)) for row in rows])

    def minutes(self, game: GameId, since_ms: int) -> list[Minute]:
        days = [day for (day,) in self._session.one(self._session.scan(_GET_DAYS, ("minutes", game)))]
        jobs = [self._session.scan(_GET_COUNT, (game, day, since_ms)) for day in days if (day + 1) * DAY_MS > since_ms]
        found = self._session.all(jobs, at_once=4)
        return minute_counts.by_minute(minute_counts.from_row(row) for rows in found for row in rows)

    def trim(self, before_ms: int) -> None:
        for name, cql in _TRIM.items():
            for game, day in self._session.one(self._session.look(_ALL_DAYS, (name,))):
                if day * DAY_MS < before_ms:
                    self._session.one(self._session.write(cql, (game, day, before_ms)))
                if (day + 2) * DAY_MS < before_ms:  # no writer comes back to that day
                    self._session.one(self._session.write(_TRIM_DAY, (name, game, day)))

    def _put(self, name: str, cql: str, rows: list[tuple[GameId, int, tuple[Any, ...]]]) -> None:
        days = {(name, str(game), at_ms // DAY_MS) for game, at_ms, _ in rows} - self._known
        self._session.all(self._session.write(_PUT_DAY, day) for day in sorted(days))
        self._known |= days
        self._session.all(self._session.write(cql, (*values, at_ms // DAY_MS)) for _, at_ms, values in rows)
