"""`spar bench tasks`: verdicts, a real short cell of ours, and a failing cell that does not stop the others."""

import pytest
from bench import tasks
from bench.tasks import OURS, PEER, Task, cell, measure, verdict


def test_a_verdict_compares_returns_of_any_sign():
    assert verdict(-100.0, -200.0) == "better"
    assert verdict(-200.0, -100.0) == "worse"
    assert verdict(0.99, 1.0) == verdict(0.0, 0.0) == "even"
    assert (verdict(None, 1.0), verdict(1.0, None)) == ("ours failed", "theirs failed")


@pytest.mark.slow
def test_ours_learns_for_its_budget_and_plays():
    said = cell(OURS, Task("CartPole-v1", "ppo", 2.0), 3)
    assert 2.0 <= said["cpu_s"] <= said["seconds"] + 0.1
    assert said["env_steps"] > 0
    assert 8 <= said["mean"] <= 500


def test_a_failing_cell_is_a_row_that_says_so(monkeypatch, capsys):
    def answer(words):
        if "SUCH" in words[-1]:
            raise SystemExit("it ended with 1")
        return {"mean": 7.0, "sd": 1.0, "env_steps": 10, "seconds": 1.0, "cpu_s": 0.4}

    monkeypatch.setattr(tasks, "answer", answer)
    monkeypatch.setattr(tasks, "python_of", lambda name: name)
    said = measure([Task("SUCH-v1", "ppo", 1.0), Task("CartPole-v1", "ppo", 1.0)], (1, 2))
    assert [case["verdict"] for case in said["cases"]] == ["ours failed", "even"]
    assert (said["cases"][1]["peers"], said["passed"]) == ({PEER: 7.0}, False)
    shown = capsys.readouterr().err
    assert "seed 2: failed: it ended with 1" in shown
    assert "7.0 ± 1.0, 10 steps in 0 s of CPU (1 s)" in shown
