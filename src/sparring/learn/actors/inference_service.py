"""Central inference as two services: one decides for all environments, in batches, and keeps the steps that follow; the
others have environments and nothing else.

    worker i ─ act(what its games show) ─► gathered with other workers' ─► one forward ─► actions
    learner ─ take(version) ► the oldest whole rollout (or block of steps) of all environments; those weights decide
                              from the next tick on, also within a rollout (as in SEED RL)

Each stream has its recurrent state, its frames and its open step in the inference service; a buffer has the closed ones
until the learner takes them. A few whole rollouts may wait; then workers are told to hold. A rollout is whole as soon
as one worker has made all its ticks; slower ones have padding, and a stream that broke off is truncated there. A block
is whole after so many ticks of any worker; where streams broke off it ends early, and the next one says that
it follows nothing. A worker makes one call for each tick of all its games. Where a call is lost, or inference does not
know these games (it was restarted), all games begin new episodes: none that inference saw half of goes on.
"""

import time
from collections import deque
from typing import Any

import numpy as np
from msgspec.structs import replace

from sparring.acting.actor import Actor
from sparring.acting.rollout import Rollout
from sparring.errors import Unreachable
from sparring.games.protocol import RUNNING, Actions, Columns, View
from sparring.games.spec import GameSpec
from sparring.learn.actors.actor_process import ActorRunner
from sparring.learn.actors.actor_spec import ActorSpec, read_actor_spec
from sparring.learn.actors.experience import RolloutRing, StepBlockRing
from sparring.learn.actors.weights import NONE, TopicWeightsReader, WeightsSnapshot
from sparring.replay.steps import Steps
from sparring.services.executor import joined, parted
from sparring.services.register import register
from sparring.services.solver import Solver
from sparring.user_code import told_as_users
from sparring.wire.chunk import Array
from sparring.wire.tree import pack, unpack

SERVICE = "inference"
ACT, HOLD, RESET = 0, 1, 2  # do this; ask again later, nothing was taken; reset your games, for they are not known
GATHER_MS = 2.0  # that a worker waits for the others, at most
SEEDING = 5  # of the random streams that a seed has
DEADLINE_S = 5.0  # of one decision
CALL_S = 0.25  # that one call plays
HOLD_S = 0.002  # before asking again
RETRY_S = 0.1  # the same, where a call was lost


class InferenceService:
    """`actor_spec` is an ActorSpec of all environments, as JSON; each of `workers` workers has as many of them."""

    def __init__(self, actor_spec: bytes, workers: int, generation: int = 0, weights: Any = None) -> None:
        spec = read_actor_spec(actor_spec)
        self._spec = replace(spec, generation=spec.generation + generation)
        self.workers, self._envs = workers, spec.envs // workers
        buffer = RolloutBuffer if spec.feeds == "rollouts" else StepBlockBuffer
        self._buffer: RolloutBuffer | StepBlockBuffer = buffer(self._spec, workers)
        self._weights: Any = TopicWeightsReader() if weights is None else weights
        self._snapshot: WeightsSnapshot | None = None
        self._runner = ActorRunner(self._spec)
        self._games: RemoteGames | None = None  # from the first call with weights on
        self._decided = np.full(self._spec.streams, NONE, np.int64)  # with which version each open step was
        self._sessions = np.full(workers, -1, np.int64)
        self._ticks = np.zeros(workers, np.int64)  # the next tick of each worker
        self._calls = self._rows = 0

    @register(batch="workers", wait_ms=GATHER_MS, queue=4096, full="wait")
    @told_as_users()
    def act(self, worker: Any, session: Any, tick: Any, shown: dict[str, Any]) -> dict[str, Array]:
        """What the games of each worker are to do: `status` and, for ACT, `action` [seats, envs, …].

        A session has ticks 0, 1, 2 … without a gap; tick 0 begins new games.
        """
        if isinstance(worker, int):  # it is the only one
            answer = self.act(*joined([(worker, session, tick, shown)]))
            return parted(answer, 1, "act")[0]  # type: ignore[no-any-return]
        seats = self._spec.spec.seats
        leaf = seats[0].action
        action = np.zeros((len(worker), len(seats), self._envs, *leaf.shape), leaf.dtype)
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

    def use(self, version: int) -> None:
        """Decide with that version of the weights, or a later one, from now on."""
        if self._snapshot is None or self._snapshot.version < version:
            self._snapshot = self._weights.at_least(version)
            if self._games is not None:
                self._runner.use(self._snapshot, self._weights)

    @register()
    def take(self, version: int) -> dict[str, Any]:
        """The oldest whole rollout's or block's `columns`, None where none waits, and whether it is `broken` off from
        the one before; and how many environments one forward `served` lately, on average. The learner has published
        that version of the weights."""
        self.use(version)
        columns, broken = self._buffer.oldest()
        served = self._rows / max(1, self._calls)
        self._calls = self._rows = 0
        return {"columns": columns, "broken": broken, "served": served}

    def close(self) -> None:
        """Give memory and sockets back."""
        self._weights.close()
        self._buffer.close()

    def _open(self, shown: dict[str, Any]) -> tuple[Actor, "RemoteGames"] | None:
        """The actor, over all games; None: there are no weights yet."""
        if self._games is None and self._snapshot is not None:
            self._games = RemoteGames(self._spec.played, self.workers, self._envs, masks=bool(shown["legal"]))
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
        self.shown = View(to_act, seen, legal, nothing, np.full_like(ending, RUNNING), nothing, tick)
        reward = self._spread(nothing.copy(), stepping, shown["reward"][still])
        outcome = self._spread(nothing.copy(), stepping, shown["outcome"][still])
        over = (ending != RUNNING).all(axis=1)
        waits = np.tile(over[:, None], (1, to_act.shape[1]))
        new = self._spread(np.zeros_like(waits), workers[fresh], True)
        last = self._with_finals(seen, stepping, [shown["finals"][i] for i in np.flatnonzero(still)])
        return View(to_act & ~waits & ~new, last, legal, reward, ending, outcome, tick)

    def reset(self, seeds: Array, which: Array) -> View:
        """Their workers have reset them."""
        return self.shown

    def step(self, actions: Actions) -> View:
        raise NotImplementedError  # their workers do

    def save(self) -> bytes:
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        raise NotImplementedError

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


class RolloutBuffer:
    """For algorithms fed with trajectories. At each tick: has_room, add, cut where streams broke off, finish."""

    def __init__(self, spec: ActorSpec, workers: int) -> None:
        self._spec, self._ring = spec, RolloutRing(spec)
        self._rollout: Rollout | None = None  # that is not whole yet
        self._before = (0, 0)  # steps and games of the actor when it began
        self._oldest = NONE  # version of a decision in it
        self._ticks = np.zeros(workers, np.int64)  # of each worker

    def has_room(self, actor: Actor, version: int) -> bool:
        """Whether one more tick fits; not where too many whole rollouts wait."""
        if self._rollout is None and self._ring.room():
            self._rollout = actor.open_rollout(self._spec.ticks, self._ring.places(actor))
            self._before, self._oldest = (actor.env_steps, actor.episodes), version
            self._ticks[:] = 0
        return self._rollout is not None

    def add(self, actor: Actor, steps: Steps, workers: Array, oldest: int) -> None:
        """The steps that a tick of those workers closed, decided with version `oldest` or a later one."""
        assert self._rollout is not None  # has_room said so
        self._oldest = min(self._oldest, oldest)
        self._ticks[workers] += 1
        actor.write(self._rollout, steps)

    def cut(self, streams: Array, value: Array) -> None:
        """What those streams do next follows nothing; `value` is their estimate of what is lost."""
        assert self._rollout is not None
        self._rollout.cut(streams, value)

    def finish(self, actor: Actor) -> None:
        """Let what is whole wait to be taken."""
        if self._rollout is not None and self._ticks.max() >= self._spec.ticks:
            self._ring.hand_over(actor, actor.close_rollout(self._rollout), self._oldest, self._before)
            self._rollout = None

    def oldest(self) -> tuple[dict[str, Array] | None, bool]:
        """The columns of what waits longest, and whether they follow nothing."""
        return (self._ring.take_columns() if self._ring.ready() else None), False

    def close(self) -> None:
        self._rollout = None
        self._ring.close()


class StepBlockBuffer:
    """For algorithms with replay."""

    def __init__(self, spec: ActorSpec, workers: int) -> None:
        self._spec = spec
        self._ring = StepBlockRing(spec)
        self._held: list[Steps] = []
        self._version = 0
        self._counted = (0, 0)  # ticks of games and games that were handed over
        self._broken: deque[bool] = deque()  # of the blocks that wait, which the ring bounds
        self._follows = False  # what is held, what was handed over
        self._cut = False  # what is held ends here

    def has_room(self, actor: Actor, version: int) -> bool:
        return self._ring.room()

    def add(self, actor: Actor, steps: Steps, workers: Array, oldest: int) -> None:
        self._version = min(self._version, oldest) if self._held else oldest
        self._held.append(actor.in_frames(steps))

    def cut(self, streams: Array, value: Array) -> None:
        self._cut = True

    def finish(self, actor: Actor) -> None:
        if len(self._held) < self._spec.ticks and not self._cut:
            return
        if any(map(len, self._held)):
            counted, self._counted = self._counted, (actor.env_steps, actor.episodes)
            env_steps, games = actor.env_steps - counted[0], actor.episodes - counted[1]
            self._ring.write(self._held, actor.ended(), version=self._version, env_steps=env_steps, games=games)
            self._broken.append(not self._follows)
            self._follows = True
        self._follows = self._follows and not self._cut
        self._held, self._cut = [], False

    def oldest(self) -> tuple[dict[str, Array] | None, bool]:
        return (self._ring.take_columns(), self._broken.popleft()) if self._ring.ready() else (None, False)

    def close(self) -> None:
        self._ring.close()


class EnvService:
    """`actor_spec` is an ActorSpec as JSON; `worker` is its number. A successor draws other seeds."""

    def __init__(self, actor_spec: bytes, worker: int, generation: int = 0, solver: Any = None) -> None:
        spec = read_actor_spec(actor_spec)
        self._worker = worker
        self._game = spec.open_games()
        self._rng = np.random.default_rng([spec.seed, SEEDING, worker, spec.generation + generation])
        self._solver: Any = Solver(deadline_s=DEADLINE_S) if solver is None else solver
        self._session, self._tick = 0, 0
        self._shown: dict[str, Any] = {}
        self._begin()

    @register(queue=16)
    @told_as_users()
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
        last = [{leaf: column[over] for leaf, column in seen.items()} for seen in stepped.observation]
        finals = pack({"rows": over, "seen": last})
    return {
        "to_act": now.to_act,
        "seen": list(now.observation),
        "legal": [] if any(one is None for one in now.legal) else list(now.legal),
        "reward": stepped.reward,
        "ending": stepped.ending,
        "outcome": stepped.outcome,
        "tick": stepped.tick,
        "finals": finals,
    }
