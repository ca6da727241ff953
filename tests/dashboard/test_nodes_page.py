"""The nodes of a real parent: what the page polls, and the page in a real browser, with which a node is banned."""

import asyncio
import sys
import threading
from pathlib import Path

import httpx
import pytest

from serving import serving
from sparring.errors import SparringError
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder

sys.path.insert(0, str(Path(__file__).parents[1] / "nodes"))  # peers
from peers import PATIENCE_S, Peer, parent, run


@pytest.fixture
def nodes(tmp_path):
    """A server with an admin key, a parent on its data folder, a node that has contributed nothing yet, and two that
    contribute until they are sent away: one of them a number that is not finite."""
    told = {}

    async def contribute(here, name, learned):
        peer = Peer(here, name)
        await peer.join()
        try:
            while not (answer := await peer.exchange(learned)).leave:
                await asyncio.sleep(0.05)
            told[name] = answer.leave
        except SparringError as error:  # refused; or closed, where it was sending
            told[name] = error.wrong

    async def all_three(here):
        await Peer(here, "new").join()
        await asyncio.gather(contribute(here, "honest", 0.1), contribute(here, "noise", float("nan")))

    objects = Folder(tmp_path, 0o600)
    admin, reader = (ApiKeys(objects).create(scope, (scope,), 1)[1] for scope in ("admin", "read"))
    with serving(tmp_path) as server, parent(tmp_path, merge="gradient", silent_s=PATIENCE_S) as here:
        thread = threading.Thread(target=run, args=(all_three(here),))
        thread.start()
        here.wait(lambda: any(one.refused for state in here.board.parents() for one in state.nodes))
        yield server, admin, reader, told, here
        here.sessions.leaving = "the test is over"
        thread.join(PATIENCE_S)


def headers(key):
    return {"Authorization": f"Bearer {key}"}


def test_readers_see_nodes_without_their_addresses_and_only_admins_order(nodes):
    server, admin, reader, told, here = nodes
    url = f"{server.url}/api/nodes"
    said = httpx.get(url, headers=headers(reader), timeout=60).json()
    [state] = said["parents"]
    assert {one["node"] for one in state["nodes"]} == {"honest", "noise", "new"}
    assert {one["peer"] for one in state["nodes"]} == {""}
    assert not said["may_order"]
    order = {"node": "honest", "action": "drain"}
    assert httpx.post(url, json=order, headers=headers(reader), timeout=60).status_code == 403
    said = httpx.get(url, headers=headers(admin), timeout=60).json()
    assert said["may_order"]
    assert all(one["peer"] for one in said["parents"][0]["nodes"])
    assert httpx.post(url, json=order, headers=headers(admin), timeout=60).json()["drained"] == ["honest"]
    here.wait(lambda: told.get("honest") == "it was drained")
    nobody = httpx.post(url, json={"node": "nobody", "action": "allow"}, headers=headers(admin), timeout=60)
    assert (nobody.status_code, nobody.json()["error"]["message"]) == (404, "'nobody' is neither drained nor banned")
    wrong = httpx.post(url, json={"node": "honest", "action": "shoot"}, headers=headers(admin), timeout=60)
    assert wrong.status_code == 400


@pytest.mark.chromium
def test_an_admin_bans_a_node_on_the_page_and_allows_it_again(nodes, page):
    server, admin, _, told, here = nodes
    page.set_default_timeout(60_000)
    page.add_init_script(f"localStorage.setItem('sparring/token', '{admin}')")
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{server.url}/nodes")
    page.locator("tr[data-row=noise]").get_by_text("not finite").wait_for()
    assert page.locator("#working").inner_text() == "3"
    assert page.locator("tr[data-row=new] td[data-label=merged]").inner_text().strip() == "0"
    page.get_by_role("button", name="Ban noise").click()
    page.get_by_role("button", name="Allow noise").wait_for()
    here.wait(lambda: "noise" in told)
    page.locator("tr[data-row=noise] .tag.failed").wait_for()
    page.locator("tr[data-row=noise]").get_by_text("an operator banned it").wait_for()
    page.get_by_role("button", name="Allow noise").click()
    page.get_by_role("button", name="Ban noise").wait_for()
    assert here.board.orders().banned == {}


@pytest.mark.chromium
def test_a_reader_sees_no_buttons_and_is_told_which_key_orders(nodes, page):
    server, _, reader, _, _ = nodes
    page.set_default_timeout(60_000)
    page.add_init_script(f"localStorage.setItem('sparring/token', '{reader}')")
    page.goto(f"{server.url}/nodes")
    page.locator("tr[data-row=honest]").wait_for()
    assert page.locator("button[data-action]").count() == 0
    page.get_by_role("button", name="Use a key").click()
    page.get_by_label("Key").wait_for()
