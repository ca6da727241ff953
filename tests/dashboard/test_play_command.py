"""`spar play`: Connect Four in a terminal, recorded with a server and without one."""

import json
import subprocess
import sys

import pytest
from published import publish

from sparring.games.catalogue import open_game
from sparring.games.chunk_checks import check_chunk
from sparring.games.resimulation import resimulate
from sparring.store import open_store
from sparring.store.protocol import Query

COLUMNS = "4\n4\n4\n4\n3\n3\n3\n3\n5\n5\n5\n2\n2\n2\n2\n6\n6\n6\n1\n1\n1\n7\n7\n7\n" * 3


def play(data, *words, moves=COLUMNS):
    command = [sys.executable, "-m", "sparring", "play", *words, "--data", str(data), "--json"]
    done = subprocess.run(command, input=moves, capture_output=True, text=True, check=False)
    return done, json.loads(done.stdout.splitlines()[-1])


def kept(data):
    with open_store(f"sqlite:///{data}/experience.db") as store:
        (episode,) = store.episodes(Query("connect-four"))
        return episode, list(store.read(Query("connect-four")))


@pytest.mark.parametrize("seat", [0, 1])
def test_a_game_against_the_champion_needs_no_server(tmp_path, seat):
    model = publish(tmp_path, "connect-four", 5)
    done, said = play(tmp_path, "connect-four", "--seat", str(seat), "--strength", "0.5")
    assert done.returncode == 0, done.stderr
    assert said["opponent"] == f"model:{model}"
    assert said["result"] in ("won", "lost", "drawn")
    assert "╰───┴───┴───┴───┴───┴───┴───╯" in done.stderr
    episode, chunks = kept(tmp_path)
    assert episode.complete
    assert said["recorded"] == sum(one.steps for one in episode.seats)
    assert episode.seats[seat].actor == "person"
    game = open_game("connect-four")
    for chunk in chunks:
        check_chunk(chunk, game.spec)
    assert resimulate(chunks, game).mismatches == ()


def test_leaving_in_the_middle_is_recorded_as_cut_short(tmp_path):
    done, said = play(tmp_path, "connect-four", "--model", "script:tactical", moves="4\nx\n9\nq\n")
    assert (said["result"], said["recorded"]) == ("left", 2)
    assert "'x' is no column" in done.stderr
    episode, _ = kept(tmp_path)
    assert {seat.ending for seat in episode.seats} == {"truncated"}


def test_through_a_gateway_it_is_recorded_there(server, tmp_path):
    _, said = play(tmp_path, "connect-four", "--to", server.url)
    assert said["opponent"] == "script:random"
    episode, _ = kept(server.data)
    assert (sum(one.steps for one in episode.seats), episode.source) == (said["recorded"], "play")
    assert {one.actor for one in episode.seats} == {"person", "script:random"}


def test_other_games_are_played_in_the_browser(tmp_path):
    _, said = play(tmp_path, "duel")
    assert said == {"game": "duel", "url": "http://127.0.0.1:8700/play/duel", "opened": False}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["chess"], "'chess' has no board here"),
        (["connect-four", "--model", "abc"], "no model's id begins so"),
        (["connect-four", "--seat", "2"], "--seat 2, --strength None"),
        (["connect-four", "--model", "script:tactcal"], "there is no script 'tactcal'"),
        (["duel", "--strength", "0.5"], "--strength, --style, --search-ms and --model are the terminal's"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, words, sentence):
    done, said = play(tmp_path, *words)
    assert done.returncode == 1
    assert sentence in said["error"]
