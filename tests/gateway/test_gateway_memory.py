"""Recurrent models on the server: over HTTP the state goes out and comes back, on the socket the gateway keeps it."""

import time

import numpy as np
import pytest
from talking import stored
from websockets.sync.client import connect

from serving import decode_answer
from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model, read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import parameters, state_width
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.ids import new_episode
from sparring.wire.messages import End, Ended, Hello, Observe, Start, encode
from sparring.wire.model import Lineage
from sparring.wire.network import Gru, Lstm

ACT = "/v1/games/cartpole/act"
GAME = spec_of("cartpole")


def publish(server, seed, memory):
    """A champion of CartPole with drawn weights."""
    network = default_network(GAME.seats[0], hidden=(8,), separate_value=True, memory=memory)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in parameters(network).items()}
    lineage = Lineage(algorithm="test", config={}, steps={"selfplay": seed})
    model = make_model(GAME, network, weights, "categorical", lineage, 1_790_000_000_000 + seed)
    with open_registry(f"file:///{server.data}/models") as registry:
        registry.publish(model)
        registry.promote(GAME.id, model.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
    return model


def views(seed, count=8):
    return np.random.default_rng(seed).normal(0, 0.5, (count, 4)).astype(np.float32)


def alone(model, rows):
    """What the network itself says to each row in turn."""
    forward, state, said = NumpyForward(model.card.network, read_weights(model)), None, []
    for row in rows:
        said.append(forward({"observation/state": row[None]}, state))
        state = said[-1].get("state")
    return said


def ask(http, row, **more):
    return http.post(ACT, json={"observation": {"state": row.tolist()}, **more})


def until(http, model):
    deadline = time.monotonic() + 30
    while ask(http, np.zeros(4)).json()["model"] != model.id:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("memory", [Gru(5), Lstm(4)])
def test_over_http_the_state_goes_out_and_comes_back(http, server, memory):
    model = publish(server, memory.units, memory)
    until(http, model)
    state = None
    for row, expected in zip(views(1), alone(model, views(1)), strict=True):
        said = ask(http, row, state=state, model=model.id).json()
        assert said["action"] == int(expected["logits"].argmax())
        assert said["value"] == pytest.approx(float(expected["value"][0]), abs=1e-4)
        state = said["state"]
        np.testing.assert_allclose(state, expected["state"][0], atol=1e-5)
    again = ask(http, views(1)[0], model=model.id).json()  # no state: an episode begins
    np.testing.assert_allclose(again["state"], alone(model, views(1))[0]["state"][0], atol=1e-5)


@pytest.mark.parametrize("state", [[1.0], [0.0] * 11, [1e39] * 10, "text", [[0.0] * 10]])
def test_a_state_that_is_not_the_models_is_refused_and_disturbs_nobody(http, server, state):
    model = publish(server, 5, Gru(5))
    response = ask(http, np.zeros(4), state=state, model=model.id)
    assert response.status_code in (400, 422)
    assert "state" in (response.json()["error"]["field"] or response.json()["error"]["message"])
    assert ask(http, np.zeros(4), state=[0.5] * 10, model=model.id).status_code == 200


def test_a_model_without_a_memory_answers_null_and_takes_no_state(http, server):
    model = publish(server, 77, None)
    assert ask(http, np.zeros(4), model=model.id).json()["state"] is None
    assert ask(http, np.zeros(4), model=model.id, state=[0.0]).json()["error"]["field"] == "state"


def test_on_the_socket_each_seat_keeps_its_memory_and_its_model_to_the_end(http, server):
    old = publish(server, 21, Gru(6))
    until(http, old)
    width = state_width(old.card.network)
    episodes = {new_episode(): views(seed) for seed in (2, 3)}
    with connect(f"ws://127.0.0.1:{server.port}/v1/games/cartpole/play", max_size=None) as socket:

        def say(message, answered=True):
            socket.send(encode(message, text=True))
            return decode_answer(socket.recv(timeout=20)) if answered else None

        say(Hello(1))
        for episode in episodes:
            say(Start(episode), answered=False)
        actions = {episode: [] for episode in episodes}
        for tick in range(8):
            if tick == 4:
                until(http, publish(server, 22, Lstm(3)))  # another reigns, with another memory
            for episode, rows in episodes.items():
                seen = {"state": rows[tick].tolist()}
                answer = say(Observe(episode, 0, seen, tick, float(tick > 0)))
                assert answer.model == old.id
                actions[episode].append(answer.action)
        for episode, rows in episodes.items():
            assert actions[episode] == [int(one["logits"].argmax()) for one in alone(old, rows)]
            assert say(End(episode, 0, {"state": [0, 0, 0, 0]}, 1.0)) == Ended(episode, 0, "new")
    for episode in episodes:
        (chunk,) = [one for one in stored(server.data) if one.header.episode == episode]
        assert chunk.header.actor == f"model:{old.id}"
        np.testing.assert_array_equal(chunk.columns["state/state"], np.zeros(width, np.float32))
