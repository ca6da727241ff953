"""Who may do what: every role at every endpoint, keys, tokens, hosts and origins."""

import base64
import json
import time
from pathlib import Path

import httpx
import pytest
from talking import BINARY, one_chunk, post, stored

from serving import inside, serving
from sparring.gateway.app import ENDPOINTS, SOCKET
from sparring.gateway.keys import ApiKeys
from sparring.gateway.secrets import Secrets, TokenClaims, sign_token, verify_token
from sparring.wire.chunk import decode, encode, pack, unpack

NOW_MS = 1_790_000_000_000
ROLES = {
    "nobody": set(),
    "record": {"record"},
    "act": {"act"},
    "read": {"read"},
    "node": {"node"},
    "admin": {"record", "act", "read", "node", "admin"},
    "player": {"record", "act", "read", "self"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("identity") / "data"
    keys = ApiKeys(data)
    texts = {role: keys.create(role, (role,), NOW_MS)[1] for role in ROLES if role not in ("nobody", "player")}
    with serving(data) as running:
        object.__setattr__(running, "keys", texts)
        yield running


@pytest.fixture(scope="module")
def credentials(server, http):
    return {**server.keys, "player": token(http, server, "alice"), "nobody": ""}


def bearer(text):
    return {"Authorization": f"Bearer {text}"} if text else {}


def token(http, server, player, **more):
    said = http.post("/v1/games/cartpole/tokens", json={"player": player, **more}, headers=bearer(server.keys["admin"]))
    assert said.status_code == 200, said.text
    return said.json()["token"]


CALLS = [(one.method, one.path, one.scope) for one in ENDPOINTS] + [
    ("GET", "/api/games", "read"),
    ("GET", "/", "public"),
]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_at_every_endpoint(http, credentials, role):
    """The whole matrix: let in exactly where the role has the endpoint's scope."""
    for method, path, scope in CALLS:
        if method == "DELETE" and role == "player":
            continue  # has a test of its own, after which this player would be gone
        address = path.replace("{game}", "cartpole").replace("{model}", "0" * 64).replace("{file}", "card.json")
        response = http.request(
            method, address, headers=bearer(credentials[role]), json={} if method == "POST" else None
        )
        if scope == "public" or scope in ROLES[role]:
            assert response.status_code not in (401, 403), (role, method, path, response.text)
        else:
            assert response.status_code == (401 if role == "nobody" else 403), (role, method, path, response.text)
            assert response.json()["error"]["code"] == ("unauthorized" if role == "nobody" else "forbidden")


@pytest.mark.parametrize("role", ROLES)
def test_every_role_at_the_play_socket(http, credentials, role):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = base64.b64encode(b"0123456789abcdef").decode()
    headers = {**upgrade, "Sec-WebSocket-Key": key, **bearer(credentials[role])}
    with http.stream("GET", SOCKET.replace("{game}", "cartpole"), headers=headers) as response:
        if "act" in ROLES[role]:
            assert response.status_code == 101
        else:
            assert response.status_code == (401 if role == "nobody" else 403)


WRONG = {
    "no such id": "spar_000000000000_" + "A" * 43,
    "a wrong secret": "{id}_" + "A" * 43,
    "a shorter secret": "{key}"[:-1],
    "nothing after the id": "{id}_",
    "garbage": "hello",
    "unicode": "sp\u00e4r",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_key_is_refused_without_a_hint(http, server, kind):
    key = server.keys["admin"]
    text = WRONG[kind].replace("{id}", key.rpartition("_")[0] if key.count("_") == 2 else "_".join(key.split("_")[:2]))
    text = text.replace("{key}", key)[: -1 if "shorter" in kind else None]
    response = http.get("/v1/games", headers={"Authorization": f"Bearer {text}".encode()})
    assert response.status_code == 401
    assert response.json()["error"] == {
        "code": "unauthorized",
        "message": "no valid key or token came with it",
        "field": "",
        "value": None,
        "limit": None,
        "do": "Send Authorization: Bearer <key>",
    }
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_revoked_key_and_its_tokens_end_within_five_seconds(http, server):
    keys = ApiKeys(server.data)
    made, text = keys.create("short", ("admin",), NOW_MS)
    deadline = time.monotonic() + 30
    while http.get("/v1/games", headers=bearer(text)).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    said = http.post("/v1/games/cartpole/tokens", json={"player": "bob"}, headers=bearer(text)).json()["token"]
    assert http.get("/v1/games", headers=bearer(said)).status_code == 200
    keys.revoke(made.id, NOW_MS)
    deadline = time.monotonic() + 30
    while http.get("/v1/games", headers=bearer(text)).status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert http.get("/v1/games", headers=bearer(said)).status_code == 401


def test_the_keys_file_is_private_and_holds_no_secret(server):
    path = server.data / "keys.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (server.data / "identity.key").stat().st_mode & 0o777 == 0o600
    for text in server.keys.values():
        secret = text.split("_", 2)[2]  # PREFIX_ID_SECRET; a secret may have underscores itself
        assert len(secret) > 20
        assert secret.encode() not in path.read_bytes()


def test_tokens_that_are_forged_expired_or_of_another_secret_do_not_hold():
    claim = TokenClaims(game="cartpole", player="p" * 32, expires_at_ms=2_000, key="k")
    text = sign_token(claim, b"s" * 32)
    assert verify_token(text, b"s" * 32, 1_999) == claim
    assert verify_token(text, b"s" * 32, 2_000) is None
    assert verify_token(text, b"t" * 32, 1_000) is None
    for at in range(len(text)):
        flipped = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        found = verify_token(flipped, b"s" * 32, 1_000)
        assert found is None, at
    payload = text.removeprefix("spat_").partition(".")[0]
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).decode().rstrip("=")
    for forged in (
        f"spat_{payload}",
        f"spat_{payload}.",
        f"{none}.{payload}.",
        "spat_.",
        "spat_" + "A" * 2_000,
        "spat_ü",
    ):
        assert verify_token(forged, b"s" * 32, 1_000) is None


def test_an_expired_token_is_refused_by_the_gateway(http, server):
    text = token(http, server, "carol", lifetime_s=0.2)
    time.sleep(0.3)
    assert http.get("/v1/games", headers=bearer(text)).status_code == 401


def test_a_token_lives_no_longer_than_the_config_allows(http, server):
    said = http.post(
        "/v1/games/cartpole/tokens", json={"player": "x", "lifetime_s": 1e9}, headers=bearer(server.keys["admin"])
    )
    assert said.status_code == 422
    assert said.json()["error"]["field"] == "lifetime_s"


def test_a_players_token_speaks_for_that_player_and_game_alone(http, server):
    text = token(http, server, "dora")
    mine = post(http, [one_chunk(1)], **bearer(text))
    assert mine.json()["results"] == [{"verdict": "new"}]
    theirs = post(http, [one_chunk(2, player="erin")], **bearer(text))
    assert theirs.status_code == 403
    assert theirs.json()["results"][0]["field"] == "player"
    assert post(http, [one_chunk(3, player="dora")], **bearer(text)).status_code == 200
    assert http.get("/v1/games/duel", headers=bearer(text)).status_code == 403
    kept = {chunk.header.episode: chunk.header for chunk in stored(server.data)}
    assert kept[one_chunk(1).header.episode].player == Secrets(server.data).pseudonym("cartpole", "dora")


def test_another_uploader_cannot_write_into_an_open_seat(http, server):
    chunk = one_chunk(4)
    post(http, [chunk], **bearer(server.keys["record"])).raise_for_status()
    response = post(http, [chunk], **bearer(server.keys["admin"]))
    assert response.status_code == 403
    assert response.json()["results"][0]["verdict"] == "forbidden"


def test_a_player_sees_exports_and_erases_what_is_kept_of_them(http, server):
    text = token(http, server, "frida")
    sent = [one_chunk(number) for number in (10, 11)]
    post(http, sent, **bearer(text)).raise_for_status()
    post(http, [one_chunk(13, actor="script:random")], **bearer(text)).raise_for_status()  # a bot's seat is not theirs
    me = "/v1/games/cartpole/players/me"
    said = http.get(me, headers=bearer(text)).json()
    assert said["steps"] == 10
    assert {row["episode"] for row in said["episodes"]} == {chunk.header.episode for chunk in sent}
    packed = http.get(me, headers={**bearer(text), "Accept": BINARY["Content-Type"]}).content
    assert {decode(part).header.episode for part in unpack(packed)} == {chunk.header.episode for chunk in sent}
    gone = http.delete(me, headers=bearer(text))
    assert gone.json() == {"chunks": 2, "steps": 10, "episodes": 2, "models": []}
    assert http.get(me, headers=bearer(text)).status_code == 410
    late = post(http, [one_chunk(12)], **bearer(text))
    assert late.status_code == 410
    assert late.json()["results"][0]["verdict"] == "gone"
    assert http.delete(me, headers=bearer(text)).json()["chunks"] == 0
    pseudonym = Secrets(server.data).pseudonym("cartpole", "frida").encode()
    for path in server.data.rglob("*"):
        if path.is_file():
            assert pseudonym not in path.read_bytes(), path


def test_no_secret_and_no_name_reaches_the_log_or_the_audit(http, server):
    token(http, server, "gustav")
    http.get("/v1/games", headers=bearer("spar_abc_" + "Z" * 43))
    log, audit = server.log(), (server.data / "audit.jsonl").read_text()
    for text in (*server.keys.values(), "Z" * 43, "gustav", "spat_"):
        assert text not in log
        assert text not in audit
    assert json.loads(audit.splitlines()[0])["action"] == "token"
    line = json.loads(next(line for line in log.splitlines() if '"path": "/v1/games"' in line))
    assert set(line) == {"request", "method", "path", "status", "ms", "caller"}


def test_guessing_is_slowed_down(tmp_path):
    ApiKeys(tmp_path).create("one", ("read",), NOW_MS)
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        seen = [client.get("/v1/games", headers=bearer(f"spar_{n:012x}_x")).status_code for n in range(60)]
        assert 401 in seen
        assert seen[-1] == 429


def test_without_keys_only_this_machines_names_and_pages_come_in(tmp_path):
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        body, here = pack([encode(one_chunk(1))]), running.url.removeprefix("http://")
        for host, code in (
            ("evil.example", 400),
            ("localhost:8700", 200),
            ("[::1]:80", 200),
            ("10.0.0.1", 400),
        ):
            assert client.get("/v1/games", headers={"Host": host}).status_code == code
        path = "/v1/games/cartpole/chunks"
        for origin, code in (("http://evil.example", 403), ("null", 403), (f"http://{here}", 200)):
            assert client.post(path, content=body, headers={**BINARY, "Origin": origin}).status_code == code
        assert client.post("/v1/games/cartpole/tokens", json={"player": "x"}).status_code == 403
        assert client.get("/v1/games/cartpole/players/me").status_code == 403


def test_a_page_of_another_site_may_come_with_a_token_of_its_own_once_there_are_keys(http, server, tmp_path):
    path, origin = "/v1/games", {"Origin": "https://game.example"}
    asked = http.options(path, headers={**origin, "Access-Control-Request-Method": "GET"})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == "*"
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answer = http.get(path, headers={**origin, **bearer(server.keys["read"])})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in http.get("/api/games", headers=origin).headers
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        assert client.options(path, headers=origin).status_code == 405
        assert "access-control-allow-origin" not in client.get(path, headers=origin).headers


def test_a_flood_from_one_key_is_held_and_another_is_not(tmp_path):
    keys = ApiKeys(tmp_path)
    one, two = keys.create("one", ("read",), NOW_MS)[1], keys.create("two", ("read",), NOW_MS)[1]
    with (
        inside(tmp_path, requests_per_s=0.5, burst_requests=5) as running,
        httpx.Client(base_url=running.url) as client,
    ):
        answers = [client.get("/v1/games", headers=bearer(one)) for _ in range(10)]
        assert [answer.status_code for answer in answers[:5]] == [200] * 5
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert client.get("/v1/games", headers=bearer(two)).status_code == 200


def test_a_players_daily_steps_are_bounded(tmp_path):
    with inside(tmp_path, player_steps_per_day=12) as running, httpx.Client(base_url=running.url) as client:
        assert post(client, [one_chunk(1, player="a"), one_chunk(2, player="a")]).status_code == 200
        assert (
            post(client, [one_chunk(1, player="a")]).status_code == 429
        )  # it cannot be told from new before it is stored
        response = post(client, [one_chunk(3, player="a"), one_chunk(4, player="b")])
        assert response.status_code == 429
        assert [result["verdict"] for result in response.json()["results"]] == ["quota", "new"]
        assert int(response.headers["retry-after"]) > 0


def test_pseudonyms_differ_by_game_and_data_folder(tmp_path: Path):
    here, there = Secrets(tmp_path / "a"), Secrets(tmp_path / "b")
    names = {
        here.pseudonym("cartpole", "alice"),
        here.pseudonym("duel", "alice"),
        there.pseudonym("cartpole", "alice"),
        here.pseudonym("cartpole", "bob"),
    }
    assert len(names) == 4
    assert Secrets(tmp_path / "a").pseudonym("cartpole", "alice") in names
