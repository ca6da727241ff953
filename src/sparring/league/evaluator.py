"""The service "evaluator": plays matches among a league's members, and the promotion gate's games, one after another.

It asks the league what to play, plays it, says what came of it, and then sleeps, so that it takes a share of a core and
learners have the rest.
"""

import logging
import threading
import time
from dataclasses import asdict
from typing import Any

import msgspec

from sparring.config import Config
from sparring.errors import SparringError, Unreachable
from sparring.league.gate import GateLimits
from sparring.league.promotion import stand_for_promotion
from sparring.league.rounds import Member, play_match
from sparring.league.service import SERVICE as LEAGUE
from sparring.pool import open_pool
from sparring.pool.protocol import Pool
from sparring.registry import open_registry
from sparring.registry.registry import Registry
from sparring.services.register import register
from sparring.services.solver import Solver
from sparring.wire.ids import ModelId

log = logging.getLogger(__name__)

IDLE_S = 2.0  # before it asks again, where there was nothing to play
MOST_REST_S = 60.0


class EvaluatorService:
    """One thread plays; the verbs say how it does."""

    def __init__(self, game: str, config: bytes, core_share: float, index: int = 0) -> None:
        self._game, self._core_share, self._index = game, core_share, index
        self._config = msgspec.msgpack.decode(config, type=Config)
        self._stopping = threading.Event()
        self._done = {"match": 0, "gate": 0}
        self._thread = threading.Thread(target=self._run, name="evaluator", daemon=True)
        self._thread.start()

    @register(idempotent=True)
    def status(self) -> dict[str, int]:
        """How many matches and gates this process has played."""
        return dict(self._done)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        registry_config = self._config.registry
        days, share = registry_config.champion_days, registry_config.rollout_share
        with Solver() as solver:
            while not self._stopping.is_set():
                try:
                    with (
                        open_registry(self._config.registry_url, champion_days=days, rollout_share=share) as registry,
                        open_pool(self._config.league.pool_url, registry) as pool,
                    ):
                        while not self._stopping.is_set():
                            self._stopping.wait(self._play(solver, registry, pool))
                except Unreachable as error:
                    log.info(f"the evaluator goes on when it can: {error}")
                except SparringError as error:  # of one member: the league goes on
                    log.warning(f"the evaluator could not play: {error}")
                self._stopping.wait(IDLE_S)

    def _play(self, solver: Solver, registry: Registry, pool: Pool) -> float:
        """Play what the league says; how many seconds to rest then."""
        began, task = time.monotonic(), solver.retrieve(LEAGUE, "task", self._index)
        if task["kind"] == "gate":
            model = pool.get(ModelId(task["model"]))
            (standing,) = stand_for_promotion(registry, [model], GateLimits.from_config(self._config))
            solver.retrieve(LEAGUE, "judged", model.id, standing.verdict)
        elif task["kind"] == "match":
            solver.retrieve(LEAGUE, "played", self._match(task, pool))
        if task["kind"] not in self._done:
            return IDLE_S
        self._done[task["kind"]] += 1
        return min(MOST_REST_S, (time.monotonic() - began) * (1.0 / self._core_share - 1.0))

    def _match(self, task: dict[str, Any], pool: Pool) -> dict[str, Any]:
        pair = [self._member(task[side], pool) for side in ("first", "second")]
        return asdict(play_match(self._game, pair[0], pair[1], task["games"]))

    def _member(self, name: str, pool: Pool) -> Member:
        kind, _, script = name.partition(":")
        return Member(name, script) if kind == "script" else Member(name, pool.get(ModelId(name)))
