"""`spar league`: real matches between models and scripts, kept through kill -9, shown as a ladder."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from recorded_games import sat
from sparring.cli import main
from sparring.games.catalogue import spec_of
from sparring.league import strengths
from sparring.league.matches import MatchFile
from sparring.league.payoff import Match
from sparring.league.rounds import Member, play_match
from sparring.registry.file import FileRegistry
from sparring.store import open_store


@pytest.fixture(autouse=True)
def quick_ladders(monkeypatch):
    """The ladder of strengths that `rate` makes in the end would be thousands of games."""
    for name in ("PAIR_GAMES", "LAST_PAIR_GAMES"):
        monkeypatch.setattr(strengths, name, 4)


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
    elo = {one["member"]: one["elo"] for one in said["ratings"]}
    assert elo["script:tactical"] > elo["script:random"] == 0.0
    assert all(one["low"] <= one["elo"] <= one["high"] for one in said["ratings"])
    assert "points of row against column" in text
    again = spar("league", "rate", "connect-four", "--rounds", "1", "--games", "8")[1]
    assert again["matches"] == 3 * len(names)
    shown = spar("league", "show", "connect-four")[1]
    assert shown["ratings"] == again["ratings"]
    # The fixture's few games tell no step from the next.
    assert (
        "steps that may be as strong as the next one (95 %): 0, 1, 2" in spar("models", "strengths", "connect-four")[2]
    )


def test_a_league_that_ends_before_a_match_says_that_nothing_is_rated(spar):
    code, said, text = spar("league", "spiel:kuhn_poker", "--for", "1s")  # its one script has no opponent
    assert (code, said["matches"]) == (0, 0)
    assert "no match was played yet, so nothing is rated or sold" in text


def test_a_match_is_played_again_by_its_seed(model):
    one, other = (Member(str(seed), model("connect-four", seed)) for seed in (1, 2))
    first = play_match("connect-four", one, other, 8)
    again = play_match("connect-four", one, other, 8, first.seed)
    assert (again.wins, again.draws, again.losses) == (first.wins, first.draws, first.losses)
    assert first.wins + first.draws + first.losses == 8


def test_show_has_every_rating_and_a_match_is_played_again_by_its_id(spar, model, tmp_path):
    registry = FileRegistry(tmp_path / "models")
    registry.publish(model("connect-four", 1))
    spar("league", "rate", "connect-four", "--rounds", "2", "--games", "8")
    code, said, text = spar("league", "show", "connect-four", "--plot", str(tmp_path / "league.svg"))
    assert code == 0
    assert set(said["ratings"][0]) >= {
        "elo",
        "low",
        "high",
        "mu",
        "sigma",
        "points",
        "nash",
        "nash_skill",
        "alpha_rank",
    }
    assert sum(one["nash"] for one in said["ratings"]) == pytest.approx(1, abs=0.01)
    assert sum(one["alpha_rank"] for one in said["ratings"]) == pytest.approx(1, abs=0.01)
    won, drawn, lost = said["results"]["script:tactical"]["script:random"]
    assert said["results"]["script:random"]["script:tactical"] == [lost, drawn, won]
    assert sum(len(layer["members"]) for layer in said["spinning_top"]["layers"]) == len(said["ratings"])
    assert said["people"] == {"shown": False, "persons": 0, "games": 0}
    assert said["curves"]["script:tactical"][-1]["games"] == 8 * said["matches"]
    assert "spinning top: " in text
    assert (tmp_path / "league.svg").read_text().count("<svg") == 1
    code, again, text = spar("replay", said["newest"][0][:10])
    assert (code, again["same"], again["differences"]) == (0, True, [])
    assert "8 games, each move as it was" in text


def test_a_match_that_goes_otherwise_is_said(spar, model, tmp_path):
    one, other = (Member(f"script:{name}", name) for name in ("tactical", "random"))
    played = play_match("connect-four", one, other, 8)
    with MatchFile(tmp_path, spec_of("connect-four").id) as file:
        file.add(replace(played, id="aa", wins=0, draws=8, losses=0))
        file.add(replace(played, id="ab", digest="0" * 32))
        file.add(replace(played, id="b", first="0" * 64))
    code, said, text = spar("replay", "aa")
    assert (code, said["same"]) == (1, False)
    assert "not the same: wins was 0" in text
    assert spar("replay", "ab")[1]["differences"] == [f"digest was {'0' * 32}, now {played.digest}"]
    for beginning, wrong in (("a", "several matches begin"), ("c", "there is no match"), ("b", "no such model")):
        code, said, _ = spar("replay", beginning)
        assert code == 1
        assert wrong in said["error"], said


def test_persons_are_members_beside_models(spar, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/experience.db") as store:
        for number in range(8):
            store.append(sat(number, 1.0 if number < 6 else -1.0, bot="script:random"))
    code, said, text = spar("league", "show", "connect-four", "--people")
    assert code == 0
    assert said["people"] == {"shown": True, "persons": 1, "games": 8}
    person = said["ratings"][0]
    assert (person["member"][:7], person["games"], person["points"]) == ("person:", 8, 0.75)
    assert "8 games of 1 persons are among the results" in text


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mian]\ncount = 1", "{file}: unknown key 'mian'. Did you mean 'main'."),
        ("[main]\nwieghting = 'linear'", "{file} [main]: unknown key 'wieghting'. Did you mean 'weighting'."),
        ("[main\n", "{file}: it is not TOML: "),
        ("[main]\nalgo = 'pop'", "there is no algorithm 'pop'"),
        ("[main]\ntopology = 'centre'", "there is no topology 'centre'"),
        ("[train]\nenvz = 8", "league.toml [train]: unknown key 'envz'. Did you mean 'envs'."),
        ("[services.mine]\nservice = 'nowhere:Mine'", "nowhere"),
        ("on = 'rya://auto'", "'rya://auto' is no host. Choose local://, ray://auto or ray://HOST:PORT."),
        (None, "{file}: there is no such file. Write it (docs/league.md), or drop --file."),
    ],
)
def test_a_wrong_league_file_is_one_sentence_and_nothing_begins(spar, tmp_path, text, said):
    file = tmp_path / "wrong.toml"
    if text is not None:
        file.write_text(text)
    code, answer, _ = spar("league", "connect-four", "--file", str(file), "--for", "1s")
    assert code == 1
    assert said.format(file=file) in "{where}: {error}. {do}.".format(**answer), answer
    assert not (tmp_path / "league" / "connect-four.db").exists()


def test_a_pool_that_does_not_answer_is_one_sentence_and_nothing_begins(spar, tmp_path):
    pytest.importorskip("redis")
    away = "league.pool_url=redis://127.0.0.1:1/0?timeout_s=1"
    code, answer, _ = spar("league", "connect-four", "--for", "1s", "--set", away)
    assert code == 1
    assert answer["where"] == "[league] pool_url"
    assert answer["error"].startswith("redis://127.0.0.1:1/0 does not answer (")
    assert not (tmp_path / "league").exists()
