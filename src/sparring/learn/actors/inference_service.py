"""Batched inference as a service: it decides for all environments, and keeps what became of it.

    worker i ─ act(what its games show) ─► gathered with other workers' ─► one forward ─► actions
    learner ─ use(edition) ─► the next decision on is by those weights, also within a rollout (as in SEED RL)
            ─ kept() ───────► the oldest whole rollout (or block of steps) of all environments

Each stream keeps its recurrent state, its frames and its open step here; keeping.py keeps what was closed. So many
whole ones may wait; then workers are told to hold.
"""

from typing import Any

import numpy as np
from msgspec.structs import replace

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.inference_buffers import InferenceBuffer, RolloutBuffer, StepBlockBuffer
from sparring.learn.actors.remote_games import RemoteGames
from sparring.learn.actors.shared_weights import NONE
from sparring.nets.forward import forward_without_torch
from sparring.services.call_batch import joined, parted
from sparring.services.register import register
from sparring.wire.chunk import Array

SERVICE = "inference"
ACT, HOLD, ANEW = 0, 1, 2  # do this; ask again later, nothing was taken; begin new games, for yours are not known
GATHER_MS = 2.0  # that a worker waits for the others, at most


class InferenceService:
    """`part` is a Part as JSON, of all environments; they are those of `workers` workers, as many of each."""

    def __init__(self, part: bytes, workers: int, generation: int = 0) -> None:
        told = read_actor_spec(part)
        self._part = replace(told, generation=told.generation + generation)
        self.workers, self._envs = workers, told.envs // workers
        keeping = RolloutBuffer if told.feeds == "rollouts" else StepBlockBuffer
        self._keeping: InferenceBuffer = keeping(self._part, workers)
        self._edition: dict[str, Any] | None = None
        self._version = NONE
        self._known: dict[int, int] = {}  # past selves: place → stamp
        self._past: list[dict[str, Array]] = []
        self._playing: tuple[Actor, Opponents, RemoteGames] | None = None  # from the first call with weights on
        self._decided = np.full(self._part.streams, NONE, np.int64)  # with which version each open step was
        self._lives = np.full(workers, -1, np.int64)
        self._ticks = np.zeros(workers, np.int64)  # which tick is to come next of each worker
        self._calls = self._rows = 0

    @register(batch="workers", wait_ms=GATHER_MS, queue=4096, full="wait")
    def act(self, worker: Any, life: Any, tick: Any, shown: dict[str, Any]) -> dict[str, Array]:
        """What the games of each worker are to do: `status` and, for ACT, `action` [seats, envs, …].

        A life is a row of ticks 0, 1, 2 … without a gap; tick 0 begins games anew, whatever was there before.
        """
        if isinstance(worker, int):  # it is the only one
            answer = self.act(*joined([(worker, life, tick, shown)]))
            return parted(answer, 1, "act")[0]  # type: ignore[no-any-return]
        action = np.zeros((len(worker), len(self._part.spec.seats), self._envs, *self._leaf.shape), self._leaf.dtype)
        if (playing := self._open(shown)) is None or not self._keeping.has_room(playing[0], self._version):
            return {"status": np.full(len(worker), HOLD, np.int64), "action": action}
        known = self._greet(worker, life, tick)
        callers = np.flatnonzero(known)
        if len(callers):
            theirs = shown if known.all() else _of_callers(shown, callers)
            actor, _, games = playing
            self._take(actor, worker[callers], tick[callers] == 0, games, theirs)
            action[callers] = self._decide(actor, worker[callers], games)
        return {"status": np.where(known, ACT, ANEW), "action": action}

    @register(idempotent=True)
    def use(self, edition: dict[str, Any], stamps: list[int], *past: dict[str, Array]) -> int:
        """Decide by these weights from now on; the version that is used then."""
        if int(edition["version"]) >= self._version:
            self._version = int(edition["version"])
            self._edition = edition
            if self._playing is not None:
                self._playing[0].use(forward_without_torch(self._part.network, edition["weights"]), self._version)
        for place, (stamp, weights) in enumerate(zip(stamps, past, strict=True)):
            if self._known.get(place, 0) < stamp:
                self._known[place] = stamp
                self._past[place : place + 1] = [weights]
                if self._playing is not None:
                    self._playing[1].put(place, weights)
        return self._version

    @register()
    def kept(self) -> dict[str, Any]:
        """The oldest whole rollout's or block's `columns`, None where none waits, and whether it is `broken` off from
        the one before; the `version` used now, and how many environments one forward `served` lately, on average."""
        columns, broken = self._keeping.oldest()
        served = self._rows / max(1, self._calls)
        self._calls = self._rows = 0
        return {"version": self._version, "columns": columns, "broken": broken, "served": served}

    def close(self) -> None:
        """Give the memory back."""
        self._keeping.close()

    @property
    def _leaf(self) -> Any:
        return self._part.spec.seats[0].action

    def _open(self, shown: dict[str, Any]) -> tuple[Actor, Opponents, RemoteGames] | None:
        """Who decides, over all games; None: there are no weights yet."""
        if self._playing is None and self._edition is not None:
            games = RemoteGames(self._part.spec, self.workers, self._envs, masks=bool(shown["legal"]))
            actor, partners = self._part.open_actor(self._edition["weights"], game=games)
            actor.use(forward_without_torch(self._part.network, self._edition["weights"]), self._version)
            for place, weights in enumerate(self._past):
                partners.put(place, weights)
            self._playing = actor, partners, games
        return self._playing

    def _greet(self, worker: Array, life: Array, tick: Array) -> Array:
        """bool [callers]: whose tick is the one to come; each worker counts once."""
        known = np.zeros(len(worker), bool)
        for caller, (who, whose, which) in enumerate(zip(worker, life, tick, strict=True)):
            if known[worker == who].any():
                continue
            known[caller] = which == 0 or (self._lives[who] == whose and self._ticks[who] == which)
            if known[caller]:
                self._lives[who], self._ticks[who] = whose, which + 1
        return known

    def _take(self, actor: Actor, workers: Array, fresh: Array, games: RemoteGames, shown: dict[str, Any]) -> None:
        """Close the steps that what is shown completes, and keep them."""
        steps = actor.take(games.come(workers, fresh, shown))
        actor.env_steps += self._envs * int((~fresh).sum())
        oldest = int(self._decided[steps.stream].min()) if len(steps) else self._version
        self._keeping.keep(actor, steps, workers[~fresh], oldest)
        if fresh.any():
            begun = np.zeros((self.workers, self._envs), bool)
            begun[workers[fresh]] = True
            self._keeping.cut(*actor.break_off(begun.reshape(-1)))
        self._keeping.settle(actor)

    def _decide(self, actor: Actor, workers: Array, games: RemoteGames) -> Array:
        """Actions [callers, seats, envs, …]."""
        self._decided[games.shown.to_act.T.reshape(-1)] = self._version
        action = actor.decide(float(self._edition["epsilon"]) if self._edition else 0.0)
        self._calls, self._rows = self._calls + 1, self._rows + len(workers) * self._envs
        by_worker = action.reshape(len(self._part.spec.seats), self.workers, self._envs, *action.shape[1:])
        return np.moveaxis(by_worker[:, workers], 0, 1)


def _of_callers(shown: dict[str, Any], callers: Array) -> dict[str, Any]:
    """Those rows of joined ticks."""

    def picked(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: picked(one) for name, one in tree.items()}
        if isinstance(tree, np.ndarray):
            return tree[callers]
        return [picked(one) for one in tree]

    finals = [shown["finals"][caller] for caller in callers]
    return {name: picked(one) for name, one in shown.items() if name != "finals"} | {"finals": finals}
