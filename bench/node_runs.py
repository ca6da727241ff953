"""Runs with node processes on this machine, for the benchmarks of nodes."""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 240.0  # on a busy machine
SPAR = (sys.executable, "-m", "sparring")


@dataclass(frozen=True)
class NodeRun:
    """One run: `nodes` honest processes with `workers` each, and `hostile` ones (bench/hostile_node.py)."""

    game: str
    algo: str
    steps: int
    merge: str = "average"
    codec: str = "f32-delta"
    nodes: int = 2
    workers: int = 1
    hostile: str = ""  # the attack of one more node
    contribute: str = "weights"
    exchange_s: float = 1.0
    settings: tuple[str, ...] = ()
    episodes: int = 100

    def measured(self, seed: int) -> dict[str, Any]:
        """Return, deviation, the episodes' returns, steps, merges, bytes and seconds of the run."""
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            lines = [stack.enter_context(listening(folder, number, self.workers)) for number in range(self.nodes)]
            if self.hostile:
                lines.append(stack.enter_context(listening(folder, self.nodes, 1, self.hostile)))
            return self._trained(folder, lines, seed)

    def _trained(self, folder: Path, lines: Sequence[str], seed: int) -> dict[str, Any]:
        dial = [word for line in lines for word in ("--nodes", line)]
        said = {"merge": self.merge, "codec": self.codec, "exchange_s": self.exchange_s}
        sets = [word for key, value in said.items() for word in ("--set", f"nodes.{key}={value}")]
        own = [word for text in self.settings for word in ("--algo-set", text)]
        words = [self.game, "--algo", self.algo, "--steps", str(self.steps), "--seed", str(seed), "--no-promote"]
        words += ["--contribute", self.contribute] if self.nodes else []
        trained = spar(folder, "train", *words, *dial, *sets, *own, "--set", "train.publish_every_s=1e9")
        (rows,) = folder.glob("data/runs/*/metrics.jsonl")
        last = json.loads(rows.read_text().splitlines()[-1])
        played = spar(folder, "evaluate", trained["model"], "--episodes", str(self.episodes))
        keys = ("merges", "node_bytes", "contributions_refused")
        return {
            "return": played["return_mean"],
            "sd": played["return_sd"],
            "returns": [round(each, 1) for each in played["returns"]],
            "steps": trained["env_steps"],
            "seconds": trained["seconds"],
            **{key: int(last.get(key, 0)) for key in keys},
        }


def spar(folder: Path, *words: str) -> dict[str, Any]:
    """What a command of `spar` says with --json, in the data folder `data` of that folder."""
    done = subprocess.run([*SPAR, *words, "--json", "--data", "data"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"spar {words[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return answer(done.stdout)


def answer(said: str) -> dict[str, Any]:
    """The JSON that a command ends with."""
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def wait_for(holds: Callable[[], object], seconds: float, wrong: str) -> None:
    """SystemExit with `wrong` where it does not hold in time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(wrong)
        time.sleep(0.1)


@contextmanager
def listening(folder: Path, number: int, workers: int, attack: str = "", relay: str = "") -> Iterator[str]:
    """A node process, as the line to paste; or a relay to the parent of that line."""
    program = (sys.executable, "-m", "bench.hostile_node", attack) if attack else (*SPAR, "node")
    about: tuple[str, ...] = (
        "--listen",
        "127.0.0.1:0",
        "--workers",
        str(workers),
        "--data",
        str(folder / f"node{number}"),
    )
    about += ("--relay", relay) if relay else ()
    log = folder / f"node{number}.log"
    root = Path(__file__).parents[1]
    with log.open("w") as file:
        process = subprocess.Popen([*program, *about, "--name", f"node{number}"], stdout=file, stderr=file, cwd=root)
    try:
        wait_for(lambda: "wss://" in log.read_text() or process.poll() is not None, START_S, "a node did not start")
        if (found := re.search(r"wss://[^']*", log.read_text())) is None:
            raise SystemExit(f"a node did not start: {log.read_text()[-500:]}")
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)
