"""`spar league`: real matches between models and scripts, kept through kill -9, shown as a ladder."""

import json
import subprocess
import sys
import time

import pytest

from sparring.cli import main
from sparring.games.catalogue import spec_of
from sparring.league.matches import MatchFile
from sparring.league.payoff import Match
from sparring.league.rounds import Member, play_match
from sparring.registry.file import FileRegistry


@pytest.fixture
def spar(tmp_path, capsys):
    def call(*words):
        code = main([*words, "--json", "--data", str(tmp_path)])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    return call


def test_a_league_rates_models_and_scripts_and_goes_on_where_it_stopped(spar, model, tmp_path):
    registry = FileRegistry(tmp_path / "models")
    published = [registry.publish(model("connect-four", seed)) for seed in (1, 2)]
    code, said, text = spar("league", "rate", "connect-four", "--rounds", "2", "--games", "8")
    assert code == 0
    names = [one["member"] for one in said["ratings"]]
    assert set(published) | {"script:random", "script:tactical"} <= set(names)
    assert said["matches"] == 2 * len(names)
    assert names[0] == "script:tactical"
    elo = {one["member"]: one["elo"] for one in said["ratings"]}
    assert elo["script:random"] == 0.0
    assert all(one["low"] <= one["elo"] <= one["high"] for one in said["ratings"])
    assert "points of row against column" in text
    again = spar("league", "rate", "connect-four", "--rounds", "1", "--games", "8")[1]
    assert again["matches"] == 3 * len(names)
    shown = spar("league", "show", "connect-four")[1]
    assert shown["ratings"] == again["ratings"]


def test_a_match_is_played_again_by_its_seed(model):
    one, other = (Member(str(seed), model("connect-four", seed)) for seed in (1, 2))
    first = play_match("connect-four", one, other, 8)
    again = play_match("connect-four", one, other, 8, first.seed)
    assert (again.wins, again.draws, again.losses) == (first.wins, first.draws, first.losses)
    assert first.wins + first.draws + first.losses == 8


def test_a_result_counts_once(tmp_path):
    with MatchFile(tmp_path, spec_of("duel").id) as file, MatchFile(tmp_path, spec_of("duel").id) as other:
        one = Match("m", "a", "b", 1, 2, 3, 4)
        assert file.add(one)
        assert not other.add(one)
        assert other.all() == [one]


@pytest.mark.slow
def test_kill_9_loses_no_result_that_was_stored(model, tmp_path):
    FileRegistry(tmp_path / "models").publish(model("connect-four", 1))
    words = [sys.executable, "-m", "sparring", "league", "rate", "connect-four", "--for", "10m", "--games", "4"]
    kept: list[Match] = []
    for _ in range(3):
        process = subprocess.Popen([*words, "--data", str(tmp_path)], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            time.sleep(0.2)
            with MatchFile(tmp_path, spec_of("connect-four").id) as file:
                found = file.all()
            if len(found) > len(kept) + 3:
                break
        process.kill()
        process.wait()
        assert set(kept) < set(found)
        kept = found
    assert len({one.id for one in kept}) == len(kept)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cartpole",), "cartpole has no opponents"),
        (("show", "duel"), "no match of duel was played yet"),
        (("duel", "--for", "ten"), "--for ten"),
        (("duel", "--rounds", "0"), "--rounds 0"),
        (("duel", "chess"), "duel chess"),
        (("chess",), "there is no such game"),
    ],
)
def test_a_wrong_call_is_one_sentence(spar, words, said):
    code, answer, _ = spar("league", *words)
    assert code == 1
    assert said in answer["error"], answer
