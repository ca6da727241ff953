"""How a deployed model chooses, and that client and gateway record the same of it."""

import time

import numpy as np
import pytest
from websockets.sync.client import connect as open_socket

import sparring
from serving import decode_answer, serving
from sparring.games.spec import Leaf, SeatSpec, discrete, vector
from sparring.nets.chooser import RANDOM_ACTOR, uniform
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.ids import GameId, new_episode
from sparring.wire.messages import End, Ended, Hello, Observe, Start, encode

PENDULUM = "gym:Pendulum-v1"
BOX = Leaf(name="action", kind="box", dtype="float32", shape=(3,), low=-2.0, high=2.0)


def seat(action):
    return SeatSpec(name="player", observation=(vector("state", 2),), action=action, reward_bounds=(-1.0, 1.0))


def test_a_random_box_action_has_the_density_of_its_bounds():
    rng = np.random.default_rng(0)
    drawn = [uniform(seat(BOX), None, rng) for _ in range(50)]
    actions = np.stack([one.action for one in drawn])
    assert (np.abs(actions) <= 2.0).all()
    assert actions.std() > 0.8
    assert {one.actor for one in drawn} == {RANDOM_ACTOR}
    np.testing.assert_allclose([one.logp for one in drawn], -3 * np.log(4.0))


def test_a_random_discrete_action_is_legal_and_uniform():
    rng, legal = np.random.default_rng(0), np.array([1, 0, 1, 1], np.uint8)
    drawn = [uniform(seat(discrete(4)), legal, rng) for _ in range(300)]
    assert {one.action for one in drawn} == {0, 2, 3}
    np.testing.assert_allclose([one.logp for one in drawn], -np.log(3.0), atol=1e-6)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Serves a game with box actions, and has no champion of it."""
    with serving(tmp_path_factory.mktemp("chooser") / "data", "--set", f'games=["{PENDULUM}"]') as running:
        yield running


def kept(server, episode):
    with open_store(f"sqlite:///{server.data}/experience.db", check=False) as store:
        return [chunk for chunk in store.read(Query(GameId(PENDULUM))) if chunk.header.episode == episode]


def by_socket(server, view, end):
    episode = new_episode()
    url = server.url.replace("http", "ws", 1) + f"/v1/games/{PENDULUM}/play"
    with open_socket(url) as socket:

        def say(message, answered=True):
            socket.send(encode(message, text=True))
            return decode_answer(socket.recv(timeout=30)) if answered else None

        say(Hello(1))
        say(Start(episode), answered=False)
        for tick in range(3):
            say(Observe(episode, 0, {"state": view.tolist()}, tick))
        if end:
            assert isinstance(say(End(episode, 0, {"state": view.tolist()}, terminated=False)), Ended)
    return episode


def by_client(server, view, end, folder, act):
    with sparring.connect(server.url, PENDULUM, folder=folder, act=act, act_timeout_s=10.0) as connection:
        with connection.episode() as episode:
            for _ in range(3):
                episode.record(view, episode.act(view))
            if end:
                episode.end(view, terminated=False)
        assert connection.flush(30)
    return episode.id


@pytest.mark.parametrize("end", [True, False])
def test_client_and_gateway_record_the_same_of_a_random_action_and_of_an_episode_that_is_left(server, tmp_path, end):
    view = np.array([1.0, 0.0, 0.5], np.float32)
    episodes = [
        by_socket(server, view, end),
        by_client(server, view, end, tmp_path / "local", "local"),
        by_client(server, view, end, tmp_path / "server", "server"),
    ]
    deadline = time.monotonic() + 30
    while not all(found := [kept(server, episode) for episode in episodes]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for (chunk,) in found:
        head = chunk.header
        assert (head.actor, head.ending, head.steps) == (RANDOM_ACTOR, "truncated", 3 if end else 2)
        np.testing.assert_allclose(chunk.columns["behaviour_logp"], [-np.log(4.0)] * head.steps, rtol=1e-6)
        assert chunk.columns.keys() == found[0][0].columns.keys()
        np.testing.assert_array_equal(chunk.columns["final_observation/state"], view)
