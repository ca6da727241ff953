"""Who may do what: every cell of docs/scopes.md, asked of a real server with a valid request."""

import base64
import itertools
import json
import re
import secrets

import httpx
import pytest
from docs.reference import CALLERS, DOCS
from talking import one_chunk, post

from dashboard.published import publish, sell
from league_match import store_match
from serving import serving
from sparring.gateway.credentials import SCOPES, ApiKeys
from sparring.registry.file import Folder

NUMBERS = itertools.count(1)  # of episodes: a seat belongs to the caller that opened it
BODIES = {
    "act": {"observation": {"state": [0.1, 0.0, 0.02, 0.0]}},
    "tokens": {"player": "bob"},
    "nodes": {"node": "nobody", "action": "drain"},
}
UPGRADE = {
    **{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
    "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
}


def cells():
    """Of the page: (call, caller) → "✓", "401" or "403"."""
    rows = [re.findall(r"[^|]+", line) for line in (DOCS / "scopes.md").read_text().splitlines() if line[:1] == "|"]
    callers = [name.strip() for name in rows[0][2:]]
    return {
        (row[0].strip(" `"), caller): cell.strip()
        for row in rows[2:]
        for caller, cell in zip(callers, row[2:], strict=True)
    }


CELLS = cells()


class Door:
    """A gateway with models of two games, a run, and how to call it as each caller of the page."""

    def __init__(self, http, server, keys):
        self.http, self._keys = http, keys
        self.models = {game: publish(server.data, game) for game in ("cartpole", "duel")}
        sell(server.data, "cartpole", self.models["cartpole"])
        run = server.data / "runs" / "one"
        run.mkdir(parents=True)
        (run / "run.json").write_text('{"game": "duel", "algo": "ppo", "seed": 1, "started_at_ms": 1}')
        store_match(server.data)

    def credential(self, caller, player="alice"):
        """Its Authorization header."""
        if caller.startswith("none"):
            return {}
        text = self._keys.get(caller) or self.token("duel" if caller.startswith("other") else "cartpole", player)
        return {"Authorization": f"Bearer {text}"}

    def token(self, game, player):
        return self.send("POST", f"/v1/games/{game}/tokens", self.credential("admin"), {"player": player})["token"]

    def send(self, method, path, headers, body=None):
        answer = self.http.request(method, path, headers=headers, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, call, caller):
        """What a valid call gets."""
        method, path = call.split(" ")
        headers = self.credential(caller, "erased" if method == "DELETE" else "alice")
        headers["Spar-Player"] = secrets.token_hex(16)  # a player of whom nothing is kept
        if path.endswith("/chunks"):
            return post(self.http, [one_chunk(next(NUMBERS))], **headers).status_code
        game = "duel" if path.startswith("/api/league/") else "cartpole"
        path = path.format(game=game, model=self.models["cartpole"], file="card.json", run="one", match="one")
        if method == "WS":
            with self.http.stream("GET", path, headers=headers | UPGRADE) as answer:
                return answer.status_code
        body = BODIES[path.rpartition("/")[2]] if method == "POST" else None
        return self.http.request(method, path, headers=headers, json=body, params={"game": "cartpole"}).status_code


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    data = tmp_path_factory.mktemp("scopes") / "data"
    made = ApiKeys(Folder(data, 0o600))
    keys = {scope: made.create(scope, (scope,), 1)[1] for scope in SCOPES}
    with serving(data) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        yield Door(http, server, keys)


@pytest.fixture(scope="module")
def door_without_keys(server, http):
    return Door(http, server, {})


@pytest.mark.parametrize("caller", CALLERS)
def test_every_cell_is_what_the_server_answers(door, door_without_keys, caller):
    asked = door_without_keys if caller == "none, no keys" else door
    calls = [call for call, named in CELLS if named == caller]
    assert len(calls) > 20
    expected = {call: CELLS[call, caller].replace("✓", "101" if call[:2] == "WS" else "200") for call in calls}
    assert {call: str(asked.status(call, caller)) for call in calls} == expected


def test_a_player_token_reads_what_its_game_needs_and_nothing_else(door):
    allowed = {call for (call, caller), cell in CELLS.items() if caller == "token" and cell == "✓"}
    public = {call for (call, caller), cell in CELLS.items() if caller == "none" and cell == "✓"}
    game = "/v1/games/{game}"
    assert allowed - public == {
        *("GET /api/games", "GET /v1/models/{model}/{file}", f"GET {game}", f"GET {game}/champion"),
        f"GET {game}/strengths",
        *(f"POST {game}/act", f"POST {game}/chunks", f"WS {game}/play"),
        *(f"GET {game}/players/me", f"DELETE {game}/players/me"),
    }
    assert public == {f"GET {path}" for path in ("/", "/healthz", "/readyz", "/openapi.json")}
    headers = door.credential("token")
    shown = door.send("GET", "/api/games", headers)
    assert [row["id"] for row in shown["games"]] == ["cartpole"]
    assert door.models["duel"] not in json.dumps(shown)
    for file in ("card.json", "model.onnx", "weights.safetensors"):
        for query in ("", "?direct=1"):
            path = f"/v1/models/{door.models['duel']}/{file}{query}"
            refused = door.http.get(path, headers={**headers, "If-None-Match": f'"{door.models["duel"]}/{file}"'})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    mine = door.http.get(f"/v1/models/{door.models['cartpole']}/card.json", headers=headers)
    assert mine.headers["cache-control"].startswith("private,"), "a cache on the way serves it to no one else"
    acted = door.http.post(
        "/v1/games/cartpole/act", json={**BODIES["act"], "model": door.models["duel"]}, headers=headers
    )
    assert acted.status_code == 422, "another game's model chooses no action here"
