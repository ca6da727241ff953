"""What a type checker knows of the names that the package opens lazily."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparring

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sparring

run = sparring.train("cartpole", algo="dqn", steps=1_000)
reveal_type(run)
reveal_type(run.return_mean)
reveal_type(run.model)
reveal_type(sparring.load("champion:cartpole"))
reveal_type(sparring.evaluate(run.model, episodes=10))
sparring.train("cartpole", step=1_000)  # type: ignore[call-arg]
sparring.evaluate(episodes=10)  # type: ignore[call-arg]
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_mypy_knows_the_types_of_a_user_s_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "program.py")]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    said = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in said.splitlines() if "Revealed" in line]
    model = "sparring.api.models.LoadedModel"
    assert revealed == ["sparring.api.runs.Run", "float | None", model, model, "sparring.api.models.Returns"], said
    assert "error:" not in said


def test_help_shows_the_arguments() -> None:
    for function in (sparring.train, sparring.evaluate, sparring.load, sparring.make):
        assert function.__doc__
        assert "args" not in inspect.signature(function).parameters
    assert list(inspect.signature(sparring.evaluate).parameters)[:2] == ["model", "episodes"]
