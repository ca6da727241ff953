"""The card "Your data" in a real browser: nothing is stored before a yes; download; erase, and every count follows."""

import json

import httpx
import pytest
from test_browser_play import YOUR_MOVE, chunks_of, episodes, play_columns

from serving import serving
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder

pytestmark = pytest.mark.chromium
GAME = "connect-four"


def opened(page, server):
    page.goto(f"{server.url}/play/{GAME}")
    page.wait_for_function(f"() => {YOUR_MOVE}")


def play(page):
    play_columns(page, lambda column: page.keyboard.press(str(column)))


def steps_on_pages(server):
    """What the first page and the statistics count."""
    with httpx.Client(base_url=server.url) as http:
        stats = http.get("/api/stats", params={"game": GAME}).json()
        (row,) = (one for one in http.get("/api/games").json()["games"] if one["id"] == GAME)
    return stats["steps"], stats["steps_by_source"].get("play", 0), stats["episodes"], stats["players"], row["steps"]


def test_nothing_is_stored_of_a_person_who_said_no_or_nothing(server, page):
    opened(page, server)
    assert "Nothing is recorded until you say yes" in page.locator("#ask").inner_text()
    play(page)  # without an answer
    page.get_by_text("this game was not recorded").wait_for()
    page.locator("#record-no").click()
    assert page.locator("#ask").is_hidden()
    page.locator("#again").click()
    page.wait_for_function(f"() => {YOUR_MOVE}")
    play(page)
    page.get_by_text("this game was not recorded").wait_for()
    page.reload()
    page.wait_for_function(f"() => {YOUR_MOVE}")
    assert page.locator("#ask").is_hidden()
    assert not page.locator("#record").is_checked()
    assert episodes(server, GAME) == []
    assert page.evaluate("Object.keys(localStorage).filter(key => /spool|player/.test(key))") == []


def test_a_yes_is_recorded_downloaded_and_erased_with_the_bots_seat(tmp_path, page):
    with serving(tmp_path / "data") as server:
        opened(page, server)
        page.locator("#record-yes").click()  # before the first move: this game is recorded
        play(page)
        page.locator("#kept[data-state=kept]").wait_for()
        page.get_by_text("1 game,").wait_for()
        (episode,) = episodes(server, GAME)
        person = next(seat for seat in episode.seats if seat.player)
        assert page.locator("#you-are").inner_text() == person.player
        assert page.locator("#your-games").inner_text() == f"1 game, {person.steps} moves of yours"
        total = sum(seat.steps for seat in episode.seats)
        assert steps_on_pages(server)[:4] == (total, total, 1, 1)

        with page.expect_download() as started:
            page.locator("#download").click()
        lines = [json.loads(line) for line in started.value.path().read_text().splitlines()]
        (mine,) = (one for one in chunks_of(server, GAME, episode.episode) if one.header.player)
        assert [line["columns"]["action"] for line in lines] == [mine.columns["action"].tolist()]

        page.locator("#erase").click()
        page.locator("#erase-no").click()
        assert len(episodes(server, GAME)) == 1
        page.locator("#erase").click()
        page.locator("#erase-yes").click()
        page.get_by_text(f"Erased 1 game, {total} moves of both sides.").wait_for()
        assert episodes(server, GAME) == []
        assert steps_on_pages(server)[:4] == (0, 0, 0, 0)
        assert page.locator("#you-are").inner_text() == "not known to the server"
        assert not page.locator("#record").is_checked()

        page.locator("#record").check()  # allowed again: another name, which is not the erased one
        page.locator("#again").click()
        page.wait_for_function(f"() => {YOUR_MOVE}")
        play(page)
        page.locator("#kept[data-state=kept]").wait_for()
        (again,) = episodes(server, GAME)
        assert person.player not in {seat.player for seat in again.seats}


def test_recording_that_is_switched_off_in_a_game_stores_nothing_of_it(server, page):
    before = len(episodes(server, GAME))
    opened(page, server)
    page.locator("#record-yes").click()
    page.keyboard.press("4")
    page.wait_for_function(f"() => {YOUR_MOVE}")
    page.locator("#record").uncheck()
    play(page)
    page.get_by_text("this game was not recorded").wait_for()
    page.locator("#record").check()  # after the first move: from the next game on
    page.reload()
    page.wait_for_function(f"() => {YOUR_MOVE}")
    assert len(episodes(server, GAME)) == before


def test_what_waits_in_the_browser_is_dropped_by_a_no(server, page):
    before = len(episodes(server, GAME))
    opened(page, server)
    page.route("**/chunks", lambda route: route.abort())
    page.locator("#record-yes").click()
    play(page)
    waits = "Object.keys(localStorage).filter(key => key.startsWith('sparring/spool/')).length"
    page.wait_for_function(f"() => {waits} === 2")
    page.locator("#record").uncheck()
    assert page.evaluate(waits) == 0
    page.unroute("**/chunks")
    page.reload()
    page.wait_for_function(f"() => {YOUR_MOVE}")
    assert len(episodes(server, GAME)) == before
    page.problems.clear()  # the browser itself notes each request that was cut


@pytest.mark.slow
def test_a_game_by_the_clock_asks_before_the_first_tick_too(server, page):
    page.goto(f"{server.url}/play/cartpole")
    page.wait_for_function("() => /Ready/.test(document.getElementById('status').textContent)")
    page.locator("#record-yes").click()
    page.locator("#pace").fill("50")
    page.locator("#board canvas").click(position={"x": 5, "y": 5})
    page.locator("#kept[data-state=kept]").wait_for()
    (episode,) = episodes(server, "cartpole")
    assert page.locator("#your-games").inner_text() == f"1 game, {episode.seats[0].steps} moves of yours"


@pytest.mark.slow
def test_a_players_token_says_who_they_are(tmp_path, page):
    _, key = ApiKeys(Folder(tmp_path, 0o600)).create("studio", ("admin",), 1)
    with serving(tmp_path) as server:
        bearer = {"Authorization": f"Bearer {key}"}
        asked = httpx.post(f"{server.url}/v1/games/{GAME}/tokens", json={"player": "alice"}, headers=bearer).json()
        page.add_init_script(f"localStorage.setItem('sparring/token', '{asked['token']}')")
        opened(page, server)
        page.get_by_text(asked["player"]).wait_for()
        page.locator("#record-yes").click()
        play(page)
        page.locator("#kept[data-state=kept]").wait_for()
        (episode,) = episodes(server, GAME)
        assert asked["player"] in {seat.player for seat in episode.seats}
        page.locator("#erase").click()
        page.locator("#erase-yes").click()
        page.get_by_text("Erased 1 game").wait_for()
        assert episodes(server, GAME) == []
        page.problems.clear()  # the browser notes the 410 of a player who was erased
