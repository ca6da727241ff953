"""A learner in a process of its own that is started again when it is killed, and goes on from its last checkpoint."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from sparring.cli.output import Output
from sparring.errors import TrainingStopped

CHILD = "SPARRING_KEPT_ALIVE"  # set in the learner's process
LOOP_DEATHS, LOOP_S = 5, 120.0  # so many deaths in such a time end the run
_OF_A_NEW_RUN = ("--algo-set", "--envs", "--resume")  # with one value each; a resumed run keeps its settings


def kept_alive(args: argparse.Namespace) -> bool:
    """Whether this process is to watch over a learner instead of being one."""
    where = args.on or args.config.train.on
    return CHILD not in os.environ and (args.keep_alive or where.startswith("ray:"))


def keep_alive(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Train in a child; what a signal killed is started again. The child's result is ours."""
    runs, deaths, asked = Path(args.config.data) / "runs", deque[float](maxlen=LOOP_DEATHS), [False]
    child = _start(args.words)

    def pass_on(number: int, frame: object) -> None:
        asked[0] = True
        child.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    while True:
        assert child.stdout is not None
        said = child.stdout.read()
        if child.wait() >= 0 or asked[0]:
            break
        deaths.append(time.monotonic())
        if len(deaths) == LOOP_DEATHS and deaths[-1] - deaths[0] < LOOP_S:
            raise TrainingStopped(
                f"it was killed {LOOP_DEATHS} times within {LOOP_S:.0f} s, last by signal {-child.returncode}",
                where="learner",
                do="Look for what kills it (memory?), then go on with --resume",
            )
        run = _run_of(runs, child.pid)
        how = "it had no checkpoint yet, and begins anew" if run is None else f"it goes on with run {run}"
        output.say(f"the learner was killed by signal {-child.returncode}: {how}")
        child = _start(args.words if run is None else _again(args.words, run))
    if child.returncode:
        if output.json:  # its sentence is on standard error, as ours would be
            sys.stdout.write(said)
        raise SystemExit(child.returncode)
    result: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return result | {"learner_restarts": len(deaths)}


def _start(words: list[str]) -> "subprocess.Popen[str]":
    words = [word for word in words if word != "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "sparring.cli.parent_watch", "0", *words, "--json"],
        stdin=subprocess.PIPE,  # its end says that we are gone
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, CHILD: "1"},
        start_new_session=True,  # Ctrl-C is for us, who then ask it to stop
    )


def _run_of(runs: Path, pid: int) -> str | None:
    """The run that the process of that number learned, if it has a checkpoint."""
    for status in runs.glob("*/status.json"):
        if json.loads(status.read_bytes()).get("pid") == pid:
            folder = status.parent
            return folder.name if (folder / "checkpoint" / "state").exists() else None
    return None


def _again(words: list[str], run: str) -> list[str]:
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
