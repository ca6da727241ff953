"""`spar train --keep-alive`: the learner is a process of its own. A learner that was killed is started again and
resumes from its last checkpoint."""

import argparse
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import TrainingStopped

if TYPE_CHECKING:
    from sparring.processes.supervisor import Launch

CHILD = "SPARRING_KEPT_ALIVE"  # set in the learner's process
LOOP_DEATHS, LOOP_S = 5, 120.0  # so many deaths in such a time end the run
GRACE_S = 3.0  # for a checkpoint, after the parent is gone
_OF_A_NEW_RUN = ("--algo-set", "--envs", "--resume")  # with one value each; a resumed run keeps its settings


def spar_command(words: list[str], nice: int = 0) -> "Launch":
    """`spar WORDS` as a process that ends when this one is gone."""
    from sparring.processes.supervisor import Launch

    watched = ["sparring.processes.parent_watch", str(nice), f"{GRACE_S:g}", "sparring", *words]
    return Launch(watched, environment={"OMP_NUM_THREADS": "1"})


def kept_alive(args: argparse.Namespace) -> bool:
    """Whether this process supervises a learner instead of being one."""
    where = args.on or args.config.train.on
    return CHILD not in os.environ and (args.keep_alive or where.startswith("ray:"))


def keep_alive(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Train in a child process, which is started again when a signal killed it. The child's result is ours."""
    from sparring.processes.restart_policy import RestartPolicy
    from sparring.processes.supervisor import ChildProcess

    def start(words: list[str]) -> ChildProcess:
        command = replace(spar_command([*words, "--json"]), environment={CHILD: "1"}, answers=True)
        return ChildProcess(command, None)

    runs, asked = Path(args.config.data) / "runs", [False]
    words = [word for word in args.words if word != "--json"]
    policy = RestartPolicy(first_wait_s=0.0, young_s=float("inf"), loop_deaths=LOOP_DEATHS, loop_s=LOOP_S)
    child = start(words)

    def pass_on(number: int, frame: object) -> None:
        asked[0] = True
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child.pid, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while True:
        assert child.stdout is not None
        said = child.stdout.read().decode(errors="replace")  # until it ends
        while (code := child.exit_code()) is None:
            time.sleep(0.01)
        child.close()
        if code >= 0 or asked[0]:
            break
        if policy.died(time.monotonic(), None) is None:
            raise TrainingStopped(
                f"it was killed {LOOP_DEATHS} times within {LOOP_S:.0f} s, last by signal {-code}",
                where="learner",
                do="Look for what kills it (memory?), then go on with --resume",
            )
        run = _run_of(runs, child.pid)
        how = "it had no checkpoint yet, and begins again" if run is None else f"it goes on with run {run}"
        output.say(f"the learner was killed by signal {-code}: {how}")
        child = start(words if run is None else _resumed(words, run))
    if code:
        if output.json:  # its sentence is on standard error, as ours would be
            sys.stdout.write(said)
        raise SystemExit(code)
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return result | {"learner_restarts": policy.deaths}


def _run_of(runs: Path, pid: int) -> str | None:
    """The run that the process of that number learned, if it has a checkpoint."""
    for status in runs.glob("*/status.json"):
        if json.loads(status.read_bytes()).get("pid") == pid:
            folder = status.parent
            return folder.name if (folder / "checkpoint" / "state").exists() else None
    return None


def _resumed(words: list[str], run: str) -> list[str]:
    """The same command for a run that goes on."""
    kept: list[str] = []
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
            continue
        name = word.partition("=")[0]
        if name in _OF_A_NEW_RUN:
            follows = words[place + 1 : place + 2]
            skip = "=" not in word and bool(follows) and (name != "--resume" or not follows[0].startswith("-"))
            continue
        kept.append(word)
    return [*kept, "--resume", run]
