"""An actor in a process of its own: it plays rollout after rollout, or block after block, with the newest weights.

    local://   `python -m sparring.learn.actors.actor_process`, its ActorSpec as a line of JSON on standard input
    ray://     ActorService: each call plays one rollout or block

The process reads weights from shared memory, writes what it played into its ring buffer, and waits where that is full.
The end of standard input says that the learner is gone or wants it to stop: the process ends at once, whatever it is
doing. A synchronous actor leaves itself, as it was before each rollout, behind the arrays of its ring buffer. No torch
here: the process starts in a fraction of a second and stays small.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as with_columns
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.games.protocol import RUNNING, TERMINATED, Game
from sparring.learn.actors.actor_spec import ActorSpec, Ring, read_actor_spec
from sparring.learn.actors.experience import RolloutRing
from sparring.learn.actors.shared_memory import Wakeup
from sparring.learn.actors.weights import NONE, SharedWeights, TopicWeightsReader, WeightsSnapshot
from sparring.nets.policies import Choice, Policy, checked_choice, masked
from sparring.nets.user_code import open_policy
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
from sparring.replay.steps import Steps
from sparring.services.register import register
from sparring.user_code import told_as_users
from sparring.wire.chunk import Array
from sparring.wire.tree import pack, unpack

Said = tuple[Array, Array] | None  # the values of what was done and of what was best; None: not all streams decided


class ActorRunner:
    """The actor is opened with the first weights."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.actor: Actor | None = None
        self.opponents: Opponents | None = None
        self.version, self.epsilon = NONE, 0.0
        self._estimator = None
        if spec.n_steps:
            self._estimator = PriorityEstimator(open_policy(spec.policy, spec.spec.seats[0].action), spec.streams)
        self._held: list[Steps] = []  # ticks that were played and not handed over
        self._said: list[Said] = []

    def use(
        self, snapshot: WeightsSnapshot, reader: SharedWeights | TopicWeightsReader, game: Game | None = None
    ) -> Actor:
        """The actor with these weights, and with the past selves that came with them."""
        if self.actor is None:
            self.actor, self.opponents = self.spec.open_actor(snapshot.weights, self._estimator, game)
            if self.spec.state:
                self.actor.load(unpack(self.spec.state))
        if snapshot.version != self.version:
            self.actor.use(self.spec.forward(snapshot.weights), snapshot.version)
            self.version = snapshot.version
            self.epsilon = snapshot.epsilon if self.spec.epsilon is None else self.spec.epsilon
        assert self.opponents is not None
        for place, weights in reader.new_past_selves(snapshot).items():
            self.opponents.put(place, weights)
        return self.actor

    def save(self) -> bytes:
        """The actor, for a checkpoint; the learner has the past selves."""
        assert self.actor is not None
        return pack(self.actor.save())

    def play(self, out: Ring) -> None:
        """One rollout or block into a ring buffer that has room for it."""
        assert self.actor is not None
        if isinstance(out, RolloutRing):
            out.play(self.actor, self.version, self.epsilon)
            return
        actor, spec, estimator = self.actor, self.spec, self._estimator
        env_steps, games = actor.env_steps, actor.episodes
        # Where priorities are estimated one tick is held back: its values bootstrap the steps before it.
        while len(self._held) < spec.ticks + (estimator is not None):
            self._held.append(actor.step(self.epsilon))
            if estimator is not None:
                self._said.append(estimator.last)
        ticks: Sequence[Steps] = self._held[: spec.ticks]
        if estimator is not None:
            ticks = with_priorities(ticks, self._said, spec.n_steps, spec.discount)
        self._held, self._said = self._held[spec.ticks :], self._said[spec.ticks :]
        env_steps, games = actor.env_steps - env_steps, actor.episodes - games
        out.write(ticks, actor.ended(), version=self.version, env_steps=env_steps, games=games)


class PriorityEstimator:
    """A policy that remembers, until it is asked, what its network said of each decision: from that an actor estimates
    first priorities. Only for games whose streams all decide at every tick; others get the table's default priority."""

    def __init__(self, policy: Policy, streams: int) -> None:
        self.deployed = policy.deployed
        self._policy, self._streams = policy, streams
        self.last: Said = None  # of the last decision

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        values = out["logits"]
        choice = checked_choice(self._policy, self._policy.explore(out, legal, rng, epsilon), len(values))
        self.last = None
        if len(values) == self._streams:
            self.last = values[np.arange(len(values)), choice.action], masked(values, legal).max(axis=-1)
        return choice


def with_priorities(ticks: Sequence[Steps], said: Sequence[Said], n_steps: int, discount: float) -> Sequence[Steps]:
    """The steps of T ticks with first priorities (Horgan et al. 2018, §3).

    `said` is of their decisions and of the one after the last.

    p = |Σ_{k<m} γ^k r_{t+k} + γ^m max_a Q(s_{t+m}, a) − Q(s_t, a_t)|, m = n_steps or what is left of the block or the
    episode. After a true end nothing follows; where an episode was cut, the value of its last decision stands for
    that of the observation after it, which the network was not asked about.
    """
    streams = len(ticks[0]) if ticks else 0
    if any(one is None for one in said) or any(len(steps) != streams for steps in ticks):
        return ticks
    chosen, best = (np.stack([one[place] for one in said if one is not None]) for place in (0, 1))
    reward, ending = (np.stack([getattr(steps, name) for steps in ticks]) for name in ("reward", "ending"))
    errors = np.abs(n_step_goals(reward, ending, best, n_steps, discount) - chosen[:-1])
    return [with_columns(steps, priority=one) for steps, one in zip(ticks, errors.astype(np.float32), strict=True)]


def n_step_goals(reward: Array, ending: Array, best: Array, n_steps: int, discount: float) -> Array:
    """[T, streams] of rewards and endings [T, streams] and best values [T + 1, streams]; see `with_priorities`."""
    count = len(reward)
    goal, alive = np.zeros(reward.shape), np.ones(reward.shape, bool)
    for k in range(min(n_steps, count)):
        here = slice(k, count)  # the tick k steps after each of the first count - k
        there = alive[: count - k]
        goes_on = ending[here] == RUNNING
        cut = np.where(ending[here] == TERMINATED, 0.0, best[:-1][here])
        is_last = np.full_like(there, k == n_steps - 1)
        is_last[-1] = True  # the block ends here
        follows = np.where(goes_on, np.where(is_last, best[1:][here], 0.0), cut)
        goal[: count - k] += there * discount**k * (reward[here] + discount * follows)
        alive[: count - k] = there & goes_on & ~is_last
    return goal


class ActorService:
    """`actor_spec` is an ActorSpec as JSON. One that replaces a dead one begins new games, with random numbers of its
    own."""

    def __init__(self, actor_spec: bytes, generation: int = 0) -> None:
        spec = read_actor_spec(actor_spec)
        state = b"" if generation else spec.state
        self._spec = replace(spec, slots=1, generation=spec.generation + generation, state=state)
        self._weights, self._runner, self._out = TopicWeightsReader(), ActorRunner(self._spec), self._spec.open_ring()
        self._before = b""
        self._played = 0

    @register(queue=8)
    @told_as_users()
    def play(self, version: int) -> dict[str, Any]:
        """A rollout or a block with that version of the weights or a later one.

        The answer has beside the columns whose it is (`actor`, `generation`) and how many came before it (`number`).
        """
        if self._runner.version < version:
            self._runner.use(self._weights.at_least(version), self._weights)
        if self._spec.synchronous:
            self._before = self._runner.save()
        self._runner.play(self._out)
        columns = self._out.take_columns()
        self._played += 1
        whose = {"actor": self._spec.actor, "generation": self._spec.generation, "number": self._played}
        return {**whose, "columns": columns}

    @register(idempotent=True)
    def state(self) -> bytes:
        """A synchronous actor as it was before it played last; empty where it has not."""
        return self._before

    def close(self) -> None:
        """Give sockets and memory back."""
        if self._runner.opponents is not None:
            self._runner.opponents.close()
        self._weights.close()
        self._out.close()


def yield_cpu() -> None:
    """From now on this thread, when it wakes, waits until a core is free or it is scheduled in turn.

    Otherwise the system preempts a running process for one that slept: a learner that is handed blocks a thousand times
    a second was stopped 400 times, in the middle of a sample or an update. Its share of the cores stays the same.
    Systems without SCHED_BATCH change nothing.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Play until the end of standard input: one rollout or block after another, each with the newest weights."""
    lines = read_lines()
    spec = read_actor_spec(first_line(lines))
    end_with_parent(lines)
    weights, wakeup = spec.open_weights(spec.weights_descriptor), Wakeup(socket.socket(fileno=spec.wakeup_descriptor))
    out, runner = spec.open_ring(spec.ring_descriptor), ActorRunner(spec)
    if spec.feeds == "steps":
        yield_cpu()  # the learner waits for no single block

    def due() -> bool:
        return out.room() and weights.version > (runner.version if spec.synchronous else NONE)

    while wakeup.wait_for(due):
        if weights.version > runner.version and (snapshot := weights.newest()) is not None:
            runner.use(snapshot, weights)
        if spec.synchronous:
            out.block.attach(runner.version, runner.save())
        runner.play(out)
        wakeup.ring()


if __name__ == "__main__":
    with told_as_users():  # the last lines of its log say whose error ended it
        main()
