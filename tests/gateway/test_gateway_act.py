"""Acting on the server: chance without a champion, the champion once there is one, the newest without a restart."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from serving import decided_together, inside
from sparring.games.catalogue import open_game, spec_of
from sparring.nets.chooser import ActRequest
from sparring.nets.model_files import make_model, read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import log_softmax, nearly_best
from sparring.nets.torch_network import Network, default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Signed, verify
from sparring.wire.model import Lineage

ACT = "/v1/games/connect-four/act"
EMPTY = np.zeros((2, 6, 7), int).tolist()


def publish(server, seed, promote=True):
    """A fresh network as a model of Connect Four, and champion."""
    game = spec_of("connect-four")
    network = default_network(game.seats[0], hidden=(16,))
    weights = Network(network, seed).weights()
    lineage = Lineage(algorithm="test", config={}, steps={"selfplay": seed})
    model = make_model(game, network, weights, "categorical", lineage, 1_790_000_000_000 + seed)
    with open_registry(f"file:///{server.data}/models") as registry:
        registry.publish(model)
        if promote:
            registry.promote(game.id, model.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
    return model


def ask(http, url="", **more):
    return http.post(f"{url}{ACT}", json={"observation": {"board": EMPTY}} | more)


def until(http, model, seconds=60.0):
    deadline = time.monotonic() + seconds
    while (said := ask(http).json())["model"] != model:
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    return said


def test_without_a_champion_chance_chooses_a_legal_action_and_says_so(http):
    legal = [0, 0, 1, 0, 1, 0, 0]
    drawn = [ask(http, legal=legal).json() for _ in range(20)]
    assert {said["action"] for said in drawn} == {2, 4}
    assert {said["model"] for said in drawn} == {None}
    assert drawn[0]["logp"] == pytest.approx(np.log(0.5))


def test_the_champion_acts_and_a_newer_one_is_picked_up_without_a_restart(http, server):
    for seed in (1, 2):
        model = publish(server, seed)
        said = until(http, model.id)
        outputs = NumpyForward(model.card.network, read_weights(model))(
            {"observation/board": np.zeros((1, 2, 6, 7), np.uint8)}
        )
        near = log_softmax(nearly_best(outputs["logits"], None, values=False))[0]
        assert said["logp"] == pytest.approx(float(near[said["action"]]), abs=1e-4)
        assert said["value"] == pytest.approx(float(outputs["value"][0]), abs=1e-4)


def test_strength_mixes_in_chance_and_masks_hold(http, server):
    model = publish(server, 3)
    best = until(http, model.id)["action"]
    weak = [ask(http, strength=0.0).json() for _ in range(60)]
    assert len({said["action"] for said in weak}) > 3
    assert all(said["logp"] == pytest.approx(np.log(1 / 7), abs=1e-5) for said in weak)
    mask = [int(column != best) for column in range(7)]
    assert ask(http, legal=mask).json()["action"] != best


def test_another_model_of_the_game_may_be_named(http, server):
    champion, other = publish(server, 4), publish(server, 5, promote=False)
    until(http, champion.id)
    assert ask(http, model=other.id).json()["model"] == other.id
    assert ask(http, model="0" * 64).status_code == 404
    assert ask(http, model="../../x").status_code == 404
    wrong = http.post("/v1/games/cartpole/act", json={"observation": {"state": [0, 0, 0, 0]}, "model": other.id})
    assert wrong.status_code == 422
    assert wrong.json()["error"]["field"] == "model"


def test_many_callers_at_once_get_each_their_own_answer(http, server):
    model = publish(server, 6)
    until(http, model.id)
    forward = NumpyForward(model.card.network, read_weights(model))
    boards = np.random.default_rng(0).integers(0, 2, (200, 2, 6, 7)).astype(np.uint8)
    outputs = forward({"observation/board": boards})
    near = nearly_best(outputs["logits"], None, values=False)
    with ThreadPoolExecutor(16) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
        calls = [{"observation": {"observation/board": board.tolist()}} for board in boards]
        answers = list(pool.map(lambda call: client.post(ACT, json=call).json(), calls))
    assert np.isfinite(near[np.arange(len(boards)), [said["action"] for said in answers]]).all()
    np.testing.assert_allclose([said["value"] for said in answers], outputs["value"], atol=1e-4)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"observation": {"board": [[0]]}}, "observation/board"),
        ({"observation": {}}, "observation/board"),
        ({"observation": {"board": EMPTY, "more": [1]}}, "observation/more"),
        ({"observation": {"board": np.full((2, 6, 7), 7).tolist()}}, "observation/board"),
        ({"observation": {"board": EMPTY}, "legal": [0] * 7}, "legal"),
        ({"observation": {"board": EMPTY}, "legal": [1] * 6}, "legal"),
        ({"observation": {"board": EMPTY}, "seat": 2}, "seat"),
        ({"observation": {"board": EMPTY}, "strength": 1.5}, "strength"),
        ({"observation": {"board": EMPTY}, "state": [1]}, "state"),
    ],
)
def test_a_view_that_is_not_the_seats_is_refused(http, call, field):
    response = http.post(ACT, json=call)
    assert response.status_code == 422
    assert response.json()["error"]["field"] == field


def test_the_champions_manifest_verifies_has_a_tag_and_leads_to_its_files(http, server):
    model = publish(server, 7)
    response = http.get("/v1/games/connect-four/champion?version=1&seat=1")
    champion = verify(Signed(**response.json()), server.trust)
    assert champion.model == model.id
    tag = response.headers["etag"]
    assert (
        http.get("/v1/games/connect-four/champion?version=1&seat=1", headers={"If-None-Match": tag}).status_code == 304
    )
    assert http.get("/v1/games/connect-four/champion?seat=9").status_code == 400
    for name, content in model.files.items():
        got = http.get(f"/v1/models/{model.id}/{name}")
        assert got.content == content
        assert "immutable" in got.headers["cache-control"]
    card = http.get(f"/v1/models/{model.id}/card.json")
    assert json.loads(card.content)["game"] == "connect-four"
    assert http.get(f"/v1/models/{model.id}/signing.key").status_code == 404


def board_after(moves):
    """The board as the seat to move sees it, and that seat."""
    game = open_game("connect-four")
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    for move in moves:
        view = game.step([np.array([move], np.int32)] * 2)
    seat = int(view.to_act[0].argmax())
    return {"board": view.observation[seat]["observation/board"][0].tolist()}, seat


@pytest.mark.parametrize(("moves", "best"), [([3, 0, 3, 0, 3, 1], 3), ([0, 3, 0, 3, 1, 3, 6], 3), ([3, 0, 3, 0, 3], 3)])
def test_with_search_ms_the_champion_looks_ahead(http, server, moves, best):
    model = publish(server, 7)
    until(http, model.id)
    observation, seat = board_after(moves)
    said = ask(http, observation=observation, seat=seat, search_ms=200).json()
    assert (said["action"], said["model"], said["logp"]) == (best, model.id, 0.0)


def test_a_search_is_bounded_and_says_where_it_cannot_be(http, server):
    until(http, publish(server, 8).id)
    wrong = ask(http, search_ms=201)
    assert wrong.status_code == 422
    assert (wrong.json()["error"]["field"], wrong.json()["error"]["limit"]) == ("search_ms", 200)
    assert ask(http, search_ms=-1).status_code in (400, 422)
    hangs = np.zeros((2, 6, 7), int)
    hangs[:, 0, 0] = 1
    impossible = ask(http, observation={"board": hangs.tolist()}, search_ms=50)
    assert impossible.status_code == 422
    assert "no running game shows this board" in impossible.json()["error"]["message"]


def test_callers_who_come_together_when_a_gateway_starts_all_meet_the_champion(tmp_path):
    model = publish(SimpleNamespace(data=tmp_path), 10)
    request = ActRequest({"observation/board": np.array(EMPTY, np.uint8)})
    assert {one.model for one in decided_together(tmp_path, spec_of("connect-four"), request)} == {model.id}


def test_every_millisecond_of_a_search_counts_as_a_request(tmp_path):
    with inside(tmp_path / "data", requests_per_s=1.0, burst_requests=120) as server:
        answers = [
            ask(httpx, url=server.url, **more).status_code for more in ({"search_ms": 100}, {"search_ms": 100}, {})
        ]
    assert answers == [200, 429, 200]


def test_searches_of_many_callers_leave_the_event_loop_free(http, server):
    until(http, publish(server, 9).id)
    with ThreadPoolExecutor(12) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
        searches = [
            pool.submit(client.post, ACT, json={"observation": {"board": EMPTY}, "search_ms": 150}) for _ in range(12)
        ]
        answered = 0
        while not all(one.done() for one in searches):
            assert client.get("/healthz").status_code == 200
            answered += 1
        assert answered > 3
    assert {one.result().status_code for one in searches} == {200}
