"""The race of bench/solve.py: real short runs of ours, and its arithmetic."""

import json
import math
from pathlib import Path

import pytest
from bench import solve
from bench.solve import OURS, Finish, Task

EASY = Task("solve-easy", "CartPole-v1", 20.0, every=512, most_s=60.0, peers=())
HARD = Task("solve-hard", "CartPole-v1", 501.0, every=512, most_s=0.2, peers=())


def test_a_race_is_run_once_and_then_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(solve, "FOLDER", tmp_path)
    first = solve.remembered(EASY, OURS, 5, 60.0)
    again = solve.remembered(EASY, OURS, 5, 60.0)
    assert first.seconds > 0
    assert first == again
    assert len(next(tmp_path.iterdir()).read_text().splitlines()) == 1


def test_what_we_do_not_solve_is_infinite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(solve, "FOLDER", tmp_path)
    lost = solve.remembered(HARD, OURS, 5, HARD.most_s)
    assert (lost.seconds, lost.stopped) == (math.inf, False)
    assert solve.remembered(HARD, OURS, 5, HARD.most_s).seconds == math.inf  # also when it is remembered
    said = solve.told(HARD, [5], {OURS: [lost], "CleanRL 1.2.0": [Finish(0.8, 1, stopped=True)]})
    assert not said["passed"]
    assert json.loads(json.dumps(said, allow_nan=False))


def test_a_stopped_peer_counts_until_it_is_given_more_time() -> None:
    kept = {"seconds": 4.0, "stopped": True}
    assert [solve.counts(kept, limit_s) for limit_s in (3.0, 4.0, 8.0)] == [True, True, False]
    assert solve.counts({"seconds": None, "stopped": False}, 8.0)  # ours, unsolved: for good


def test_the_goal_is_a_third_of_the_fastest_peer_s_median() -> None:
    ours = [Finish(1.0, 10), Finish(0.8, 10), Finish(2.0, 10)]
    fast = [Finish(3.0, 10), Finish(2.9, 10), Finish(9.0, 10)]
    slow = [Finish(4.0, 10, stopped=True)] * 3
    (case,) = solve.told(EASY, [1, 2, 3], {OURS: ours, "CleanRL 1.2.0": fast, "RLlib 2.60.0": slow})["cases"]
    assert (case["ours"], case["ratio"], case["passed"]) == (1.0, 3.0, True)
    assert (case["spread"], case["stopped"]) == ((0.8, 2.0), ["RLlib 2.60.0"])


def test_seeds_come_from_the_commit_and_were_never_tuned_on() -> None:
    assert solve.drawn("abc", 5) == solve.drawn("abc", 5) != solve.drawn("abd", 5)
    assert len(set(solve.drawn("abc", 5))) == 5
    assert not set(solve.drawn("abc", 900)) & set(solve.TUNED)
