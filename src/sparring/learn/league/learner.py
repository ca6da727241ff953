"""The service "learner": a training run of its own, whose opponents the league says (league/opponents.py).

    train ─ every live_every_s ─► pool: the newest weights, for others to meet
                               ─► league.offer ─► go on │ freeze: registry, league.freeze │ start again: the next run

A learner that was killed resumes its run from the last checkpoint; each time it starts again it has a new run.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from sparring.config import Config
from sparring.errors import Missing, SparringError, TrainingStopped, Unreachable
from sparring.league.roles import RoleRules
from sparring.league.service import SERVICE as LEAGUE
from sparring.learn.plan import Plan, TrainRequest
from sparring.learn.runs.publisher import Learned, PublishedModel, model_of
from sparring.learn.runs.train import TrainingLoop, TrainOptions, TrainProgress, train
from sparring.pool import open_pool
from sparring.pool.protocol import Pool
from sparring.registry import open_registry
from sparring.registry.registry import Registry
from sparring.services.discovery import VARIABLE
from sparring.services.register import register
from sparring.services.solver import Solver
from sparring.wire.ids import ModelId
from sparring.wire.model import WEIGHTS, Model

log = logging.getLogger(__name__)

ENDLESS_STEPS = 10**12
RETRY_S = 1.0
CLOSE_S = 2.5  # the host waits 3 s


@dataclass(slots=True)
class LeaguePublisher:
    """Hands the weights of one run to the league."""

    run: str
    registry: Registry
    pool: Pool
    solver: Solver
    learner: str
    generation: int
    parents: list[ModelId] = field(default_factory=list)  # the last of them that was frozen
    loop: TrainingLoop | None = None
    reset: bool = False  # the league has said that the learner starts again
    closing: bool = False

    def publish(self, learned: Sequence[Learned], deadline: float = math.inf) -> PublishedModel:
        """Put the weights into the pool, and do what the league says."""
        model = model_of(learned[0], self.run, self.parents)
        offered = PublishedModel(model.id, None, False, "offered to the league", model.card.files[WEIGHTS])
        if self.closing or self.reset:
            return offered
        try:
            self.pool.put(model)
            steps = 0 if self.loop is None else self.loop.topology.position
            said = self.solver.retrieve(LEAGUE, "offer", self.learner, self.generation, model.id, steps)
            if said["freeze"]:
                self.parents = [self.registry.publish(model)]
                self.solver.retrieve(LEAGUE, "freeze", self.learner, self.generation, model.id, said["reset"])
                log.info(f"{self.learner} is frozen as {model.id[:12]}: {said['why']}")
        except Unreachable as error:
            log.warning(f"{self.learner} goes on; the league was not reached: {error}")
            return offered
        if said["reset"]:
            self.reset = True
            assert self.loop is not None
            self.loop.stop_requested = True
        return offered


class LearnerService:
    """One thread trains; `status` says how it does."""

    def __init__(self, game: str, config: bytes, learner: str, rules: dict[str, Any], seed: int) -> None:
        self._game, self._learner, self._seed = game, learner, seed
        self._rules = RoleRules(**rules)
        self._config = msgspec.msgpack.decode(config, type=Config)
        self._discovery = os.environ[VARIABLE]  # of the host, whose services are the league's
        self._closing = threading.Event()
        self._publisher: LeaguePublisher | None = None
        self._progress: dict[str, Any] = {}
        self._error: SparringError | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    @register(idempotent=True)
    def status(self) -> dict[str, Any]:
        """Its name and the last line of progress; what ended it, raised, where something did."""
        if self._error is not None:
            raise self._error
        return {"learner": self._learner, **self._progress}

    def close(self) -> None:
        """Write a checkpoint and end."""
        self._closing.set()
        if (publisher := self._publisher) is not None:
            publisher.closing = True
            if publisher.loop is not None:
                publisher.loop.stop_requested = True
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with Solver(deadline_s=10.0) as solver:
            while not self._closing.is_set():
                try:
                    with (
                        open_registry(self._config.registry_url) as registry,
                        open_pool(self._config.league.pool_url, registry) as pool,
                    ):
                        self._train(solver, pool)
                except Unreachable as error:
                    log.info(f"{self._learner} waits for the league: {error}")
                    self._closing.wait(RETRY_S)
                except SparringError as error:  # a setting or the game is wrong: nothing mends itself
                    log.error(f"{self._learner} has ended: {error}")
                    self._error = error
                    return

    def _train(self, solver: Solver, pool: Pool) -> None:
        """One run, from its start or its last checkpoint, until the learner starts again or is stopped."""
        said = solver.retrieve(LEAGUE, "begin", self._learner)
        generation, run = said["generation"], said["run"]

        def publisher(plan: Plan, name: str, registry: Registry) -> LeaguePublisher:
            solver.retrieve(LEAGUE, "started", self._learner, generation, name)
            self._publisher = LeaguePublisher(name, registry, pool, solver, self._learner, generation)
            return self._publisher

        def started(loop: TrainingLoop) -> None:
            assert self._publisher is not None
            self._publisher.loop = loop
            loop.stop_requested = self._closing.is_set()

        start = self._start(pool, said["start"]) if not run else None
        for resume in (run, None) if run else (None,):
            options = TrainOptions(promote=False, resume=resume, start=start if resume is None else None)
            request = self._request(generation, fresh=resume is None)
            try:
                train(request, options, self._config, self._show, started, publisher)
                return
            except TrainingStopped:  # it was killed before its first checkpoint
                if resume is None:
                    raise

    def _request(self, generation: int, *, fresh: bool) -> TrainRequest:
        return TrainRequest(
            game=self._game,
            algo=self._rules.algo,
            source=self._rules.source,
            topology=self._rules.topology or None,
            seed=self._seed + 1000 * generation,
            steps=ENDLESS_STEPS,
            settings=self._rules.algo_settings() if fresh else (),
            league=f"{self._discovery}#{self._learner}/{generation}",
        )

    def _start(self, pool: Pool, model: str) -> Model | None:
        """The weights that it begins with. A main agent's newest are in the pool alone: one that has lost them is
        asked again, until the main agent has offered others."""
        try:
            return pool.get(ModelId(model)) if model else None
        except Missing as error:
            raise Unreachable(error.wrong, where=error.where, do="It waits for the next ones") from None

    def _show(self, progress: TrainProgress) -> None:
        self._progress = asdict(progress) | {"at_s": time.time()}
