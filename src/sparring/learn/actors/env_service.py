"""Environments as a service: games and nothing else. The inference service decides what they do.

    games ─ what they show ─► inference ─ actions ─► games ─ …      one call for each tick of all its games

Where a call is lost, or inference does not know these games (it was restarted), all games begin new episodes: none that
inference saw half of goes on.
"""

import time
from typing import Any, Protocol

import numpy as np

from sparring.errors import Unreachable
from sparring.games.catalogue import open_game
from sparring.games.protocol import Columns, View
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.inference_service import ACT, RESET, SERVICE
from sparring.services.register import register
from sparring.services.solver import Solver, Terms
from sparring.wire.chunk import Array
from sparring.wire.tree import pack

SEEDING = 5  # of the random streams that a seed has
DEADLINE_S = 5.0  # of one decision
CALL_S = 0.25  # that one call plays
HOLD_S = 0.002  # before asking again
RETRY_S = 0.1  # the same, where a call was lost


class Caller(Protocol):
    """What is needed of a Solver."""

    def retrieve(self, service: object, verb: str, /, *args: Any, **named: Any) -> Any: ...
    def close(self) -> None: ...


class EnvService:
    """`actor_spec` is an ActorSpec as JSON; `worker` is its number. A successor draws other seeds."""

    def __init__(self, actor_spec: bytes, worker: int, generation: int = 0, solver: Caller | None = None) -> None:
        spec = read_actor_spec(actor_spec)
        self._worker = worker
        self._game = open_game(spec.game, spec.envs)
        self._rng = np.random.default_rng([spec.seed, SEEDING, worker, spec.generation + generation])
        self._solver: Caller = Solver(terms=Terms(DEADLINE_S)) if solver is None else solver
        self._session, self._tick = 0, 0
        self._shown: dict[str, Any] = {}
        self._begin()

    @register(queue=16)
    def play(self) -> int:
        """Play for a little while; the number of ticks."""
        ticks, until = 0, time.monotonic() + CALL_S
        while time.monotonic() < until:
            ticks += self.tick()
        return ticks

    def tick(self) -> bool:
        """All games go on by one decision, where there is one."""
        try:
            answer = self._solver.retrieve(SERVICE, "act", self._worker, self._session, self._tick, self._shown)
        except Unreachable:
            time.sleep(RETRY_S)
            self._begin()
            return False
        status = int(answer["status"])
        if status == ACT:
            self._tick += 1
            self._step(answer["action"])
            return True
        if status == RESET:
            self._begin()
        else:
            time.sleep(HOLD_S)
        return False

    def close(self) -> None:
        """Close the sockets."""
        self._solver.close()

    def _begin(self) -> None:
        """New games, and a new session number."""
        self._session, self._tick = int(self._rng.integers(2**62)), 0
        view = self._reset(np.ones(self._game.n, bool))
        self._shown = shown_by(view, view)

    def _step(self, action: Any) -> None:
        stepped = self._game.step([np.array(one) for one in action])  # they came read-only
        over = stepped.over
        now = self._reset(over) if over.any() else stepped
        self._shown = shown_by(stepped, now)

    def _reset(self, which: Any) -> View:
        return self._game.reset(self._rng.integers(0, 2**64, self._game.n, dtype=np.uint64), which)


def shown_by(stepped: View, now: View) -> dict[str, Any]:
    """One worker's tick as plain data of one shape: after the step, and after games that ended were reset."""
    over, finals = np.flatnonzero(stepped.over), b""
    if len(over):
        finals = pack({"rows": over, "seen": [_rows(seen, over) for seen in stepped.observation]})
    return {
        "to_act": now.to_act,
        "seen": list(now.observation),
        "legal": [] if any(one is None for one in now.legal) else list(now.legal),
        "reward": stepped.reward,
        "ending": stepped.ending,
        "tick": stepped.tick,
        "finals": finals,
    }


def _rows(seen: Columns, rows: Array) -> Columns:
    return {leaf: column[rows] for leaf, column in seen.items()}
