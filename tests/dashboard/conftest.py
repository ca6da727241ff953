"""A server for a module's tests, and a real browser: skipped where there is none, unless SPARRING_REQUIRE names it."""

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # published, javascript, serving

FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`spar serve` on a fresh data folder, for all tests of one file."""
    from serving import serving

    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window. The root conftest makes a failure of the skip where it is required.

    For one file: while it is there an event loop runs in this thread, and a test elsewhere could begin none.
    """
    path = os.environ.get("SPARRING_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=path, args=FLAGS)
        _warm(launched)
        yield launched
        launched.close()


def _warm(browser):
    """Its service for storage starts at the first use and stays: not in the middle of a test, which would be blamed."""
    with browser.new_context() as context, context.new_page() as page:
        page.route("**/*", lambda route: route.fulfill(body="<title>warm</title>", content_type="text/html"))
        page.goto("http://127.0.0.1/")
        page.evaluate("localStorage.setItem('warm', '1')")


@pytest.fixture
def page(browser):
    """A page of its own storage. An error on its console fails the test, unless it emptied `page.problems`."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, reduced_motion="reduce")
    context.set_default_timeout(90_000)
    opened = context.new_page()
    opened.problems = []
    opened.on("console", lambda said: opened.problems.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    yield opened
    problems = list(opened.problems)
    context.close()
    assert not problems
