"""The play socket: conversations, what is recorded of them, and what breaks them."""

import time

import msgspec
import numpy as np
import pytest
from talking import stored
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from serving import decode_answer
from sparring.errors import ChunkRefused
from sparring.games.catalogue import open_game, spec_of
from sparring.gateway.play import OpenSeat
from sparring.nets.chooser import RANDOM_ACTOR, Decision
from sparring.wire.ids import new_episode
from sparring.wire.messages import (
    Action,
    End,
    Ended,
    Hello,
    Observe,
    Problem,
    Start,
    encode,
)


@pytest.fixture(params=["text", "binary"])
def talk(request, server):
    """A socket that has said hello; say(message) gives the answer."""
    with socket_to(server) as socket:
        say = speaker(socket, text=request.param == "text")
        assert say(Hello(1, "1")) == Hello(1, "1")
        yield say


def socket_to(server, game="cartpole", **options):
    return connect(f"ws://127.0.0.1:{server.port}/v1/games/{game}/play", max_size=None, **options)


def speaker(socket, text=True):
    def say(message, answered=True):
        socket.send(message if isinstance(message, str | bytes) else encode(message, text=text))
        return decode_answer(socket.recv(timeout=30)) if answered else None

    return say


def play(say, episode, steps=None, seed=3):
    """Play CartPole with the gateway's actions; the views and actions, and the answer to the end."""
    game = open_game("cartpole")
    view = game.reset(np.array([seed], np.uint64), np.ones(1, bool))
    say(Start(episode, seed=seed), answered=False)
    states, actions, reward = [], [], 0.0
    while not view.over[0] and (steps is None or len(actions) < steps):
        state = view.observation[0]["observation/state"][0]
        answer = say(Observe(episode, 0, {"state": state.tolist()}, int(view.tick[0]), reward))
        assert isinstance(answer, Action), answer
        states.append(state)
        actions.append(answer.action)
        view = game.step([np.array([answer.action], np.int32)])
        reward = float(view.reward[0, 0])
    if steps is not None:
        return states, actions, None
    final = view.observation[0]["observation/state"][0]
    return states, actions, say(End(episode, 0, {"state": final.tolist()}, reward, True, float(len(actions))))


def kept(server, episode):
    return [chunk for chunk in stored(server.data) if chunk.header.episode == episode]


def test_an_episode_is_played_and_recorded_step_by_step(talk, server):
    episode = new_episode()
    states, actions, ended = play(talk, episode)
    assert ended == Ended(episode, 0, "new")
    (chunk,) = kept(server, episode)
    assert chunk.header.actor == "script:random"
    assert chunk.header.ending == "terminated"
    assert chunk.header.seed == 3
    np.testing.assert_array_equal(chunk.columns["observation/state"], np.stack(states))
    assert chunk.columns["action"].tolist() == actions
    assert chunk.columns["reward"].tolist() == [1.0] * len(actions)
    assert chunk.columns["behaviour_logp"] == pytest.approx(np.log(0.5))


def test_many_episodes_run_on_one_socket(server):
    with socket_to(server) as socket:
        say = speaker(socket)
        say(Hello(1))
        episodes = [new_episode() for _ in range(5)]
        for episode in episodes:
            say(Start(episode, player="alice"), answered=False)
        for tick in range(3):
            for episode in episodes:
                answer = say(Observe(episode, 0, {"state": [0, 0, 0, tick / 10]}, tick, float(tick > 0)))
                assert answer.episode == episode
        for episode in episodes:
            assert say(End(episode, 0, {"state": [0, 0, 0, 0]}, 1.0)) == Ended(episode, 0, "new")
        assert all(len(chunk.header.player) == 32 for episode in episodes for chunk in kept(server, episode))


def test_what_is_not_to_be_recorded_is_not(talk, server):
    episode = new_episode()
    talk(Start(episode, record=False), answered=False)
    talk(Observe(episode, 0, {"state": [0, 0, 0, 0]}, 0))
    assert talk(End(episode, 0, {"state": [0, 0, 0, 0]}, 1.0)) == Ended(episode, 0, "")
    assert kept(server, episode) == []


def test_a_long_episode_is_cut_into_chunks_without_a_gap():
    spec = msgspec.structs.replace(spec_of("cartpole"), max_ticks=2_000)
    seat = OpenSeat(spec, Start(new_episode()), 1.0, recorded=True)
    chunks, view = [], {"observation/state": np.zeros(4, np.float32)}
    for tick in range(1_300):
        actor = RANDOM_ACTOR if tick < 600 else "model:" + "a" * 64  # a change of actor starts a new chunk
        chunks += seat.decided(view, None, float(tick > 0), tick, Decision(0, actor, -0.5))
    chunks += seat.end(view, End("", 0, {}, 1.0, outcome=25.0))
    assert [(chunk.header.first_step, chunk.header.steps) for chunk in chunks] == [
        (0, 512),
        (512, 88),
        (600, 512),
        (1112, 188),
    ]
    assert [chunk.header.ending for chunk in chunks] == ["running"] * 3 + ["terminated"]
    assert all(chunk.columns["reward"].tolist() == [1.0] * chunk.header.steps for chunk in chunks)


def test_a_refused_end_that_is_sent_again_earns_once():
    seat = OpenSeat(spec_of("cartpole"), Start(new_episode()), 1.0, recorded=True)
    view = {"observation/state": np.zeros(4, np.float32)}
    seat.decided(view, None, 0.0, 0, Decision(0, RANDOM_ACTOR, -0.5))
    with pytest.raises(ChunkRefused):
        seat.end(view, End("", 0, {}, 1.0, outcome=float("inf")))
    (chunk,) = seat.end(view, End("", 0, {}, 1.0, outcome=1.0))
    assert chunk.columns["reward"].tolist() == [1.0]


def test_closing_the_socket_without_an_end_truncates_the_episode(server):
    """As where a client leaves an episode: the last decision falls away, and what it saw is the final observation."""
    episode = new_episode()
    with socket_to(server) as socket:
        say = speaker(socket)
        say(Hello(1))
        say(Start(episode), answered=False)
        for tick in range(4):
            say(Observe(episode, 0, {"state": [0, 0, 0, tick / 10]}, tick, float(tick > 0)))
    deadline = time.monotonic() + 30
    while not (found := kept(server, episode)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (chunk,) = found
    assert (chunk.header.steps, chunk.header.ending) == (3, "truncated")
    assert chunk.columns["reward"].tolist() == [1.0] * 3
    np.testing.assert_allclose(chunk.columns["final_observation/state"], [0, 0, 0, 0.3], atol=1e-6)


EPISODE = new_episode()


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        (Observe(EPISODE, 0, {"state": [0, 0, 0, 0]}, 0), "chunk", "episode"),
        (Start(EPISODE, seat=4), "chunk", "seat"),
        (Start("not-a-uuid"), "chunk", "episode"),
        (Start(EPISODE, strength=3.0), "chunk", "strength"),
        (End(EPISODE, 0, {"state": [0, 0, 0, 0]}), "chunk", "episode"),
    ],
)
def test_a_wrong_message_is_answered_and_the_socket_stays_open(talk, message, code, field):
    answer = talk(message)
    assert isinstance(answer, Problem)
    assert (answer.code, answer.field) == (code, field)
    episode = new_episode()
    talk(Start(episode), answered=False)
    assert talk(Observe(episode, 0, {"state": [0, 0, 0]}, 0)).field == "observation/state"
    assert talk(Observe(episode, 0, {"state": [0, 0, 0, 0]}, 0, 1.0)).field == "reward"
    assert isinstance(talk(Observe(episode, 0, {"state": [0, 0, 0, 0]}, 0)), Action)
    assert talk(Observe(episode, 0, {"state": [0, 0, 0, 0]}, 0)).field == "tick"
    assert talk(Start(episode)).message.startswith("the seat is open already")


@pytest.mark.parametrize(
    "frames",
    [
        [Start(EPISODE)],
        [Hello(2)],
        ["hello"],
        ["[" * 100_000],
        [b"\xc1\xff"],
        [b""],
        [Hello(1), '{"type":"start","episode":"x","is_admin":true}'],
        [Hello(1), '{"type":"promote"}'],
    ],
    ids=range(8),
)
def test_a_broken_protocol_is_said_and_closed(server, frames):
    with socket_to(server) as socket:
        say = speaker(socket)
        answers = [say(frame) for frame in frames]
        assert isinstance(answers[-1], Problem)
        assert answers[-1].code in ("protocol", "wire")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=30)


def _ask(socket, frame):
    """The answer; the socket may be closed while the frame is still being sent."""
    socket.send(frame)
    return socket.recv(timeout=30)


def test_a_frame_above_the_limit_closes_the_socket(server, http):
    for _ in range(5):  # a reset of what was still being sent may overtake the word of why
        with socket_to(server) as socket, pytest.raises(ConnectionClosed) as closed:
            _ask(socket, "x" * (2 << 20))
        if closed.value.rcvd is not None:
            break
    assert closed.value.rcvd.code == 1009
    assert http.get("/healthz").status_code == 200


def test_another_sites_page_and_an_unknown_game_get_no_socket(server):
    with pytest.raises(InvalidStatus) as refused, socket_to(server, origin="http://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused, socket_to(server, game="chess"):
        pass
    assert refused.value.response.status_code == 404
    assert msgspec.json.decode(refused.value.response.body)["error"]["code"] == "missing"


def test_raw_buffers_are_taken_in_binary_frames(server):
    with socket_to(server) as socket:
        say = speaker(socket, text=False)
        say(Hello(1))
        episode = new_episode()
        say(Start(episode), answered=False)
        assert isinstance(say(Observe(episode, 0, {"state": np.zeros(4, "<f4").tobytes()}, 0)), Action)
        assert isinstance(say(Observe(episode, 0, {"state": b"123"}, 1)), Problem)
