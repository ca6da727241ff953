"""The training loop around a topology: limits, metrics, checkpoints, published models.

What it does by the clock (metrics, checkpoints, models) never changes what is learned. `--until` is checked by the
position of the run, so that a seed decides when a run ends.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sparring.acting.evaluate import evaluate
from sparring.acting.gate_games import strongest
from sparring.config import TrainConfig
from sparring.errors import TrainingStopped
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Topology
from sparring.learn.runs.folder import RunFolder, another_build
from sparring.learn.runs.publish import ModelPublisher, PublishedModel
from sparring.nets.forward import forward_with_torch
from sparring.wire.ids import ModelId

RECENT_EPISODES = 100
UNTIL_EPISODES = 100
PUBLISH_REST = 4  # times as long as the last gate took, at least, before the next one: a fifth of the time at most
UNTIL_SHARE = 0.04  # of a run's steps between two checks of --until


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends: at the first of these."""

    steps: int
    seconds: float = math.inf
    until: float | None = None  # mean return of UNTIL_EPISODES greedy episodes


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """What a progress line shows."""

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


@dataclass(slots=True)
class TrainingLoop:
    """Runs a topology from its start, or its last checkpoint, to the end of the run."""

    plan: Plan
    run: RunFolder
    topology: Topology
    publisher: ModelPublisher
    limits: Limits
    timing: TrainConfig
    show: Callable[[TrainProgress], None]
    clock: Callable[[], float] = time.monotonic
    stop_requested: bool = False  # set by a signal handler
    published: PublishedModel | None = None
    _seconds_before: float = 0.0  # that the run took before it was resumed
    _started: float = 0.0
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _partner_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _metrics: dict[str, float] = field(default_factory=dict)
    _last_log: tuple[float, int] = (0.0, -1)  # seconds and position
    _until_checks: int = 0

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
        self._started = now = self.clock()
        periods = {self._log: self.timing.log_every_s, self._checkpoint: self.timing.checkpoint_every_s}
        periods[self._publish] = self.timing.publish_every_s
        due = {task: now + period for task, period in periods.items()}
        started_at = self._last_log = (self.seconds, self.topology.position)
        self.run.status("running", model=self._model())
        while not self.stop_requested and not self._finished():
            self._note(self.topology.iterate())
            for task, period in periods.items():
                if (began := self.clock()) >= due[task]:
                    task()
                    now = self.clock()
                    # A gate of long games may take minutes: most of the time is for learning all the same.
                    due[task] = now + (max(period, PUBLISH_REST * (now - began)) if task == self._publish else period)
        if self._last_log is started_at or self.topology.position != self._last_log[1]:  # a run has at least one line
            self._log()
        self._checkpoint()
        return "stopped" if self.stop_requested else "done"

    def finish(self) -> PublishedModel:
        """Publish the last model, let it stand for promotion, and write the run's last status."""
        self._publish()
        assert self.published is not None
        self._checkpoint()
        state = "stopped" if self.stop_requested else "done"
        self.run.status(state, model=self._model(), message=self.published.verdict)
        return self.published

    @property
    def seconds(self) -> float:
        """Of the whole run, the pauses before it was resumed left out."""
        return self._seconds_before + self.clock() - self._started

    def _finished(self) -> bool:
        if self.topology.position >= self.limits.steps or self.seconds >= self.limits.seconds:
            return True
        return self.limits.until is not None and self._reached(self.limits.until)

    def _reached(self, until: float) -> bool:
        checks = int(self.topology.position / (UNTIL_SHARE * self.limits.steps))
        if checks <= self._until_checks:
            return False
        self._until_checks = checks
        forward = forward_with_torch(self.topology.learner.network, self.topology.learner.weights())
        rival = strongest(self.plan.game)
        played = evaluate(self.plan.game, forward, episodes=UNTIL_EPISODES, seed=self.plan.seed, against=rival)
        return played.mean >= until

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
        self.run.add_metrics(line | self._metrics)
        share = min(1.0, max(position / self.limits.steps, seconds / self.limits.seconds))
        left = None if share <= 0 else seconds / share - seconds
        loss, staleness = self._metrics.get("loss"), self._metrics.get("staleness_updates")
        plays = self.plan.source != "store"
        self.show(TrainProgress(seconds, position, plays, updates, rate, mean, loss, share, left, staleness))

    def _checkpoint(self) -> None:
        state = {
            "topology": self.topology.save(),
            "seconds": self.seconds,
            "returns": list(self._returns),
            "partner_returns": list(self._partner_returns),
            "until_checks": self._until_checks,
            "parents": list(self.publisher.parents),
        }
        self.run.checkpoint(state)
        self.run.status("running", model=self._model())

    def _publish(self) -> None:
        learner = self.topology.learner
        self.published = self.publisher.publish(learner.network, learner.weights(), self.topology.sources())
        self.run.status("running", model=self._model(), message=self.published.verdict)

    def _model(self) -> str | None:
        return self.publisher.parents[-1] if self.publisher.parents else None
