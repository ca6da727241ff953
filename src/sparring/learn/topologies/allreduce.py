"""allreduce: k learners, each of which plays and learns its own share; gradients are averaged before every step.

    learner 0 (this process) ─ games ─ gradient ─┐
    learner 1 (a service)    ─ games ─ gradient ─┼─ ring-allreduce ─► the same step everywhere
    learner k (a service)    ─ games ─ gradient ─┘

This process has rank 0: it asks the others for each iteration, writes the run's folder, and says who is in the ring.
When a learner is lost, the rest leave the broken ring; all take the highest update that one of them completed, weights
and optimiser whole, and form a new ring, one fewer. Loss of this process ends the run; --resume goes on, with k again.
A seed determines everything, as long as none is lost. Each learner normalises advantages within its own minibatch.
"""

import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import msgspec
import torch

from sparring.acting.actor import Episodes
from sparring.config import Config
from sparring.errors import ConfigError, SparringError, TrainingStopped
from sparring.hosts.protocol import Handle, Pending, Resources, open_host
from sparring.learn.actors.experience import joined_episodes
from sparring.learn.plan import Plan, from_record
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.ring_allreduce import (
    DEADLINE_S,
    Meeting,
    RingAlgorithm,
    RingAllReduce,
    RingBroken,
    meeting_host,
    visit,
)
from sparring.learn.topologies import single
from sparring.learn.topologies.sync import SyncLoop
from sparring.services.register import register
from sparring.store.protocol import Store
from sparring.user_code import told_as_users
from sparring.wire.tree import Tree, pack, unpack

SERVICE = "learner"
SEED_STEP = 1_000_003  # between the seeds of two learners, for what they play
ARRIVE_S = 900.0  # for the first meeting: a cluster may have to start machines
ANSWER_S = 10.0  # that an answer may take once the update is over here

log = logging.getLogger("sparring.learn")


def build(plan: Plan, store: Store | None) -> Topology:
    """A learner here, and the others as services."""
    if store is not None:
        do = "Leave out --learners, or --from mix"
        raise ConfigError("several learners do not read the store", where="--learners", do=do)
    algorithm, share = share_of(plan)
    return _AllReduce(plan, algorithm, share)


class _AllReduce:
    """One iteration: every learner plays a rollout and learns it, with one averaged gradient."""

    def __init__(self, plan: Plan, algorithm: RingAlgorithm, share: SyncLoop) -> None:
        self._algorithm, self._share, self._gradient_share = algorithm, share, plan.gradient_share
        self._host = open_host(plan.on, seen=plan.discovery)
        record = msgspec.json.encode(plan.record())
        seeds = [plan.seed + SEED_STEP * number for number in range(1, plan.learners)]
        given = [{"game": plan.game, "seed": seed, "record": record, "league": plan.league} for seed in seeds]
        # A lost one leaves: it is not started again, and the plan says all who begin.
        needs = Resources(restarts=0, least=len(given), most=len(given))
        handles = self._host.start(RingLearner, SERVICE, len(given), needs, given) if given else []
        self.members: dict[int, Handle] = dict(enumerate(handles, start=1))  # in the ring, beside this one
        self._counts: dict[int, Counter[str]] = {}  # what each has played, also of those who left since
        self._gone: Counter[str] = Counter()  # and what those had who left before a checkpoint
        self._meeting = Meeting(meeting_host(plan.on)) if handles else None
        self._generation = 0  # of rings

    @property
    def learner(self) -> Learner:
        return self._share.learner

    @property
    def env_steps(self) -> int:
        return self._share.env_steps + self._all_counts()["env_steps"]

    @property
    def position(self) -> int:
        return self.env_steps

    @property
    def episodes(self) -> int:
        return self._share.episodes + self._all_counts()["episodes"]

    def iterate(self) -> Iteration:
        if not self._generation:
            self._answers({number: member.ask("state") for number, member in self.members.items()}, ARRIVE_S)
            self._meet(self.learner.save())
        before, played = self.learner.save(), self.env_steps
        self._share.steps_elsewhere = played - self._share.env_steps
        asked = {number: member.ask("iterate", played) for number, member in self.members.items()}
        iteration: Iteration | None = None
        patience_s = ANSWER_S
        try:
            iteration = self._share.iterate()
        except RingBroken as broken:  # the slowest may still play; the time already waited counts
            patience_s += max(0.0, DEADLINE_S - broken.waited_s)
        finally:
            if iteration is None:
                self._algorithm.leave()  # so that no learner waits for this one
        answers = self._answers(asked, patience_s)
        self._counts |= {number: Counter(answer["counts"]) for number, answer in answers.items()}
        if iteration is None or len(answers) < len(asked) or not all(answer["whole"] for answer in answers.values()):
            self._recover(before if iteration is None else self.learner.save(), answers)
        flow = {"learners": 1.0 + len(self.members)}
        if iteration is None:
            return Iteration(None, None, None, flow)
        others = [Episodes(**answer["episodes"]) for answer in answers.values() if answer["episodes"] is not None]
        ended = joined_episodes([*([] if iteration.episodes is None else [iteration.episodes]), *others])
        return replace(iteration, episodes=ended, metrics={**iteration.metrics, **flow})

    def sources(self) -> Sources:
        return Sources({"selfplay": self._share.sources().steps["selfplay"] + self._all_counts()["selfplay"]}, None)

    def close(self) -> None:
        self._algorithm.leave()
        self._host.close()
        self._share.close()

    def save(self) -> Tree:
        states = self._answers({number: member.ask("save") for number, member in self.members.items()}, DEADLINE_S)
        kept = {number: self._counts.get(number, Counter()) for number in states}
        gone = self._gone + sum((tally for number, tally in self._counts.items() if number not in kept), Counter())
        return {
            "share": self._share.save(),
            "others": {str(number): state for number, state in states.items()},
            "counts": {str(number): dict(tally) for number, tally in kept.items()},
            "gone": dict(gone),
        }

    def load(self, state: Tree) -> None:
        """A learner that was lost before starts afresh; what it had played counts."""
        self._share.load(state["share"])
        self._algorithm.completed = self.learner.updates
        self._gone = Counter(state["gone"])
        there = {number: member for number, member in self.members.items() if str(number) in state["others"]}
        self._counts = {number: Counter(state["counts"][str(number)]) for number in there}
        self._answers({n: member.ask("load", state["others"][str(n)]) for n, member in there.items()}, DEADLINE_S)
        self._generation = 0

    def _meet(self, state: bytes) -> None:
        """All who are left, with the same state, in a ring of the next generation."""
        while self.members and self._meeting is not None:
            self._generation += 1
            meeting, world = self._meeting, 1 + len(self.members)
            asked = {
                number: member.ask(
                    "join", [meeting.host, meeting.port], self._generation, [rank, world], state, DEADLINE_S
                )
                for rank, (number, member) in enumerate(self.members.items(), start=1)
            }
            with suppress(RingBroken):
                self._algorithm.ring = RingAllReduce(
                    meeting.store, meeting.host, self._generation, (0, world), DEADLINE_S, self._gradient_share
                )
            heard = self._answers(asked, ANSWER_S)
            if self._algorithm.ring is not None and len(heard) == len(asked) and all(heard.values()):
                return
            self._algorithm.leave()  # a learner was lost on the way; the rest try again
        self._generation = max(1, self._generation)  # alone is a ring, too

    def _recover(self, state: bytes, answers: dict[int, dict[str, Any]]) -> None:
        """Take the highest update that one of us completed, by default this one's `state`, and meet again."""
        self._algorithm.leave()
        for number, answer in answers.items():
            if answer["completed"] > self._algorithm.completed:
                heard = self._answers({number: self.members[number].ask("state")}, ANSWER_S)
                state = heard.get(number, state)
        self._algorithm.take(self.learner, state)
        self._meet(state)

    def _answers(self, asked: dict[int, Pending], seconds: float) -> dict[int, Any]:
        """The answers of those who gave one within that time; the others leave the ring."""
        found: dict[int, Any] = {}
        until = time.monotonic() + seconds
        for number, pending in asked.items():
            try:
                found[number] = pending.result(max(0.0, until - time.monotonic()))
            except SparringError as error:
                self._lose(number, error)
        return found

    def _lose(self, number: int, why: SparringError) -> None:
        """Out of the ring; a run that never had all of its learners does not begin."""
        if self.members.pop(number, None) is None:
            return
        if self._generation <= 1 and number not in self._counts:
            do = "Look at its story, or begin with fewer --learners"
            raise TrainingStopped(f"it did not come: {why}", where=f"learner {number}", do=do) from None
        log.warning("learner %d left the ring, and the rest go on: %s", number, why)

    def _all_counts(self) -> Counter[str]:
        return sum(self._counts.values(), Counter(self._gone))


def share_of(plan: Plan) -> tuple[RingAlgorithm, SyncLoop]:
    """What one learner of the ring does: it plays in its own process, and learns with the others."""
    algorithm = RingAlgorithm(plan.algorithm)
    share = single.build(replace(plan, algorithm=algorithm), None)
    assert isinstance(share, SyncLoop)  # `begin` has refused what is fed otherwise
    return algorithm, share


class RingLearner:
    """A learner of the ring as a service: it plays and learns its share, one update for each call, and does not decide.

    `record` is the plan's, as JSON; `seed` this learner's own, for what it plays.
    """

    def __init__(self, game: str, seed: int, record: bytes, league: str) -> None:
        torch.set_num_threads(1)  # the machine's cores are the learners' to share
        plan = replace(from_record(game, seed, msgspec.json.decode(record), Config()), league=league)
        self._gradient_share = plan.gradient_share
        self._algorithm, self._topology = share_of(plan)

    @register()
    def join(self, place: list[Any], generation: int, seat: list[int], state: bytes, deadline_s: float) -> bool:
        """Enter a generation of the ring with everybody's state; False where it broke before it began."""
        (host, port), (rank, world) = place, seat
        self._algorithm.leave()
        self._algorithm.take(self._topology.learner, state)
        try:
            self._algorithm.ring = RingAllReduce(
                visit(host, port), host, generation, (rank, world), deadline_s, self._gradient_share
            )
        except RingBroken:
            return False
        return True

    @register()
    @told_as_users()
    def iterate(self, played: int) -> dict[str, Any]:
        """Play, and learn with the others, who have played so many steps with this one. `completed` says of which
        update all of it is known."""
        self._topology.steps_elsewhere = played - self._topology.env_steps
        whole, ended = False, None
        try:
            with suppress(RingBroken):
                ended = self._topology.iterate().episodes
                whole = True
        finally:
            if not whole:
                self._algorithm.leave()  # whatever failed, no learner may wait for this one
        return {
            "whole": whole,
            "completed": self._algorithm.completed,
            "counts": {
                "env_steps": self._topology.env_steps,
                "episodes": self._topology.episodes,
                "selfplay": self._topology.sources().steps["selfplay"],
            },
            "episodes": None if ended is None else asdict(ended),
        }

    @register(idempotent=True)
    def state(self) -> bytes:
        """The learner, for others to go on from."""
        return self._topology.learner.save()

    @register(idempotent=True)
    def save(self) -> bytes:
        """All of it, for a checkpoint."""
        return pack(self._topology.save())

    @register()
    def load(self, state: bytes) -> None:
        """Back to what `save` gave."""
        self._topology.load(unpack(state))
        self._algorithm.completed = self._topology.learner.updates

    def close(self) -> None:
        """Leave the ring."""
        self._algorithm.leave()
        self._topology.close()
