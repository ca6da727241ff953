"""Learn a game: from simulation, from what people played (the store), or from both.

Ctrl-C stops after the current update, writes a checkpoint and publishes the model; --resume goes on from there.
Example: spar train cartpole --algo ppo --steps 200000
"""

import argparse
import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.cli.output import Output, spar_command
from sparring.errors import ConfigError, TrainingStopped
from sparring.processes.supervisor import ChildProcess, RestartPolicy

if TYPE_CHECKING:
    from sparring.config import Config
    from sparring.learn.plan import TrainRequest
    from sparring.learn.runs.train import TrainingLoop, TrainOptions, TrainProgress
    from sparring.learn.sweeps.sweep import Sweep, TrialReport

CHILD = "SPARRING_KEPT_ALIVE"  # set in the process of a learner that is kept alive: the run to resume, or "new"
LOOP_DEATHS, LOOP_S = 5, 120.0  # so many deaths in such a time end the run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("game", help="an id such as cartpole, connect-four, duel, gym:Acrobot-v1")
    parser.add_argument(
        "--algo",
        metavar="NAME",
        help="ppo, mappo, impala, a3c, dqn, apex, r2d2, sac; bc, cql, iql from the store; rllib:NAME; or module:name "
        "(ppo; from the store iql)",
    )
    parser.add_argument(
        "--topology",
        metavar="NAME",
        help="single, kinds, sync, allreduce, async, apex, central, hogwild, nodes, offline, rllib (by --algo, game)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="ticks of all games together; sampled steps with --from store"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="end after this long, the last promotion gate included"
    )
    parser.add_argument(
        "--until", type=float, metavar="RETURN", help="stop once 100 greedy episodes earn this on average"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed learns the same (0)")
    parser.add_argument("--from", dest="source", default="sim", metavar="SOURCE", help="sim, store or mix (sim)")
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help="go on with a run, by default the newest")
    parser.add_argument("--envs", type=int, metavar="N", help="games played at once by each actor")
    parser.add_argument("--actors", type=int, metavar="N", help="processes that play, in topologies that have any")
    parser.add_argument("--learners", type=int, metavar="N", help="that average their gradients (ppo, mappo, impala)")
    parser.add_argument(
        "--algo-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the algorithm; may be repeated",
    )
    parser.add_argument(
        "--track",
        action="append",
        metavar="NAME",
        help="send metrics to tensorboard, wandb, mlflow or module:name; may be repeated (tensorboard)",
    )
    parser.add_argument(
        "--sweep", type=Path, metavar="FILE", help="search the settings that this TOML file spans, by many runs"
    )
    parser.add_argument("--parallel", type=int, metavar="N", help="trials of a sweep at once (as many as cores)")
    parser.add_argument(
        "--on",
        metavar="URL",
        help="where actors play and records are read: local://, ray://auto or ray://HOST:PORT (local://)",
    )
    parser.add_argument(
        "--nodes",
        action="append",
        default=[],
        metavar="URL",
        help="a machine that learns (a3c, ppo, dqn): the line that `spar node --listen` printed; may be repeated",
    )
    parser.add_argument(
        "--accept-nodes", default="", metavar="HOST:PORT", help="let machines join, by the line that this prints"
    )
    parser.add_argument(
        "--contribute",
        choices=["weights", "experience"],
        help="what nodes send: weights that they learned, or seeded play, a share of which is played again (weights)",
    )
    parser.add_argument("--nodes-cert", default="", metavar="FILE", help="--accept-nodes: a certificate of your own")
    parser.add_argument("--nodes-key", default="", metavar="FILE", help="--accept-nodes: its key")
    parser.add_argument(
        "--keep-alive", action="store_true", help="start a learner that was killed again; so it is on ray://"
    )
    parser.add_argument(
        "--explain", action="store_true", help="show every setting and where it comes from, and train nothing"
    )
    parser.add_argument("--no-promote", action="store_true", help="publish, but do not replace the champion")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    kept_alive, on_ray = os.environ.get(CHILD), (args.on or args.config.train.on).startswith("ray:")
    alone = args.explain or args.sweep is not None or args.parallel is not None
    if kept_alive is None and not alone and (args.keep_alive or on_ray):
        return _keep_alive(args, output)  # before torch is imported: the child does that
    from sparring.learn.plan import COMMAND_LINE, TrainRequest, default_algo, with_nodes
    from sparring.learn.runs.train import TrainOptions, train

    if args.track:
        args.config = args.config.layered({"train.track": tuple(args.track)}, COMMAND_LINE, above=True)
    if kept_alive not in (None, "new"):  # a resumed run keeps its settings
        args.resume, args.algo_set, args.envs = kept_alive, [], None
    about_nodes = (args.nodes, args.accept_nodes, args.contribute, args.nodes_cert, args.nodes_key)
    args.config, nodes = with_nodes(args.config, COMMAND_LINE, *about_nodes)
    request = TrainRequest(
        game=args.game,
        algo=args.algo or default_algo(args.source),
        source=args.source,
        topology=args.topology,
        seed=args.seed,
        steps=args.steps,
        envs=args.envs,
        actors=args.actors,
        learners=args.learners,
        settings=tuple(args.algo_set),
        on=args.on,
        nodes=nodes,
    )
    options = TrainOptions(args.minutes, args.until, args.resume, not args.no_promote, tuple(sys.argv))
    if args.explain:
        return _explain(request, options, args.config, output)
    if args.parallel is not None and (args.sweep is None or args.parallel < 1):
        raise ConfigError(f"--parallel {args.parallel}", where="spar train", do="Count from 1, beside --sweep FILE")
    if args.sweep is not None:
        return _sweep(args, request, output)
    with output.waits():
        trained = train(request, options, args.config, lambda one: output.progress(str(one)), _stops_on_signals)
    published = trained.published
    all_kinds = (published, *published.others)
    for one in all_kinds:
        seats = ", ".join(trained.plan.spec.seats[seat].name for seat in one.seats)
        made = f"model {one.model[:12]} (weights {one.weights[:12]})" + (f" of {seats}" if seats else "")
        output.say(f"run {trained.run}: {trained.state}, {made}, {one.verdict}")
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
        "models": [{"model": one.model, "seats": list(one.seats), "promoted": one.promoted} for one in all_kinds],
    }


def _explain(request: "TrainRequest", options: "TrainOptions", config: "Config", output: Output) -> dict[str, Any]:
    """Every setting that such a run would have."""
    from sparring.learn.plan import plan

    if options.resume is not None:
        do = "Look at them with `spar runs show RUN`"
        raise ConfigError("a resumed run keeps its settings", where="--explain", do=do)
    rows = (*options.explained(request.origin), *plan(request, config).explained)
    output.table(["setting", "value", "from"], [[row.key, row.value, row.origin] for row in rows])
    return {"game": request.game, "algo": request.algo, "settings": [asdict(row) for row in rows]}


def _stops_on_signals(loop: "TrainingLoop | Sweep") -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, loop.on_signal)


def _keep_alive(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    """Train in a child process, which is started again when a signal killed it. The child's result is ours."""

    def start(run: str) -> ChildProcess:
        return ChildProcess(replace(command, environment={CHILD: run}), None)

    runs, asked = Path(args.config.data) / "runs", [False]
    command = replace(spar_command([*(word for word in args.words if word != "--json"), "--json"]), answers=True)
    policy = RestartPolicy(first_wait_s=0.0, young_s=float("inf"), loop_deaths=LOOP_DEATHS, loop_s=LOOP_S)
    output.say("starting the learner, which is started again if it is killed")
    child = start("new")

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
        child = start(run or "new")
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


def _sweep(args: argparse.Namespace, request: "TrainRequest", output: Output) -> dict[str, Any]:
    """Search the settings of --sweep FILE; show the trials, and the best settings as flags."""
    from sparring.learn.sweeps.sweep import SweepCallbacks, sweep
    from sparring.learn.sweeps.sweep_plot import plot

    _check_sweep(args)

    def show(trial: int, run: int, progress: "TrainProgress") -> None:
        output.progress(f"trial {trial} run {run}  {progress}")

    def on_trial(one: "TrialReport") -> None:
        settings = "  ".join(f"{key}={_short(value)}" for key, value in one.settings.items())
        output.say(f"trial {one.number}: {_outcome(one)}  {settings}  {one.note}".rstrip())

    calls = SweepCallbacks(show, on_trial, _stops_on_signals)
    with output.waits():
        swept = sweep(args.sweep, request, args.config, calls, tuple(sys.argv), args.parallel)
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


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
