"""Environments as a service: games and nothing else. What they do is decided by the inference service.

    games ─ what they show ─► inference ─ actions ─► games ─ …      one call for each tick of all its games

Where a call is lost, or inference does not know these games (it began anew), all begin new episodes: nothing that
was half seen goes on.
"""

import time
from typing import Any, Protocol

import numpy as np

from sparring.errors import Unreachable
from sparring.games.catalogue import open_game
from sparring.games.protocol import View
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.inference_service import ACT, ANEW, SERVICE
from sparring.learn.actors.remote_games import shown_by
from sparring.services.register import register
from sparring.services.solver import Solver, Terms

SEEDING = 5  # of the streams of chance that a seed has
DEADLINE_S = 5.0  # of one decision
SPELL_S = 0.25  # that one call plays
HELD_S = 0.002  # before asking again
AGAIN_S = 0.1  # the same, where nobody answered


class Asks(Protocol):
    """What is needed of a Solver."""

    def retrieve(self, service: object, verb: str, /, *args: Any, **named: Any) -> Any: ...
    def close(self) -> None: ...


class EnvService:
    """`part` is a Part as JSON; `worker` says which of all it is. A successor draws other seeds."""

    def __init__(self, part: bytes, worker: int, generation: int = 0, solver: Asks | None = None) -> None:
        told = read_actor_spec(part)
        self._worker = worker
        self._game = open_game(told.game, told.envs)
        self._rng = np.random.default_rng([told.seed, SEEDING, worker, told.generation + generation])
        self._solver: Asks = Solver(terms=Terms(DEADLINE_S)) if solver is None else solver
        self._life, self._tick = 0, 0
        self._shown: dict[str, Any] = {}
        self._begin()

    @register(queue=16)
    def play(self) -> int:
        """Play for a little while; how many ticks that were."""
        ticks, until = 0, time.monotonic() + SPELL_S
        while time.monotonic() < until:
            ticks += self.tick()
        return ticks

    def tick(self) -> bool:
        """All games go on by one decision, where there is one."""
        try:
            answer = self._solver.retrieve(SERVICE, "act", self._worker, self._life, self._tick, self._shown)
        except Unreachable:
            time.sleep(AGAIN_S)
            self._begin()
            return False
        status = int(answer["status"])
        if status == ACT:
            self._tick += 1
            self._step(answer["action"])
            return True
        if status == ANEW:
            self._begin()
        else:
            time.sleep(HELD_S)
        return False

    def close(self) -> None:
        """Close the sockets."""
        self._solver.close()

    def _begin(self) -> None:
        """New games, and a new life of theirs."""
        self._life, self._tick = int(self._rng.integers(2**62)), 0
        view = self._reset(np.ones(self._game.n, bool))
        self._shown = shown_by(view, view)

    def _step(self, action: Any) -> None:
        stepped = self._game.step([np.array(one) for one in action])  # they came read-only
        over = stepped.over
        now = self._reset(over) if over.any() else stepped
        self._shown = shown_by(stepped, now)

    def _reset(self, which: Any) -> View:
        return self._game.reset(self._rng.integers(0, 2**64, self._game.n, dtype=np.uint64), which)
