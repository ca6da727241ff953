"""The loop around a topology: limits, metrics, checkpoints, models.

What it does by the clock never changes what is learned; what ends a run early is looked at by position.
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
from sparring.errors import Missing, TrainingStopped
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Topology
from sparring.learn.runs.folder import RunFolder, another_build
from sparring.learn.runs.publish import ModelPublisher, PublishedModel
from sparring.nets.forward import forward_with_torch
from sparring.wire.tree import Tree

RECENT_EPISODES = 100
UNTIL_EPISODES = 100
PUBLISH_REST = 4  # times as long as the last gate took, at least, before the next one: a fifth of the time at most
UNTIL_SHARE = 0.04  # of a run's steps between two looks at --until


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends; whichever comes first."""

    steps: int
    seconds: float = math.inf
    until: float | None = None  # mean return of UNTIL_EPISODES greedy episodes


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress line shows."""

    seconds: float
    position: int  # steps played, or sampled where nobody plays
    plays: bool
    updates: int
    steps_per_s: float
    return_mean: float | None
    loss: float | None
    done_share: float
    seconds_left: float | None
    staleness: float | None = None  # updates between acting and learning, of the last batch


@dataclass(slots=True)
class Session:
    """One sitting of a run, from its start or its last checkpoint to its end."""

    plan: Plan
    run: RunFolder
    topology: Topology
    publisher: ModelPublisher
    limits: Limits
    timing: TrainConfig
    show: Callable[[Progress], None]
    clock: Callable[[], float] = time.monotonic
    stop_asked: bool = False  # set from a signal's handler
    published: PublishedModel | None = None
    _before_s: float = 0.0  # of earlier sittings
    _begun: float = 0.0
    _returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _partner_returns: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    _metrics: dict[str, float] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _logged: tuple[float, int] = (0.0, 0)
    _told: int = -1  # the position of the last line
    _looked: int = 0  # how often --until was looked at

    def resume(self) -> None:
        """Go on from the run's checkpoint as if nothing had happened."""
        state = self.run.restore()
        try:
            self.topology.load(state["topology"])
            self._before_s, self._looked = state["seconds"], state["looked"]
            self._returns.extend(state["returns"])
            self._partner_returns.extend(state["partner_returns"])
            self.publisher.load(state["publisher"])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise another_build(self.run, error) from error
        self.run.rewind(self._before_s)

    def learn(self) -> str:
        """Turn by turn to the first limit; how it ended: "done" or "stopped"."""
        self._begun = self.clock()
        now = self.clock()
        periods = {"log": self.timing.log_every_s, "checkpoint": self.timing.checkpoint_every_s}
        periods["publish"] = self.timing.publish_every_s
        self._due = {name: now + period for name, period in periods.items()}
        self._logged = (self.seconds, self.topology.position)
        self.run.status("running", model=self._model())
        while not self.stop_asked and not self._enough():
            self._note(self.topology.iterate())
            for name, period in periods.items():
                if (began := self.clock()) >= self._due[name]:
                    getattr(self, f"_{name}")()
                    now = self.clock()
                    # A gate of long games may take minutes: most of the time is for learning all the same.
                    self._due[name] = now + (max(period, PUBLISH_REST * (now - began)) if name == "publish" else period)
        if self.topology.position != self._told:
            self._log()
        self._checkpoint()
        return "stopped" if self.stop_asked else "done"

    def finish(self) -> PublishedModel:
        """Publish what was learned, let it stand for promotion, and say that the run is over."""
        self._publish()
        assert self.published is not None
        self._checkpoint()
        self.run.status("stopped" if self.stop_asked else "done", model=self._model(), message=self.published.verdict)
        return self.published

    @property
    def seconds(self) -> float:
        """Of all sittings."""
        return self._before_s + self.clock() - self._begun

    def _enough(self) -> bool:
        if self.topology.position >= self.limits.steps or self.seconds >= self.limits.seconds:
            return True
        return self.limits.until is not None and self._reached(self.limits.until)

    def _reached(self, until: float) -> bool:
        """Looked at by position, not by the clock, so that a seed says when a run ends."""
        turn = int(self.topology.position / (UNTIL_SHARE * self.limits.steps))
        if turn <= self._looked:
            return False
        self._looked = turn
        forward = forward_with_torch(self.topology.learner.network, self.topology.learner.weights())
        rival = strongest(self.plan.game)
        played = evaluate(self.plan.game, forward, episodes=UNTIL_EPISODES, seed=self.plan.seed, against=rival)
        return played.mean >= until

    def _note(self, turn: Iteration) -> None:
        if turn.episodes is not None and len(turn.episodes.returns):
            self._returns.extend(turn.episodes.returns.tolist())
            self._partner_returns.extend(turn.episodes.returns[turn.episodes.against_others].tolist())
        if turn.update is not None:
            broken = [name for name, value in turn.update.metrics.items() if not math.isfinite(value)]
            if broken:
                self._give_up(turn, broken[0])
            self._metrics = dict(turn.update.metrics)
        self._metrics.update(turn.metrics)

    def _give_up(self, turn: Iteration, metric: str) -> None:
        assert turn.batch is not None
        path = self.run.keep_batch(turn.batch)
        raise TrainingStopped(
            f"{metric} is no finite number after update {self.topology.learner.updates}; the batch is in {path}",
            where=f"run {self.run.name}",
            do="Lower learning_rate, or look at the batch; --resume goes on from the last checkpoint",
        )

    def _log(self) -> None:
        seconds, position = self.seconds, self.topology.position
        before_s, before = self._logged
        rate = (position - before) / max(seconds - before_s, 1e-9)
        self._logged, self._told = (seconds, position), position
        returns = np.array(self._returns) if self._returns else None
        mean = None if returns is None else float(returns.mean())
        line: dict[str, float | int | str | None] = {
            "seconds": round(seconds, 3),
            "env_steps": self.topology.env_steps,
            "updates": self.topology.learner.updates,
            "steps_per_s": round(rate, 1),
            "episodes": self.topology.episodes,
            "return_mean": mean,
            "return_sd": None if returns is None else float(returns.std()),
        }
        if self._partner_returns:
            line["partner_return_mean"] = float(np.mean(self._partner_returns))
        self.run.measure(line | self._metrics)
        share = min(1.0, max(position / self.limits.steps, seconds / self.limits.seconds))
        left = None if share <= 0 else seconds / share - seconds
        self.show(
            Progress(
                seconds,
                position,
                self.plan.source != "store",
                self.topology.learner.updates,
                rate,
                mean,
                self._metrics.get("loss"),
                share,
                left,
                self._metrics.get("staleness_updates"),
            )
        )

    def _checkpoint(self) -> None:
        self.run.checkpoint(self._state())
        self.run.status("running", model=self._model())

    def _publish(self) -> None:
        learner = self.topology.learner
        self.published = self.publisher.publish(learner.network, learner.weights(), self.topology.sources())
        self.run.status("running", model=self._model(), message=self.published.verdict)

    def _state(self) -> Tree:
        return {
            "topology": self.topology.save(),
            "seconds": self.seconds,
            "returns": list(self._returns),
            "partner_returns": list(self._partner_returns),
            "looked": self._looked,
            "publisher": self.publisher.save(),
        }

    def _model(self) -> str | None:
        return self.publisher.parents[-1] if self.publisher.parents else None


def same_game(run: RunFolder, plan: Plan) -> None:
    """Missing where the game's spec is no longer the one that the run learned."""
    if run.about["spec"] != plan.spec.hash:
        raise Missing(
            f"it learned {plan.game} with spec {run.about['spec'][:12]}, which is {plan.spec.hash[:12]} now",
            where=f"run {run.name}",
            do="Start a new run",
        )
