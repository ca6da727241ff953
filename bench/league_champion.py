"""A league's champion of Connect Four against that of plain training, after the same time on the same machine.

    spar bench league-champion                               # 30 minutes, three seeds one after the other: 1.6 hours
    python -m bench.league_champion --minutes 5 --seeds 0    # shorter
    spar bench league-champion --quick                       # 2 minutes, one seed: whether it runs, not how well

For each seed `spar train connect-four` and `spar league connect-four` run at the same time with the defaults of both,
each on its own half of the cores (`taskset`), so that whatever else the machine does meets both; the gate's games are
part of the time. Every minute it says how far both are. Then the two champions play 1,000 openings from both sides;
`distinct` says how many of the games were. Where a side has no champion yet its newest model plays, and `runs` says so.
`cpu_s` is what each side, with all its processes, had of the cores.
The figure is the league's share of points; the median of the seeds has to reach 60 %.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import ledger

from sparring.acting.evaluate import evaluate
from sparring.league.promotion import incumbent_of
from sparring.registry.file import FileRegistry
from sparring.wire.model import Model

GAME, GOAL = "connect-four", 0.6
GAMES, SEED = 2_000, 2_026  # 1,000 openings from both sides
MINUTES, QUICK_MINUTES, SEEDS = 30.0, 2.0, (0, 1, 2)
SAY_EVERY_S, END_S = 60.0, 300.0
RESULTS = ledger.ROOT / "bench" / "results"


class Side:
    """One `spar` command in a folder of its own, on some of the cores."""

    def __init__(self, name: str, folder: Path, words: list[str], cores: set[int]) -> None:
        self.name, self.folder, self._errors = name, folder, folder / "said.txt"
        self.cpu_s = 0.0  # of the command and all that it started, once it has ended
        command = [sys.executable, "-m", "sparring", *words, "--data", str(folder / "data")]
        pinned = partial(os.sched_setaffinity, 0, cores)
        with self._errors.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=pinned,
                start_new_session=True,
            )

    def ended(self) -> bool:
        if self.process.returncode is None:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.process.poll()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return self.process.returncode is not None

    def last_line(self) -> str:
        lines = self._errors.read_text(errors="replace").replace("\r", "\n").strip().splitlines()
        return lines[-1] if lines else "it has said nothing yet"

    def newest_model(self) -> Model:
        registry = FileRegistry(self.folder / "data" / "models")
        newest = max((one.card for one in registry.models(GAME)), key=lambda card: card.created_at_ms, default=None)
        if newest is None:
            raise SystemExit(f"{self.name} published no model; train for longer. It said: {self.last_line()}")
        return registry.fetch(newest.id)

    def player(self) -> tuple[Model, str]:
        """Its champion, or its newest model, and which of the two."""
        newest = self.newest_model()
        champion = incumbent_of(FileRegistry(self.folder / "data" / "models"), newest.card)
        return (newest, "newest model") if champion is None else (champion, "champion")


def trained(folder: Path, words: list[str], minutes: float) -> Model:
    """The champion, or the newest model, of one `spar` command of that many minutes on all cores."""
    side = Side(words[0], folder, words, os.sched_getaffinity(0))
    try:
        wait([side], minutes, 0)
    finally:
        side.process.kill()
        side.process.wait()
    return side.player()[0]


def both(commands: Mapping[Path, list[str]], minutes: float, seed: int = 0) -> list[Side]:
    """Two `spar` commands, each in its folder, by which it is named, and on its own half of the cores, run to their
    end."""
    cores = sorted(os.sched_getaffinity(0))
    halves = (set(cores[::2]), set(cores[1::2])) if len(cores) > 1 else (set(cores), set(cores))
    halves = halves if seed % 2 == 0 else halves[::-1]
    started = zip(commands.items(), halves, strict=True)
    sides = [Side(folder.name, folder, words, half) for (folder, words), half in started]
    try:
        wait(sides, minutes, seed)
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()
    return sides


def folders(parent: str, *names: str) -> list[Path]:
    """New folders of these names."""
    made = [Path(parent, name) for name in names]
    for folder in made:
        folder.mkdir()
    return made


def compare(minutes: float, seed: int) -> dict[str, Any]:
    """Both trained with one seed at the same time; what the league's champion scored."""
    with tempfile.TemporaryDirectory() as parent:
        plain, league = folders(parent, "plain", "league")
        (league / "league.toml").write_text(f"seed = {1000 * seed}\n")
        limits = ["--minutes", f"{minutes:g}", "--steps", str(10**9), "--seed", str(seed)]
        words = {plain: ["train", GAME, *limits], league: ["league", GAME, "--for", f"{60 * minutes:g}s"]}
        sides = both(words, minutes, seed)
        (one, of_plain), (two, of_league) = (side.player() for side in sides)
        played = evaluate(GAME, two, episodes=GAMES, seed=SEED, against=one)
    assert played.digests is not None
    distinct = len(set(played.digests.tolist()))
    found = {"seed": seed, "score": played.score or 0.0, "distinct": distinct, "plain": of_plain, "league": of_league}
    found["cpu_s"] = {side.name: round(side.cpu_s) for side in sides}
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def wait(sides: list[Side], minutes: float, seed: int) -> None:
    """Until both have ended in good order, saying every minute what they said last."""
    begun, said_s = time.monotonic(), 0.0
    while not all(side.ended() for side in sides):
        gone_s = time.monotonic() - begun
        if gone_s > 60 * minutes + END_S:
            raise SystemExit(f"seed {seed}: a side goes on {END_S:.0f} s after its time: {sides[0].last_line()}")
        if gone_s - said_s >= SAY_EVERY_S:
            said_s = gone_s
            for side in sides:
                line = f"seed {seed}, {gone_s / 60:.0f} of {minutes:g} min, {side.name}: {side.last_line()}"
                print(line, file=sys.stderr, flush=True)
        time.sleep(0.5)
    for side in sides:
        if side.process.returncode:
            raise SystemExit(f"{side.name} ended with code {side.process.returncode}: {side.last_line()}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    quick = getattr(args, "quick", False)
    minutes = getattr(args, "minutes", None) or (QUICK_MINUTES if quick else MINUTES)
    seeds = list(args.seeds or (SEEDS[:1] if quick else SEEDS))
    found = [compare(minutes, seed) for seed in seeds]
    scores = [one["score"] for one in found]
    score = statistics.median(scores)
    case = ledger.case(
        f"share of points against plain training's champion after {minutes:g} minutes on half of the cores each",
        score,
        "score",
        peers={"plain training": 1.0 - score},
        goals={"plain training": GOAL / (1.0 - GOAL)},
        seeds=seeds,
        spread=(min(scores), max(scores)),
    )
    return ledger.result("league_champion", [case], minutes=minutes, games=GAMES, runs=found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    args = parser.parse_args()
    said = run(args)
    kept = RESULTS if args.minutes >= MINUTES and len(args.seeds) >= len(SEEDS) else RESULTS / "quick"
    kept.mkdir(exist_ok=True)
    (kept / "league_champion.json").write_text(json.dumps(said, indent=2) + "\n")
    return ledger.print_result(said)


if __name__ == "__main__":
    sys.exit(main())
