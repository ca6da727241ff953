"""The loop with its models in a bucket: trained, gated, served, downloaded, rolled back; by the real commands."""

import json
import time

import numpy as np
import pytest
from buckets import through
from toll import toll

import sparring
from serving import serving
from sparring.cli import main
from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.ids import GameId
from sparring.wire.model import WEIGHTS, Lineage

pytestmark = pytest.mark.servers
GAME = GameId("cartpole")
EVIDENCE = Evidence(episodes=1, mean=1.0, sd=0.0, by="operator")


def pushing(direction):
    """A model that pushes always to one side."""
    spec = spec_of("cartpole")
    network = default_network(spec.seats[0], hidden=(8,))
    weights = {name: np.zeros_like(value) for name, value in Network(network, 0).weights().items()}
    weights["logits/bias"][direction] = 1.0
    return make_model(spec, network, weights, "greedy", Lineage(algorithm="ppo", config={}, steps={}), direction)


@pytest.fixture
def spar(bucket_url, tmp_path, capsys):
    def call(*words):
        code = main([*words, "--json", "--data", str(tmp_path / "data"), "--set", f"registry.url={bucket_url}"])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    return call


def test_every_command_of_models_works_on_a_bucket(spar, bucket_url, tmp_path):
    assert spar("models", "list")[1] == {"models": []}
    left, right = pushing(0), pushing(1)
    folder = tmp_path / "given"
    with open_registry(f"file://{folder}") as given:
        for model in (left, right):
            given.publish(model)
            assert spar("models", "push", str(folder / model.id))[0] == 0
    assert {row["id"] for row in spar("models", "list", "cartpole")[1]["models"]} == {left.id, right.id}
    assert spar("models", "show", left.id[:10])[1]["bytes"][WEIGHTS] == len(left.files[WEIGHTS])
    for model in (left, right):
        code, said, _ = spar("models", "promote", model.id, "--force-reason", "a test")
        assert (code, said["champion"]["model"]) == (0, model.id)
    code, said, text = spar("models", "rollback", "cartpole")
    assert (said["champion"]["model"], said["champion"]["counter"]) == (left.id, 3)
    code, said, _ = spar("models", "verify", "--all")
    assert (code, said["bad"], said["champions"][0]["records"]) == (0, 0, 3)
    out = tmp_path / "out"
    assert spar("models", "push", left.id, "--to", f"file://{out}")[0] == 0
    with open_registry(f"file://{out}") as other:
        assert other.fetch(left.id) == left
    code, said, text = spar("models", "share")
    assert code != 0
    assert "public=1" in text


@pytest.mark.slow
def test_a_run_publishes_into_the_bucket_and_its_gate_reads_the_champion_there(spar, bucket_url):
    before = pushing(0)
    with open_registry(bucket_url) as registry:
        registry.publish(before)
        registry.promote(GAME, before.id, EVIDENCE)
    words = ("train", "cartpole", "--algo", "ppo", "--seed", "1", "--set", "registry.gate_episodes=100")
    code, said, _ = spar(*words, "--topology", "single", "--set", "train.torch_threads=1", "--steps", "8192")
    assert code == 0
    with open_registry(bucket_url) as registry:
        (listed,) = [item for item in registry.models(GAME) if item.card.id == said["model"]]
    assert (listed.champion, listed.evidence.incumbent, listed.evidence.verdict) == (True, before.id, "better")


def test_a_gateway_serves_models_out_of_a_bucket_and_clients_fetch_them_there(bucket_url, s3_server, tmp_path):
    left, right = pushing(0), pushing(1)
    state = np.zeros(4, np.float32)
    with toll(s3_server.endpoint) as way:
        url = through(bucket_url, way.endpoint).replace("fresh_s=0", "fresh_s=0.2")
        with (
            open_registry(bucket_url) as registry,
            serving(tmp_path / "data", "--set", f"registry.url={url}") as server,
        ):
            assert server.trust == registry.trust
            registry.publish(left)
            registry.promote(GAME, left.id, EVIDENCE)
            with sparring.connect(
                server.url, "cartpole", trust=server.trust, folder=tmp_path / "client", poll_every_s=0.3
            ) as game:
                assert _followed(game, left.id)
                fetched = [path for verb, path in way.seen if left.id in path and "X-Amz-Signature" in path]
                assert len(fetched) == 2  # card and graph, by signed addresses
                registry.publish(right)
                registry.promote(GAME, right.id, EVIDENCE)
                assert _followed(game, right.id)
                with game.episode() as episode:
                    assert episode.act(state) == 1
            assert server.process.poll() is None


def _followed(game, model):
    until_s = time.monotonic() + 30
    while game.wait_for_model() != model and time.monotonic() < until_s:
        time.sleep(0.05)  # one that is held is answered at once
    return game.wait_for_model() == model


def test_a_registry_is_copied_into_a_bucket_and_clients_follow_without_noticing(bucket_url, tmp_path, capsys):
    data, left, right = tmp_path / "data", pushing(0), pushing(1)
    with open_registry(f"file://{data}/models") as folder:
        for model in (left, right, left):
            folder.publish(model)
            folder.promote(GAME, model.id, EVIDENCE)
        trust = folder.trust
    client = {"trust": trust, "folder": tmp_path / "client"}
    with serving(data) as server, sparring.connect(server.url, "cartpole", **client) as game:
        assert _followed(game, left.id)
        port = server.port
    target = bucket_url.partition("&key=")[0]  # the key is where it was: it goes on signing
    assert main(["models", "copy", "--to", target, "--json", "--data", str(data)]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {left.id, right.id} == set(said["models"])
    assert [(one["model"], one["counter"]) for one in said["champions"]] == [(left.id, 4)]
    with (
        serving(data, "--set", f"registry.url={target}", port=port) as server,
        sparring.connect(server.url, "cartpole", **client) as game,
        open_registry(f"{target}&key={data}/models/signing.key") as bucket,
    ):
        assert server.trust == trust
        bucket.promote(GAME, right.id, EVIDENCE)
        assert _followed(game, right.id)
        assert not game.statistics().last_problem
