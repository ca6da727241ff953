"""A run whose nodes send experience: the parent learns, by the loop of every algorithm that learns from trajectories.

    lease: seed, weights ──► node plays a rollout ──► experience ─► a share is played again ─► learner ─► weights

`ExperienceSessions` are the connections, `ExperienceTopology` the run's thread (see leases.py for what is trusted).
"""

import asyncio
import queue
from collections.abc import Callable

from sparring.errors import WireError
from sparring.learn.actors.experience import PlayedRollout
from sparring.learn.actors.protocol import Actors
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources
from sparring.learn.topologies.sync import OnPolicyLoop
from sparring.nodes.board import NodeState
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.leases import IssuedLease, LeaseBook, LeasePlayer, unpacked
from sparring.nodes.messages import Experience, Lease, Weights
from sparring.nodes.sessions import NodeSessions, Session
from sparring.wire.tree import Tree

WAITING = 64  # results that the learner has not taken yet; above it nodes wait
ITERATION_S = 0.1
Result = tuple[NodeState, IssuedLease, bytes]


class ExperienceSessions(NodeSessions):
    """Connections over which leases go out and experience comes back."""

    raw_bytes = 0  # of a rollout: what a payload inflates to

    def prepare(self, raw_bytes: int) -> None:
        self.raw_bytes = raw_bytes
        self.book, self.results = LeaseBook(refused=self.merger.refused), queue.SimpleQueue[Result]()

    @property
    def max_bytes(self) -> int:
        return self.raw_bytes + self.raw_bytes // 64 + super().max_bytes

    async def exchange(self, session: Session) -> None:
        """A lease and its result, again and again."""
        state, reason = session.state, ""
        while True:
            while self.results.qsize() >= WAITING and not self.leaving:
                await asyncio.sleep(0.01)
            leave = self.reason_to_leave(state)
            version, weights = self.merger.version, self.merger.weights
            payload, state.version = session.give(version, weights, self.codec), version
            lease = self.book.issue(state.node, version, session.base)
            answer = Weights(version, payload, refused=reason, leave=leave)
            await session.link.send(Lease(lease.number, lease.seed, lease.model, answer), self.config.silent_s)
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
                self.results.put((state, found, raw))
                self.changed.set()


class _LeasedActors(Actors):
    """The nodes, as far as the loop knows actors: it publishes weights to them."""

    def __init__(self, sessions: ExperienceSessions, weights: LearnerWeights) -> None:
        self._sessions, self._weights = sessions, weights

    @property
    def actors(self) -> int:
        return sum(one.state == "working" for one in tuple(self._sessions.states.values()))

    def publish(self, learner: Learner, env_steps: int) -> None:
        with self._sessions.lock:
            self._sessions.merger.become(self._weights.read())

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


class ExperienceLoop(OnPolicyLoop):
    """One iteration: one lease's result, checked and learned."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        sessions: ExperienceSessions,
        player: LeasePlayer,
        doors: tuple[Callable[[], None], Callable[[], None]],
    ) -> None:
        """`doors` lets nodes in, and sends them away."""
        self._weights = LearnerWeights(learner)
        super().__init__(plan, learner, _LeasedActors(sessions, self._weights), None)
        self.sessions, self._player, (self._start, self._stop) = sessions, player, doors

    def iterate(self) -> Iteration:
        if not self.begun:
            self.begin()
            self._start()
        self.sessions.check()
        try:
            state, lease, raw = self.sessions.results.get(timeout=ITERATION_S)
        except queue.Empty:
            return Iteration(None, None, None, self.flow())
        result = self._accepted(state, lease, raw)
        if result is None:
            return Iteration(None, None, None, self.flow())
        self.count(result)
        return self.learn(result)

    def sources(self) -> Sources:
        return Sources({"node": self.selfplay}, None)

    def _accepted(self, state: NodeState, lease: IssuedLease, raw: bytes) -> PlayedRollout | None:
        """The rollout, if it may be learned; else the reason is counted, also for its node."""
        sessions, book = self.sessions, self.sessions.book
        reason, result = "", None
        if sessions.merger.version - lease.version > sessions.config.max_staleness * max(1, self.actors.actors):
            reason = "stale"
        elif book.is_chosen(lease.node):
            again = self._player.play(self._weights.layout, lease.weights, lease.seed, lease.version)
            if raw != again:
                reason = "rerun"
        try:
            result = None if reason else self._player.read(raw)
        except WireError:
            reason = "rerun"  # no game gives this
        if reason == "stale":
            book.refused[reason] += 1
        elif book.judged(lease.node, valid=not reason):
            who = state.holder if state.holder.startswith("key:") else lease.node
            sessions.board.order("ban", who, "its experience did not match when it was played again")
        if reason:
            state.refuse(reason)
            return None
        state.merges += 1
        sessions.merger.merged += 1
        assert result is not None
        state.steps += result.env_steps
        return result

    def close(self) -> None:
        self._stop()
        self._player.close()
        super().close()
