"""What `spar train GAME --sweep FILE` shows: progress, a table of trials, the best settings as flags."""

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output
from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.learn.plan import TrainRequest
    from sparring.learn.runs.training_loop import TrainingLoop, TrainProgress
    from sparring.learn.sweeps.sweep import SweepResult, TrialReport


def run_sweep(
    args: argparse.Namespace,
    request: "TrainRequest",
    output: Output,
    line: "Callable[[TrainProgress], str]",
    started: "Callable[[TrainingLoop], None]",
) -> dict[str, Any]:
    """Run the sweep and show what came of it; the object of --json."""
    from sparring.learn.sweeps.plot import plot
    from sparring.learn.sweeps.sweep import SweepCallbacks, sweep

    _check(args)

    def show(trial: int, run: int, progress: "TrainProgress") -> None:
        output.progress(f"trial {trial} run {run}  {line(progress)}")

    def on_trial(one: "TrialReport") -> None:
        output.say(f"trial {one.number}: {_outcome(one)}  {_settings(one)}")

    swept = sweep(args.sweep, request, args.config, SweepCallbacks(show, on_trial, started), tuple(sys.argv))
    pictures = plot(swept)
    _table(swept, output)
    for picture in pictures:
        output.say(f"drawn into {picture}")
    if swept.state == "stopped":
        output.say("stopped; the same command goes on with the trials that are left")
    if swept.best is not None:
        own = "".join(f" --algo-set {shlex.quote(text)}" for text in request.settings)
        output.say(f"best: spar train {request.game} --algo {request.algo}{own} {swept.flags}")
    return {
        "sweep": swept.name,
        "folder": str(swept.folder),
        "game": request.game,
        "algo": request.algo,
        "seed": request.seed,
        "objective": swept.file.sweep.objective,
        "state": swept.state,
        "trials": [asdict(one) for one in swept.trials],
        "best": None if swept.best is None else asdict(swept.best),
        "flags": swept.flags,
        "plots": pictures,
    }


def _check(args: argparse.Namespace) -> None:
    """The file says how long a run is and when it ends; a second word on it would be ignored."""
    given = {"--steps": args.steps, "--minutes": args.minutes, "--until": args.until, "--resume": args.resume}
    if twice := [flag for flag, value in given.items() if value is not None]:
        raise ConfigError(
            f"{twice[0]} does not go with it",
            where="--sweep",
            do="Say it in the file; a sweep that was broken off goes on by itself",
        )


def _table(swept: "SweepResult", output: Output) -> None:
    keys = [one.key for one in swept.file.space]
    rows = [
        [one.number, _outcome(one), *(_short(one.settings.get(key, "")) for key in keys), _mark(swept, one)]
        for one in swept.trials
    ]
    output.table(["trial", swept.file.sweep.objective, *keys, ""], rows)


def _mark(swept: "SweepResult", one: "TrialReport") -> str:
    return "best" if one == swept.best else ""


def _outcome(one: "TrialReport") -> str:
    return one.state if one.value is None else f"{one.value:.5g}"


def _settings(one: "TrialReport") -> str:
    return "  ".join(f"{key}={_short(text)}" for key, text in one.settings.items())


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
