"""single: the learner's own process plays.

    sim    actor ─► table ─ gate ─► learner ─► actor       where the algorithm is fed with transitions or sequences
           actor ─► rollout ──────► learner ─► actor       where it is fed with trajectories
    mix    store ─ feeder ─► table                         beside either of them

Everything happens in turn in one thread, so a seed says all: for debugging and for small games.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.games.catalogue import open_game
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.learn.algorithms.feeds import TrajectoryFeed, draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.nets.shapes import state_width
from sparring.nets.torch_forward import beside_the_learner
from sparring.replay.feeder import Feeder
from sparring.replay.rate_limiter import RateLimiter, open_rate_limiter
from sparring.replay.table import Table, check_sources, open_table
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, rng_state, set_rng_state

PAST_EVERY_STEPS = 100_000  # ticks of all games between two past selves
FILLING_TICKS = 64  # of one turn while nothing can be sampled yet


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner and actor; a table, with a gate, for transitions; a feeder where the store is mixed in."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    partners = Opponents(learner.network, plan.opponents, plan.opponent_share, _scripts(plan), plan.script_share)
    forward = beside_the_learner(learner.network, learner.weights())
    acting, sampling, feeding = (np.random.default_rng([plan.seed, stream]) for stream in (1, 2, 3))
    seat = plan.spec.seats[0]  # `begin` has refused a game whose seats differ
    actor = Actor(open_game(plan.game, plan.envs), forward, plan.policy, acting, partners, plan.reward_clip)
    table = open_table(
        seat,
        plan.replay,
        streams=actor.streams + 1,
        masks=actor.masks,
        frame_stack=plan.spec.frame_stack,
        state_numbers=state_width(learner.network) if plan.algorithm.feeds == "sequences" else 0,
    )
    feeder = None if store is None else Feeder(store, plan.spec, table, actor.streams, feeding)
    if plan.algorithm.feeds == "trajectories":
        return _Trajectories(_Play(plan, learner, actor, partners), table, feeder, sampling)
    check_sources(plan.replay, records=store is not None)
    gate = open_rate_limiter(
        plan.replay.samples_per_insert,
        plan.replay.min_steps,
        plan.replay.slack_samples,
        insert_steps=actor.streams,
        batch_steps=draw_for(plan.algorithm, plan.settings).steps,
    )
    return _Replayed(_Play(plan, learner, actor, partners), table, gate, feeder, sampling)


def _scripts(plan: Plan) -> list[Script]:
    """The game's scripts that know something of it; chance alone teaches nothing."""
    if len(plan.spec.seats) < 2:
        return []
    return [script_for(plan.spec, name) for name in scripts_for(plan.game) if name != "random"]


@dataclass(slots=True)
class _Play:
    """A learner and the actor that plays with its newest weights."""

    plan: Plan
    learner: Learner
    actor: Actor
    partners: Opponents
    past_kept: int = 0  # how often a past self was kept
    followed: int = 0  # the learner's updates that the actor knows of

    def follow(self, rng: Generator) -> None:
        """Before it plays on, the actor takes what was learned; now and then that is kept to play against later."""
        if self.followed == self.learner.updates:
            return
        self.followed = self.learner.updates
        weights = self.learner.weights()
        self.actor.use(beside_the_learner(self.learner.network, weights), self.learner.updates)
        if len(self.plan.spec.seats) > 1 and self.actor.env_steps // PAST_EVERY_STEPS > self.past_kept:
            self.past_kept = self.actor.env_steps // PAST_EVERY_STEPS
            self.partners.add(weights, rng)

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "actor": self.actor.save(),
            "past_kept": self.past_kept,
            "followed": self.followed,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.actor.load(state["actor"])
        self.actor.use(beside_the_learner(self.learner.network, self.learner.weights()), self.learner.updates)
        self.past_kept, self.followed = state["past_kept"], state["followed"]


class _Single:
    """What both kinds of feeding have in common: where the run stands, and how it is saved."""

    def __init__(self, play: _Play, table: Table, feeder: Feeder | None, rng: Generator) -> None:
        self.play, self.table, self.feeder, self.rng = play, table, feeder, rng
        self.played: Counter[str] = Counter()  # steps handed on by the actor

    @property
    def learner(self) -> Learner:
        return self.play.learner

    @property
    def env_steps(self) -> int:
        return self.play.actor.env_steps

    @property
    def position(self) -> int:
        return self.play.actor.env_steps

    @property
    def episodes(self) -> int:
        return self.play.actor.episodes

    def sources(self) -> Sources:
        fed = Counter() if self.feeder is None else self.feeder.steps
        return Sources(dict(self.played + fed), None if self.feeder is None else self.feeder.until_ms)

    def close(self) -> None:
        """Nothing was started."""

    def save(self) -> Tree:
        return {
            "play": self.play.save(),
            "table": self.table.save(),
            "feeder": None if self.feeder is None else self.feeder.save(),
            "rng": rng_state(self.rng),
            "played": dict(self.played),
        }

    def load(self, state: Tree) -> None:
        self.play.load(state["play"])
        self.table.load(state["table"])
        if not self.play.plan.spec.resimulates:
            for stream in range(self.play.actor.streams):
                self.table.break_off(stream)  # its game has begun anew: nothing follows what came last
        if self.feeder is not None:
            self.feeder.load(state["feeder"])
        set_rng_state(self.rng, state["rng"])
        self.played = Counter(state["played"])


class _Replayed(_Single):
    """One turn: play until the gate lets a batch through, then learn it."""

    def __init__(self, play: _Play, table: Table, gate: RateLimiter, feeder: Feeder | None, rng: Generator) -> None:
        super().__init__(play, table, feeder, rng)
        self.gate = gate
        self.draw = draw_for(play.plan.algorithm, play.plan.settings)

    def iterate(self) -> Iteration:
        algorithm, size = self.play.plan.algorithm, self.draw.steps
        for _ in range(FILLING_TICKS):
            if self._sampling_is_due(size):
                break
            self._insert()
        else:
            return Iteration(None, None, self.play.actor.ended(), self.gate.flow())
        batch, rows = self.draw.sample(self.table, self.rng)
        update = algorithm.update(self.play.learner, batch)
        self.play.learner = update.learner
        self.table.update_priorities(rows, update.priorities)
        self.gate.sample(size)
        return Iteration(update, batch, self.play.actor.ended(), self.gate.flow())

    def _sampling_is_due(self, size: int) -> bool:
        """In one thread nobody waits: sample what is owed, and otherwise play, unless the gate says no."""
        if not self.table.ready or not self.gate.may_sample(size):
            return False
        return self.gate.owed() >= size or not self.gate.may_insert(self.play.actor.streams)

    def _insert(self) -> None:
        play = self.play
        play.follow(self.rng)
        steps = play.actor.step(play.plan.algorithm.exploration(play.learner, play.actor.env_steps))
        self.table.insert(steps)
        self.played["selfplay"] += len(steps)
        fed = 0 if self.feeder is None else self.feeder.keep_pace(len(steps), play.plan.replay.store_share)
        self.gate.insert(len(steps) + fed)

    def save(self) -> Tree:
        return super().save() | {"gate": [self.gate.inserted, self.gate.sampled]}

    def load(self, state: Tree) -> None:
        super().load(state)
        self.gate.inserted, self.gate.sampled = state["gate"]


class _Trajectories(_Single):
    """One turn: play a rollout, then learn it, with records of the store beside it where they are mixed in."""

    def iterate(self) -> Iteration:
        play = self.play
        feed: TrajectoryFeed = play.plan.settings
        play.follow(self.rng)
        batch = play.actor.rollout(feed.rollout_ticks)
        self.played["selfplay"] += int(batch.reward.size if batch.mask is None else batch.mask.sum())
        if self.feeder is not None:
            self.feeder.feed(feed.records_steps)
            if self.table.ready:
                records, _ = self.table.sample(
                    feed.records_steps, self.rng, n_steps=feed.records_n_steps, discount=feed.discount
                )
                batch = replace(batch, records=records)
        stale = play.learner.updates - play.followed  # 0 here, where acting and learning take turns
        update = play.plan.algorithm.update(play.learner, batch)
        play.learner = update.learner
        return Iteration(update, batch, play.actor.ended(), {"staleness_updates": stale})
