"""Batched inference as a service: it decides for all environments, and keeps the steps that follow.

    worker i ─ act(what its games show) ─► gathered with other workers' ─► one forward ─► actions
    learner ─ use(version) ─► decide with those weights from the next tick on, also within a rollout (as in SEED RL)
            ─ take() ───────► the oldest whole rollout (or block of steps) of all environments

Each stream has its recurrent state, its frames and its open step here; inference_buffers.py has the closed ones. A few
whole rollouts may wait; then workers are told to hold.
"""

from typing import Any

import numpy as np
from msgspec.structs import replace

from sparring.acting.actor import Actor
from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING, Actions, Columns, View
from sparring.games.spec import GameSpec
from sparring.learn.actors.actor_runner import ActorRunner
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.inference_buffers import InferenceBuffer, RolloutBuffer, StepBlockBuffer
from sparring.learn.actors.weights import NONE, TopicWeightsReader, WeightsSnapshot
from sparring.services.call_batch import joined, parted
from sparring.services.register import register
from sparring.wire.chunk import Array
from sparring.wire.tree import unpack

SERVICE = "inference"
ACT, HOLD, RESET = 0, 1, 2  # do this; ask again later, nothing was taken; reset your games, for they are not known
GATHER_MS = 2.0  # that a worker waits for the others, at most


class InferenceService:
    """`actor_spec` is an ActorSpec of all environments, as JSON; each of `workers` workers has as many of them."""

    def __init__(self, actor_spec: bytes, workers: int, generation: int = 0, weights: Any = None) -> None:
        spec = read_actor_spec(actor_spec)
        self._spec = replace(spec, generation=spec.generation + generation)
        self.workers, self._envs = workers, spec.envs // workers
        buffer = RolloutBuffer if spec.feeds == "rollouts" else StepBlockBuffer
        self._buffer: InferenceBuffer = buffer(self._spec, workers)
        self._weights: Any = TopicWeightsReader() if weights is None else weights
        self._snapshot: WeightsSnapshot | None = None
        self._runner = ActorRunner(self._spec)
        self._games: RemoteGames | None = None  # from the first call with weights on
        self._decided = np.full(self._spec.streams, NONE, np.int64)  # with which version each open step was
        self._sessions = np.full(workers, -1, np.int64)
        self._ticks = np.zeros(workers, np.int64)  # the next tick of each worker
        self._calls = self._rows = 0

    @register(batch="workers", wait_ms=GATHER_MS, queue=4096, full="wait")
    def act(self, worker: Any, session: Any, tick: Any, shown: dict[str, Any]) -> dict[str, Array]:
        """What the games of each worker are to do: `status` and, for ACT, `action` [seats, envs, …].

        A session has ticks 0, 1, 2 … without a gap; tick 0 begins new games.
        """
        if isinstance(worker, int):  # it is the only one
            answer = self.act(*joined([(worker, session, tick, shown)]))
            return parted(answer, 1, "act")[0]  # type: ignore[no-any-return]
        action = np.zeros((len(worker), len(self._spec.spec.seats), self._envs, *self._leaf.shape), self._leaf.dtype)
        if (playing := self._open(shown)) is None or not self._buffer.has_room(playing[0], self._runner.version):
            return {"status": np.full(len(worker), HOLD, np.int64), "action": action}
        known = self._known(worker, session, tick)
        callers = np.flatnonzero(known)
        if len(callers):
            theirs = shown if known.all() else _of_callers(shown, callers)
            actor, games = playing
            self._close_steps(actor, worker[callers], tick[callers] == 0, games, theirs)
            action[callers] = self._decide(actor, worker[callers], games)
        return {"status": np.where(known, ACT, RESET), "action": action}

    @register(idempotent=True)
    def use(self, version: int) -> int:
        """Decide with that version of the weights, or a later one, from now on; the version that is used then."""
        if self._snapshot is None or self._snapshot.version < version:
            self._snapshot = self._weights.at_least(version)
            if self._games is not None:
                self._runner.use(self._snapshot, self._weights)
        return self._snapshot.version

    @register()
    def take(self) -> dict[str, Any]:
        """The oldest whole rollout's or block's `columns`, None where none waits, and whether it is `broken` off from
        the one before; the `version` used now, and how many environments one forward `served` lately, on average."""
        columns, broken = self._buffer.oldest()
        served = self._rows / max(1, self._calls)
        self._calls = self._rows = 0
        return {
            "version": NONE if self._snapshot is None else self._snapshot.version,
            "columns": columns,
            "broken": broken,
            "served": served,
        }

    def close(self) -> None:
        """Give memory and sockets back."""
        self._weights.close()
        self._buffer.close()

    @property
    def _leaf(self) -> Any:
        return self._spec.spec.seats[0].action

    def _open(self, shown: dict[str, Any]) -> tuple[Actor, "RemoteGames"] | None:
        """The actor, over all games; None: there are no weights yet."""
        if self._games is None and self._snapshot is not None:
            self._games = RemoteGames(self._spec.spec, self.workers, self._envs, masks=bool(shown["legal"]))
            self._runner.use(self._snapshot, self._weights, self._games)
        return None if self._games is None or self._runner.actor is None else (self._runner.actor, self._games)

    def _known(self, worker: Array, session: Array, tick: Array) -> Array:
        """bool [callers]: whose tick is the one to come; each worker counts once."""
        known = np.zeros(len(worker), bool)
        for caller, (who, whose, which) in enumerate(zip(worker, session, tick, strict=True)):
            if known[worker == who].any():
                continue
            known[caller] = which == 0 or (self._sessions[who] == whose and self._ticks[who] == which)
            if known[caller]:
                self._sessions[who], self._ticks[who] = whose, which + 1
        return known

    def _close_steps(
        self, actor: Actor, workers: Array, fresh: Array, games: "RemoteGames", shown: dict[str, Any]
    ) -> None:
        """Close the steps that what is shown completes, and keep them."""
        steps = actor.take(games.advance(workers, fresh, shown))
        actor.env_steps += self._envs * int((~fresh).sum())
        oldest = int(self._decided[steps.stream].min()) if len(steps) else self._runner.version
        self._buffer.add(actor, steps, workers[~fresh], oldest)
        if fresh.any():
            begun = np.zeros((self.workers, self._envs), bool)
            begun[workers[fresh]] = True
            self._buffer.cut(*actor.break_off(begun.reshape(-1)))
        self._buffer.finish(actor)

    def _decide(self, actor: Actor, workers: Array, games: "RemoteGames") -> Array:
        """Actions [callers, seats, envs, …]."""
        self._decided[games.shown.to_act.T.reshape(-1)] = self._runner.version
        action = actor.decide(self._runner.epsilon)
        self._calls, self._rows = self._calls + 1, self._rows + len(workers) * self._envs
        by_worker = action.reshape(len(self._spec.spec.seats), self.workers, self._envs, *action.shape[1:])
        return np.moveaxis(by_worker[:, workers], 0, 1)


class RemoteGames:
    """The games of all workers as one Game, for an Actor that is given its views.

    worker 0 ─ shown ─┐
    worker 2 ─ shown ─┴─ joined ─► rows of workers 0 and 2 are new and to act, all others wait

    A game that ended was reset by its worker: `shown` has its first view, and its last one is beside it (`finals`).
    """

    def __init__(self, spec: GameSpec, workers: int, envs: int, *, masks: bool) -> None:
        self.spec, self.n = spec, workers * envs
        self._size, seats = (workers, envs), len(spec.seats)
        self.shown = View(
            to_act=np.zeros((self.n, seats), bool),
            observation=tuple(
                {leaf.name: np.zeros((self.n, *leaf.shape), leaf.dtype) for leaf in seat.observation}
                for seat in spec.seats
            ),
            legal=tuple(np.ones((self.n, seat.action.masks), bool) if masks else None for seat in spec.seats),
            reward=np.zeros((self.n, seats), np.float32),
            ending=np.full((self.n, seats), RUNNING, np.uint8),
            outcome=np.zeros((self.n, seats), np.float32),
            tick=np.zeros(self.n, np.int64),
        )

    def advance(self, workers: Array, fresh: Array, shown: dict[str, Any]) -> View:
        """Take in the joined ticks of those workers; what their games showed after the step, as one view.

        A worker of `fresh` (bool, for each) stepped nothing: its games have just begun.
        """
        before, still = self.shown, ~fresh
        rows = np.zeros(self._size, bool)
        rows[workers] = True
        to_act = self._spread(np.zeros_like(before.to_act), workers, shown["to_act"])
        stepping = workers[still]
        ending = self._spread(np.full_like(before.ending, RUNNING), stepping, shown["ending"][still])
        seen = tuple(
            {leaf: self._spread(column.copy(), workers, now[leaf]) for leaf, column in then.items()}
            for then, now in zip(before.observation, shown["seen"], strict=True)
        )
        legal = tuple(
            None if then is None else self._spread(then.copy(), workers, now)
            for then, now in zip(before.legal, shown["legal"] or before.legal, strict=True)
        )
        tick = self._spread(before.tick.copy(), workers, shown["tick"])
        nothing = np.zeros_like(before.reward)
        self.shown = View(to_act, seen, legal, nothing, np.full_like(ending, RUNNING), before.outcome, tick)
        reward = self._spread(nothing.copy(), stepping, shown["reward"][still])
        over = (ending != RUNNING).all(axis=1)
        waits = np.tile(over[:, None], (1, to_act.shape[1]))
        new = self._spread(np.zeros_like(waits), workers[fresh], True)
        last = self._with_finals(seen, stepping, [shown["finals"][i] for i in np.flatnonzero(still)])
        return View(to_act & ~waits & ~new, last, legal, reward, ending, before.outcome, tick)

    def reset(self, seeds: Array, which: Array) -> View:
        """Their workers have reset them."""
        return self.shown

    def step(self, actions: Actions) -> View:
        raise _not_here()

    def save(self) -> bytes:
        raise _not_here()

    def restore(self, state: bytes) -> None:
        raise _not_here()

    def _spread(self, column: Array, workers: Array, given: Any) -> Array:
        """The column [n, …] with the rows of those workers as given [workers, envs, …]."""
        column.reshape(*self._size, *column.shape[1:])[workers] = given
        return column

    def _with_finals(self, seen: tuple[Columns, ...], workers: Array, finals: list[bytes]) -> tuple[Columns, ...]:
        """With the last views of games that ended, where any did."""
        if not any(finals):
            return seen
        last = tuple({leaf: column.copy() for leaf, column in one.items()} for one in seen)
        for worker, packed in zip(workers, finals, strict=True):
            if packed:
                told = unpack(packed)
                rows = worker * self._size[1] + told["rows"]
                for columns, final in zip(last, told["seen"], strict=True):
                    for leaf, column in columns.items():
                        column[rows] = final[leaf]
        return last


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


def _not_here() -> ConfigError:
    do = "Ask the worker that has the games"
    return ConfigError("a worker steps these games", where="central", do=do)
