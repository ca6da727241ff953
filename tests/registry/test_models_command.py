"""`spar models` as a person calls it: real models of CartPole, real folders, a real server on loopback."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from msgspec.structs import replace

from sparring.cli import main
from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import verify
from sparring.wire.ids import GameId
from sparring.wire.model import WEIGHTS, Lineage

GAME = GameId("cartpole")


def cartpole_model(number, direction=None, parents=()):
    """A model that pushes always to one side, or by chance's first weights."""
    spec = spec_of("cartpole")
    network = default_network(spec.seats[0], hidden=(8,))
    weights = Network(network, number).weights()
    if direction is not None:
        weights = {name: np.zeros_like(value) for name, value in weights.items()}
        weights["logits/bias"][direction] = 1.0
    lineage = Lineage(algorithm="ppo", config={}, steps={}, parents=tuple(parents))
    return make_model(spec, network, weights, "categorical", lineage, number)


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def registry(data):
    return FileRegistry(data / "models")


@pytest.fixture
def spar(data, capsys):
    def call(*words):
        code = main(["models", *words, "--json", "--data", str(data)])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    return call


def test_models_are_listed_shown_and_verified(spar, registry):
    assert spar("list")[1] == {"models": []}
    models = [cartpole_model(number) for number in (1, 2)]
    for model in models:
        registry.publish(model)
    for words in (("list",), ("list", "cartpole")):
        code, said, text = spar(*words)
        assert [row["id"] for row in said["models"]] == [model.id for model in models]
        assert models[0].id[:12] in text
    assert spar("list", "duel")[1] == {"models": []}
    code, said, _ = spar("show", models[1].id[:10].upper())
    assert (code, said["id"], said["bytes"][WEIGHTS]) == (0, models[1].id, len(models[1].files[WEIGHTS]))
    code, said, _ = spar("verify", "--all")
    assert (code, said["bad"], [row["ok"] for row in said["models"]]) == (0, 0, [True, True])


def test_verify_names_what_is_damaged_and_fails(spar, registry):
    models = [cartpole_model(number) for number in (1, 2)]
    for model in models:
        registry.publish(model)
        assert spar("promote", model.id, "--force-reason", "a test")[0] == 0
    (registry.root / models[0].id / WEIGHTS).write_bytes(b"damaged")
    (newest,) = registry.root.glob("champions/*/*-000002.json")
    newest.write_bytes(newest.read_bytes().replace(b"a test", b"a tast"))
    code, said, text = spar("verify")
    assert (code, said["bad"]) == (1, 2)
    assert {row["id"]: row["ok"] for row in said["models"]} == {models[0].id: False, models[1].id: True}
    assert "it is not signed by" in said["champions"][0]["error"]
    assert "weights.safetensors hashes to" in text


def test_an_id_must_be_given_be_there_and_be_one(spar, registry):
    models = [cartpole_model(number) for number in range(20)]
    for model in models:
        registry.publish(model)
    code, said, _ = spar("show")
    assert (code, said["do"]) == (1, "Write: spar models show ID")
    assert spar("show", "zz")[1]["error"] == "no model's id begins so"
    first = next(m.id[0] for m in models if sum(x.id[0] == m.id[0] for x in models) > 1)
    assert "models begin so" in spar("show", first)[1]["error"]
    assert spar("rollback")[1]["do"] == "Write: spar models rollback GAME"
    assert spar("push")[1]["do"] == "Write: spar models push FOLDER|ID [--to REGISTRY]"
    assert spar("pull", "abc", "--from", "http://127.0.0.1:1")[0] == 1


def test_the_gate_lets_the_better_pass_and_no_other(spar, registry):
    first, better, worse = cartpole_model(13), cartpole_model(19), cartpole_model(1, 1)
    for model in (first, better, worse):
        registry.publish(model)
    code, said, _ = spar("promote", worse.id, "--episodes", "40")
    assert (code, said["error"].partition(":")[0]) == (1, "worse than random play")
    code, said, _ = spar("promote", first.id, "--episodes", "40")
    assert (code, said["promoted"], said["champion"]["counter"]) == (0, True, 1)
    assert said["reason"].startswith("better than random play: it returns ")
    assert spar("promote", better.id, "--episodes", "200")[0] == 0
    code, said, _ = spar("promote", worse.id, "--episodes", "40")
    assert (code, said["code"], said["do"]) == (1, "refused", "Train on, or give --force-reason")
    assert (said["value"]["incumbent"], said["value"]["tries"]) == (better.id, 2)
    assert said["error"].startswith("worse than the champion: ")
    listed = {item.card.id: item.evidence for item in registry.models(GameId("cartpole"))}
    assert listed[worse.id].mean < 15  # stored, though it was refused
    code, said, _ = spar("promote", worse.id, "--force-reason", " ")
    assert (code, said["error"]) == (1, "no reason is given")
    code, said, _ = spar("promote", worse.id, "--force-reason", "I want to see it")
    assert (code, said["champion"]["model"]) == (0, worse.id)
    listed = {item.card.id: item for item in registry.models(GAME)}
    assert (listed[worse.id].evidence.by, listed[worse.id].evidence.reason) == ("operator", "I want to see it")
    assert listed[worse.id].evidence.tries == 2  # it was no try, and none is forgotten
    registry.save_evidence(better.id, replace(registry.evidence(better.id), tries=5))
    code, said, _ = spar("rollback", "cartpole")
    assert (code, said["from"], said["champion"]["model"]) == (0, worse.id, better.id)
    assert registry.evidence(better.id).tries == 5
    assert (said["champion"]["counter"], said["champion"]["previous"]) == (4, None)
    assert said["trust"] == f"{registry.trust}@4"
    assert verify(registry.champion(GAME, "1"), registry.trust).model == better.id


def test_a_model_that_a_person_promoted_keeps_the_tries_of_its_lineage(spar, registry):
    parent = cartpole_model(1)
    registry.publish(parent)
    registry.save_evidence(parent.id, Evidence(episodes=1, mean=0.0, sd=0.0, tries=4))
    child = cartpole_model(2, parents=[parent.id])
    registry.publish(child)
    assert spar("promote", child.id, "--force-reason", "a test")[0] == 0
    assert registry.evidence(child.id).tries == 4


def test_without_a_champion_before_it_there_is_no_rollback(spar, registry):
    registry.publish(cartpole_model(1))
    for _ in range(2):
        code, said, _ = spar("rollback", "cartpole")
        assert (code, said["error"]) == (1, "there is no champion to return to")
        spar("promote", cartpole_model(1).id, "--force-reason", "the only one")


def test_a_folder_is_pushed_verified_and_a_model_goes_to_another_registry(spar, registry, tmp_path):
    model = cartpole_model(1)
    other = FileRegistry(tmp_path / "other")
    other.publish(model)
    exported = other.root / model.id
    code, said, _ = spar("push", str(exported))
    assert (code, said["model"]) == (0, model.id)
    assert registry.fetch(model.id) == model
    code, said, _ = spar("push", model.id[:8], "--to", f"file://{tmp_path}/third")
    assert (code, FileRegistry(tmp_path / "third").fetch(model.id)) == (0, model)
    assert spar("push", model.id[:8], "--to", "https://play.example")[1]["error"] == "a gateway takes no models"
    (exported / WEIGHTS).write_bytes(b"damaged")
    assert "weights.safetensors hashes to" in spar("push", str(exported))[1]["error"]
    (exported / WEIGHTS).unlink()
    assert spar("push", str(exported))[1]["error"] == "there is no weights.safetensors"


@pytest.fixture
def server(tmp_path):
    """The gateway's model files, by the same paths; a list of what was asked, and lies on request."""
    far = FileRegistry(tmp_path / "far")
    lies = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            *_, model, name = self.path.split("/")
            status = 200 if self.headers["Authorization"] == "Bearer secret" else 401
            path = far.root / model / name
            body = lies.get(name, path.read_bytes() if path.exists() else b"")
            status = status if path.exists() or status != 200 else 404
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield far, lies, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_a_model_is_pulled_whole_or_not_at_all(spar, registry, server):
    far, lies, url = server
    model, other = cartpole_model(1), cartpole_model(2)
    for item in (model, other):
        far.publish(item)
    pull = ("pull", model.id, "--from", url, "--token")
    assert spar(*pull, "wrong")[1]["code"] == "forbidden"
    for name, lie in ((WEIGHTS, other.files[WEIGHTS]), ("card.json", far.file(other.id, "card.json")), (WEIGHTS, b"")):
        lies[name] = lie
        assert spar(*pull, "secret")[0] == 1
        lies.clear()
    assert registry.ids() == []
    code, said, _ = spar(*pull, "secret")
    assert (code, said["model"]) == (0, model.id)
    assert registry.fetch(model.id) == model
    assert spar("pull", "0" * 64, "--from", url, "--token", "secret")[1]["error"] == "there is no such model there"
    assert spar("pull", model.id)[1]["do"] == "Write: spar models pull ID --from URL"
    assert spar("pull", model.id, "--from", "http://127.0.0.1:1")[0] == 1


def test_a_table_for_people_marks_the_champion(registry, data):
    registry.publish(cartpole_model(3))
    words = [sys.executable, "-m", "sparring", "models"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for action in (["promote", cartpole_model(3).id[:9], "--episodes", "40"], ["list"]):
        done = subprocess.run(
            [*words, *action, "--data", str(data)], capture_output=True, text=True, env=env, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
    head, row = done.stdout.splitlines()
    assert head.split() == ["id", "game", "version", "algorithm", "steps", "created", "return", "champion"]
    assert row.split()[0] == cartpole_model(3).id[:12]
    assert row.split()[-1] == "champion"
