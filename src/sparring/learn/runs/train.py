"""One call from a wish to a trained model: what `spar train` does, for programs."""

import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from sparring.acting.gate_games import games_of_the_gate
from sparring.config import Config, open_data_folder
from sparring.errors import ConfigError, SparringError, StoreFailed
from sparring.learn.offline.parallel_store import SharedReading, shares_reading
from sparring.learn.plan import Plan, TrainRequest, from_record, plan
from sparring.learn.protocol import Topology
from sparring.learn.runs.folder import RunFolder, another_build, commit
from sparring.learn.runs.publish import ModelPublisher, PublishedModel
from sparring.learn.runs.session import Limits, Progress, Session, same_game
from sparring.learn.topologies import build
from sparring.registry import open_registry
from sparring.store import open_store
from sparring.store.protocol import Store


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How a sitting goes, beside what the plan says."""

    minutes: float | None = None
    until: float | None = None
    resume: str | None = None  # None: a new run; "": the newest of the game and algorithm; else a run's name
    promote: bool = True
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What came of it."""

    run: str
    plan: Plan
    state: str  # "done" or "stopped"
    env_steps: int
    updates: int
    seconds: float
    position: int
    published: PublishedModel


def train(
    wish: TrainRequest,
    orders: TrainOptions,
    config: Config,
    show: Callable[[Progress], None],
    begun: Callable[[Session], None] = lambda session: None,
) -> TrainResult:
    """Train as wished. `begun` is handed the session before its first turn, so that a signal can stop it."""
    open_data_folder(Path(config.data))
    runs = Path(config.data) / "runs"
    if orders.minutes is not None and orders.minutes <= 0:
        raise ConfigError(f"--minutes {orders.minutes:g}", where="spar train", do="Give it some time")
    if orders.until is not None and not math.isfinite(orders.until):
        raise ConfigError(f"--until {orders.until:g}", where="spar train", do="Name a return that can be reached")
    if orders.resume is None:
        agreed = plan(wish, config)
    else:
        run = RunFolder.find(runs, wish.game, wish.algo, orders.resume)
        agreed = _again(run, wish, config)
    with ExitStack() as stack:
        registry = stack.enter_context(
            open_registry(
                config.registry_url,
                champion_days=config.registry.champion_days,
                rollout_share=config.registry.rollout_share,
            )
        )
        topology = build(agreed, _store(agreed, config, stack))
        stack.callback(topology.close)
        _set_threads(topology, config.train.torch_threads)
        if orders.resume is None:
            run = RunFolder.create(runs, agreed, list(orders.argv))
        games = games_of_the_gate(agreed.spec, config.registry)
        publisher = ModelPublisher(agreed, run.name, commit(), registry, games, promote=orders.promote)
        session = Session(agreed, run, topology, publisher, _limits(agreed, orders), config.train, show)
        if orders.resume is not None:
            session.resume()
        begun(session)
        try:
            state = session.learn()
            published = session.finish()
        except SparringError as error:
            with suppress(StoreFailed):  # a full disk does not take this either, and the first error says so
                run.status("failed", message=str(error))
            raise
    return TrainResult(
        run.name,
        agreed,
        state,
        topology.env_steps,
        topology.learner.updates,
        session.seconds,
        topology.position,
        published,
    )


def _store(agreed: Plan, config: Config, stack: ExitStack) -> Store | None:
    """The records that the run learns from, if it does."""
    if agreed.source == "sim":
        return None
    store: Store = open_store(config.store_url)
    stack.callback(store.close)
    if shares_reading(agreed.source, agreed.topology, agreed.on):
        store = cast(Store, SharedReading(store, config.store_url, agreed.on))
    return store


def _limits(agreed: Plan, orders: TrainOptions) -> Limits:
    seconds = float("inf") if orders.minutes is None else orders.minutes * 60
    return Limits(agreed.steps, seconds, orders.until)


def _again(run: RunFolder, wish: TrainRequest, config: Config) -> Plan:
    """The run's own plan, with more steps where they are asked for."""
    if wish.settings or wish.envs:
        raise ConfigError(
            "a resumed run keeps its settings", where="--resume", do="Leave out --algo-set and --envs, or start anew"
        )
    try:
        agreed = from_record(wish.game, run.about["seed"], run.about["config"], config)
    except (LookupError, TypeError, ConfigError) as error:
        raise another_build(run, error) from error
    same_game(run, agreed)
    for name, asked in (("actors", wish.actors), ("topology", wish.topology), ("learners", wish.learners)):
        if asked is not None and asked != getattr(agreed, name):
            raise ConfigError(
                f"the run has {name} {getattr(agreed, name)}, and it keeps them",
                where="--resume",
                do=f"Leave out --{name}, or start anew",
            )
    if wish.on is not None:
        agreed = replace(agreed, on=wish.on)
    return agreed if wish.steps is None else replace(agreed, steps=wish.steps)


def _set_threads(topology: Topology, threads: int) -> None:
    """As configured. Otherwise one where no layer is a convolution: small matrices lose time on every other thread."""
    if threads or not topology.learner.network.image:
        torch.set_num_threads(threads or 1)
