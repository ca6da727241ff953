"""A run whose nodes send experience: the parent learns, by the loops of algorithms on one machine.

    lease: seed, ε, weights ──► node plays ──► experience ─► a share is played again ─┬─► batch ─► learner ─► weights
                                                                                      └─► table ─► learner ─► weights

`ExperienceSessions` are the connections. The run's thread is `ExperienceLoop` where the algorithm learns from rollouts,
`ReplayExperienceLoop` where it learns from replay (see leases.py for what is trusted).
"""

import asyncio
import queue
from collections.abc import Callable
from dataclasses import replace

from sparring.acting.actor import NO_EPISODES
from sparring.errors import WireError
from sparring.learn.actors.protocol import Actors
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources
from sparring.learn.replay.local import InsertedBlock, LocalReplay
from sparring.learn.topologies.apex import ReplayLoop
from sparring.learn.topologies.sync import OnPolicyLoop
from sparring.nodes.board import NodeState
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.leases import Columns, IssuedLease, LeaseBook, LeasePlayer, unpacked
from sparring.nodes.messages import Experience, Lease, Weights
from sparring.nodes.sessions import NodeSessions, Session
from sparring.replay.table import check_sources
from sparring.wire.tree import Tree

VERSIONS = 1_024  # whose updates are remembered
ITERATION_S = 0.1
Result = tuple[NodeState, IssuedLease, bytes]


class ExperienceSessions(NodeSessions):
    """Connections over which leases go out and experience comes back."""

    raw_bytes = 0  # of a lease's result: what a payload inflates to
    epsilon = 0.0  # of the leases that are issued now

    def prepare(self, raw_bytes: int) -> None:
        self.raw_bytes = raw_bytes
        self.book, self._results = LeaseBook(refused=self.merger.refused), queue.Queue[Result]()
        self._ahead = set[str]()  # nodes whose result the learner has not taken yet

    def next_result(self, within_s: float) -> Result | None:
        """The oldest that waits; its node gets the next lease."""
        self.check()
        try:
            result = self._results.get(timeout=within_s)
        except queue.Empty:
            return None
        self._ahead.discard(result[1].node)
        return result

    @property
    def max_bytes(self) -> int:
        return self.raw_bytes + self.raw_bytes // 64 + super().max_bytes

    async def exchange(self, session: Session) -> None:
        """A lease and its result, again and again. A node whose result waits for the learner waits, too: what it would
        play ahead would be of old weights."""
        state, reason = session.state, ""
        while True:
            while state.node in self._ahead and not self.leaving:
                await asyncio.sleep(0.01)
            leave = self.reason_to_leave(state)
            version, weights = self.merger.version, self.merger.weights
            payload, state.version = session.give(version, weights, self.codec), version
            lease = self.book.issue(state.node, version, session.base, self.epsilon)
            answer = Weights(version, payload, refused=reason, leave=leave)
            message = Lease(lease.number, lease.seed, lease.model, answer, lease.epsilon)
            await session.link.send(message, self.config.silent_s)
            self.count_bytes(session)
            if leave:
                return
            given = await session.link.receive(self.config.silent_s)
            if not isinstance(given, Experience):
                await self.refuse(session.link, f"it sent {type(given).__name__}, not experience")
            raw = unpacked(given.payload, self.raw_bytes)
            found = self.book.redeem(state.node, given.lease, given.model)
            reason = "" if found is not None else "lease"
            state.seen(given.steps_per_s)
            if found is None:
                state.refuse(reason)
            else:
                self._ahead.add(state.node)
                self._results.put((state, found, raw))
                self.changed.set()


class _LeasedActors(Actors):
    """The nodes, as far as loops know actors: weights are published to them, and what they played is taken."""

    def __init__(self, sessions: ExperienceSessions, player: LeasePlayer, learner: Learner, *, bounded: bool) -> None:
        """`bounded`: results of weights that are too old are refused."""
        self._sessions, self._player, self._bounded = sessions, player, bounded
        self._weights = LearnerWeights(learner)
        self.updates: dict[int, int] = {}  # of the learner, behind each version that was published

    @property
    def actors(self) -> int:
        return sum(one.state == "working" for one in tuple(self._sessions.states.values()))

    def publish(self, learner: Learner, env_steps: int) -> None:
        with self._sessions.lock:
            self._sessions.merger.become(self._weights.read())
            self.updates[self._sessions.merger.version] = learner.updates
        self.updates.pop(self._sessions.merger.version - VERSIONS, None)

    def next_result(self) -> Columns | None:
        """What was played with a lease and may be learned; None: nothing came for a while, or it may not."""
        result = self._sessions.next_result(ITERATION_S)
        return None if result is None else self._accepted(*result)

    def _accepted(self, state: NodeState, lease: IssuedLease, raw: bytes) -> Columns | None:
        """The result, if it may be learned; else the reason is counted, also for its node."""
        sessions, book = self._sessions, self._sessions.book
        reason, result = "", None
        lag = sessions.merger.version - lease.version
        if self._bounded and lag > sessions.config.max_staleness * max(1, self.actors):
            reason = "stale"
        elif book.is_chosen(lease.node):
            again = self._player.play(self._weights.layout, lease.weights, lease.seed, lease.version, lease.epsilon)
            if raw != again:
                reason = "rerun"
        try:
            result = None if reason else self._player.read(raw)
        except WireError:
            reason = "rerun"  # no game gives this
        if reason == "stale":
            book.refused[reason] += 1
        elif book.judged(lease.node, valid=not reason):
            who = state.holder if state.holder.startswith("key:") and not state.relay else lease.node
            sessions.board.order("ban", who, "its experience did not match when it was played again")
        if reason:
            state.refuse(reason)
            return None
        state.merges += 1
        sessions.merger.merged += 1
        assert result is not None
        state.steps += int(result["head"].flat[1])  # env_steps, of rollouts and blocks alike
        return result

    def flow(self) -> dict[str, float]:
        merger, states = self._sessions.merger, tuple(self._sessions.states.values())
        flow = {"nodes": self.actors, "merges": merger.merged, "versions": merger.version}
        flow |= {"contributions_refused": sum(merger.refused.values()), "reruns": self._sessions.book.reruns}
        flow |= {"node_bytes": sum(one.received_bytes + one.sent_bytes for one in states)}
        return {name: float(value) for name, value in flow.items()}

    def save(self) -> Tree:
        return {}

    def load(self, state: Tree) -> None:
        """Nodes keep nothing."""

    def close(self) -> None:
        self._player.close()


Doors = tuple[Callable[[], None], Callable[[], None]]  # lets nodes in, and sends them away


class ExperienceLoop(OnPolicyLoop):
    """One iteration: one lease's rollout, checked; and an update when there are as many as there are nodes.

    The leases may come from any nodes, so a fast node contributes several and a slow one delays no update. While the
    learner updates, each node plays its next lease with the weights before: a batch is usually one version old, however
    many nodes there are.
    """

    def __init__(
        self, plan: Plan, learner: Learner, sessions: ExperienceSessions, player: LeasePlayer, doors: Doors
    ) -> None:
        self._nodes = _LeasedActors(sessions, player, learner, bounded=True)
        super().__init__(plan, learner, self._nodes, None)
        self.sessions, (self._start, self._stop) = sessions, doors
        self._player, self._gathered = player, list[Columns]()

    def iterate(self) -> Iteration:
        if not self.begun:
            self.begin()
            self._start()
        result = self._nodes.next_result()
        if result is not None:
            self._gathered.append(result)
        if len(self._gathered) < max(1, self._nodes.actors):
            return Iteration(None, None, None, self.flow())
        played, self._gathered = self._player.rollout(self._gathered), []
        self.count(played)
        return self.learn(replace(played, version=self._nodes.updates.get(played.version, 0)))

    def sources(self) -> Sources:
        return Sources({"node": self.selfplay}, None)

    def close(self) -> None:
        self._stop()
        super().close()


class ReplayExperienceLoop(ReplayLoop):
    """One iteration: a batch where the rate limiter permits one, else one lease's steps, checked and inserted."""

    def __init__(
        self, plan: Plan, learner: Learner, sessions: ExperienceSessions, player: LeasePlayer, doors: Doors
    ) -> None:
        check_sources(plan.replay, records=False)
        replay = LocalReplay(plan, learner.network, player.streams, None, actors=1)
        super().__init__(plan, learner, replay, 1)
        limiter, self._player, self._insert_steps = self.rate_limiter, player, player.most_steps
        least = (limiter.samples_per_insert * self._insert_steps + self._batch_steps) / 2
        limiter.slack_samples = max(limiter.slack_samples, least)  # a lease is a large insert
        self._nodes, self._table, self._begun = _LeasedActors(sessions, player, learner, bounded=False), replay, False
        self.sessions, (self._start, self._stop) = sessions, doors

    def iterate(self) -> Iteration:
        if not self._begun:
            self._begun = True
            self._nodes.publish(self.learner, self.env_steps)
            self._explore()
            self._start()
        if self.may_sample() and (iteration := self.learn(NO_EPISODES)) is not None:
            if not self.may_sample():
                self._nodes.publish(self.learner, self.env_steps)
            return iteration
        result = self._nodes.next_result() if self.rate_limiter.may_insert(self._insert_steps) else None
        if result is None:
            return Iteration(None, None, None, self.flow())
        block = self._player.block(result)
        updates = self._nodes.updates.get(block.version, 0)
        fed = self._table.insert_steps(replace(block.steps, version=updates))
        self._table.break_off(0)  # each lease has fresh games: nothing follows what came last
        self.count(InsertedBlock(block.episodes, block.env_steps, block.games, len(block.steps), fed))
        self._explore()
        return Iteration(None, None, block.episodes, self.flow())

    def _explore(self) -> None:
        self.sessions.epsilon = self.plan.algorithm.exploration(self.learner, self.env_steps)

    def flow(self) -> dict[str, float]:
        return super().flow() | self._nodes.flow()

    def sources(self) -> Sources:
        return Sources({"node": self.played["selfplay"]}, None)

    def load(self, state: Tree) -> None:
        super().load(state)
        self._table.break_off(0)

    def close(self) -> None:
        self._stop()
        super().close()
        self._nodes.close()
