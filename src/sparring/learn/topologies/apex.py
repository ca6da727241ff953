"""apex: n actors play, each as bold as its place says, and the learner replays what surprises it (Horgan 2018).

    actor 0 ─► ┐
    actor 1 ─► ┼─ gate ─► replay ─ gate ─► learner ─► weights ─► every actor, before its next block
    actor n ─► ┘            ▲    ◄─ priorities ─┘
    store ─ feeder ─────────┘  with --from mix

    local://  processes with rings in shared memory; replay is a table in the learner's process
    ray://    services of a cluster, a few blocks under way from each
    [replay] shards = k: replay is k services, on either; on a cluster a block goes from its actor to its shard

Steps come in blocks, with priorities that the actors estimate from the values they chose by. The learner waits only
at the gate, where samples have run ahead of inserts; an actor waits where enough of its blocks wait, which they do when
the gate lets nothing in. Who plays when is a matter of the clock: a resumed run has its learner, table and counters
whole, and goes on with games begun anew.
"""

from collections import Counter
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.on_policy import WAIT_S
from sparring.learn.actors.open import is_local, open_async_actors
from sparring.learn.actors.protocol import AsyncActors, InsertedBlock, Replay
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.replay.local import LocalReplay
from sparring.replay.rate_limiter import RateLimiter, open_rate_limiter
from sparring.replay.table import check_sources
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

BLOCK_TICKS, SLOTS = 16, 4
EPSILON, SPREAD = 0.4, 7.0  # ε_i = 0.4^(1 + 7 i / (n - 1))


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner, replay, gate, and actors that start with the first turn; a feeder where the store is mixed in."""
    check_sources(plan.replay, records=store is not None)
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = block_spec(plan, learner)
    sharded = plan.replay.shards > 0
    if sharded and store is not None:
        raise ConfigError("shards take in what actors play alone", where="--from mix", do="Set replay.shards to 0")
    players = open_async_actors(plan, part, actor_epsilon, passing=sharded)
    if not sharded:
        return replay_topology(plan, learner, players, LocalReplay(plan, part, store), part)
    from sparring.learn.replay.sharded import ShardedReplay  # whoever has none needs no sockets

    shards = ShardedReplay(plan, part, None if is_local(plan.on) else players.host)  # type: ignore[attr-defined]
    return replay_topology(plan, learner, players, shards, part)


def replay_topology(
    plan: Plan, learner: Learner, players: AsyncActors[Any], replay: Replay, part: ActorSpec
) -> Topology:
    """A learner that replays what the players play, each as `part` says, at the plan's ratio."""
    gate = open_rate_limiter(
        plan.replay.samples_per_insert,
        plan.replay.min_steps,
        plan.replay.slack_samples,
        insert_steps=part.ticks * part.streams,
        batch_steps=draw_for(plan.algorithm, plan.settings).steps,
    )
    return _Apex(plan, learner, players, replay, gate, part.ticks * part.streams)


def actor_epsilon(actor: int, actors: int) -> float:
    """ε of one actor of n: 0.4 of the first, 0.4^8 of the last."""
    return float(EPSILON ** (1 + SPREAD * actor / max(1, actors - 1)))


def block_spec(plan: Plan, learner: Learner) -> ActorSpec:
    """What every actor is told. Only values can be estimated from, so only who chooses by them says priorities."""
    estimates = plan.algorithm.feeds == "transitions" and plan.policy == "greedy"
    return ActorSpec(
        game=plan.game,
        spec=plan.spec,
        network=learner.network,
        policy=plan.policy,
        envs=plan.envs,
        seed=plan.seed,
        feeds="steps",
        ticks=BLOCK_TICKS,
        slots=SLOTS,
        n_steps=plan.settings.n_steps if estimates else 0,
        discount=plan.settings.discount,
        reward_clip=plan.reward_clip,
        opponents=plan.opponents,
        opponent_share=plan.opponent_share,
        script_share=plan.script_share,
    )


class _Apex:
    """One turn: take in what the gate lets in, then learn one batch where it lets one out."""

    def __init__(
        self,
        plan: Plan,
        learner: Learner,
        players: AsyncActors[Any],
        replay: Replay,
        gate: RateLimiter,
        block_steps: int,
    ) -> None:
        self.plan, self.learner, self.players, self.replay, self.gate = plan, learner, players, replay, gate
        self.draw = draw_for(plan.algorithm, plan.settings)
        self._block_steps = block_steps  # at most
        self._begun = False
        self._next = 0  # whose turn it is: the one after who was taken from last, however rarely there is room
        self.env_steps = self.episodes = 0  # that were handed over
        self.played: Counter[str] = Counter()

    @property
    def position(self) -> int:
        return self.env_steps

    def iterate(self) -> Iteration:
        if not self._begun:
            self.players.publish(self.learner, self.env_steps)
            self._begun = True
        self.players.tend()
        ended = self._take_in()
        size = self.draw.steps
        if self.gate.inserted >= self.gate.min_steps and self.replay.emptied():
            self.gate.inserted = self.gate.sampled = 0  # as at the beginning: nothing is sampled before it has filled
        found = self.replay.sample() if self.replay.ready() and self.gate.may_sample(size) else None
        if found is None:
            if not len(ended.returns) and not self._waiting():
                self._refuse_to_wait_for_ever()
                self._rest()
            return Iteration(None, None, ended, self.flow())
        batch, which = found
        stale = 0.0 if batch.version is None else float(self.learner.updates - batch.version.mean())
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.replay.learned(which, update.priorities)
        self.gate.sample(size)
        self.players.publish(self.learner, self.env_steps)
        return Iteration(update, batch, ended, self.flow() | {"staleness_updates": stale})

    def _take_in(self) -> Episodes:
        """Every block that waits and that the gate lets in, from each actor in turn; the games that ended in them."""
        actors, ended = self.players.actors, self._count(self.replay.arrived())
        for actor in self.players.broken_off():
            self.replay.break_off(actor)
        first = self._next
        for turn in range(actors * SLOTS):
            actor = (first + turn) % actors
            if not self.players.waiting(actor) or not self.replay.has_room(actor):
                continue
            if not self._room():
                break
            self.replay.insert(self.players, actor)
            self._next = (actor + 1) % actors
            ended += self._count(self.replay.arrived())
        if not ended:
            return Episodes(np.zeros(0, np.float32), np.zeros(0, bool))
        return Episodes(*(np.concatenate([getattr(one, name) for one in ended]) for name in Episodes.__slots__))

    def _room(self) -> bool:
        """Whether the gate lets one more block in, those under way counted."""
        coming = self._block_steps * self.replay.under_way()
        if coming and self.gate.inserted < self.gate.min_steps <= self.gate.inserted + coming:
            return False  # enough to begin with is under way: the gate decides when it is there
        return self.gate.may_insert(self._block_steps + coming)

    def _count(self, arrived: list[InsertedBlock]) -> list[Episodes]:
        """What was taken in, block by block, for the gate must know before the next one."""
        for block in arrived:
            self.env_steps += block.env_steps
            self.episodes += block.games
            self.played["selfplay"] += block.steps
            self.gate.insert(block.steps + block.fed)
        return [block.episodes for block in arrived]

    def _waiting(self) -> bool:
        """Whether a block could be taken in now."""
        actors = range(self.players.actors)
        return self._room() and any(self.players.waiting(actor) and self.replay.has_room(actor) for actor in actors)

    def _refuse_to_wait_for_ever(self) -> None:
        """Where the gate lets nothing in before something was sampled, and nothing that is in can be sampled."""
        gate, replay = self.gate, self.replay
        if gate.inserted < gate.min_steps or gate.may_insert(self._block_steps):
            return
        if replay.ready() or replay.emptied() or replay.under_way():  # emptied: the next turn begins anew
            return
        raise TrainingStopped(
            f"none of {gate.inserted} steps can be sampled, and the gate lets no more in",
            where=f"[replay] sampler = {self.plan.replay.sampler!r}",
            do="Give a share in replay.source_shares to what comes, or choose another replay.sampler",
        )

    def _rest(self) -> None:
        """Until something comes: where replay is elsewhere its answer, otherwise a block."""
        if not self.replay.rest(WAIT_S):
            self.players.wait(WAIT_S)

    def flow(self) -> dict[str, float]:
        """Where the gate stands, and how the actors do."""
        waiting = sum(map(self.players.waiting, range(self.players.actors)))
        crew = {"blocks_waiting": waiting, "actors": self.players.actors, "actor_restarts": self.players.restarts}
        return self.gate.flow() | self.replay.flow() | crew

    def sources(self) -> Sources:
        feeder = self.replay.feeder
        fed = Counter() if feeder is None else feeder.steps
        return Sources(dict(self.played + fed), None if feeder is None else feeder.until_ms)

    def close(self) -> None:
        """Stop whoever was started and give the memory back."""
        self.replay.close()
        self.players.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "players": self.players.save(),
            "replay": self.replay.save(),
            "gate": [self.gate.inserted, self.gate.sampled],
            "played": dict(self.played),
            "env_steps": self.env_steps,
            "episodes": self.episodes,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.players.load(state["players"])
        self.replay.load(state["replay"])
        self.gate.inserted, self.gate.sampled = state["gate"]
        self.played = Counter(state["played"])
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
