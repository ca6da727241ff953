"""Learn a game: from simulation, from what people played (the store), or from both.

Ctrl-C stops after the current update, writes a checkpoint and publishes the model; --resume goes on from there.
Example: spar train cartpole --algo ppo --steps 200000
"""

import argparse
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.learner_supervisor import keep_alive, kept_alive
from sparring.cli.output import Output
from sparring.errors import ConfigError

if TYPE_CHECKING:
    from sparring.learn.plan import TrainRequest
    from sparring.learn.runs.training_loop import TrainingLoop, TrainProgress
    from sparring.learn.sweeps.sweep import TrialReport


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", help="an id such as cartpole, connect-four, duel, gym:Acrobot-v1")
    parser.add_argument(
        "--algo",
        metavar="NAME",
        help="ppo, impala, a3c, dqn, apex, r2d2, sac; bc, cql, iql from the store; rllib:NAME; or module:name "
        "(ppo; from the store iql)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="single, sync, allreduce, async, apex, central, hogwild, offline or rllib; by default what suits --algo",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="ticks of all games together; sampled steps with --from store"
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after this long")
    parser.add_argument(
        "--until", type=float, metavar="RETURN", help="stop once 100 greedy episodes earn this on average"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed learns the same (0)")
    parser.add_argument("--from", dest="source", default="sim", metavar="SOURCE", help="sim, store or mix (sim)")
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help="go on with a run, by default the newest")
    parser.add_argument("--envs", type=int, metavar="N", help="games played at once by each actor")
    parser.add_argument("--actors", type=int, metavar="N", help="processes that play, in topologies that have any")
    parser.add_argument("--learners", type=int, metavar="N", help="that average their gradients (ppo, impala)")
    parser.add_argument(
        "--algo-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the algorithm; may be repeated",
    )
    parser.add_argument(
        "--sweep", type=Path, metavar="FILE", help="search the settings that this TOML file spans, by many runs"
    )
    parser.add_argument(
        "--on",
        metavar="URL",
        help="where actors play and records are read: local://, ray://auto or ray://HOST:PORT (local://)",
    )
    parser.add_argument(
        "--keep-alive", action="store_true", help="start a learner that was killed again; so it is on ray://"
    )
    parser.add_argument("--no-promote", action="store_true", help="publish, but do not replace the champion")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    from sparring.learn.plan import TrainRequest
    from sparring.learn.runs.train import TrainOptions, train

    request = TrainRequest(
        game=args.game,
        algo=args.algo or ("iql" if args.source == "store" else "ppo"),
        source=args.source,
        topology=args.topology,
        seed=args.seed,
        steps=args.steps,
        envs=args.envs,
        actors=args.actors,
        learners=args.learners,
        settings=tuple(args.algo_set),
        on=args.on,
    )
    if args.sweep is not None:
        return _sweep(args, request, output)
    if kept_alive(args):
        return keep_alive(args, output)
    options = TrainOptions(args.minutes, args.until, args.resume, not args.no_promote, tuple(sys.argv))
    trained = train(request, options, args.config, lambda progress: output.progress(_line(progress)), _stops_on_signals)
    published = trained.published
    made = f"model {published.model[:12]} (weights {published.weights[:12]})"
    output.say(f"run {trained.run}: {trained.state}, {made}, {published.verdict}")
    played = published.evaluation
    return {
        "run": trained.run,
        "game": trained.plan.game,
        "algo": trained.plan.algo,
        "seed": trained.plan.seed,
        "env_steps": trained.env_steps,
        "updates": trained.updates,
        "seconds": round(trained.seconds, 3),
        "steps_per_s": round(trained.position / max(trained.seconds, 1e-9), 1),
        "return_mean": None if played is None else played.mean,
        "return_sd": None if played is None else played.sd,
        "model": published.model,
        "weights_sha256": published.weights,
        "promoted": published.promoted,
        "state": trained.state,
    }


def _line(progress: "TrainProgress") -> str:
    counted = "steps" if progress.plays else "sampled"
    parts = [f"{progress.done_share:4.0%}", f"{progress.position:,} {counted}", f"{progress.steps_per_s:,.0f} steps/s"]
    parts.append(f"{progress.updates:,} updates")
    if progress.return_mean is not None:
        parts.append(f"return {progress.return_mean:.2f}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    if progress.staleness:  # none where acting and learning take turns
        parts.append(f"{progress.staleness:.0f} updates stale")
    if progress.seconds_left is not None:
        parts.append(f"{_span(progress.seconds_left)} left")
    return "  ".join(parts)


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _stops_on_signals(loop: "TrainingLoop") -> None:
    """The first signal ends the run in good order; a second one ends it at once."""

    def ask(number: int, frame: object) -> None:
        if loop.stop_requested:
            raise KeyboardInterrupt
        loop.stop_requested = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def _sweep(args: argparse.Namespace, request: "TrainRequest", output: Output) -> dict[str, Any]:
    """Search the settings of --sweep FILE; show the trials, and the best settings as flags."""
    from sparring.learn.sweeps.plot import plot
    from sparring.learn.sweeps.sweep import SweepCallbacks, sweep

    _check_sweep(args)

    def show(trial: int, run: int, progress: "TrainProgress") -> None:
        output.progress(f"trial {trial} run {run}  {_line(progress)}")

    def on_trial(one: "TrialReport") -> None:
        settings = "  ".join(f"{key}={_short(text)}" for key, text in one.settings.items())
        output.say(f"trial {one.number}: {_outcome(one)}  {settings}")

    swept = sweep(args.sweep, request, args.config, SweepCallbacks(show, on_trial, _stops_on_signals), tuple(sys.argv))
    pictures = plot(swept)
    keys = [one.key for one in swept.file.space]
    rows = [
        [one.number, _outcome(one), *(_short(one.settings.get(key, "")) for key in keys), "best" * (one == swept.best)]
        for one in swept.trials
    ]
    output.table(["trial", swept.file.sweep.objective, *keys, ""], rows)
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


def _check_sweep(args: argparse.Namespace) -> None:
    """The file says how long a run is and when it ends; a flag for that would be ignored."""
    given = {"--steps": args.steps, "--minutes": args.minutes, "--until": args.until, "--resume": args.resume}
    if twice := [flag for flag, value in given.items() if value is not None]:
        do = "Say it in the file; a sweep that was broken off goes on by itself"
        raise ConfigError(f"{twice[0]} does not go with it", where="--sweep", do=do)


def _outcome(one: "TrialReport") -> str:
    return one.state if one.value is None else f"{one.value:.5g}"


def _short(text: str) -> str:
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return text
