"""A run from a request to a published model: what `spar train` does, for programs.

The training loop around a topology checks limits and writes metrics, checkpoints and models. What it does by the clock
never changes what is learned. `--until` is checked by the position of the run, so that a seed decides when a run ends.

Who decides that a model becomes champion: `league/gate.py` plays the gate's games and gives its verdict as evidence;
`league/promotion.py` calls `Registry.promote` where that is "better"; the registry signs and records the evidence.
`spar models promote` does the same by hand; with --force-reason an operator overrules the gate.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch

from sparring.acting.evaluate import evaluate
from sparring.acting.players import strongest
from sparring.config import DEFAULT, Config, TrainConfig, open_data_folder
from sparring.errors import ConfigError, Missing, StoreFailed, TrainingStopped
from sparring.league.gate import GateLimits
from sparring.learn import plan as plans
from sparring.learn.algorithms.learner import TorchLearner
from sparring.learn.offline.parallel_store import ParallelStore
from sparring.learn.plan import Plan, SettingRow, TrainRequest
from sparring.learn.protocol import Iteration, Learner, Topology, published_weights
from sparring.learn.runs.folder import RunFolder, another_build
from sparring.learn.runs.publisher import Learned, ModelPublisher, PublishedModel, Publisher, model_of
from sparring.learn.runs.trackers import Trackers, open_trackers, tracker_class
from sparring.learn.topologies import build
from sparring.nets.forward import Forward, forward_with_torch
from sparring.nets.shapes import multiplications
from sparring.registry import open_registry
from sparring.registry.registry import Registry
from sparring.store import open_store
from sparring.store.protocol import Store
from sparring.user_code import user_error
from sparring.wire.ids import ModelId
from sparring.wire.model import Model

log = logging.getLogger(__name__)

RECENT_EPISODES = 100
MANY_MULTIPLICATIONS = 1_000_000  # of a row through the network: torch's threads begin to pay
UNTIL_EPISODES = 100
PUBLISH_REST = 4  # times as long as the last gate took, at least, before the next one: a fifth of the time at most
GATE_MARGIN = 1.25  # with --minutes: times the seconds of the last gate that are kept for the last one,
LEAST_GATE_SHARE, MOST_GATE_SHARE = 0.05, 0.25  # and between these shares of the time;
FIRST_GATE_SHARE = 0.15  # this share where no gate has been timed yet
GRACE_S = 5.0  # that the last gate's games may end later: writing a model takes its time, too
UNTIL_SHARE = 0.04  # of a run's steps between two checks of --until


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How long a run goes on and what becomes of it; what it learns is in the plan."""

    minutes: float | None = None
    until: float | None = None  # mean return of UNTIL_EPISODES greedy episodes
    resume: str | None = None  # None: a new run; "": the newest of the game and algorithm; else a run's name
    promote: bool = True
    argv: tuple[str, ...] = ()
    start: Model | None = None  # whose weights the run begins with

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--minutes {self.minutes:g}", where="spar train", do="Give more than 0")
        if self.until is not None and not math.isfinite(self.until):
            raise ConfigError(f"--until {self.until:g}", where="spar train", do="Give a return that can be reached")

    def explained(self, origin: str) -> list[SettingRow]:
        """The options that are settings of the run, as rows of its table; `origin` is who gave them."""
        values, default = {"minutes": self.minutes, "until": self.until, "promote": self.promote}, TrainOptions()
        return [
            SettingRow(key, value, DEFAULT if value == getattr(default, key) else origin)
            for key, value in values.items()
        ]


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


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """What a progress line shows; as text it is that line."""

    seconds: float
    position: int  # steps played, or sampled where no game is played
    plays: bool
    updates: int
    steps_per_s: float
    return_mean: float | None
    loss: float | None
    done_share: float
    seconds_left: float | None
    staleness: float | None = None  # updates between acting and learning, of the last batch

    def __str__(self) -> str:
        counted = "steps" if self.plays else "sampled"
        parts = [f"{self.done_share:4.0%}", f"{self.position:,} {counted}", f"{self.steps_per_s:,.0f} steps/s"]
        parts.append(f"{self.updates:,} updates")
        if self.return_mean is not None:
            parts.append(f"return {self.return_mean:.2f}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.staleness:  # none where acting and learning take turns
            parts.append(f"{self.staleness:.0f} updates stale")
        if self.seconds_left is not None:
            minutes, seconds = divmod(int(self.seconds_left), 60)
            parts.append(f"{minutes} min {seconds:02} s left" if minutes else f"{seconds} s left")
        return "  ".join(parts)


@dataclass(slots=True)
class TrainingLoop:
    """Runs a topology from its start, or its last checkpoint, to the end of the run."""

    plan: Plan
    run: RunFolder
    topology: Topology
    publisher: Publisher
    options: TrainOptions
    timing: TrainConfig
    show: Callable[[TrainProgress], None]
    stop_requested: bool = False  # set by a signal handler
    published: PublishedModel | None = None
    trackers: Trackers | None = None
    _seconds_before: float = 0.0  # that the run took before it was resumed
    _started: float = 0.0
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _partner_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _metrics: dict[str, float] = field(default_factory=dict)
    _gate_s: float = 0.0  # that the last model took to publish, with the gate's games
    _iteration_s: float = 0.0  # that the last iteration took
    _pauses: dict[str, float] = field(default_factory=dict)  # how long the learner last stood still, as metrics
    _last_log: tuple[float, int] = (0.0, -1)  # seconds and position
    _until_checks: int = 0

    def on_signal(self, number: int, frame: object) -> None:
        """A signal handler: the first signal ends the run after its current update, a second one at once."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True

    def resume(self) -> None:
        """Load the run's checkpoint and continue from there."""
        state = self.run.restore()
        try:
            self.topology.load(state["topology"])
            self._seconds_before, self._until_checks = state["seconds"], state["until_checks"]
            self._returns.extend(state["returns"])
            self._partner_returns.extend(state["partner_returns"])
            self.publisher.parents = [ModelId(name) for name in state["parents"]]
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise another_build(self.run, error) from error
        self.run.rewind(self._seconds_before)

    def learn(self) -> str:
        """Iterate to the first limit; how it ended: "done" or "stopped"."""
        self._started = now = time.monotonic()
        periods = {self._log: self.timing.log_every_s, self._checkpoint: self.timing.checkpoint_every_s}
        periods[self._publish] = self.timing.publish_every_s
        due = {task: now + period for task, period in periods.items()}
        started_at = self._last_log = (self.seconds, self.topology.position)
        self.run.status("running", model=self._model())
        while not self.stop_requested and not self._finished():
            began = time.monotonic()
            self._note(self.topology.iterate())
            self._iteration_s = time.monotonic() - began
            for task, period in periods.items():
                if (began := time.monotonic()) >= due[task]:
                    task()
                    now = time.monotonic()
                    # A gate of long games may take minutes: most of the time is for learning all the same.
                    due[task] = now + (max(period, PUBLISH_REST * (now - began)) if task == self._publish else period)
        if self._last_log is started_at or self.topology.position != self._last_log[1]:  # a run has at least one line
            self._log()
        self._last_checkpoint()
        return "stopped" if self.stop_requested else "done"

    def finish(self) -> PublishedModel:
        """Publish the last model, let it stand for promotion, and write the run's last status."""
        games = "the promotion gate's" if self.options.promote else "its evaluation's"
        log.info(f"publishing the last model: it plays {games} games …")
        self._publish()
        assert self.published is not None
        self._last_checkpoint()
        state = "stopped" if self.stop_requested else "done"
        self.run.status(state, model=self._model(), message=self.published.verdict)
        if self.trackers is not None:
            played, summary = self.published.evaluation, {"state": state, "model": self.published.model}
            scores = {} if played is None else {"final_return_mean": played.mean, "final_return_sd": played.sd}
            self.trackers.finish(summary | scores)
        return self.published

    @property
    def seconds(self) -> float:
        """Of the whole run, the pauses before it was resumed left out."""
        return self._seconds_before + time.monotonic() - self._started

    def _finished(self) -> bool:
        until = self.options.until
        return self._done_share(self._iteration_s) >= 1 or (until is not None and self._reached(until))

    def _done_share(self, ahead_s: float = 0.0) -> float:
        """Of the steps or of the time `ahead_s` from now, whichever is nearer to its end: an iteration that would end
        too late is not begun."""
        share = self.topology.position / self.plan.steps
        if self.options.minutes is None:
            return share
        limit_s = 60 * self.options.minutes  # in which the gate's games, too, have to end
        gate_s = GATE_MARGIN * self._gate_s if self._gate_s else FIRST_GATE_SHARE * limit_s
        gate_s = min(max(gate_s, LEAST_GATE_SHARE * limit_s), MOST_GATE_SHARE * limit_s)
        return max(share, (self.seconds + ahead_s) / (limit_s - gate_s))

    def _reached(self, until: float) -> bool:
        checks = int(self.topology.position / (UNTIL_SHARE * self.plan.steps))
        if checks <= self._until_checks:
            return False
        self._until_checks = checks
        learner = self.topology.learner
        player: Model | Forward = forward_with_torch(learner.network, published_weights(learner))
        if self.plan.spec.hidden_information:  # as a model, which may sample
            sources = self.topology.sources()
            player = model_of(Learned(self.plan, learner.network, published_weights(learner), sources), "", ())
        rival = strongest(self.plan.game)
        count, seed, deadline = UNTIL_EPISODES, self.plan.seed, self._deadline()
        played = evaluate(self.plan.game, player, episodes=count, seed=seed, against=rival, deadline=deadline)
        return len(played.returns) == count and played.mean >= until

    def _note(self, iteration: Iteration) -> None:
        if (ended := iteration.episodes) is not None:
            self._returns.extend(ended.returns.tolist())
            self._partner_returns.extend(ended.returns[ended.against_others].tolist())
        if iteration.update is not None:
            self._metrics = dict(iteration.update.metrics)
            broken = [name for name, value in self._metrics.items() if not math.isfinite(value)]
            if broken:
                assert iteration.batch is not None
                path = self.run.save_broken_batch(iteration.batch)
                updates = self.topology.learner.updates
                raise TrainingStopped(
                    f"{broken[0]} is no finite number after update {updates}; the batch is in {path}",
                    where=f"run {self.run.name}",
                    do="Lower learning_rate, or look at the batch; --resume goes on from the last checkpoint",
                )
        self._metrics.update(iteration.metrics)

    def _log(self) -> None:
        seconds, position, updates = self.seconds, self.topology.position, self.topology.learner.updates
        rate = (position - self._last_log[1]) / max(seconds - self._last_log[0], 1e-9)
        self._last_log = (seconds, position)
        mean = float(np.mean(self._returns)) if self._returns else None
        line: dict[str, float | int | str | None] = {
            "seconds": round(seconds, 3),
            "env_steps": self.topology.env_steps,
            "updates": updates,
            "steps_per_s": round(rate, 1),
            "episodes": self.topology.episodes,
            "return_mean": mean,
            "return_sd": float(np.std(self._returns)) if self._returns else None,
        }
        if self._partner_returns:
            line["partner_return_mean"] = float(np.mean(self._partner_returns))
        self.run.finish_checkpoint(wait=False)  # a full disk stops the run
        self.run.add_metrics(line | self._metrics | self._pauses)
        if self.trackers is not None:
            self.trackers.log(line | self._metrics)
        share = min(1.0, self._done_share())
        left = None if share <= 0 else seconds / share - seconds
        loss, staleness = self._metrics.get("loss"), self._metrics.get("staleness_updates")
        plays = self.plan.source != "store"
        self.show(TrainProgress(seconds, position, plays, updates, rate, mean, loss, share, left, staleness))

    def _last_checkpoint(self) -> None:
        self.run.finish_checkpoint()
        self._checkpoint()
        self.run.finish_checkpoint()

    def _checkpoint(self) -> None:
        """Have a thread write a checkpoint; the learner stands still while its state is copied."""
        if not self.run.finish_checkpoint(wait=False):
            return  # the disk is slow: the one before is still being written
        began = time.monotonic()
        state = {
            "topology": self.topology.save(),
            "seconds": self.seconds,
            "returns": list(self._returns),
            "partner_returns": list(self._partner_returns),
            "until_checks": self._until_checks,
            "parents": list(self.publisher.parents),
        }
        self.run.checkpoint(state)
        self._pauses["checkpoint_pause_ms"] = round(1000 * (time.monotonic() - began), 3)

    def _deadline(self) -> float:
        """Of games played to measure a model, by time.monotonic: a little after --minutes are over."""
        minutes = math.inf if self.options.minutes is None else self.options.minutes
        return self._started + 60 * minutes - self._seconds_before + GRACE_S

    def _publish(self) -> None:
        began = time.monotonic()
        learned = []
        for plan, part in self._parts():
            learner = part.learner
            learned.append(Learned(plan, learner.network, published_weights(learner), part.sources()))
        self.published = self.publisher.publish(learned, self._deadline())
        self._gate_s = time.monotonic() - began
        self.run.status("running", model=self._model(), message=self.published.verdict)

    def _parts(self) -> list[tuple[Plan, Topology]]:
        """The whole, or its part for each kind of seats, with its plan."""
        found: list[tuple[Plan, Topology]] = getattr(self.topology, "parts", [(self.plan, self.topology)])
        return found

    def _model(self) -> str | None:
        return self.publisher.parents[-1] if self.publisher.parents else None


def train(
    request: TrainRequest,
    options: TrainOptions,
    config: Config,
    show: Callable[[TrainProgress], None],
    started: Callable[[TrainingLoop], object] = lambda loop: None,
    publisher: Callable[[Plan, str, Registry], Publisher] | None = None,
) -> TrainResult:
    """Train as requested. `started` gets the loop before its first iteration, so that a signal can stop it.
    `publisher` makes, of the run's plan, its name and the registry, what gets the models; by default they stand for
    champion."""
    open_data_folder(Path(config.data))
    runs, track = Path(config.data) / "runs", config.train.track
    if options.resume is None:
        plan = plans.plan(request, config)
        plan = replace(plan, explained=(*options.explained(request.origin), *plan.explained))
    else:
        run = RunFolder.find(runs, request.game, request.algo, options.resume)
        plan = _resumed_plan(run, request, config)
        if config.origin("train.track") == DEFAULT:
            track = tuple(run.about.get("track", track))
    if len(plan.spec.kinds) > 1 and (options.until is not None or options.start is not None):
        wrong = f"{'--until has' if options.until is not None else 'a run starts from'} one model, and the seats of "
        do = "Give --steps or --minutes, and start from scratch"
        raise ConfigError(f"{wrong}{plan.game} are of several kinds", where=f"game {plan.game}", do=do)
    for name in track:
        tracker_class(name)  # raises before anything starts
    with ExitStack() as stack:
        days, share = config.registry.champion_days, config.registry.rollout_share
        registry = stack.enter_context(open_registry(config.registry_url, champion_days=days, rollout_share=share))
        topology = build(plan, _store(plan, config, stack))
        stack.callback(topology.close)
        _set_threads(topology, config.train.torch_threads)
        if options.resume is None:
            run = RunFolder.create(runs, plan, list(options.argv), track)
        if options.start is not None:
            _start_from(options.start, topology.learner)
        publishes = publisher(plan, run.name, registry) if publisher else None
        if publishes is None:
            limits = GateLimits.from_config(config)
            publishes = ModelPublisher(run.name, registry, limits, promote=options.promote)
        loop = TrainingLoop(plan, run, topology, publishes, options, config.train, show)
        if options.resume is not None:
            loop.resume()
        loop.trackers = open_trackers(track, run, config.train.track_project)
        stack.callback(loop.trackers.close)
        started(loop)
        try:
            state = loop.learn()
            published = loop.finish()
        except Exception as error:
            with suppress(StoreFailed):  # a full disk does not take this either, and the first error says so
                run.status("failed", message=str(user_error(error) or error))
            raise
    env_steps, updates, position = topology.env_steps, topology.learner.updates, topology.position
    return TrainResult(run.name, plan, state, env_steps, updates, loop.seconds, position, published)


def _start_from(model: Model, learner: Learner) -> None:
    if not isinstance(learner, TorchLearner):
        do = "Train from scratch, or by one of Sparring's own algorithms"
        raise ConfigError("this algorithm cannot start from a model", where=f"model {model.id[:12]}", do=do)
    learner.start_from(model)


def _store(plan: Plan, config: Config, stack: ExitStack) -> Store | None:
    """The store that the run learns from, if it does; RLlib, and any run on a Ray cluster, read it in parallel."""
    if plan.source == "sim":
        return None
    store: Store = open_store(config.store_url)
    stack.callback(store.close)
    log.info(f"reading recorded play from {config.store_url.partition('?')[0]} …")
    parallel = plan.source == "store" and (plan.topology == "rllib" or plan.on.startswith("ray:"))
    return cast(Store, ParallelStore(store, config.store_url, plan.on)) if parallel else store


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
    if (plan.topology == "nodes") != (request.nodes is not None):
        wrong = f"the run has topology {plan.topology}"
        do = "Give --nodes or --accept-nodes again" if plan.topology == "nodes" else f"Leave out --nodes, {new}"
        raise ConfigError(wrong, where="--resume", do=do)
    on, steps = request.on or plan.on, request.steps or plan.steps
    return replace(plan, on=on, steps=steps, league=request.league, nodes=request.nodes)


def _set_threads(topology: Topology, threads: int) -> None:
    """As configured. Otherwise one, unless a row passes many multiplications: small products lose time on every other
    thread, and where the machine is busy they wait for it."""
    if threads or multiplications(topology.learner.network) < MANY_MULTIPLICATIONS:
        torch.set_num_threads(threads or 1)
