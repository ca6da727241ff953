"""`spar bench mappo`: what a row says, and a real short cell of each algorithm."""

import pytest
from bench.mappo import OURS, PEER, SETTINGS, Task, cell, plot, row

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


def test_the_curves_of_all_seeds_are_drawn(tmp_path):
    case = row(SPREAD, (0, 1), found([-10.0, -30.0], [-14.0, -13.0]), goal=False)
    plot({"cases": [case]}, tmp_path / "mappo.png")
    assert (tmp_path / "mappo.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.slow
def test_a_cell_learns_for_its_steps_and_plays():
    for who in (OURS, PEER):
        said = cell(SPREAD, who, 3)
        assert said["env_steps"] >= 1_000
        assert said["curve"]
        assert -60 < said["mean"] < -5
