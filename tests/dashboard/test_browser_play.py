"""A person plays in a real browser, and what they did is in the store."""

import re

import numpy as np
import pytest
from published import publish, sell

from serving import serving, start, stop
from sparring.games.catalogue import open_game
from sparring.games.resimulation import resimulate
from sparring.nets.model_files import read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import nearly_best
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.network import Gru

pytestmark = pytest.mark.chromium
YOUR_MOVE = "/our move/.test(document.getElementById('status').textContent)"


@pytest.fixture
def page(page):
    """A page whose person allows to be recorded."""
    page.add_init_script("localStorage.setItem('sparring/record', 'yes')")
    return page


def episodes(server, game):
    """Every episode in the server's store, oldest first."""
    with open_store(f"sqlite:///{server.data}/experience.db") as store:
        return list(store.episodes(Query(game)))


def chunks_of(server, game, episode):
    with open_store(f"sqlite:///{server.data}/experience.db") as store:
        return list(store.read(Query(game, episodes=(episode,))))


def play_columns(page, press):
    """Drop stones, in any column that takes one, until the game is over."""
    for _ in range(21):
        page.wait_for_function(f"() => !document.getElementById('again').hidden || {YOUR_MOVE}")
        if page.locator("#again").is_visible():
            return
        before = page.locator(".stone").count()
        for column in (4, 4, 3, 5, 2, 6, 1, 7):
            if page.locator(".columns button").nth(column - 1).get_attribute("aria-label").endswith("full"):
                continue
            press(column)
            break
        page.wait_for_function("n => document.querySelectorAll('.stone').length > n", arg=before)


def test_a_whole_game_of_connect_four_by_clicks_is_recorded_for_both_seats(server, page):
    page.goto(f"{server.url}/play/connect-four")
    page.locator(".columns button").first.wait_for()
    play_columns(page, lambda column: page.locator(".columns button").nth(column - 1).click())
    assert page.locator("#status").inner_text() in ("You won.", "The bot won.", "A draw.")
    page.locator("#kept[data-state=kept]").wait_for()
    said = int(re.search(r"recorded ✓ (\d+) steps", page.locator("#kept").inner_text()).group(1))
    (episode,) = episodes(server, "connect-four")
    assert episode.complete
    assert sum(seat.steps for seat in episode.seats) == said == page.locator(".stone").count()
    assert [seat.actor for seat in episode.seats] == ["person", "script:random"]
    assert [bool(seat.player) for seat in episode.seats] == [True, False]
    assert sum(seat.outcome for seat in episode.seats) == 0
    assert resimulate(chunks_of(server, "connect-four", episode.episode), open_game("connect-four")).mismatches == ()


@pytest.mark.slow
def test_a_game_by_keys_alone_and_the_other_begins_the_next(server, page):
    page.goto(f"{server.url}/play/connect-four")
    page.locator(".columns button").first.wait_for()
    before = len(episodes(server, "connect-four"))
    play_columns(page, lambda column: page.keyboard.press(str(column)))
    page.locator("#kept[data-state=kept]").wait_for()
    page.keyboard.press("Enter")  # the button to play again has the focus
    page.wait_for_function("() => document.querySelectorAll('.stone').length === 1")  # the bot began this time
    assert page.locator(".stone.bot").count() == 1
    page.wait_for_function(f"() => {YOUR_MOVE}")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".stone.you").wait_for()
    assert len(episodes(server, "connect-four")) == before + 1


@pytest.mark.slow
def test_duel_with_keys_and_a_reload_in_the_middle_loses_nothing(server, page):
    page.goto(f"{server.url}/play/duel")
    page.locator("#again").wait_for()
    page.keyboard.press("Space")
    page.keyboard.down("ArrowUp")
    page.wait_for_timeout(1500)
    page.keyboard.up("ArrowUp")
    page.keyboard.down("s")
    page.wait_for_timeout(1500)
    page.reload()
    page.locator("#again").wait_for()
    page.wait_for_function("() => !Object.keys(localStorage).some(key => key.startsWith('sparring/spool/'))")
    (episode,) = episodes(server, "duel")
    assert episode.complete
    assert {seat.actor for seat in episode.seats} == {"person", "script:random"}
    assert {seat.ending for seat in episode.seats} == {"truncated"}
    chunks = chunks_of(server, "duel", episode.episode)
    person = next(chunk for chunk in chunks if chunk.header.actor == "person")
    pressed = person.columns["action"]
    assert (pressed == 0).sum() > 3  # on a busy machine keys may come late, and not many ticks are played
    assert pressed[-1] == 2
    assert resimulate(chunks, open_game("duel")).mismatches == ()


@pytest.mark.slow
def test_what_is_played_while_the_server_is_away_arrives_when_it_is_back(tmp_path, page):
    first = start(tmp_path / "data")
    page.goto(f"{first.url}/play/cartpole")
    page.wait_for_function("() => /Ready/.test(document.getElementById('status').textContent)")
    stop(first)
    page.wait_for_function("() => document.getElementById('link').textContent === 'no answer'")
    page.locator("#pace").fill("50")
    page.locator("#board canvas").click(position={"x": 5, "y": 5})
    page.wait_for_function("() => /You held it/.test(document.getElementById('status').textContent)")
    with serving(tmp_path / "data", port=first.port) as again:
        page.reload()
        page.wait_for_function("() => /Ready/.test(document.getElementById('status').textContent)")
        page.wait_for_function("() => !Object.keys(localStorage).some(key => key.startsWith('sparring/spool/'))")
        (episode,) = episodes(again, "cartpole")
        assert (episode.complete, episode.seats[0].actor, episode.seats[0].ending) == (True, "person", "terminated")
        assert resimulate(chunks_of(again, "cartpole", episode.episode), open_game("cartpole")).mismatches == ()
    assert all("Failed to load" in problem for problem in page.problems)
    page.problems.clear()  # the browser itself notes each request that nobody answered


def acted_as(server, model, bot):
    """That each recorded move is one of the model's nearly best ones, with its log-probability among them."""
    with open_registry(f"file://{server.data}/models") as registry:
        champion = registry.fetch(model)
    forward, state = NumpyForward(champion.card.network, read_weights(champion)), None
    for step in range(bot.header.steps):
        seen = {"observation/board": bot.columns["observation/board"][step : step + 1]}
        out = forward(seen) if state is None else forward(seen, state)
        state, legal = out.get("state"), bot.columns["legal"][step : step + 1].astype(bool)
        near = nearly_best(out["logits"], legal, values=False)[0]
        logp = near - np.logaddexp.reduce(near)
        assert bot.columns["behaviour_logp"][step] == pytest.approx(logp[bot.columns["action"][step]], abs=1e-5)


@pytest.mark.slow
def test_the_bot_improves_without_a_reload_and_says_so(server, page):
    page.goto(f"{server.url}/play/connect-four")
    page.wait_for_function(f"() => {YOUR_MOVE}")
    assert page.locator("#bot").inner_text() == "No champion yet"
    first = publish(server.data, "connect-four", 11)
    page.get_by_text(f"the bot has learned something: model {first[:8]}").wait_for()
    assert page.locator("#bot").inner_text() == "Champion no. 1"
    second = publish(server.data, "connect-four", 12, parents=(first,))
    page.get_by_text(f"the bot improved: model {second[:8]}").wait_for()
    page.locator("#advice").check()
    page.locator(".hint").wait_for()
    assert page.locator("#advised").inner_text().startswith("The bot would drop into column")
    play_columns(page, lambda column: page.keyboard.press(str(column)))
    page.locator("#kept[data-state=kept]").wait_for()
    newest = episodes(server, "connect-four")[-1]
    assert {seat.actor for seat in newest.seats} == {"person", f"model:{second}"}
    bot = next(c for c in chunks_of(server, "connect-four", newest.episode) if c.header.actor != "person")
    acted_as(server, second, bot)


def test_a_browser_that_cannot_check_signatures_lets_the_server_choose(server, page):
    model = publish(server.data, "connect-four", 13)
    page.add_init_script("Object.defineProperty(Crypto.prototype, 'subtle', { value: undefined })")
    page.goto(f"{server.url}/play/connect-four")
    page.get_by_text("this browser cannot check signatures, so the server chooses the moves").wait_for()
    play_columns(page, lambda column: page.keyboard.press(str(column)))
    page.locator("#kept[data-state=kept]").wait_for()
    newest = episodes(server, "connect-four")[-1]
    assert {seat.actor for seat in newest.seats} == {"person", f"model:{model}"}


@pytest.mark.parametrize("where", ["local", "server"])
def test_a_champion_that_remembers_is_given_its_memory_back(server, page, where):
    model = publish(server.data, "connect-four", 15, memory=Gru(8))
    if where == "server":
        page.add_init_script("Object.defineProperty(Crypto.prototype, 'subtle', { value: undefined })")
    page.add_init_script("localStorage.setItem('sparring/seat/connect-four', '1')")  # the bot begins
    page.goto(f"{server.url}/play/connect-four")
    play_columns(page, lambda column: page.keyboard.press(str(column)))
    page.locator("#kept[data-state=kept]").wait_for()
    newest = episodes(server, "connect-four")[-1]
    bot = next(c for c in chunks_of(server, "connect-four", newest.episode) if c.header.actor == f"model:{model}")
    assert bot.columns["state/state"].tolist() == [0.0] * 8  # where its episode begins
    acted_as(server, model, bot)


@pytest.mark.slow
def test_when_the_server_chooses_and_goes_away_the_page_says_so_and_offers_another_game(tmp_path, page):
    page.add_init_script("Object.defineProperty(Crypto.prototype, 'subtle', { value: undefined })")
    with serving(tmp_path / "data") as away:
        publish(away.data, "connect-four", 1)
        page.goto(f"{away.url}/play/connect-four")
        page.wait_for_function(f"() => {YOUR_MOVE}")
    page.keyboard.press("4")
    page.get_by_text("The bot cannot move: the server does not answer").wait_for()
    assert page.locator("#again").is_visible()
    page.problems.clear()  # the browser itself notes each request that nobody answered


def test_a_model_whose_weights_were_changed_on_the_way_is_not_run(server, page):
    publish(server.data, "connect-four", 14)

    def change(route):
        body = bytearray(route.fetch().body())
        body[-1] ^= 1
        route.fulfill(body=bytes(body))

    page.route("**/weights.safetensors", change)
    page.goto(f"{server.url}/play/connect-four")
    page.get_by_text("are not what its card says").wait_for()
    assert page.locator("#bot").inner_text() == "No champion yet"


def test_a_style_is_chosen_beside_the_strength_and_plays_the_next_game(server, page):
    publish(server.data, "connect-four", 5)
    wide, inner = (publish(server.data, "connect-four", seed, promote=False) for seed in (6, 7))
    sell(server.data, "connect-four", wide, (0.0, 1.0), wide=wide, inner=inner)
    page.goto(f"{server.url}/play/connect-four")
    page.locator("#style-field").wait_for()
    assert page.locator("#style option").all_inner_texts() == ["any", "wide", "inner"]
    page.select_option("#style", "inner")
    assert page.locator("#style-says").inner_text() == "This style: is inner."
    play_columns(page, lambda column: page.locator(".columns button").nth(column - 1).click())
    page.locator("#kept[data-state=kept]").wait_for()
    assert f"model:{inner}" in {seat.actor for seat in episodes(server, "connect-four")[-1].seats}
    page.reload()
    page.wait_for_function("() => document.getElementById('style').value === 'inner'")
