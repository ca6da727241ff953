"""The league of a real server: what its page polls, and the page in a real browser, with matches that were played."""

import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from published import publish

from recorded_games import sat
from sparring.games.catalogue import open_game, spec_of
from sparring.league.match_replay import member_named
from sparring.league.matches import MatchFile
from sparring.league.rounds import play_match
from sparring.registry import open_registry
from sparring.store import open_store

SCRIPTS = {"connect-four": ("script:random", "script:tactical"), "duel": ("script:random", "script:tracker")}


@pytest.fixture(scope="module")
def league(server):
    """The server with a league of two games, and people who played one of them."""
    for game, games in (("connect-four", 8), ("duel", 2)):
        models = [publish(server.data, game, seed, promote=seed == 1) for seed in (1, 2)]
        names = [*SCRIPTS[game], *models]
        with (
            open_registry(f"file://{server.data}/models") as registry,
            MatchFile(server.data, spec_of(game).id) as file,
        ):
            members = [member_named(name, registry) for name in names]
            for one in range(4):
                for other in range(one):
                    file.add(play_match(game, members[one], members[other], games))
            file.add(play_match(game, members[1], members[0], games))  # the newest: of two scripts
    with open_store(f"sqlite:///{server.data}/experience.db") as store:
        for number in range(6):
            store.append(sat(number, 1.0, client=number % 3, bot="script:random"))
    return server


def asked(server, game):
    return httpx.get(f"{server.url}/api/league/{game}", timeout=60).json()


def test_a_league_has_ladder_matrix_curves_and_newest_matches(league):
    said = asked(league, "duel")
    standings = said["standings"]
    assert (standings["matches"], standings["games"], standings["anchor"]) == (7, 14, "script:random")
    assert len(standings["ladder"]) == len(standings["wins"]) == len(standings["draws"]) == 4
    assert [one["elo"] for one in standings["ladder"]] == sorted(
        (one["elo"] for one in standings["ladder"]), reverse=True
    )
    assert len(said["newest"]) == 7
    assert said["newest"][0]["played_at_ms"] >= said["newest"][-1]["played_at_ms"]
    assert asked(league, "cartpole") == {"game": "cartpole", "standings": None, "newest": []}


def test_people_are_one_member_whose_persons_are_counted(league):
    deadline_s = time.monotonic() + 60  # they are read beside the requests
    while not (standings := asked(league, "connect-four")["standings"])["persons"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    assert (standings["persons"], standings["people_games"]) == (3, 6)
    assert "people" in [one["member"] for one in standings["ladder"]]
    assert not any(one["member"].startswith("person:") for one in standings["ladder"])


@pytest.mark.parametrize("game", ["connect-four", "duel"])
def test_the_moves_of_a_match_lead_to_its_result(league, game):
    match = asked(league, game)["newest"][-1]
    url = f"{league.url}/api/league/{game}/matches/{match['id']}"
    count = match["wins"] + match["draws"] + match["losses"]
    points = []
    for number in range(count):
        said = httpx.get(url, params={"number": number}, timeout=60).json()
        assert (said["match"], said["number"], said["same"]) == (match, number, True)
        played = open_game(game)
        view = played.reset(np.array([int(said["seed"])], np.uint64), np.ones(1, bool))
        for tick in said["ticks"]:
            assert [one is not None for one in tick] == view.to_act[0].tolist()
            view = played.step([np.array([one or 0], np.int32) for one in tick])
        assert view.over[0]
        mine, other = view.outcome[0, said["seats"][0]], view.outcome[0, 1 - said["seats"][0]]
        points.append(0.5 + 0.5 * float(np.sign(mine - other)))
    assert points == said["points"]
    assert (points.count(1.0), points.count(0.5), points.count(0.0)) == (match["wins"], match["draws"], match["losses"])
    beyond = httpx.get(url, params={"number": count})
    assert (beyond.status_code, beyond.json()["error"]["message"]) == (404, f"it has {count} games")


@pytest.mark.chromium
def test_the_page_shows_ladder_heat_map_curves_and_a_match_to_watch(league, page):
    page.goto(f"{league.url}/league?game=connect-four")
    page.locator("#ladder tr[data-member='people']").wait_for()
    assert page.locator("#ladder tbody tr").count() == 5
    assert page.locator("#ladder .interval circle").count() == 5
    assert page.locator("#ladder .tag.champion").count() == 1
    first = page.locator(".heat td.met").first
    assert "against" in first.get_attribute("title")
    assert 0 <= int(first.inner_text()) <= 100
    assert page.locator("#chart path.band").count() == page.locator("#chart path.line").count() > 0
    lines = page.locator("#chart path.line").count()
    page.locator("#members input").first.uncheck()
    page.wait_for_function("n => document.querySelectorAll('#chart path.line').length === n", arg=lines - 1)
    assert page.locator("#top .layer").count() >= 1
    page.locator("#newest tbody tr").first.get_by_text("Watch").click()
    page.get_by_text("every move of its 8 games was the same").wait_for()
    page.locator("#last").click()
    page.get_by_text("Game 1 of 8: ").wait_for()
    stones = page.locator(".stone").count()
    assert stones == int(page.locator("#seek").get_attribute("max")) >= 7
    page.locator("#back").click()
    assert page.locator(".stone").count() == stones - 1
    page.locator("#rounds a").nth(2).click()
    page.get_by_text("Game 3 of 8: ").wait_for()
    assert page.url.endswith("?game=2")
    page.get_by_text("Back to the league").click()
    page.locator("#ladder-title").wait_for()


@pytest.mark.chromium
def test_a_game_by_the_clock_is_watched_on_its_field(league, page):
    match = asked(league, "duel")["newest"][0]["id"]
    page.goto(f"{league.url}/league/duel/{match}?game=1")
    page.get_by_text("Game 2 of 2").wait_for()
    page.locator("#last").click()
    page.get_by_text(" wins").first.wait_for()
    assert page.locator("#seek").input_value() == page.locator("#seek").get_attribute("max")
    page.goto(f"{league.url}/league/duel/none")
    page.get_by_text("This match cannot be shown.").wait_for()
    page.problems.clear()  # the 404 that was asked for


@pytest.mark.chromium
def test_the_league_can_be_read_on_a_phone_in_light_and_dark(league, browser):
    contrast = (Path(__file__).parent / "contrast.js").read_text()
    match = asked(league, "connect-four")["newest"][0]["id"]
    for scheme in ("light", "dark"):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": 390, "height": 844}, reduced_motion="reduce"
        )
        page = context.new_page()
        for path, ready in (
            ("/league?game=connect-four", ".heat td.met"),
            (f"/league/connect-four/{match}", "#rounds a"),
        ):
            page.goto(league.url + path)
            page.locator(ready).first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            assert page.evaluate(contrast) == [], f"{scheme} {path}"
        context.close()
