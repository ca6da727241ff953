"""The last hour as a sink counted it: the API that is polled, and the bars in a real browser."""

import time
from pathlib import Path

import httpx
import pytest

from serving import serving
from sparring.store import open_store
from sparring.store.protocol import MinuteCount
from sparring.wire.ids import GameId


def count(data: Path, now_ms: int) -> None:
    """Two batches in each of the last forty minutes, and one that is older than an hour."""
    rows = []
    for ago in [*range(40), 70]:
        minute_ms = (now_ms // 60_000 - ago) * 60_000
        for batch, players in (("a", (1, 2)), ("b", (2, 3))):
            steps = 1_000 + 40 * (40 - ago)
            rows.append(
                MinuteCount(GameId("cartpole"), minute_ms, batch, steps, 4, players, 2, 2.0 * (60 - ago), 4_800, 2_000)
            )
    with open_store(f"sqlite:///{data}/experience.db") as store:
        store.count_minutes(rows)


def test_minutes_are_those_of_the_last_hour_with_players_counted_once(tmp_path: Path) -> None:
    count(tmp_path, int(time.time() * 1000))
    with serving(tmp_path) as server:
        said = httpx.get(f"{server.url}/api/minutes").json()
    assert list(said["games"]) == ["cartpole"]
    minutes = said["games"]["cartpole"]
    assert 39 <= len(minutes) <= 40
    assert (minutes[-1]["players"], minutes[-1]["ended"], minutes[-1]["lag_ms"]) == (3, 4, 1_200)


@pytest.mark.chromium
def test_the_last_hour_is_drawn_where_a_sink_counts_and_nowhere_else(tmp_path: Path, page) -> None:
    with serving(tmp_path) as server:
        page.goto(server.url)
        page.locator("[data-game=cartpole]").wait_for()
        assert page.locator("#hour").is_hidden()
        count(tmp_path, int(time.time() * 1000))
        page.locator("#hour").wait_for(state="visible")
        for figure in ("steps", "players", "return", "lag"):
            bars = page.locator(f"[data-figure={figure}] rect")
            assert 38 <= bars.count() <= 40
        assert page.locator("[data-figure=players] .now").inner_text() == "3"
        assert page.locator("[data-figure=lag] .now").inner_text() == "1.2 s"
        assert page.locator("#hour-game").input_value() == "cartpole"
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
