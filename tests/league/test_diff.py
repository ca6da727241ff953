"""`spar league diff`: two versions of Connect Four whose balance is known to differ, and what cannot be compared."""

import json
from pathlib import Path

import pytest

from sparring.cli import main
from sparring.league.diff import compare, members_of_both, two_versions
from sparring.registry.file import FileRegistry

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def beside_the_variants(monkeypatch):
    monkeypatch.chdir(HERE)  # a designer's module is in the folder where spar is called


@pytest.fixture
def spar(tmp_path, capsys):
    toml = tmp_path / "spar.toml"
    toml.write_text('games = ["four_variants:plain", "four_variants:second_begins", "four_variants:middle_later"]\n')

    def call(*words):
        code = main(["league", "diff", *words, "--json", "--config", str(toml), "--data", str(tmp_path / "data")])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]), said.err

    return call


def rows(report):
    return {(one["kind"], one["name"]): one for one in report["changes"]}


def test_the_seat_that_no_longer_begins_loses_and_the_other_gains(spar, tmp_path):
    picture = tmp_path / "balance.png"
    words = ("four_variants", "1", "2", "--most-games", "20000", "--seed", "3", "--plot", str(picture))
    code, said, text = spar(*words)
    assert (code, said["seed"], said["report"]["versions"][1]) == (0, 3, "four_variants:second_begins 2")
    found = rows(said["report"])
    assert [found["seat", name]["verdict"] for name in ("first", "second")] == ["worse", "better"]
    first = found["seat", "first"]
    assert first["low"] < first["after"] - first["before"] < first["high"] < 0
    assert all(found["opening", str(column)]["verdict"] in ("not worse", "undecided") for column in range(7))
    assert said["report"]["games"] <= 20_000
    assert "games in each version. All 9 lines hold together with 95 % confidence" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_first_move_that_the_rules_no_longer_allow_is_said_to_be_gone(spar):
    code, said, text = spar("connect-four", "four_variants:middle_later", "--most-games", "600", "--seed", "1")
    assert code == 0
    found = rows(said["report"])
    assert (found["opening", "3"]["after"], found["opening", "3"]["rounds"]) == (None, 0)
    assert "gone" in text
    assert set(said["report"]["members"]) == {"script:random", "script:tactical"}  # of either version
    back = spar("four_variants:middle_later", "connect-four", "--most-games", "600", "--seed", "1")[1]["report"]
    assert rows(back)["opening", "3"]["before"] is None


def test_no_change_is_claimed_where_nothing_changed(tmp_path):
    versions = two_versions(("connect-four", "four_variants:plain"), ())
    registry = FileRegistry(tmp_path)
    for seed in range(3):
        report = compare(versions, members_of_both(versions, registry, 0), most_games=3_000, seed=seed)
        assert not [one for one in report.changes if one.verdict in ("better", "worse")]


def test_models_of_one_version_play_both(model, tmp_path):
    registry = FileRegistry(tmp_path)
    published = registry.publish(model("connect-four", 1))
    versions = two_versions(("connect-four", "four_variants:second_begins"), ())
    members = members_of_both(versions, registry, 10)
    assert set(members) == {"script:random", "script:tactical", published}
    report = compare(versions, members, most_games=100, seed=0)
    assert report.members == tuple(members)
    again = compare(versions, members, most_games=100, seed=0)
    assert report == again
    assert report != compare(versions, members, most_games=100, seed=1)


def test_without_opponents_returns_are_compared(tmp_path):
    versions = two_versions(("gym:CartPole-v1", "gym:CartPole-v1(max_episode_steps=12)"), ())
    report = compare(versions, members_of_both(versions, FileRegistry(tmp_path), 0), most_games=4_000, seed=0)
    assert report.decided
    assert {(one.kind, one.verdict) for one in report.changes} == {("opening", "worse"), ("member", "worse")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("connect-four",), "connect-four"),
        (("connect-four", "duel"), "their seats differ: first (team 0), second (team 1); left"),
        (
            ("connect-four", "four_variants:eight_columns"),
            "seat first has other actions in four_variants",
        ),
        (("four_variants", "1", "9"), "there is no version '9' of four_variants to play"),
        (("connect-four", "nothing:here"), "there is no module 'nothing'"),
        (("connect-four", "connect-four", "--most-games", "0"), "--most-games 0"),
        (("connect-four", "connect-four", "--plot", "a.txt"), "'a.txt' is no picture"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(spar, words, said):
    code, answer, _ = spar(*words)
    assert code == 1
    assert said in answer["error"], answer
