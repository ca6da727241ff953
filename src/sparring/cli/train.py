"""Learn a game: from simulation, from what people played (the store), or from both.

Ctrl-C stops after the current update, keeps a checkpoint and publishes what was learned; --resume goes on.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.learner_supervisor import keep_alive, kept_alive
from sparring.cli.output import Output

if TYPE_CHECKING:
    from sparring.learn.runs.training_loop import TrainingLoop, TrainProgress


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
        help="single, sync, ring, async, apex, central, hogwild, offline or rllib; by default what suits --algo",
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
        from sparring.cli.sweep_table import run_sweep

        return run_sweep(args, request, output, _line, _stops_on_signals)
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
