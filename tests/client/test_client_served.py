"""The client against a real `spar serve`: everything that was spooled is stored, once, and is true."""

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import sparring
from chaos import Chaos
from serving import serving, start
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.client.spool import find_records, read_record
from sparring.errors import ChunkRefused
from sparring.games.catalogue import open_game, spec_of
from sparring.games.resimulation import resimulate
from sparring.gateway.credentials import ApiKeys
from sparring.registry.file import Folder
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.chunk import decode

STATE = np.array([0.01, 0, 0.02, 0], np.float32)
GAME_FILE = Path(__file__).parent / "game.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


def stored(data, game="cartpole", **query):
    """Episode → its chunks, read from the store itself; no key may occur twice."""
    episodes = defaultdict(list)
    with open_store(f"sqlite:///{data / 'experience.db'}") as store:
        for chunk in store.read(Query(game=game, **query)):
            assert chunk.key not in {other.key for other in episodes[chunk.header.episode]}
            episodes[chunk.header.episode].append(chunk)
    return episodes


def assert_true(episodes, game="cartpole"):
    """Every stored transition is what the game itself does; how many steps that were."""
    steps = 0
    for chunks in episodes.values():
        run = resimulate(chunks, open_game(game))
        assert run.mismatches == ()
        steps += run.steps
    assert steps == sum(chunk.header.steps for chunks in episodes.values() for chunk in chunks)
    return steps


def collect(server, tmp_path, *words):
    command = [sys.executable, "-m", "sparring", "collect", *words, "--to", server.url, "--json"]
    ended = subprocess.run(
        [*command, "--folder", str(tmp_path / "clients")], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
def test_eight_clients_collect_two_hundred_episodes_and_nothing_is_lost_or_twice(server, tmp_path):
    before = stored(server.data)
    result = collect(server, tmp_path, "cartpole", "--clients", "8", "--episodes", "200", "--skills", "random,script")
    episodes = {name: chunks for name, chunks in stored(server.data).items() if name not in before}
    assert len(episodes) == result["episodes"] == 200
    assert assert_true(episodes) == result["steps"]
    chunks = [chunk for chunks in episodes.values() for chunk in chunks]
    assert len(chunks) == result["acknowledged_chunks"]
    assert {chunk.header.source for chunk in chunks} == {"collect"}
    assert {chunk.header.actor for chunk in chunks} == {"script:random", "script:balance"}
    assert len({chunk.header.player for chunk in chunks}) == 8
    assert len({chunk.header.seed for chunk in chunks}) == 200
    assert all(any(chunk.header.ending != "running" for chunk in chunks) for chunks in episodes.values())


def test_collecting_for_nobody_says_so_at_once(tmp_path):
    command = [sys.executable, "-m", "sparring", "collect", "cartpole", "--to", "http://127.0.0.1:9"]
    ended = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == ("spar: http://127.0.0.1:9: no answer (ConnectError). Check that `spar serve` runs there.\n")


def test_both_seats_of_connect_four_are_stored_and_the_losers_last_step_carries_minus_one(server, tmp_path):
    words = ("connect-four", "--clients", "4", "--episodes", "40", "--skills", "script,random", "--processes", "2")
    result = collect(server, tmp_path, *words)
    episodes = stored(server.data, "connect-four")
    assert len(episodes) == result["episodes"] == 40
    assert assert_true(episodes, "connect-four") == result["steps"]
    decided = 0
    for chunks in episodes.values():
        ends = {chunk.header.seat: chunk for chunk in chunks if chunk.header.ending == "terminated"}
        assert ends.keys() == {0, 1}
        for seat, chunk in ends.items():
            rewards = chunk.columns["reward"]
            assert rewards[-1] == chunk.header.outcome == -ends[1 - seat].header.outcome
            assert not rewards[:-1].any()
            decided += chunk.header.outcome == -1
    assert decided > 20


@pytest.mark.slow
def test_no_list_of_processes_shows_the_token(tmp_path):
    token = ApiKeys(Folder(tmp_path / "data", 0o600)).create("one", ("record", "read"), 1_790_000_000_000)[1]
    with serving(tmp_path / "data") as server:
        command = [sys.executable, "-m", "sparring", "collect", "cartpole", "--to", server.url, "--json"]
        command += ["--clients", "2", "--episodes", "4", "--skills", "random", "--processes", "2"]
        around = {**ENVIRONMENT, "SPARRING_TOKEN": token}
        with subprocess.Popen(command, cwd=tmp_path, env=around, stdout=subprocess.PIPE, text=True) as parent:
            shown = set()
            while parent.poll() is None:
                for child in psutil.Process(parent.pid).children():
                    with suppress(psutil.Error):
                        shown.add((child.pid, " ".join(child.cmdline())))
                time.sleep(0.01)
            assert json.loads(parent.stdout.read().splitlines()[-1])["episodes"] == 4
    assert len({pid for pid, line in shown if "collect cartpole" in line and "--first" in line}) == 2
    assert not any(token in line for _, line in shown)


def test_what_was_recorded_while_the_gateway_was_down_arrives_when_it_is_back(tmp_path, connect):
    server = start(tmp_path / "data")
    connection = connect(server.url, flush_every_s=0.05)
    player, game = MockPlayer(connection, script_of("random", connection.spec)), open_game("cartpole")
    steps = sum(play(game, [player], number, 5) for number in range(10))
    assert connection.flush(30)
    server.kill()
    stop_quietly(server)
    steps += sum(play(game, [player], number, 5) for number in range(10, 40))
    assert not connection.flush(0.5)
    assert connection.statistics().waiting_chunks >= 30
    with serving(tmp_path / "data", port=server.port):
        assert connection.flush(60)
        episodes = stored(tmp_path / "data")
    assert len(episodes) == 40
    assert assert_true(episodes) == steps
    statistics = connection.statistics()
    assert statistics.failed_tries > 0
    assert statistics.refused_chunks == statistics.dropped_chunks == 0


def stop_quietly(server):
    if server.process.stdout is not None:
        server.process.stdout.close()


@pytest.mark.slow
def test_a_game_killed_at_random_instants_loses_nothing_that_was_spooled(server, tmp_path):
    """5 kills -9 at random instants; then one whole run. Spooled = counted by the game, or whole in its files."""
    rng, said, kills = random.Random(3), 0, 5
    before = stored(server.data)
    folder = tmp_path / "game"
    on_disk = set()
    for kill in range(kills):
        command = [sys.executable, str(GAME_FILE), server.url, str(folder), str(kill * 100_000), "100000"]
        with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as game:
            lines = [game.stdout.readline()]  # it plays from here on
            time.sleep(rng.uniform(0.0, 0.4))
            game.kill()
            lines += game.stdout.read().splitlines()
        said += int(lines[-1])
        for path in folder.rglob("*.chunks"):
            data = path.read_bytes()
            for offset, size, _ in find_records(data):
                on_disk.add(decode(read_record(data[offset : offset + size])).key)
    last = subprocess.run(
        [sys.executable, str(GAME_FILE), server.url, str(folder), "9000000", "3"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert last.stdout.splitlines()[-1] == "arrived"
    episodes = {name: chunks for name, chunks in stored(server.data).items() if name not in before}
    arrived = {chunk.key for chunks in episodes.values() for chunk in chunks}
    assert len(arrived) >= said
    assert on_disk <= arrived
    assert not list(folder.rglob("*.chunks"))
    for chunks in episodes.values():
        firsts = sorted((chunk.header.first_step, chunk.header.steps) for chunk in chunks)
        assert [first for first, _ in firsts] == [0, *np.cumsum([steps for _, steps in firsts])[:-1].tolist()]
    assert_true(episodes)


@pytest.mark.slow
def test_through_a_network_that_drops_cuts_and_dribbles_everything_arrives_once(server, tmp_path, connect):
    host, port = "127.0.0.1", server.port
    before = stored(server.data)
    chaos = Chaos((host, port), seed=5)
    try:
        connection = connect(chaos.url, flush_every_s=0.02, timeout_s=0.5, retry_most_s=0.05, poll_every_s=3600.0)
        player, game = MockPlayer(connection, script_of("random", connection.spec)), open_game("cartpole")
        steps, number, deadline_s = 0, 0, time.monotonic() + 120
        statistics = connection.statistics()
        while sum(chaos.faults.values()) < 40 or statistics.failed_tries < 10 or not statistics.had_chunks:
            assert time.monotonic() < deadline_s, statistics
            steps += play(game, [player], number, 77)
            number += 1
            chaos.cut()  # keep-alive would otherwise live on one lucky connection
            time.sleep(0.02)
            statistics = connection.statistics()
        chaos.healed()
        assert connection.flush(60)
        statistics = connection.statistics()
    finally:
        connection.close()
        chaos.close()
    episodes = {name: chunks for name, chunks in stored(server.data).items() if name not in before}
    assert len(episodes) == number
    assert assert_true(episodes) == steps
    assert statistics.refused_chunks == statistics.dropped_chunks == 0


def test_a_chunk_of_another_spec_is_refused_by_the_gateway_and_set_aside_with_the_reason(server, connect, tmp_path):
    import msgspec

    other = msgspec.structs.replace(spec_of("cartpole"), max_ticks=400)
    connection = connect(server.url, spec=other)
    with connection.episode() as episode:
        episode.record(STATE, 0, 1.0)
        episode.end(STATE)
    assert connection.flush(30)
    assert connection.statistics().refused_chunks == 1
    (reason,) = (tmp_path / "client").rglob("*.reason.txt")
    assert "it follows another spec" in reason.read_text()


def test_the_gateway_acts_for_a_game_that_asks_it(server, connect):
    connection = connect(server.url, act="server", act_timeout_s=60.0)
    with connection.episode() as episode:
        assert episode.act(STATE) in (0, 1)
        assert episode.act(STATE, legal=[0, 1]) == 1
    with pytest.raises(ChunkRefused):
        connection.episode().act([0, 0])


def test_the_example_with_curl_in_the_docs_is_taken(server):
    import re

    import httpx

    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
    (body,) = re.findall(r"chunks -H 'Content-Type: application/json' -d '(.*?)'", page, re.S)
    body = body.replace("HASH", spec_of("cartpole").hash)
    headers = {"Content-Type": "application/json"}
    for verdict in ("new", "had"):
        answer = httpx.post(f"{server.url}/v1/games/cartpole/chunks", content=body, headers=headers)
        assert answer.json()["results"] == [{"verdict": verdict}]


def test_the_three_lines_of_the_docs_record_an_episode(server, tmp_path):
    before = stored(server.data)
    with (
        sparring.connect(server.url, game="cartpole", player="alice", folder=tmp_path) as game,
        game.episode() as episode,
    ):
        episode.record(STATE, 1, 1.0)
        episode.end(STATE, terminated=True)
    fresh = [chunks for name, chunks in stored(server.data).items() if name not in before]
    assert len(fresh) == 1
    assert fresh[0][0].header.player not in (None, "alice")
