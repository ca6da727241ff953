"""Keys, tokens, hosts and origins."""

import base64
import contextlib
import json
import shutil
import time
from pathlib import Path

import httpx
import msgspec
import pytest
from talking import BINARY, one_chunk, post, stored
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from derived import chunks_of
from serving import inside, serving, start
from sparring.errors import ConfigError
from sparring.gateway.credentials import ApiKeys, Secrets, TokenClaims, sign_token, verify_token
from sparring.registry import open_objects
from sparring.registry.file import Folder
from sparring.store.protocol import Query
from sparring.store.sqlite.store import SqliteStore
from sparring.wire.chunk import Chunk, decode, encode, pack, unpack
from sparring.wire.ids import GameId
from sparring.wire.messages import Hello
from sparring.wire.messages import encode as encode_message

NOW_MS = 1_790_000_000_000
ROLES = ("record", "act", "read", "admin")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("identity") / "data"
    keys = ApiKeys(Folder(data, 0o600))
    texts = {role: keys.create(role, (role,), NOW_MS)[1] for role in ROLES}
    with serving(data) as running:
        object.__setattr__(running, "keys", texts)
        yield running


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def bearer(text):
    return {"Authorization": f"Bearer {text}"} if text else {}


def token(http, server, player, **more):
    said = http.post("/v1/games/cartpole/tokens", json={"player": player, **more}, headers=bearer(server.keys["admin"]))
    assert said.status_code == 200, said.text
    return said.json()["token"]


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
    keys = ApiKeys(Folder(server.data, 0o600))
    made, text = keys.create("short", ("admin",), NOW_MS)
    deadline = time.monotonic() + 30
    while http.get("/v1/games", headers=bearer(text)).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    said = http.post("/v1/games/cartpole/tokens", json={"player": "bob"}, headers=bearer(text)).json()["token"]
    assert http.get("/v1/games/cartpole", headers=bearer(said)).status_code == 200
    keys.revoke(made.id, NOW_MS)
    deadline = time.monotonic() + 30
    while http.get("/v1/games", headers=bearer(text)).status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert http.get("/v1/games/cartpole", headers=bearer(said)).status_code == 401


def test_the_files_of_keys_are_private_and_hold_no_secret(server):
    paths = [*(server.data / "keys").iterdir(), server.data / "identity.key"]
    assert len(paths) >= len(server.keys) + 1
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    for text in server.keys.values():
        secret = text.split("_", 2)[2]  # PREFIX_ID_SECRET; a secret may have underscores itself
        assert len(secret) > 20
        assert all(secret.encode() not in path.read_bytes() for path in paths)


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
    assert kept[one_chunk(1).header.episode].player == Secrets(Folder(server.data, 0o600)).pseudonym("cartpole", "dora")


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
    pseudonym = Secrets(Folder(server.data, 0o600)).pseudonym("cartpole", "frida").encode()
    for path in server.data.rglob("*"):
        if path.is_file():
            assert pseudonym not in path.read_bytes(), path


def test_without_a_token_a_secret_name_shows_whose_data_it_is_and_erasing_takes_every_seat(tmp_path):
    name, me = "5eaf" * 8, "/v1/games/cartpole/players/me"
    bots, theirs = chunks_of(7, 1, 20, steps=10, chunk_steps=5, player=name)
    bots = Chunk(msgspec.structs.replace(bots.header, player=None, actor="script:random"), bots.columns)
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, timeout=30) as client:
        post(client, [theirs, bots, one_chunk(21, player="5eb0" * 8)]).raise_for_status()
        for shown in ({}, {"Spar-Player": "alice"}, {"Spar-Player": f"{name}0"}):  # none, one to guess, no name
            assert client.get(me, headers=shown).status_code == 403
            assert client.delete(me, headers=shown).status_code == 403
        mine = {"Spar-Player": name}
        said = client.get(me, headers=mine).json()
        assert (said["player"], said["steps"]) == (
            Secrets(Folder(tmp_path, 0o600)).pseudonym("cartpole", name),
            10,
        )  # of the whole seat
        (line,) = client.get(me, headers={**mine, "Accept": "application/x-ndjson"}).text.splitlines()
        assert json.loads(line)["columns"]["action"] == theirs.columns["action"].tolist()
        elsewhere = {**mine, "Origin": "https://elsewhere.example"}  # a page of another site
        assert client.delete(me, headers=elsewhere).status_code == 403
        assert client.delete(me, headers=mine).json() == {"chunks": 2, "steps": 10, "episodes": 1, "models": []}
        stats = client.get("/api/stats", params={"game": "cartpole"}).json()
        assert (stats["steps"], stats["episodes"], stats["players"]) == (5, 1, 1)
        assert client.get(me, headers=mine).status_code == 410
        late = post(client, [bots, theirs])
        assert late.status_code == 410
        assert [(one["verdict"], one["field"]) for one in late.json()["results"]] == [
            ("gone", "episode"),
            ("gone", "player"),
        ]
        assert len(stored(tmp_path)) == 1


def test_a_key_that_may_not_record_stands_for_no_player(http, server):
    shown = {"Spar-Player": "5eaf" * 8}
    me = "/v1/games/cartpole/players/me"
    assert http.get(me, headers={**bearer(server.keys["record"]), **shown}).json()["steps"] == 0
    for role in ("act", "read"):
        assert http.delete(me, headers={**bearer(server.keys[role]), **shown}).status_code == 403
    assert http.delete(me, headers=shown).status_code == 401


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
    _, valid = ApiKeys(Folder(tmp_path, 0o600)).create("one", ("read",), NOW_MS)
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        seen = [client.get("/v1/games", headers=bearer(f"spar_{n:012x}_x")).status_code for n in range(60)]
        assert 401 in seen
        assert 429 in seen[30:]
        assert client.get("/v1/games", headers=bearer(valid)).status_code == 200  # not refused for others' guesses
        assert 429 in {client.get("/v1/games", headers=bearer("spar_x_x")).status_code for _ in range(20)}


def test_a_gateway_whose_keys_were_removed_is_not_open_to_all(tmp_path):
    keys = ApiKeys(Folder(tmp_path, 0o600))
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/v1/games").status_code == 200  # there was no key yet
        text = keys.create("one", ("read",), NOW_MS)[1]
        wait_for(lambda: client.get("/v1/games").status_code == 401)
        assert client.get("/v1/games", headers=bearer(text)).status_code == 200
        shutil.rmtree(tmp_path / "keys")
        wait_for(lambda: client.get("/v1/games", headers=bearer(text)).status_code == 401)
        assert client.get("/v1/games").status_code == 401
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:  # after a restart, too
        assert client.get("/v1/games").status_code == 401


@pytest.mark.parametrize("said", [None, Hello(1, "1")], ids=["quiet", "talking"])
def test_an_open_play_socket_is_closed_when_its_key_is_revoked_or_its_token_expires(tmp_path, said):
    keys = ApiKeys(Folder(tmp_path, 0o600))
    text = keys.create("one", ("act", "admin"), NOW_MS)[1]
    with inside(tmp_path) as running, httpx.Client(base_url=running.url, headers=bearer(text)) as client:
        asked = client.post("/v1/games/cartpole/tokens", json={"player": "alice", "lifetime_s": 3.0})
        place = f"{running.url.replace('http', 'ws')}/v1/games/cartpole/play"
        for credential, end in ((asked.json()["token"], lambda: None), (text, lambda: keys.revoke("one", NOW_MS))):
            with connect(place, additional_headers=bearer(credential)) as socket:
                end()
                assert close_code(socket, said) == 1008


def close_code(socket, said):
    """With which code the gateway closes the socket while we are quiet, or go on to say something."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if said is not None:
                socket.send(encode_message(said, text=True))
            with contextlib.suppress(TimeoutError):
                socket.recv(timeout=0.1)
        except ConnectionClosed as closed:
            return closed.rcvd.code
    return None


def test_without_keys_a_request_that_a_proxy_forwarded_is_refused(tmp_path):
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
            refused = client.get("/v1/games", headers={name: "203.0.113.7"})
            assert (refused.status_code, "a proxy forwarded this" in refused.text) == (400, True)


def test_only_a_trusted_proxy_says_where_a_request_comes_from(tmp_path):
    _, valid = ApiKeys(Folder(tmp_path, 0o600)).create("one", ("read",), NOW_MS)

    def guess(client, forwarded):
        wrong = {**bearer("spar_x_x"), "X-Forwarded-For": forwarded}
        return client.get("/v1/games", headers=wrong).status_code

    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        seen = [guess(client, f"203.0.113.{n}") for n in range(40)]
        assert 429 in seen  # without a trusted proxy they are all this machine's
    with inside(tmp_path, trusted_proxies=("127.0.0.0/8",)) as running, httpx.Client(base_url=running.url) as client:
        assert {guess(client, f"203.0.113.{n}") for n in range(40)} == {401}
        seen = [guess(client, f"198.51.100.{n}, 203.0.113.99") for n in range(40)]  # what a caller wrote itself
        assert 429 in seen[30:]
        assert client.get("/v1/games", headers=bearer(valid)).status_code == 200
    with pytest.raises(AssertionError, match=r"gateway\.trusted_proxies"):
        start(tmp_path / "c", "--set", 'gateway.trusted_proxies=["10.0.0.0/99"]')


def test_a_key_whose_file_was_damaged_holds_no_more_and_the_others_do(tmp_path):
    keys = ApiKeys(Folder(tmp_path, 0o600))
    (one, first), (_, second) = (keys.create(name, ("read",), NOW_MS) for name in ("one", "two"))
    with inside(tmp_path) as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/v1/games", headers=bearer(first)).status_code == 200
        (tmp_path / "keys" / f"{one.id}.json").write_bytes(b'{"id": "')
        wait_for(lambda: client.get("/v1/games", headers=bearer(first)).status_code == 401)
        assert client.get("/v1/games", headers=bearer(second)).status_code == 200


def test_several_gateways_of_one_identity_know_the_same_keys_and_players(tmp_path):
    words = ("--set", f"gateway.identity_url=file://{tmp_path}/shared", "--set", f"store.url=sqlite:///{tmp_path}/e.db")
    keys = ApiKeys(Folder(tmp_path / "shared", 0o600))
    text = keys.create("one", ("admin",), NOW_MS)[1]
    with serving(tmp_path / "a", *words) as here, serving(tmp_path / "b", *words) as there:
        for number, running in enumerate((here, there)):
            with httpx.Client(base_url=running.url, headers=bearer(text)) as client:
                assert post(client, [one_chunk(number + 1, player="alice")]).status_code == 200
        said = httpx.post(f"{here.url}/v1/games/cartpole/tokens", json={"player": "alice"}, headers=bearer(text))
        mine = bearer(said.json()["token"])
        assert httpx.get(f"{there.url}/v1/games/cartpole", headers=mine).status_code == 200  # signed by the other one
        with SqliteStore(tmp_path / "e.db", check=False) as store:
            assert {record.seats[0].player for record in store.episodes(Query(GameId("cartpole")))} == {
                Secrets(Folder(tmp_path / "shared", 0o600)).pseudonym("cartpole", "alice")
            }
        keys.revoke("one", NOW_MS)
        for running in (here, there):
            wait_for(lambda url=running.url: httpx.get(f"{url}/v1/games", headers=bearer(text)).status_code == 401)
    with pytest.raises(AssertionError, match="the store holds pseudonyms of the identity"):
        start(tmp_path / "c", "--set", f"store.url=sqlite:///{tmp_path}/e.db")  # with an identity of its own


@pytest.mark.servers
def test_an_identity_in_a_bucket_is_shared_by_gateways_on_several_machines(tmp_path, s3_server, monkeypatch):
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    boto3 = pytest.importorskip("boto3")
    boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1").create_bucket(Bucket="identity")
    url = s3_server.url("identity")
    keys = ApiKeys(open_objects(url, "test"))
    words = ("--set", f"gateway.identity_url={url}")
    with serving(tmp_path / "a", *words) as here, serving(tmp_path / "b", *words) as there:
        assert {here.mode, there.mode} == {"anonymous"}
        text = keys.create("one", ("read",), NOW_MS)[1]
        for running in (here, there):
            wait_for(lambda url=running.url: httpx.get(f"{url}/v1/games", headers=bearer(text)).status_code == 200)
        keys.revoke("one", NOW_MS)
        for running in (here, there):
            wait_for(lambda url=running.url: httpx.get(f"{url}/v1/games", headers=bearer(text)).status_code == 401)
    assert not (tmp_path / "a" / "identity.key").exists()


def test_the_secret_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARRING_IDENTITY_KEY", "ab" * 32)
    here, there = Secrets(Folder(tmp_path / "a", 0o600)), Secrets(Folder(tmp_path / "b", 0o600))
    assert here.pseudonym("cartpole", "alice") == there.pseudonym("cartpole", "alice")
    monkeypatch.setenv("SPARRING_IDENTITY_KEY", "ab")
    with pytest.raises(ConfigError, match="SPARRING_IDENTITY_KEY: it does not hold 64 hex digits"):
        Secrets(Folder(tmp_path / "a", 0o600))


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
    keys = ApiKeys(Folder(tmp_path, 0o600))
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
    here, there = Secrets(Folder(tmp_path / "a", 0o600)), Secrets(Folder(tmp_path / "b", 0o600))
    names = {
        here.pseudonym("cartpole", "alice"),
        here.pseudonym("duel", "alice"),
        there.pseudonym("cartpole", "alice"),
        here.pseudonym("cartpole", "bob"),
    }
    assert len(names) == 4
    assert Secrets(Folder(tmp_path / "a", 0o600)).pseudonym("cartpole", "alice") in names
