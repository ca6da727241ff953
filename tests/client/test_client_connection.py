"""A connection against a peer that is told what to answer: retries, refusals, sampling, clocks, threads."""

import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sparring.client.settings import Settings, SettingsKeys
from sparring.errors import ChunkRefused, ConfigError, Missing, Refused, Unreachable
from sparring.games.catalogue import spec_of
from sparring.wire.ids import new_episode, opened_at_ms

STATE = np.array([0.01, 0, 0.02, 0], np.float32)
NOBODY = "http://127.0.0.1:9"


def play(connection, steps=5, **how):
    with connection.episode(**how) as episode:
        for _ in range(steps):
            episode.record(STATE, 0, 1.0)
        episode.end(STATE)
    return episode.id


def until(condition, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def said(results):
    return lambda chunks: (422, {}, {"error": {"code": "chunk", "message": "bad"}, "results": results})


def test_what_is_recorded_arrives_once_with_everything_that_was_said_of_it(peer, connect):
    connection = connect(peer.url, player="alice", token="secret")
    episode = play(connection, seed=7, actor="script:demo", source="collect")
    assert connection.flush(30)
    (chunk,) = peer.kept.values()
    head = chunk.header
    assert (head.episode, head.player, head.seed, head.actor, head.source) == (
        episode,
        "alice",
        7,
        "script:demo",
        "collect",
    )
    assert peer.seen == ["Bearer secret"]
    statistics = connection.statistics()
    assert (statistics.episodes, statistics.steps, statistics.chunks, statistics.acknowledged_chunks) == (1, 5, 1, 1)
    assert statistics.waiting_chunks == 0


def test_failures_of_every_kind_are_tried_again_until_each_chunk_is_kept_once(peer, connect, caplog):
    caplog.set_level(logging.INFO, "sparring.client")
    connection = connect(peer.url)
    peer.answers = [(503, {}, {}), (500, {}, b"<html>"), (200, {}, b"not json"), (429, {"Retry-After": "0"}, {})]

    def answered_but_lost(chunks):
        peer.verdicts(chunks)
        return 502, {}, b""

    peer.answers.append(answered_but_lost)
    for _ in range(20):
        play(connection)
    assert connection.flush(30)
    statistics = connection.statistics()
    assert len(peer.kept) == 20
    assert statistics.acknowledged_chunks == 20
    assert statistics.had_chunks > 0
    assert statistics.failed_tries == 5
    until = time.monotonic() + 60
    while (
        "the gateway answers again" not in caplog.text and time.monotonic() < until
    ):  # said after the last chunk settled
        time.sleep(0.01)
    assert "the gateway answers again" in caplog.text


def test_retry_after_is_waited_for(peer, connect):
    connection = connect(peer.url)
    peer.answers = [(503, {"Retry-After": "0.5"}, {})]
    play(connection)
    until(lambda: len(peer.uploads) == 2)
    assert peer.uploads[1][0] - peer.uploads[0][0] >= 0.5


def test_a_mixed_answer_settles_each_chunk_by_its_own_verdict(peer, connect, tmp_path, caplog):
    connection = connect(peer.url)
    peer.answers = [(503, {"Retry-After": "0.3"}, {})]  # so that all three are sent together
    episodes = [play(connection) for _ in range(3)]

    def mixed(chunks):
        assert [chunk.header.episode for chunk in chunks] == sorted(episodes)
        peer.verdicts([chunks[0]])
        results = [
            {"verdict": "new"},
            {"verdict": "refused", "reason": "the action is wrong", "field": "action", "value": 9, "limit": 1},
            {"verdict": "quota", "reason": "later"},
        ]
        return 422, {}, {"error": {"code": "chunk", "message": "the action is wrong"}, "results": results}

    peer.answers.append(mixed)
    assert connection.flush(30)
    statistics = connection.statistics()
    assert (statistics.new_chunks, statistics.refused_chunks) == (2, 1)
    (reason,) = tmp_path.rglob("*.reason.txt")
    assert "the action is wrong" in reason.read_text()
    assert "the action is wrong" in caplog.text


def test_an_upload_refused_as_a_whole_is_halved_until_the_chunk_at_fault_stands_alone(peer, connect):
    connection = connect(peer.url)
    peer.answers = [(503, {"Retry-After": "0.3"}, {})]
    episodes = sorted(play(connection) for _ in range(7))

    def no_fifth(chunks):
        if any(chunk.header.episode == episodes[4] for chunk in chunks):
            return 400, {}, {"error": {"code": "wire", "message": "it does not decode"}}
        return None

    peer.always = no_fifth
    assert connection.flush(30)
    assert sorted(key.episode for key in peer.kept) == [*episodes[:4], *episodes[5:]]
    assert connection.statistics().refused_chunks == 1


def test_a_wrong_token_keeps_spooling_and_says_so_until_it_is_renewed(peer, connect, caplog):
    connection = connect(peer.url, token="old")
    peer.always = (401, {}, {"error": {"code": "unauthorized", "message": "no valid key"}})
    play(connection)
    assert not connection.flush(0.3)
    assert connection.statistics().waiting_chunks == 1
    assert "no valid key; what is recorded stays in the spool" in caplog.text
    assert "old" not in caplog.text.replace("spooled", "")
    peer.always = None
    connection.renew("new")
    assert connection.flush(30)
    assert peer.seen[-1] == "Bearer new"


def test_an_erased_player_is_forgotten_here_too(peer, connect, tmp_path):
    connection = connect(peer.url, player="bob")
    peer.always = said([{"verdict": "gone", "reason": "the player was erased"}])
    play(connection)
    until(lambda: connection.statistics().erased_chunks == 1)
    assert not list(tmp_path.rglob("*.chunks"))
    play(connection)
    assert connection.flush(30)
    statistics = connection.statistics()
    assert (statistics.episodes_not_asked, statistics.waiting_chunks) == (1, 0)


def test_an_episode_erased_with_another_player_is_dropped_and_recording_goes_on(peer, connect, tmp_path):
    connection = connect(peer.url, player="bob")
    peer.answers = [said([{"verdict": "gone", "reason": "a player of this episode was erased", "field": "episode"}])]
    play(connection)
    until(lambda: connection.statistics().erased_chunks == 1)
    play(connection)
    assert connection.flush(30)
    assert not list(tmp_path.rglob("*.chunks"))
    assert (connection.statistics().new_chunks, len(peer.kept)) == (1, 1)


def test_the_sample_rate_is_fixed_when_an_episode_is_opened_and_the_same_for_its_seats(peer, connect):
    connection = connect(peer.url, game="connect-four")
    board = np.zeros((2, 6, 7), np.uint8)
    peer.sample_rate = 0.25
    early = connection.episode(0)
    with connection.episode() as episode:
        episode.record(board, 3)
        episode.end(board)
    assert connection.flush(30)
    assert connection.sample_rate == 0.25
    late = connection.episode(1, episode=early.id)
    assert early.sample_rate == late.sample_rate == 1.0
    opened = [connection.episode() for _ in range(400)]
    asked = sum(episode.recorded for episode in opened)
    assert 60 <= asked <= 140
    for episode in opened:
        other = connection.episode(1, episode=episode.id)
        assert other.recorded == episode.recorded
        episode.record(board, 3)
        episode.end(board)
    assert connection.flush(30)
    assert len(peer.kept) == asked + 1
    assert {chunk.header.sample_rate for chunk in peer.kept.values()} == {1.0, 0.25}


def test_episodes_are_named_by_the_gateways_clock(peer, connect):
    connection = connect(peer.url)
    peer.ahead_ms = 86_400_000
    play(connection)
    assert connection.flush(30)
    ahead_ms = opened_at_ms(connection.episode().id) - time.time() * 1000
    assert abs(ahead_ms - 86_400_000) < 5_000


def test_a_long_episode_arrives_while_it_is_played(peer, connect):
    connection = connect(peer.url, flush_every_s=0.1)
    with connection.episode() as episode:
        for step in range(10):
            episode.record(STATE, 0, 1.0, tick=step)
        until(lambda: sum(chunk.header.steps for chunk in peer.kept.values()) == 8)
        episode.end(STATE)
    assert connection.flush(30)
    assert [chunk.header.ending for chunk in peer.kept.values()] == ["running", "terminated"]


def test_actions_that_act_chose_are_the_models_and_others_the_persons(peer, connect, caplog):
    connection = connect(peer.url, seed=1)
    with connection.episode() as episode:
        action = episode.act(STATE, legal=[0, 1])
        assert action == 1
        episode.record(STATE, action, 1.0)
        with pytest.raises(ChunkRefused, match="nothing is legal"):
            episode.act(STATE, legal=[0, 0])
        chosen = episode.act(STATE)
        episode.record(STATE, 1 - chosen, 1.0)
        episode.record(STATE, chosen, 1.0)
        episode.end(STATE)
    assert connection.flush(30)
    chunks = sorted(peer.kept.values(), key=lambda chunk: chunk.header.first_step)
    assert [(chunk.header.actor, chunk.header.steps) for chunk in chunks] == [("script:random", 1), ("person", 2)]
    assert chunks[0].columns["legal"].tolist() == [[0, 1]]
    assert chunks[0].columns["behaviour_logp"].tolist() == [0.0]
    told = [line for line in caplog.text.splitlines() if "takes a random legal action" in line]
    assert 1 <= len(told) == len(set(told))  # not fetched yet, or there is none: each is told once


def test_an_episode_that_has_ended_takes_nothing_more(peer, connect):
    connection = connect(peer.url)
    episode = connection.episode()
    episode.record(STATE, 0, 1.0)
    episode.end(STATE)
    for call in (lambda: episode.record(STATE, 0, 1.0), lambda: episode.earn(0.0), lambda: episode.end(STATE)):
        with pytest.raises(Refused, match="the episode has ended"):
            call()
    connection.close()
    with pytest.raises(Refused, match="the connection is closed"):
        connection.episode()


def test_wrong_names_are_refused_when_an_episode_is_opened(peer, connect):
    connection = connect(peer.url)
    for wrong in ({"actor": "me"}, {"episode": "x"}, {"seat": 1}, {"seat": -1}):
        with pytest.raises(ChunkRefused):
            connection.episode(**wrong)
    assert connection.episode(episode=new_episode()).recorded


def test_a_spool_that_is_full_keeps_the_newest_whole_episodes(peer, connect):
    connection = connect(NOBODY, spool_bytes=20_000)
    rng = np.random.default_rng(0)
    for _ in range(30):
        with connection.episode() as episode:
            for _ in range(100):
                episode.record(rng.random(4, np.float32), 0, 1.0)
            episode.end(STATE)
    connection.flush(0.1)
    statistics = connection.statistics()
    assert statistics.waiting_bytes <= 20_000
    assert statistics.dropped_episodes + statistics.waiting_chunks == 30
    assert "dropped episode" not in statistics.last_problem or statistics.dropped_episodes


def test_a_background_that_cannot_keep_up_costs_steps_and_never_the_games_time(peer, connect):
    connection = connect(NOBODY, memory_bytes=45_000)
    episodes = [connection.episode() for _ in range(10)]
    for episode in episodes:
        for _ in range(10):
            episode.record(STATE, 0, 1.0)
    assert sum(episode.recorded for episode in episodes) == 2
    for episode in episodes:
        episode.end(STATE)
    connection.flush(0.1)
    statistics = connection.statistics()
    assert (statistics.steps, statistics.dropped_steps) == (20, 80)
    assert statistics.dropped_episodes == 8
    assert statistics.memory_bytes == 0
    play(connection)
    connection.flush(0.1)
    assert connection.statistics().steps == 25


def test_episodes_may_be_recorded_from_several_threads(peer, connect):
    connection = connect(peer.url, flush_every_s=0.02)

    def many():
        for _ in range(20):
            play(connection, steps=50)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connection.flush(30)
    assert len({key.episode for key in peer.kept}) == 80
    assert sum(chunk.header.steps for chunk in peer.kept.values()) == 80 * 50


def test_close_truncates_what_is_open_and_leaves_the_unsent_for_the_next_start(peer, connect):
    first = connect(NOBODY, close_timeout_s=0.1)
    episode = first.episode()
    for _ in range(3):
        episode.record(STATE, 0, 1.0)
    first.close()
    assert first.statistics().waiting_chunks == 1
    # The spool belongs to the gateway's address, so the next start must name the same.
    second = connect(NOBODY)
    assert second.statistics().waiting_chunks == 1


def test_another_player_never_sends_what_the_first_one_left(connect):
    connect(NOBODY, player="alice", close_timeout_s=0.1)
    first = connect(NOBODY, player="alice", close_timeout_s=0.1)
    play(first)
    first.close()
    assert connect(NOBODY, player="bob").statistics().waiting_chunks == 0
    assert connect(NOBODY, player="alice").statistics().waiting_chunks == 1


def test_the_gateway_may_be_asked_for_every_action_and_chance_steps_in_when_it_is_silent(peer, connect, caplog):
    connection = connect(NOBODY, act="server")
    with connection.episode() as episode:
        for _ in range(20):
            assert episode.act(STATE, legal=[1, 0]) == 0
    statistics = connection.statistics()
    assert statistics.act_fallbacks == 20
    assert caplog.text.count("takes a random legal action") == 1


def test_a_spec_that_is_not_built_in_comes_from_the_gateway_and_then_from_disk(peer, connect):
    import msgspec

    spec = msgspec.structs.replace(spec_of("cartpole"), id="mygame")
    with pytest.raises(Missing):
        connect(peer.url, game="mygame")
    peer.files["/v1/games/mygame"] = b'{"spec": %s}' % msgspec.json.encode(spec)
    first = connect(peer.url, game="mygame")
    assert first.spec == spec
    url = peer.url
    peer.files.clear()
    peer.close()
    assert connect(url, game="mygame").spec == spec
    with pytest.raises(Unreachable):
        connect(url, game="othergame")
    peer.__init__()  # the fixture closes it once more


def test_settings_are_checked_and_unknown_ones_named():
    import sparring

    assert set(SettingsKeys.__annotations__) == set(Settings.__dataclass_fields__)
    with pytest.raises(ConfigError) as caught:
        sparring.connect(NOBODY, "cartpole", polleverys=3)
    assert str(caught.value) == "sparring.connect: unknown argument 'polleverys'. Did you mean 'poll_every_s'?"
    for wrong in (
        {"act": "x"},
        {"strength": 2.0},
        {"strength": "0.5"},
        {"strength": float("nan")},
        {"style": 3},
        {"trust": "x"},
        {"trust": "ed25519:A@x"},
        {"spool_bytes": 0},
        {"timeout_s": -1.0},
        {"timeout_s": "1"},
    ):
        with pytest.raises(ConfigError):
            sparring.connect(NOBODY, "cartpole", **wrong)
    with pytest.raises(ConfigError, match="Begin it with https"):
        sparring.connect("127.0.0.1:1", "cartpole")


def test_the_client_needs_neither_torch_nor_a_server_and_importing_the_package_nothing():
    code = (
        "import sys, sparring; assert 'numpy' not in sys.modules and 'httpx' not in sys.modules\n"
        "import tempfile; folder = tempfile.mkdtemp()\n"
        "with sparring.connect('http://127.0.0.1:9', 'cartpole', folder=folder, close_timeout_s=0.1) as game:\n"
        "    with game.episode() as episode:\n"
        "        episode.record([0, 0, 0, 0], episode.act([0, 0, 0, 0]), 1.0)\n"
        "heavy = {'torch', 'starlette', 'uvicorn', 'granian', 'onnx', 'safetensors', 'gymnasium'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
