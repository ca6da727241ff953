"""The same five tasks in Sparring, Stable-Baselines3 and CleanRL: how much a user writes, and how long it takes.

    spar bench side-by-side [--quick]

The programs are in bench/side_by_side/. Lines are those that a user writes: no blank ones, no comments, no docstring.
CleanRL is used as its users do: they copy its ppo.py and change it, so its programs here are what is added to a copy,
which the benchmark takes from its installed package. Seconds are those of whole processes, imports included; each
round runs the tasks of each library in a new folder, in turns, each library in its own environment. Predict and
evaluate use the model of the train task.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import ledger
from bench.peers.environments import FOLDER, python_of

PROGRAMS = ledger.ROOT / "bench" / "side_by_side"
TASKS = ("train", "evaluate", "predict", "custom_env", "custom_network")
LIBRARIES = ("sparring", "sb3", "cleanrl")
SB3, STEPS = "Stable-Baselines3 2.9.2", 20_000


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick`: one round."""
    rounds = 1 if args.quick else 5
    names = {"sb3": SB3, "cleanrl": f"CleanRL 1.2.0 (beside a copy of {lines(cleanrl_script())} lines)"}
    found: dict[tuple[str, str], list[float]] = {}
    printed: dict[tuple[str, str], str] = {}
    for _ in range(rounds):
        for library in LIBRARIES:
            with tempfile.TemporaryDirectory() as folder:
                for task in TASKS:
                    seconds, printed[library, task] = timed(command(library, task, Path(folder)), folder)
                    found.setdefault((library, task), []).append(seconds)
                    print(f"side-by-side {library} {task}: {seconds:.1f} s, {printed[library, task]}", file=sys.stderr)
    cases = []
    for task in TASKS:
        written = {library: lines(PROGRAMS / f"{library}_{task}.py") for library in LIBRARIES}
        told = {name: printed[library, task] for library, name in {"sparring": "sparring", **names}.items()}
        medians = {library: round(statistics.median(found[library, task]), 3) for library in LIBRARIES}
        spread = (round(min(found["sparring", task]), 3), round(max(found["sparring", task]), 3))
        cases += [
            _case(f"{task}, written", "lines", written, names, goals={SB3: 1.0}),
            _case(f"{task}, whole process", "s", medians, names, spread=spread, printed=told),
        ]
    return ledger.result("side-by-side", cases)


def lines(program: Path) -> int:
    """Of code: without blank lines, comments and docstrings."""
    text = program.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented) and ast.get_docstring(node)]
    docs = {at for node in nodes for at in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    rows = [row.strip() for at, row in enumerate(text.splitlines(), start=1) if at not in docs]
    return sum(bool(row) and not row.startswith("#") for row in rows)


def command(library: str, task: str, folder: Path) -> list[str]:
    """What runs the program in `folder`; CleanRL's copy is put there, changed as the task says."""
    program = PROGRAMS / f"{library}_{task}.py"
    if library == "sparring":
        return [sys.executable, str(program)]
    python = str(python_of(library))
    if library == "sb3" or task in ("evaluate", "predict"):
        (folder / program.name).write_text(program.read_text())  # beside the copy that it imports
        return [python, "-W", "ignore", program.name]
    copy, steps = folder / ("ppo.py" if task == "train" else f"ppo_{task}.py"), str(STEPS)
    copy.write_text(changed_copy(task, program.read_text()))
    own = ("--env-id", "Corridor-v0", "--total-timesteps", "8000") if task == "custom_env" else ()
    return [python, "-W", "ignore", copy.name, "--total-timesteps", steps, *own]


def changed_copy(task: str, part: str) -> str:
    """CleanRL's script with what the user writes: in front, at the end, or in the place of its Agent."""
    script = cleanrl_script().read_text()
    if task == "train":
        return script + part
    if task == "custom_env":
        return part + script
    agent = next(node for node in ast.parse(script).body if isinstance(node, ast.ClassDef) and node.name == "Agent")
    rows = script.splitlines()
    return "\n".join([*rows[: agent.lineno - 1], part, *rows[agent.end_lineno :]])


def cleanrl_script() -> Path:
    """ppo.py of the installed package."""
    python_of("cleanrl")
    (script,) = (FOLDER / "cleanrl").glob("lib/python*/site-packages/cleanrl/ppo.py")
    return script


def timed(words: Sequence[str], folder: str) -> tuple[float, str]:
    """Seconds of one process in that folder, and the last line that it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, (done.stdout.strip().splitlines() or [""])[-1]


def _case(name: str, unit: str, figures: Mapping[str, float], names: Mapping[str, str], **more: Any) -> dict[str, Any]:
    peers = {shown: figures[library] for library, shown in names.items()}
    return ledger.case(name, figures["sparring"], unit, peers=peers, less_is_better=True, **more)
