"""A trial of a sweep: runs of the same settings, one for each seed. It is run in the sweep's process, on Ray
(ray_tune.py), or as a process of its own:

    parent ─ the trial, one line ─► `python -m sparring.learn.sweeps.trial` ─ JSON lines: progress …, outcome ─► parent
"""

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import msgspec

from sparring.config import Config
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainingLoop, TrainOptions, TrainProgress, TrainResult, train
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines

MISSED = 2.0  # a run that did not reach the target counts as so many times what it took
GRACE_S = 10.0  # for the checkpoint of a trial whose sweep is gone


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """The table [sweep]. A trial is `seeds` runs with the same settings; its value is their mean."""

    name: str = ""  # of its folder; by default game, algorithm and file
    trials: int = 20
    steps: int = 0  # of each run
    minutes: float = 0.0  # of each run, instead of steps
    objective: Literal["return", "steps", "seconds"] = "return"  # the final return, or what it takes to reach target
    target: float = math.nan  # a return, as --until takes it
    seeds: int = 1
    prune: bool = False  # stop a trial whose first run is below the median of the others at the same tenth
    parallel: int = 0  # trials at once; 0: one for each core, and one alone where seconds are the objective

    def __post_init__(self) -> None:
        where = "[sweep]"
        if min(self.trials, self.seeds) < 1 or min(self.steps, self.parallel) < 0 or not 0 <= self.minutes < math.inf:
            raise ConfigError(
                f"trials = {self.trials}, seeds = {self.seeds}, steps = {self.steps}, minutes = {self.minutes:g}, "
                f"parallel = {self.parallel}",
                where=where,
                do="Count trials and seeds from 1, and let nothing be negative",
            )
        if bool(self.steps) == bool(self.minutes):
            raise ConfigError("how long a run is must be said once", where=where, do="Give steps, or else minutes")
        if self.objective != "return" and not math.isfinite(self.target):
            raise ConfigError(f"objective = {self.objective!r} has no target", where=where, do="Give target = RETURN")


@dataclass(frozen=True, slots=True)
class TrialJob:
    """All that a process needs to run a trial."""

    sweep: SweepConfig
    request: TrainRequest  # with the trial's settings
    config: Config
    argv: tuple[str, ...] = ()

    def encode(self) -> str:
        return msgspec.msgpack.encode(self).hex()

    @classmethod
    def decode(cls, text: str | bytes) -> "TrialJob":
        return msgspec.msgpack.decode(bytes.fromhex(text if isinstance(text, str) else text.decode()), type=cls)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended. One that was stopped does not count, and its settings are drawn again."""

    state: Literal["complete", "pruned", "failed", "stopped"]
    value: float | None = None
    runs: tuple[str, ...] = ()
    error: str = ""


def run_trial(
    job: TrialJob,
    prune: Callable[[int, TrainProgress], bool],
    started: Callable[[TrainingLoop], object] = lambda loop: None,
) -> Outcome:
    """Run it to its end. `prune` is asked with each progress, and the number of its run from 1; True ends the trial."""
    values: list[float] = []
    runs: list[str] = []
    loops: list[TrainingLoop] = []
    pruned = False

    def begin(loop: TrainingLoop) -> None:
        loops.append(loop)
        started(loop)

    def show(progress: TrainProgress) -> None:
        nonlocal pruned
        if prune(len(loops), progress) and not loops[-1].stop_requested:
            pruned = loops[-1].stop_requested = True

    until = None if job.sweep.objective == "return" else job.sweep.target
    options = TrainOptions(job.sweep.minutes or None, until, promote=False, argv=job.argv)
    for seed in range(job.sweep.seeds):
        request = replace(job.request, seed=job.request.seed + seed, steps=job.sweep.steps or job.request.steps)
        try:
            trained = train(request, options, job.config, show, begin)
            runs.append(trained.run)
            if trained.state == "stopped":
                return Outcome("pruned" if pruned else "stopped", None, tuple(runs))
            values.append(_value(job.sweep, trained))
        except TrainingStopped as error:
            return Outcome("failed", None, tuple(runs), str(error))
    return Outcome("complete", sum(values) / len(values), tuple(runs))


def _value(sweep: SweepConfig, trained: TrainResult) -> float:
    published = trained.published
    if sweep.objective == "return":
        if published.evaluation is None:
            do = "Sweep a game that has a simulator here"
            raise TrainingStopped(published.verdict, where=f"run {trained.run}", do=do)
        return published.evaluation.mean
    took = float(trained.position) if sweep.objective == "steps" else trained.seconds
    late = trained.position >= trained.plan.steps or trained.seconds >= (sweep.minutes * 60 or float("inf"))
    return took * MISSED if late else took


def main() -> None:
    """Run the trial that standard input names, for a parent that reads standard output."""
    lines = read_lines()
    job = TrialJob.decode(first_line(lines))
    end_with_parent(lines, lambda: os.kill(os.getpid(), signal.SIGTERM), GRACE_S)

    def say(what: str, **value: Any) -> None:
        sys.stdout.write(json.dumps({what: value}) + "\n")
        sys.stdout.flush()

    def tell(run: int, progress: TrainProgress) -> bool:
        say("progress", run=run, **asdict(progress))
        return False  # the parent prunes by SIGTERM, and knows that it did

    outcome = run_trial(job, tell, lambda loop: signal.signal(signal.SIGTERM, loop.on_signal))
    say("outcome", **asdict(outcome))


if __name__ == "__main__":
    main()
