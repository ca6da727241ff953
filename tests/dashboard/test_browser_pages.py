"""The pages in a real browser: what they list and draw, on wide and narrow screens, empty and with a run."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from published import publish

from serving import serving
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder

pytestmark = pytest.mark.chromium
PATHS = ("/", "/models", "/learning", "/league", "/nodes", "/play/connect-four", "/play/duel", "/play/cartpole")


@pytest.fixture(scope="module")
def trained(server):
    """The server, after a short real run of CartPole."""
    command = ["train", "cartpole", "--algo", "ppo", "--steps", "30000", "--until", "150", "--data", str(server.data)]
    fast = ["--set", "train.log_every_s=0.1", "--set", "registry.gate_episodes=100"]
    done = subprocess.run([sys.executable, "-m", "sparring", *command, *fast], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return server


def test_with_nothing_there_the_pages_say_what_to_do(tmp_path, page):
    with serving(tmp_path) as empty:
        page.goto(empty.url)
        page.locator("[data-game=duel]").get_by_text("no champion yet: playing at random").wait_for()
        page.goto(f"{empty.url}/models")
        page.get_by_text("No model yet").wait_for()
        page.goto(f"{empty.url}/learning")
        page.get_by_text("No run yet").wait_for()
        page.get_by_text("no champion yet: pushed at random").wait_for()
        page.goto(f"{empty.url}/league")
        page.get_by_text("No match yet").wait_for()
        page.goto(f"{empty.url}/nodes")
        page.get_by_text("No run with nodes").wait_for()
        page.goto(f"{empty.url}/play/chess")
        page.get_by_text("There is no such page").wait_for()
    assert len(page.problems) == 1  # the 404 that was asked for
    page.problems.clear()


def test_a_player_token_plays_its_game_and_sees_no_other(tmp_path, page):
    model = publish(tmp_path, "connect-four")
    key = ApiKeys(Folder(tmp_path, 0o600)).create("studio", ("admin",), 1)[1]
    with serving(tmp_path) as keyed:
        path, headers = f"{keyed.url}/v1/games/connect-four/tokens", {"Authorization": f"Bearer {key}"}
        token = httpx.post(path, json={"player": "alice"}, headers=headers).json()["token"]
        page.add_init_script(f"localStorage.setItem('sparring/token', '{token}')")
        page.goto(f"{keyed.url}/play/connect-four")
        page.get_by_text(f"model {model[:8]}").first.wait_for()
        page.locator(".columns button").first.click()
        page.locator(".stone.bot").wait_for()
        page.goto(keyed.url)
        page.locator("[data-game=connect-four]").wait_for()
        assert page.locator("[data-game]").count() == 1
        page.goto(f"{keyed.url}/learning")
        page.get_by_text("this needs the scope 'read'").wait_for()
    page.problems.clear()  # the 403 that was asked for


@pytest.mark.slow
def test_the_curve_of_a_real_run_is_drawn_and_read_off(trained, page):
    page.goto(f"{trained.url}/learning")
    line = page.locator("#chart path.line")
    line.wait_for(state="attached")
    assert int(line.get_attribute("data-points")) >= 2
    assert line.get_attribute("d").count("L") >= 1
    box = page.locator("#chart svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2)
    page.locator(".tip b").wait_for()
    assert float(page.locator(".tip b").inner_text()) > 0
    page.select_option("#over", "env_steps")
    page.select_option("#metric", "loss")
    assert page.locator("#measured").inner_text() == "Loss"
    page.locator("#log").get_by_text("became champion no. 1").wait_for()
    page.get_by_text("balanced by champion no. 1").wait_for()
    page.wait_for_function("() => /^tick [1-9]/.test(document.getElementById('balance').textContent)")
    page.locator("#runs input").uncheck()
    line.wait_for(state="detached")


@pytest.mark.slow
def test_the_example_in_the_docs_is_a_whole_client(trained, page):
    text = (Path(__file__).parents[2] / "docs" / "javascript.md").read_text()
    example = re.search(r"```html\n(.*?)```", text, re.S).group(1)
    page.route("**/example", lambda route: route.fulfill(body=example, content_type="text/html"))
    page.goto(f"{trained.url}/example")
    page.locator("#view").get_by_text("tick 0,").wait_for()
    page.get_by_role("button", name="right").click()
    page.locator("#view").get_by_text("tick 1,").wait_for()
    for _ in range(3):
        page.get_by_role("button", name="let the bot push").click()
    while page.evaluate("Number(document.getElementById('view').textContent.match(/tick (\\d+)/)[1])") > 0:
        page.get_by_role("button", name="left").click()
    page.wait_for_function("() => /, [1-9]\\d* steps recorded/.test(document.getElementById('view').textContent)")
    page.wait_for_function("() => !Object.keys(localStorage).some(key => key.startsWith('sparring/spool/'))")
    steps = int(re.search(r", (\d+) steps", page.locator("#view").inner_text()).group(1))
    stats = httpx.get(f"{trained.url}/api/stats", params={"game": "cartpole"}).json()
    assert stats["steps"] == steps
    assert stats["steps_by_source"] == {"play": steps}


@pytest.mark.slow
def test_models_are_ranked_with_lineage_and_files(trained, page):
    champion = publish(trained.data, "cartpole", 1, mean=499.0)
    page.goto(f"{trained.url}/models?game=cartpole")
    first = page.locator("tbody tr").first
    first.get_by_text("champion no. 2").wait_for()
    assert first.get_attribute("data-model") == champion
    assert "people 50" in first.inner_text()
    assert page.locator("tbody tr").count() == 2
    with page.expect_download() as started:
        first.get_by_text("weights").click()
    assert started.value.path().stat().st_size > 1000


@pytest.mark.slow
def test_the_first_page_counts_while_one_looks(trained, page):
    page.goto(trained.url)
    page.locator("[data-game=cartpole]").get_by_text("champion no.").wait_for()
    before = int(page.locator("#models").inner_text())
    publish(trained.data, "duel", 3)
    page.wait_for_function("n => Number(document.getElementById('models').textContent) > n", arg=before)
    assert page.locator("#link").inner_text() == "live"


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone_or_unreadable_to_a_screen_reader(trained, page):
    page.set_viewport_size({"width": 390, "height": 844})
    for path in PATHS:
        page.goto(trained.url + path)
        page.wait_for_function("() => document.getElementById('link').textContent === 'live'")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, canvas, svg[role=img]")].filter((one) =>
                 !one.hidden && one.offsetParent !== null && !one.closest("label") && !one.labels?.length &&
                 !(one.getAttribute("aria-label") || one.textContent.trim())).map((one) => one.outerHTML)"""
        )
        assert nameless == [], path
        assert page.locator("h1").count() == 1


@pytest.mark.slow
def test_text_can_be_read_in_light_and_dark(trained, browser):
    contrast = (Path(__file__).parent / "contrast.js").read_text()
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        for path in ("/", "/play/duel", "/models"):
            page.goto(trained.url + path)
            page.wait_for_function("() => document.getElementById('link').textContent === 'live'")
            assert page.evaluate(contrast) == [], f"{scheme} {path}"
        context.close()
