"""What every ledger promises: rows put aside once, minutes that add up however often a batch is told."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from derived import GAME
from sparring.store import open_store
from sparring.store.protocol import Minute, MinuteCount, Quarantined
from sparring.wire.ids import GameId

ASIDE = Quarantined(GAME, "shard-0", "7", "conflict", "steps 0 to 9 are stored already", "first_step", arrived_ms=1_000)
MINUTE_MS = 1_750_000_020_000 // 60_000 * 60_000


@pytest.fixture
def ledger(url: str) -> Iterator[Any]:
    with open_store(url) as opened:
        yield opened


def test_what_is_put_aside_is_found_by_game_in_the_order_of_arrival_and_once(ledger: Any) -> None:
    rows = [replace(ASIDE, position=str(n), arrived_ms=5_000 - n) for n in range(600)]
    ledger.quarantine(rows)
    ledger.quarantine(rows[:300])
    ledger.quarantine([replace(ASIDE, game=GameId(""), shard="shard-1", reason="no chunk at all")])
    assert list(ledger.quarantined(GAME)) == rows[::-1]
    assert [row.reason for row in ledger.quarantined(GameId(""))] == ["no chunk at all"]
    assert list(ledger.quarantined(GameId("duel"))) == []


def test_minutes_add_up_over_batches_and_a_batch_told_twice_counts_once(ledger: Any) -> None:
    first = MinuteCount(GAME, MINUTE_MS, "a", 100, 2, (1, -2), 1, 9.5, 30, 20)
    second = MinuteCount(GAME, MINUTE_MS, "b", 50, 1, (-2, 3), 1, 0.5, 60, 60)
    later = MinuteCount(GAME, MINUTE_MS + 60_000, "b", 5, 1)
    ledger.count_minutes([first, later])
    ledger.count_minutes([second])
    ledger.count_minutes([first, second])
    both = Minute(MINUTE_MS, 150, 3, 3, 2, 5.0, 30.0, 60)
    after = Minute(MINUTE_MS + 60_000, 5, 1, 0, 0, None, 0.0, 0)
    assert ledger.minutes(GAME, 0) == [both, after]
    assert ledger.minutes(GAME, MINUTE_MS + 1) == [after]
    assert ledger.minutes(GameId("duel"), 0) == []


def test_retention_forgets_the_ledger_too(ledger: Any) -> None:
    ledger.quarantine([ASIDE, replace(ASIDE, position="8", arrived_ms=2_000)])
    ledger.count_minutes([MinuteCount(GAME, MINUTE_MS, "a", 1), MinuteCount(GAME, MINUTE_MS + 60_000, "a", 2)])
    ledger.trim(before_ms=1_500)
    assert [row.position for row in ledger.quarantined(GAME)] == ["8"]
    ledger.trim(before_ms=MINUTE_MS + 60_000)
    assert list(ledger.quarantined(GAME)) == []
    assert [minute.steps for minute in ledger.minutes(GAME, 0)] == [2]


def test_a_fact_is_remembered_as_it_was_first_said(ledger: Any) -> None:
    assert ledger.fact("first") is None
    assert ledger.remember("first", "one") == "one"
    assert ledger.remember("first", "two") == "one"
    assert ledger.fact("first") == "one"
