"""`spar bench mappo`: what a row says, and a real short cell of each algorithm."""

import json
from dataclasses import replace

import pytest
from bench import ledger
from bench.mappo import OURS, PEER, SETTINGS, TASKS, Task, cell, plot, row, tasks_of, with_others

from sparring.errors import Missing

SPREAD = Task("pz:simple_spread_v3", 1_000, SETTINGS)


def found(ours, theirs):
    returns = {OURS: ours, PEER: theirs}
    return {
        (SPREAD, who, seed): {"mean": mean, "curve": [(100 * i, mean) for i in range(1, 3 + seed % 2)]}
        for who, means in returns.items()
        for seed, mean in enumerate(means)
    }


def test_a_row_compares_medians_of_what_returns_are_missing():
    case = row(SPREAD, (0, 1, 2), found([-10.0, -30.0, -12.0], [-14.0, -13.0, -20.0]), goal=True)
    assert (case["ours"], case["peers"][PEER], case["spread"]) == (12.0, 14.0, (10.0, 30.0))
    assert case["passed"]
    assert 20 < case["peers"]["random play"] < 35
    assert not row(SPREAD, (0,), found([-15.0], [-14.0]), goal=True)["passed"]


def test_a_run_of_one_game_keeps_the_cases_of_the_others_with_their_commit():
    assert [task.game for task in tasks_of("spread")] == ["pz:simple_spread_v3"]
    assert tasks_of("") == list(TASKS)
    with pytest.raises(Missing, match="no game of this benchmark contains 'chess'"):
        tasks_of("chess")
    new = {"name": TASKS[0].name, "ours": 1.0}
    first, *others = with_others({TASKS[0].name: new})
    assert first == new
    assert others[0]["name"] == TASKS[1].name
    assert all(case["commit"] for case in others)


def test_a_result_is_kept_with_its_lists_of_numbers_on_one_line(tmp_path):
    said = {
        "name": "some-game",
        "cases": [{"seeds": [1, 2], "curve": [[100, -1.5], [200, 3e-7]], "none": []}],
        "s": "[1,",
    }
    path = ledger.keep(said, tmp_path / "quick")
    assert path.name == "some_game.json"
    assert json.loads(path.read_text()) == said
    assert "        [100, -1.5],\n" in path.read_text()
    assert '"seeds": [1, 2],\n' in path.read_text()


def test_the_curves_of_all_seeds_are_drawn(tmp_path):
    case = row(SPREAD, (0, 1), found([-10.0, -30.0], [-14.0, -13.0]), goal=False)
    plot({"cases": [case]}, tmp_path / "mappo.png")
    assert (tmp_path / "mappo.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
@pytest.mark.parametrize("game", ["pz:simple_spread_v3", "pz:simple_speaker_listener_v4"])
def test_a_cell_learns_for_its_steps_and_plays(game):
    for who in (OURS, PEER):
        said = cell(replace(SPREAD, game=game), who, 3)
        assert said["env_steps"] >= 1_000
        assert said["curve"]
        assert -60 < said["mean"] < -5
