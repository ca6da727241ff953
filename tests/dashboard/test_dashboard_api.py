"""What the pages poll: counts, models, runs and metrics, asked of a real server."""

import json
import os
import subprocess
import sys
import time

import httpx
import pytest
from published import publish

from serving import serving
from sparring.learn.runs.summary import MAX_ROWS, metrics_after


def write_run(data, name, *, game="cartpole", state="running", pid=None, rows=()):
    folder = data / "runs" / name
    folder.mkdir(parents=True)
    about = {"run": name, "game": game, "algo": "ppo", "seed": 1, "started_at_ms": len(name)}
    (folder / "run.json").write_text(json.dumps(about))
    status = {"state": state, "pid": pid or os.getpid(), "updated_at_ms": 5, "model": None, "message": ""}
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "metrics.jsonl"


def test_games_show_the_champion_and_what_was_played(server):
    before = httpx.get(f"{server.url}/api/games").json()
    assert [game["id"] for game in before["games"]] == ["cartpole", "connect-four", "duel"]
    assert before["trust"] == server.trust
    assert before["games"][2]["champion"] is None

    weak = publish(server.data, "duel", 1, mean=-0.5)
    strong = publish(server.data, "duel", 2, mean=0.5, parents=(weak,))
    waiting = publish(server.data, "duel", 3, promote=False)
    models = httpx.get(f"{server.url}/api/models", params={"game": "duel"}).json()["models"]
    assert [model["id"] for model in models] == [strong, weak, waiting]
    assert [model["champion"] for model in models] == [True, False, False]
    assert models[0]["counter"] == 2
    assert models[0]["parents"] == [weak]
    assert models[0]["steps"] == {"selfplay": 1000, "play": 50}
    assert models[2]["evidence"] is None
    promotions = httpx.get(f"{server.url}/api/promotions").json()["promotions"]
    assert [(one["model"], one["counter"]) for one in promotions if one["game"] == "duel"] == [(strong, 2), (weak, 1)]


def test_what_is_not_there_is_said(server):
    nowhere = ("/api/league/chess", "/api/league/duel/matches/none")
    for path in ("/api/models?game=chess", "/api/stats?game=chess", "/api/runs/none/metrics", "/web/none.js", *nowhere):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["message"], path
    assert httpx.get(f"{server.url}/play/chess").status_code == 404
    assert httpx.get(f"{server.url}/web/..%2fapp.py").status_code == 404
    assert httpx.get(f"{server.url}/web/%2e%2e/app.py").status_code == 404


def test_stats_are_the_stores(server):
    stats = httpx.get(f"{server.url}/api/stats", params={"game": "cartpole"}).json()
    assert (stats["game"], stats["steps"], stats["steps_by_source"]) == ("cartpole", 0, {})


def test_metrics_are_read_on_from_where_one_stopped(server):
    rows = [{"seconds": i, "env_steps": i * 10, "return_mean": i / 2} for i in range(5)]
    file = write_run(server.data, "one", rows=rows)
    write_run(server.data, "dead", pid=2**22 - 1)
    url = f"{server.url}/api/runs/one/metrics"
    first = httpx.get(url).json()
    assert first["rows"] == rows
    with file.open("a") as more:
        more.write('{"seconds": 5, "loss": NaN}\n{"seconds": 6, "los')
    second = httpx.get(url, params={"after": first["next"]}).json()
    assert second["rows"] == [{"seconds": 5, "loss": None}]
    assert httpx.get(url, params={"after": second["next"]}).json()["rows"] == []
    file.write_text('{"seconds": 0}\n')
    anew = httpx.get(url, params={"after": second["next"]}).json()
    assert (anew["reset"], anew["rows"]) == (True, [{"seconds": 0}])
    refused = httpx.get(url, params={"after": "-1"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "after")
    deadline_s = time.monotonic() + 30  # the list is made once a second, however many ask for it
    while (found := httpx.get(f"{server.url}/api/runs").json()["runs"]) == []:
        assert time.monotonic() < deadline_s
    assert {run["run"]: run["state"] for run in found} == {"one": "running", "dead": "died"}


def test_a_long_run_is_thinned_and_keeps_its_ends(tmp_path):
    write_run(tmp_path, "long", rows=[{"seconds": i} for i in range(MAX_ROWS * 3)])
    rows = metrics_after(tmp_path / "runs", "long", 0).rows
    assert len(rows) == MAX_ROWS
    assert (rows[0]["seconds"], rows[-1]["seconds"]) == (0, MAX_ROWS * 3 - 1)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/models",
        "/learning",
        "/league",
        "/nodes",
        "/league/duel/any",
        "/play/duel",
        "/web/client.js",
        "/web/style.css",
    ],
)
def test_pages_need_no_other_host_and_are_sent_once(server, path):
    answer = httpx.get(server.url + path)
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("http://www.w3.org/", "") or path.startswith("/web/")
    again = httpx.get(server.url + path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_with_keys_the_pages_are_anybodys_and_what_they_show_is_not(tmp_path):
    create = ["keys", "create", "reader", "--scopes", "read", "--data", str(tmp_path), "--json"]
    made = subprocess.run([sys.executable, "-m", "sparring", *create], capture_output=True, text=True, check=True)
    key = json.loads(made.stdout.splitlines()[-1])["key"]
    with serving(tmp_path) as running:
        assert httpx.get(running.url).status_code == 200
        assert httpx.get(f"{running.url}/api/games").status_code == 401
        allowed = httpx.get(f"{running.url}/api/games", headers={"Authorization": f"Bearer {key}"})
        assert allowed.status_code == 200
