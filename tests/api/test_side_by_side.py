"""The programs of bench/side_by_side: ours are no longer than Stable-Baselines3's, and run. `sparring.train` and
`spar train` learn the same."""

import inspect
from pathlib import Path

import pytest
from bench.python_overhead import PROGRAMS as PROGRAMS_OF_BOTH
from bench.python_overhead import one_process
from bench.side_by_side import PROGRAMS, TASKS, command, lines, timed

import sparring


@pytest.mark.parametrize("task", TASKS)
def test_ours_is_no_longer(task: str) -> None:
    assert lines(PROGRAMS / f"sparring_{task}.py") <= lines(PROGRAMS / f"sb3_{task}.py")


def test_lines_are_those_of_code(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        '"""Of\ntwo lines."""\n\n# why\nx = (\n    1\n)\n\n\ndef f():\n    """Why."""\n    return x\n'
    )
    assert lines(tmp_path / "program.py") == 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ours_run_one_after_the_other(tmp_path: Path) -> None:
    said = {}
    for task in TASKS:
        if task != "custom_network" or "network" in inspect.signature(sparring.train).parameters:
            _, said[task] = timed(command("sparring", task, tmp_path), str(tmp_path))
    assert float(said["evaluate"].split()[0]) > 100
    assert float(said["predict"]) > 50
    assert said["custom_env"] == "1"


@pytest.mark.slow
def test_the_function_and_the_command_do_the_same_work() -> None:
    (_, _, function), (_, _, command_line) = (one_process(words) for words in PROGRAMS_OF_BOTH.values())
    assert function == command_line  # the hashes of what they learned
