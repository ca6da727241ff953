"""apex: n actors play, each with its own ε, and the learner samples replay by priority (Ape-X, Horgan 2018).

    actor 0 ─► ┐
    actor 1 ─► ┼─ rate limiter ─► replay ─ rate limiter ─► learner ─► weights ─► every actor, before its next block
    actor n ─► ┘                    ▲        ◄─ priorities ─┘
    store ─ feeder ─────────────────┘  with --from mix

    local://  processes with ring buffers in shared memory; replay is a table in the learner's process
    ray://    services of a cluster, a few pending calls for each
    [replay] shards = k: replay is k services, on either; on a cluster a block goes from its actor to its shard

Steps come in blocks, with priorities that the actors estimate from the values they chose by. The learner waits only for
the rate limiter, where samples have run ahead of inserts; an actor waits when enough of its blocks wait, which happens
when the rate limiter lets no block in. The clock decides who plays when: a resumed run has its learner, table and
counters whole, and goes on with new games.
"""

from collections import Counter

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.actors import is_local, open_actors
from sparring.learn.actors.actor_spec import ActorSpec, actor_spec
from sparring.learn.actors.experience import joined_episodes
from sparring.learn.actors.protocol import Actors
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Learner, Sources, Topology
from sparring.learn.replay.local import InsertedBlock, LocalReplay, Replay
from sparring.learn.topologies.sync import WAIT_S
from sparring.replay.rate_limiter import open_rate_limiter
from sparring.replay.table import check_sources
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

BLOCK_TICKS, SLOTS = 16, 4
EPSILON, SPREAD = 0.4, 7.0  # ε_i = 0.4^(1 + 7 i / (n - 1))


def build(plan: Plan, store: Store | None) -> Topology:
    """Learner, replay, and actors that start with the first iteration; a feeder where the store is mixed in."""
    check_sources(plan.replay, records=store is not None)
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    spec, sharded = block_spec(plan, learner), plan.replay.shards > 0
    if sharded and store is not None:
        raise ConfigError("shards take in what actors play alone", where="--from mix", do="Set replay.shards to 0")
    actors = open_actors(plan, spec, actor_epsilon, forward=sharded)
    if not sharded:
        replay = LocalReplay(plan, learner.network, spec.streams, store, actors=plan.actors)
        return ApexLoop(plan, learner, actors, replay, spec)
    from sparring.learn.replay.sharded import ShardedReplay  # a table in this process needs no sockets

    shards = ShardedReplay(plan, spec, None if is_local(plan.on) else actors.host)  # type: ignore[attr-defined]
    return ApexLoop(plan, learner, actors, shards, spec)


def actor_epsilon(actor: int, actors: int) -> float:
    """ε of one actor of n: 0.4 of the first, 0.4^8 of the last."""
    return float(EPSILON ** (1 + SPREAD * actor / max(1, actors - 1)))


def block_spec(plan: Plan, learner: Learner) -> ActorSpec:
    """What every actor is told. Priorities are estimated from Q-values, so only by policies that choose by them."""
    estimates = plan.algorithm.feeds == "transitions" and plan.policy == "greedy"
    n_steps, discount = plan.settings.n_steps if estimates else 0, plan.settings.discount
    blocks = {"feeds": "steps", "ticks": BLOCK_TICKS, "slots": SLOTS, "n_steps": n_steps, "discount": discount}
    return actor_spec(plan, learner.network, **blocks)


class ReplayLoop:
    """Learning from replay, here and in single: insert, limit the rate, sample, update, write priorities back.

    `insert_steps` is the most that one insert brings.
    """

    def __init__(self, plan: Plan, learner: Learner, replay: Replay, insert_steps: int) -> None:
        self.plan, self.learner, self.replay, self._insert_steps = plan, learner, replay, insert_steps
        self._batch_steps = draw_for(plan.algorithm, plan.settings).steps
        config = plan.replay
        self.rate_limiter = open_rate_limiter(
            config.samples_per_insert,
            config.min_steps,
            config.slack_samples,
            insert_steps=insert_steps,
            batch_steps=self._batch_steps,
        )
        self.env_steps = self.episodes = 0  # that were inserted
        self.played: Counter[str] = Counter()

    @property
    def position(self) -> int:
        return self.env_steps

    def count(self, block: InsertedBlock) -> None:
        """Count an inserted block: the rate limiter must know of each before the next one."""
        self.env_steps += block.env_steps
        self.episodes += block.games
        self.played["selfplay"] += block.steps
        self.rate_limiter.insert(block.steps + block.fed)

    def may_sample(self) -> bool:
        """Whether a batch can be sampled, and the rate limiter permits it."""
        return self.replay.ready() and self.rate_limiter.may_sample(self._batch_steps)

    def learn(self, ended: Episodes) -> Iteration | None:
        """One update; None where its batch is still on its way. `ended` are the games that ended meanwhile."""
        if (found := self.replay.sample()) is None:
            return None
        batch, rows = found
        stale = 0.0 if batch.version is None else float(self.learner.updates - batch.version.mean())
        self.learner.steps = self.position
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.replay.learned(rows, update.priorities)
        self.rate_limiter.sample(self._batch_steps)
        return Iteration(update, batch, ended, self.flow() | {"staleness_updates": stale})

    def flow(self) -> dict[str, float]:
        """How the rate limiter and replay stand."""
        return self.rate_limiter.flow() | self.replay.flow()

    def sources(self) -> Sources:
        feeder = self.replay.feeder
        fed = Counter() if feeder is None else feeder.steps
        return Sources(dict(self.played + fed), None if feeder is None else feeder.until_ms)

    def close(self) -> None:
        self.replay.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "replay": self.replay.save(),
            "rate_limiter": [self.rate_limiter.inserted, self.rate_limiter.sampled],
            "played": dict(self.played),
            "env_steps": self.env_steps,
            "episodes": self.episodes,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.replay.load(state["replay"])
        self.rate_limiter.inserted, self.rate_limiter.sampled = state["rate_limiter"]
        self.played = Counter(state["played"])
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]


class ApexLoop(ReplayLoop):
    """One iteration: insert the blocks that the rate limiter lets in, then learn one batch where it permits one."""

    def __init__(self, plan: Plan, learner: Learner, actors: Actors, replay: Replay, spec: ActorSpec) -> None:
        super().__init__(plan, learner, replay, spec.ticks * spec.streams)
        self.actors = actors
        self._begun = False
        self._next = 0  # the actor after the one that was taken from last, however rarely there is room

    def iterate(self) -> Iteration:
        if not self._begun:
            self.actors.publish(self.learner, self.env_steps)
            self._begun = True
        self.actors.tend()
        ended = self._insert()
        limiter = self.rate_limiter
        if limiter.inserted >= limiter.min_steps and self.replay.emptied():
            limiter.inserted = limiter.sampled = 0  # as at the start: nothing is sampled before replay has filled
        iteration = self.learn(ended) if self.may_sample() else None
        if iteration is not None:
            self.actors.publish(self.learner, self.env_steps)
            return iteration
        if not len(ended.returns) and not self._can_insert():
            self._refuse_to_wait_for_ever()
            if not self.replay.wait(WAIT_S):
                self.actors.wait(WAIT_S)
        return Iteration(None, None, ended, self.flow())

    def _insert(self) -> Episodes:
        """Every block that waits and that the rate limiter lets in, from each actor in turn; the games that ended."""
        actors, ended = self.actors.actors, self._count(self.replay.inserted())
        for actor in self.actors.broken_off():
            self.replay.break_off(actor)
        first = self._next
        for offset in range(actors * SLOTS):
            actor = (first + offset) % actors
            if not self.actors.waiting(actor) or not self.replay.has_room(actor):
                continue
            if not self._room():
                break
            self.replay.insert(self.actors, actor)
            self._next = (actor + 1) % actors
            ended += self._count(self.replay.inserted())
        return joined_episodes(ended)

    def _room(self) -> bool:
        """Whether the rate limiter lets one more block in, those on their way counted."""
        limiter, coming = self.rate_limiter, self._insert_steps * self.replay.pending()
        if coming and limiter.inserted < limiter.min_steps <= limiter.inserted + coming:
            return False  # enough to begin with is on its way: the limiter decides once it is there
        return limiter.may_insert(self._insert_steps + coming)

    def _count(self, blocks: list[InsertedBlock]) -> list[Episodes]:
        for block in blocks:
            self.count(block)
        return [block.episodes for block in blocks]

    def _can_insert(self) -> bool:
        """Whether a block could be inserted now."""
        actors = range(self.actors.actors)
        return self._room() and any(self.actors.waiting(actor) and self.replay.has_room(actor) for actor in actors)

    def _refuse_to_wait_for_ever(self) -> None:
        """Where the limiter lets nothing in before something was sampled, and nothing that is in can be sampled."""
        limiter, replay = self.rate_limiter, self.replay
        if limiter.inserted < limiter.min_steps or limiter.may_insert(self._insert_steps):
            return
        if replay.ready() or replay.emptied() or replay.pending():  # emptied: the next iteration begins again
            return
        raise TrainingStopped(
            f"none of {limiter.inserted} steps can be sampled, and the rate limiter lets no more in",
            where=f"[replay] sampler = {self.plan.replay.sampler!r}",
            do="Give a share in replay.source_shares to what comes, or choose another replay.sampler",
        )

    def flow(self) -> dict[str, float]:
        waiting = sum(map(self.actors.waiting, range(self.actors.actors)))
        return super().flow() | self.actors.flow() | {"blocks_waiting": waiting}

    def close(self) -> None:
        super().close()
        self.actors.close()

    def save(self) -> Tree:
        return super().save() | {"actors": self.actors.save()}

    def load(self, state: Tree) -> None:
        super().load(state)
        self.actors.load(state["actors"])
