"""One call from a request to a published model: what `spar train` does, for programs."""

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sparring.acting.gate_games import gate_episodes
from sparring.config import Config, open_data_folder
from sparring.errors import ConfigError, Missing, SparringError, StoreFailed
from sparring.learn import plan as plans
from sparring.learn.offline.parallel_store import parallel_store
from sparring.learn.plan import Plan, TrainRequest
from sparring.learn.protocol import Topology
from sparring.learn.runs.folder import RunFolder, another_build, commit
from sparring.learn.runs.publish import ModelPublisher, PublishedModel
from sparring.learn.runs.training_loop import Limits, TrainingLoop, TrainProgress
from sparring.learn.topologies import build
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.store.protocol import Store


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How long a run goes on and what becomes of it; what it learns is in the plan."""

    minutes: float | None = None
    until: float | None = None
    resume: str | None = None  # None: a new run; "": the newest of the game and algorithm; else a run's name
    promote: bool = True
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.minutes is not None and self.minutes <= 0:
            raise ConfigError(f"--minutes {self.minutes:g}", where="spar train", do="Give more than 0")
        if self.until is not None and not math.isfinite(self.until):
            raise ConfigError(f"--until {self.until:g}", where="spar train", do="Give a return that can be reached")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run came to."""

    run: str
    plan: Plan
    state: str  # "done" or "stopped"
    env_steps: int
    updates: int
    seconds: float
    position: int
    published: PublishedModel


def train(
    request: TrainRequest,
    options: TrainOptions,
    config: Config,
    show: Callable[[TrainProgress], None],
    started: Callable[[TrainingLoop], None] = lambda loop: None,
) -> TrainResult:
    """Train as requested. `started` gets the loop before its first iteration, so that a signal can stop it."""
    open_data_folder(Path(config.data))
    runs = Path(config.data) / "runs"
    if options.resume is None:
        plan = plans.plan(request, config)
    else:
        run = RunFolder.find(runs, request.game, request.algo, options.resume)
        plan = _resumed_plan(run, request, config)
    with ExitStack() as stack:
        days, share = config.registry.champion_days, config.registry.rollout_share
        registry = stack.enter_context(open_registry(config.registry_url, champion_days=days, rollout_share=share))
        topology = build(plan, _store(plan, config, stack))
        stack.callback(topology.close)
        _set_threads(topology, config.train.torch_threads)
        if options.resume is None:
            run = RunFolder.create(runs, plan, list(options.argv))
        games = gate_episodes(plan.spec, config.registry)
        publisher = ModelPublisher(plan, run.name, commit(), registry, games, promote=options.promote)
        limits = Limits(plan.steps, math.inf if options.minutes is None else options.minutes * 60, options.until)
        loop = TrainingLoop(plan, run, topology, publisher, limits, config.train, show)
        if options.resume is not None:
            loop.resume()
        started(loop)
        try:
            state = loop.learn()
            published = loop.finish()
        except SparringError as error:
            with suppress(StoreFailed):  # a full disk does not take this either, and the first error says so
                run.status("failed", message=str(error))
            raise
    env_steps, updates, position = topology.env_steps, topology.learner.updates, topology.position
    return TrainResult(run.name, plan, state, env_steps, updates, loop.seconds, position, published)


def _store(plan: Plan, config: Config, stack: ExitStack) -> Store | None:
    """The store that the run learns from, if it does; RLlib, and any run on a Ray cluster, read it in parallel."""
    if plan.source == "sim":
        return None
    store: Store = open_store(config.store_url)
    stack.callback(store.close)
    parallel = plan.source == "store" and (plan.topology == "rllib" or plan.on.startswith("ray:"))
    return parallel_store(store, config.store_url, plan.on) if parallel else store


def _resumed_plan(run: RunFolder, request: TrainRequest, config: Config) -> Plan:
    """The run's own plan, with more steps where they are asked for."""
    new = "or start a new run"
    if request.settings or request.envs:
        wrong = "a resumed run keeps its settings"
        raise ConfigError(wrong, where="--resume", do=f"Leave out --algo-set and --envs, {new}")
    try:
        plan = plans.from_record(request.game, run.about["seed"], run.about["config"], config)
    except (LookupError, TypeError, ConfigError) as error:
        raise another_build(run, error) from error
    if run.about["spec"] != plan.spec.hash:
        wrong = f"it learned {plan.game} with spec {run.about['spec'][:12]}, which is {plan.spec.hash[:12]} now"
        raise Missing(wrong, where=f"run {run.name}", do="Start a new run")
    for name in ("actors", "topology", "learners"):
        asked, has = getattr(request, name), getattr(plan, name)
        if asked is not None and asked != has:
            wrong = f"the run has {name} {has}, and a resumed run keeps its own"
            raise ConfigError(wrong, where="--resume", do=f"Leave out --{name}, {new}")
    return replace(plan, on=request.on or plan.on, steps=request.steps or plan.steps)


def _set_threads(topology: Topology, threads: int) -> None:
    """As configured. Otherwise one where no layer is a convolution: small matrices lose time on every other thread."""
    if threads or not topology.learner.network.image:
        torch.set_num_threads(threads or 1)
