"""The JavaScript parts, run by node, say what their Python twins say."""

import base64
import hashlib
import importlib.util
import re
import shutil
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from javascript import run_script
from published import publish, sell
from safetensors.numpy import save

from serving import inside, serving
from sparring.games.catalogue import spec_of
from sparring.games.spec import GameSpec, Leaf, SeatSpec, vector
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import make_model
from sparring.nets.module_network import open_network
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import best, choose, log_softmax, masked, mixed, nearly_best, sample_at, squashed
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_heads
from sparring.nets.user_code import own_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Champion, for_client
from sparring.wire.ids import asked_for, is_episode, new_episode, opened_at_ms
from sparring.wire.model import Lineage
from sparring.wire.network import Dense, Gru, Head, Input, Lstm, NetworkSpec


def random_networks():
    """The learners' own generator of networks: every kind that a spec can say."""
    path = Path(__file__).parents[1] / "random_networks.py"
    spec = importlib.util.spec_from_file_location("random_networks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hashes_sampling_and_rollout_are_those_of_python():
    texts = ["", "abc", "ü" * 40, *("x" * n for n in range(50, 140, 7))]
    rates = [0.0, 1e-9, 0.25, 0.5, 0.9999999, 1.0]
    episodes = [(new_episode(), rates[i % len(rates)]) for i in range(300)]
    manifest = Champion(
        game="duel", version="1", seat=None, model="a" * 64, spec="0" * 64, counter=1, issued_at_ms=0, expires_at_ms=0
    )
    partly = msgspec.structs.replace(manifest, previous="b" * 64, rollout_share=0.4)
    champions = [(msgspec.to_builtins(one), f"player{i}") for i in range(40) for one in (manifest, partly)]
    said = run_script("ids.mjs", {"texts": texts, "episodes": episodes, "champions": champions})
    assert said["hashes"] == [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert said["asked"] == [asked_for(episode, rate) for episode, rate in episodes]
    assert said["models"] == [for_client(msgspec.convert(one, Champion), client) for one, client in champions]
    assert all(map(is_episode, said["made"]))
    assert len(set(said["made"])) == 50
    assert opened_at_ms(said["stamped"]) == 1_700_000_000_123
    assert all(0 <= seed < 2**53 for seed in said["seeds"])


def in_a_row(forward, rows):
    """What the network says to each row in turn, as the steps of one episode."""
    state, steps = None, []
    for i in range(len(next(iter(rows.values())))):
        steps.append(forward({name: column[i : i + 1] for name, column in rows.items()}, state))
        state = steps[-1].get("state")
    return steps


def test_every_kind_of_network_gives_what_numpy_gives():
    drawn, rng = random_networks(), np.random.default_rng(7)
    cases, expected = [], []
    for _ in range(160):
        spec = drawn.draw_network(rng)
        weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in parameters(spec).items()}
        weights |= {
            name: np.asarray(np.abs(value) + 0.01) for name, value in weights.items() if name.endswith("/deviation")
        }
        rows = drawn.draw_observation(spec, 3, rng)
        listed = [{name: column[i].ravel().tolist() for name, column in rows.items()} for i in range(3)]
        packed = base64.b64encode(save(weights)).decode()
        cases.append({"spec": msgspec.to_builtins(spec), "weights": packed, "rows": listed})
        expected.append([drawn.in_game_units(spec, out) for out in in_a_row(NumpyForward(spec, weights), rows)])
    answers = run_script("networks.mjs", cases)
    for answer, steps in zip(answers, expected, strict=True):
        for mine, out in zip(answer, steps, strict=True):
            assert set(mine) == set(out)
            for name, column in out.items():
                given = np.array(mine[name], np.float32).reshape(column.shape)
                np.testing.assert_allclose(given, column, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("memory", [Gru(5), Lstm(5)])
def test_an_episode_goes_on_from_what_its_model_remembers_and_chunks_say_it(memory):
    game, rng, count = spec_of("cartpole"), np.random.default_rng(2), 300  # more than one chunk holds
    heads = (Head("logits", 2), Head("value", 1))
    network = NetworkSpec((Input("observation/state", (4,)),), heads, (Dense(8),), memory=memory)
    weights = {name: rng.normal(0, 0.8, shape).astype(np.float32) for name, shape in parameters(network).items()}
    rows = rng.normal(0, 0.5, (count, 4)).astype(np.float32)
    said = run_script(
        "memory.mjs",
        {
            "spec": msgspec.to_builtins(game),
            "network": msgspec.to_builtins(network),
            "weights": base64.b64encode(save(weights)).decode(),
            "rows": rows.tolist(),
        },
    )
    steps = in_a_row(NumpyForward(network, weights), {"observation/state": rows})
    assert said["actions"] == [int(step["logits"].argmax()) for step in steps]
    firsts = [chunk["header"]["first_step"] for chunk in said["chunks"]]
    assert len(firsts) == 2
    for first, chunk in zip(firsts, said["chunks"], strict=True):
        before = steps[first - 1]["state"][0] if first else np.zeros_like(steps[0]["state"][0])
        np.testing.assert_allclose(chunk["columns"]["state/state"], before, atol=1e-4)


def test_a_page_plays_numbers_in_their_own_shape_and_units_and_says_who_chose_them():
    action = Leaf(name="action", kind="box", shape=(2, 1), low=-2.0, high=0.5)
    seat = SeatSpec(name="a", observation=(vector("observation/state", 4),), action=action, reward_bounds=(0.0, 1.0))
    game = GameSpec(id="numbers", turns="simultaneous", seats=(seat,), max_ticks=99)
    heads = (Head("mean", 2, bounds=(-2.0, 0.5)), Head("log_std", 2), Head("value", 1))
    network, rng = NetworkSpec((Input("observation/state", (4,)),), heads, (Dense(8),)), np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.8, shape).astype(np.float32) for name, shape in parameters(network).items()}
    rows = rng.normal(0, 1, (60, 4)).astype(np.float32)
    said = run_script(
        "boxes.mjs",
        {
            "spec": msgspec.to_builtins(game),
            "network": msgspec.to_builtins(network),
            "weights": base64.b64encode(save(weights)).decode(),
            "rows": rows.tolist(),
        },
    )
    expected = squashed(NumpyForward(network, weights)({"observation/state": rows})["mean"], (-2.0, 0.5)).reshape(
        60, 2, 1
    )
    np.testing.assert_allclose(said["actions"], expected, atol=1e-5)
    weakened = np.array(said["weakened"])
    mean = np.abs(weakened - expected).max(axis=(1, 2)) < 1e-5
    assert 15 < mean.sum() < 45
    assert weakened.min() >= -2.0
    assert weakened.max() <= 0.5
    assert said["chance"]["actor"] == "script:random"
    assert np.array(said["chance"]["action"]).shape == (2, 1)
    (chunk,) = said["chunks"]
    assert chunk["header"]["actor"] == "model:" + "a" * 64
    np.testing.assert_allclose(chunk["columns"]["action"], expected, atol=1e-5)


def test_a_page_plays_several_choices_at_once_and_says_how_likely_the_whole_was():
    action = Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(3, 4))
    seat = SeatSpec(name="a", observation=(vector("observation/state", 4),), action=action, reward_bounds=(0.0, 1.0))
    game = GameSpec(id="levers", turns="simultaneous", seats=(seat,), max_ticks=99)
    heads = (Head("logits", 7), Head("value", 1))
    network, rng = NetworkSpec((Input("observation/state", (4,)),), heads, (Dense(8),)), np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.8, shape).astype(np.float32) for name, shape in parameters(network).items()}
    rows = rng.normal(0, 1, (60, 4)).astype(np.float32)
    legal = [True, False, True, True, True, False, True]
    given = {
        "spec": msgspec.to_builtins(game),
        "network": msgspec.to_builtins(network),
        "weights": base64.b64encode(save(weights)).decode(),
        "rows": rows.tolist(),
        "policy": "categorical",
        "legal": legal,
    }
    said = run_script("boxes.mjs", given)
    logits = NumpyForward(network, weights)({"observation/state": rows})["logits"]
    expected = choose(action, logits, np.tile(legal, (60, 1)), rng).action
    assert said["actions"] == expected.tolist()
    assert 5 < (np.array(said["weakened"]) == expected).all(axis=1).sum() < 45
    assert said["chance"]["logp"] == pytest.approx(-np.log(2 * 3))
    (chunk,) = said["chunks"]
    assert chunk["columns"]["action"] == expected.tolist()
    assert chunk["columns"]["behaviour_logp"] == [0] * 60
    assert chunk["columns"]["legal"] == [[int(one) for one in legal]] * 60


def test_the_server_chooses_for_a_model_that_is_a_torch_module(tmp_path):
    game = spec_of("cartpole")
    network = own_network("user_modules:Mlp", game.seats[0], default_heads(game.seats[0].action))
    weights = open_network(network, 1).weights()
    about = Lineage(algorithm="ppo", config={}, steps={})
    model = make_model(game, network, weights, "categorical", about, int(time.time() * 1000))
    rows = np.random.default_rng(0).normal(0, 1, (6, 4)).astype(np.float32)
    with inside(tmp_path) as server:
        with open_registry(f"file://{tmp_path}/models") as registry:
            registry.publish(model)
            registry.promote(game.id, model.id, Evidence(episodes=10, mean=1.0, sd=1.0))
        said = run_script("module_model.mjs", {"url": server.url, "game": "cartpole", "rows": rows.tolist()})
        trusts = [server.trust, f"{server.trust}@1", f"{server.trust}@2"]
        given = {"url": server.url, "game": "cartpole", "trusts": trusts}
        first, least, above = run_script("champion_trust.mjs", given)
    assert first == least == [True, ""]
    assert above[0] is False
    assert "the champion's counter 1 is below 2, the least that is trusted" in above[1]
    assert (said["local"], said["holds"]) == (True, False)
    best = forward_without_torch(network, weights)({"observation/state": rows})["logits"].argmax(axis=1)
    assert [one["action"] for one in said["decided"]] == best.tolist()
    assert {one["actor"] for one in said["decided"]} == {f"model:{model.id}"}


def test_choices_carry_the_same_log_probability():
    rng = np.random.default_rng(3)
    cases = []
    for _ in range(200):
        legal = rng.random(7) < 0.6
        legal[rng.integers(7)] = True
        logits = rng.normal(0, 2, 7).astype(np.float32)
        strength = [None, 1.0, 0.5, 0.0][rng.integers(4)]
        given = {"strength": strength, "samples": bool(rng.integers(2)), "draws": rng.random(2).tolist()}
        cases.append({"logits": logits.tolist(), "legal": legal.tolist(), **given})
    for case, answer in zip(cases, run_script("choices.mjs", cases), strict=True):
        logits, legal = np.array([case["logits"]]), np.array([case["legal"]])
        rate = 0.0 if case["strength"] is None else 1 - case["strength"]
        top = int(best(logits, legal, rng).action[0])
        assert answer["best"] == top
        assert legal[0, answer["action"]]
        drawn_from = masked(mixed(logits, legal, rate), legal)
        shares = np.exp(log_softmax(drawn_from))[0]
        if not case["samples"]:
            shares = rate / legal.sum() + (1 - rate) * (np.arange(7) == top)
        else:  # by inversion, as in Python
            assert answer["action"] == int(sample_at(drawn_from, legal, np.array(case["draws"][:1])).action[0])
        assert abs(answer["logp"] - np.log(shares[answer["action"]])) < 1e-6
        for values, near in zip((False, True), answer["near"], strict=True):
            drawn = sample_at(nearly_best(logits, legal, values=values), None, np.array(case["draws"][:1]))
            assert near["action"] == int(drawn.action[0])
            assert near["logp"] == pytest.approx(float(drawn.logp[0]), abs=1e-5)
        np.testing.assert_allclose(answer["chances"], np.exp(log_softmax(masked(logits, legal)))[0], atol=1e-6)


def test_uploads_survive_what_servers_do():
    report = run_script("flaky_server.mjs", {"spec": msgspec.to_builtins(spec_of("duel"))})

    fine = report["fine"]
    assert (fine["flushed"], fine["steps"], fine["said"], fine["waiting"]) == (True, 3, 3, 0)
    chunk = fine["stored"][0]
    assert chunk["columns"]["reward"] == [0, 0, 1]
    assert chunk["header"] | {"ending": "terminated", "outcome": 1, "steps": 3} == chunk["header"]

    assert report["busy twice"]["retries"] == 2
    assert report["busy twice"]["said"] == 3
    lost = report["answer lost"]
    assert (lost["uploads"], len(lost["stored"]), lost["said"]) == (2, 1, 3)
    refused = report["one seat refused"]
    assert (refused["refused"], refused["said"], refused["problem"]) == (1, 3, "odd seat")
    assert report["never granted"]["waiting"] == 0

    again = report["reopened"]
    assert again["flushed"]
    by_ending = sorted((chunk["header"]["ending"], chunk["header"]["steps"]) for chunk in again["stored"])
    assert by_ending == [("running", 256), ("truncated", 3), ("truncated", 44)]
    finals = [chunk["final"] for chunk in again["stored"] if chunk["header"]["ending"] == "truncated"]
    assert sorted(final[0] for final in finals) == [0.375, 0.5]

    assert report["full"]["lost"] > 0
    assert report["full"]["waiting"] >= 1


def test_a_strength_is_a_step_of_the_signed_ladder(tmp_path):
    data = tmp_path / "data"
    with serving(data) as server:
        champion, weaker = publish(data, "connect-four", 1), publish(data, "connect-four", 2, promote=False)
        given = {"url": server.url, "game": "connect-four", "observation": [[[0] * 7] * 6] * 2}
        before, *_ = run_script("ladder.mjs", given | {"strengths": [0.5]})
        sell(data, "connect-four", weaker, (0.0, 0.5, 1.0))
        *said, _, _ = run_script("ladder.mjs", given | {"strengths": [None, 1.0, 0.5, 0.0, 0.7]})
    assert before["model"] == champion  # a share of random moves
    assert [one["model"] for one in said] == [champion, champion, weaker, None, weaker]
    assert said[3]["actor"] == "script:random"
    assert said[2]["logp"] == pytest.approx(np.log(0.5 + 0.5 / 7))


@pytest.mark.parametrize("act", ["local", "server"])
def test_where_a_step_s_model_is_missing_random_moves_weaken_the_champion(tmp_path, act):
    data = tmp_path / "data"
    with serving(data) as server:
        champion, weaker = publish(data, "connect-four", 1), publish(data, "connect-four", 2, promote=False)
        sell(data, "connect-four", weaker, (0.0, 0.5, 1.0))
        shutil.rmtree(data / "models" / weaker)
        given = {"url": server.url, "game": "connect-four", "observation": [[[0] * 7] * 6] * 2, "act": act}
        *said, wrong, _, last = run_script("ladder.mjs", given | {"strengths": [0.5, 0.5, 1.0, "0.5"]})
    assert [one["model"] for one in said] == [champion] * 3
    assert round(np.exp(said[0]["logp"]), 4) in (0.5714, 0.0714)  # half of all moves are the champion's own
    assert wrong == {"refused": 'strength is "0.5"'}
    assert act == "server" or last["notice"].startswith(f"the strength's own model {weaker[:12]} is not to be had")


@pytest.mark.parametrize("act", ["local", "server"])
def test_a_style_is_a_ladder_of_its_own_and_one_that_is_not_sold_is_said(tmp_path, act):
    data = tmp_path / "data"
    with serving(data) as server:
        champion, weaker, wide, inner = (publish(data, "connect-four", at, promote=at == 1) for at in (1, 2, 3, 4))
        sell(data, "connect-four", weaker, (0.0, 0.5, 1.0), wide=wide, inner=inner)
        given = {"url": server.url, "game": "connect-four", "observation": [[[0] * 7] * 6] * 2, "act": act}
        asked = {"strengths": [None, 0.5, 0.5, None, 0.0], "styles": ["wide", "inner", "brave", "brave", "wide"]}
        *said, sold, last = run_script("ladder.mjs", given | asked)
    assert [one["model"] for one in said] == [wide, inner, weaker, champion, None]
    assert sold["styles"] == [{"name": "wide", "means": "is wide"}, {"name": "inner", "means": "is inner"}]
    assert re.match("there is no style .brave.; the styles are wide, inner", last["notice"])
