"""The models that a client runs: fetched, verified, swapped between episodes; and every trick refused."""

import base64
import threading
import time
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from served_models import GAME, always, promote, registry_of

from serving import serving
from sparring.wire.champion import Champion, for_client, key_name, sign
from sparring.wire.model import ONNX

STATE = np.array([0.01, 0, 0.02, 0], np.float32)
PRIVATE, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUST = key_name(PRIVATE.public_key())
LEFT, RIGHT = always(0), always(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("models")) as running:
        yield running


def publish(peer, model, *, counter, private=PRIVATE, **changes):
    """Let the directed peer serve `model` as champion with that manifest."""
    now_ms = int(time.time() * 1000)
    fields = {
        "game": GAME.id,
        "version": GAME.version,
        "seat": None,
        "model": model.id,
        "spec": GAME.hash,
        "counter": counter,
        "issued_at_ms": now_ms,
        "expires_at_ms": now_ms + 3_600_000,
    }
    signed = sign(Champion(**(fields | changes)), private)
    peer.files["/v1/games/cartpole/champion"] = msgspec.json.encode(signed)
    peer.files[f"/v1/models/{model.id}/card.json"] = msgspec.json.encode(model.card)
    peer.files[f"/v1/models/{model.id}/{ONNX}"] = model.files[ONNX]
    return signed


def test_a_promoted_model_is_picked_up_between_episodes_and_named_in_what_it_did(server, connect):
    registry = registry_of(server)
    connection = connect(server.url, trust=server.trust, poll_every_s=3600.0)
    assert connection.wait_for_model() is None
    promote(registry, LEFT)
    assert connection.wait_for_model() == LEFT.id
    with connection.episode() as episode:
        assert episode.act(STATE) == 0
        promote(registry, RIGHT)
        assert connection.wait_for_model() == RIGHT.id
        assert episode.act(STATE) == 0  # it keeps the model that it began with
        episode.record(STATE, 0, 1.0)
        episode.end(STATE)
    with connection.episode() as episode:
        assert episode.act(STATE) == 1
        assert episode.act(STATE, legal=[1, 0]) == 0
    assert connection.flush(30)
    promote(registry, LEFT)  # a rollback is a higher counter that names an older model
    assert connection.wait_for_model() == LEFT.id
    assert connection.statistics().model == LEFT.id


def test_connect_waits_for_the_first_champion_where_it_is_told_to(peer, connect):
    publish(peer, RIGHT, counter=1)
    connection = connect(peer.url, trust=TRUST, wait_for_model_s=30.0)
    assert connection.model == RIGHT.id
    with connection.episode() as episode:
        assert episode.act(STATE) == 1


def test_a_champion_that_was_not_fetched_yet_is_told_from_one_that_is_not_there(peer, connect, caplog):
    asked, go_on = threading.Event(), threading.Event()

    def slow(headers):
        asked.set()
        go_on.wait(30)
        return 404, {}, b""

    peer.files["/v1/games/cartpole/champion"] = slow
    connection = connect(peer.url, trust=TRUST)
    assert asked.wait(30)
    with connection.episode() as episode:
        episode.act(STATE)
    assert "the champion was not fetched yet" in caplog.text
    go_on.set()
    assert connection.wait_for_model() is None
    with connection.episode() as episode:
        episode.act(STATE)
    assert "there is no champion of cartpole 1 yet" in caplog.text


def test_strength_mixes_in_chance_and_its_probability_is_recorded_exactly(peer, connect):
    publish(peer, RIGHT, counter=1)
    connection = connect(peer.url, trust=TRUST, strength=0.5, seed=4)
    assert connection.wait_for_model() == RIGHT.id
    with connection.episode() as episode:
        chosen = []
        for _ in range(400):
            chosen.append(episode.act(STATE))
            episode.record(STATE, chosen[-1], 1.0)
        episode.end(STATE)
    assert 250 < sum(chosen) < 350  # three of four
    assert connection.flush(30)
    (chunk,) = peer.kept.values()
    assert chunk.header.actor == f"model:{RIGHT.id}"
    expected = np.where(np.array(chosen) == 1, np.log(0.75), np.log(0.25))
    np.testing.assert_allclose(chunk.columns["behaviour_logp"], expected, rtol=1e-6)


def test_a_restart_without_a_gateway_acts_with_the_model_on_disk(peer, connect):
    publish(peer, RIGHT, counter=3)
    first = connect(peer.url, trust=TRUST)
    assert first.wait_for_model() == RIGHT.id
    first.close()
    peer.files.clear()
    second = connect(peer.url, trust=TRUST)
    assert second.model == RIGHT.id
    with second.episode() as episode:
        assert episode.act(STATE) == 1


def test_after_its_expiry_the_model_held_goes_on_and_that_is_said(peer, connect, caplog, monkeypatch):
    publish(peer, RIGHT, counter=3)
    first = connect(peer.url, trust=TRUST)
    assert first.wait_for_model() == RIGHT.id
    first.close()
    monkeypatch.setattr("sparring.client.models.time", SimpleNamespace(time=lambda: time.time() + 7_200))
    second = connect(peer.url, trust=TRUST)
    assert second.wait_for_model() == RIGHT.id
    assert "has expired; the verified model held goes on" in caplog.text


def test_the_first_key_is_pinned_and_that_is_said(peer, connect, caplog):
    publish(peer, RIGHT, counter=3)
    assert connect(peer.url).wait_for_model() == RIGHT.id
    assert f"the first key is pinned, {TRUST}" in caplog.text
    publish(peer, LEFT, counter=4, private=OTHER)
    assert connect(peer.url).wait_for_model() == RIGHT.id


def _edited(peer):
    path = "/v1/games/cartpole/champion"
    signed = msgspec.json.decode(peer.files[path])
    payload = base64.b64decode(signed["payload"]).replace(LEFT.id.encode(), RIGHT.id.encode())
    peer.files[path] = msgspec.json.encode(signed | {"payload": base64.b64encode(payload).decode()})


def _mixed_files(peer):
    peer.files[f"/v1/models/{LEFT.id}/{ONNX}"] = RIGHT.files[ONNX]


def _mixed_card(peer):
    peer.files[f"/v1/models/{LEFT.id}/card.json"] = msgspec.json.encode(RIGHT.card)


def _no_card(peer):
    peer.files[f"/v1/models/{LEFT.id}/card.json"] = b"{}"


def _cut_file(peer):
    peer.files[f"/v1/models/{LEFT.id}/{ONNX}"] = LEFT.files[ONNX][:-1]


def _no_json(peer):
    peer.files["/v1/games/cartpole/champion"] = b"<html>"


@pytest.mark.parametrize(
    ("manifest", "tamper", "reason"),
    [
        ({"counter": 4}, None, "its counter 4 is behind 5"),
        ({"counter": 5}, None, "two manifests with counter 5"),
        ({"counter": 6, "expires_at_ms": 1}, None, "it expired"),
        ({"counter": 6, "private": OTHER}, None, "not by the trusted"),
        ({"counter": 6, "spec": "0" * 64}, None, "its spec 000000000000 is not"),
        ({"counter": 6, "game": "duel"}, None, "it is for duel"),
        ({"counter": 6}, _edited, "the signature does not fit"),
        ({"counter": 6}, _mixed_files, "hashes to"),
        ({"counter": 6}, _mixed_card, "its card hashes to"),
        ({"counter": 6}, _no_card, "its card does not read"),
        ({"counter": 6}, _cut_file, "hashes to"),
        ({"counter": 6}, _no_json, "does not read"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else None,
)
def test_a_trick_is_refused_and_the_last_good_model_stays_also_after_a_restart(
    peer, connect, caplog, manifest, tamper, reason
):
    publish(peer, RIGHT, counter=5)
    connection = connect(peer.url, trust=TRUST)
    assert connection.wait_for_model() == RIGHT.id
    publish(peer, LEFT, **manifest)
    if tamper is not None:
        tamper(peer)
    assert connection.wait_for_model() == RIGHT.id
    assert reason in caplog.text
    with connection.episode() as episode:
        assert episode.act(STATE) == 1
    connection.close()
    again = connect(peer.url, trust=TRUST)
    assert again.wait_for_model() == RIGHT.id


def test_a_damaged_model_on_disk_is_never_run_and_is_fetched_again(peer, connect, tmp_path):
    publish(peer, RIGHT, counter=5)
    first = connect(peer.url, trust=TRUST)
    assert first.wait_for_model() == RIGHT.id
    first.close()
    (path,) = (tmp_path / "client").rglob(ONNX)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    silent = connect("http://127.0.0.1:9", trust=TRUST)
    assert silent.model is None
    second = connect(peer.url, trust=TRUST)
    assert second.wait_for_model() == RIGHT.id
    assert path.read_bytes() == RIGHT.files[ONNX]


def test_a_roll_out_by_share_of_clients_is_decided_by_a_name_that_stays(peer, connect, tmp_path):
    ids = []
    for n in range(12):
        publish(peer, RIGHT, counter=5, previous=LEFT.id, rollout_share=0.5)
        peer.files[f"/v1/models/{LEFT.id}/card.json"] = msgspec.json.encode(LEFT.card)
        peer.files[f"/v1/models/{LEFT.id}/{ONNX}"] = LEFT.files[ONNX]
        folder = tmp_path / f"machine{n}"
        first = connect(peer.url, trust=TRUST, folder=folder).wait_for_model()
        again = connect(peer.url, trust=TRUST, folder=folder).wait_for_model()
        client = msgspec.json.decode((folder / "client.json").read_bytes())["client"]
        champion = Champion(
            game=GAME.id,
            version="1",
            seat=None,
            model=RIGHT.id,
            spec=GAME.hash,
            counter=5,
            issued_at_ms=0,
            expires_at_ms=0,
            previous=LEFT.id,
            rollout_share=0.5,
        )
        assert first == again == for_client(champion, client)
        ids.append(first)
    assert set(ids) == {LEFT.id, RIGHT.id}
