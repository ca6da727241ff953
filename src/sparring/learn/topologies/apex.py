"""apex: n processes play, each as bold as its place says, and the learner replays what surprises it (Horgan 2018).

    actor 0 ─► ring ─┐
    actor 1 ─► ring ─┼─ gate ─► table ─ gate ─► learner ─► board of weights ─► every actor, before its next block
    actor n ─► ring ─┘            ▲    ◄─ priorities ─┘
    store ─ feeder ───────────────┘  with --from mix

Steps come in blocks, with priorities that the actors estimate from the values they chose by. The learner waits only
at the gate, where samples have run ahead of inserts; an actor waits where its ring is full, which it is when the gate
lets nothing in. Who plays when is a matter of the clock: a resumed run has its learner, table and counters whole,
and goes on with games begun anew.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from msgspec.structs import replace as replaced

from sparring.learn.actor import Episodes
from sparring.learn.crew.blocks import Blocks
from sparring.learn.crew.leader import Leader
from sparring.learn.crew.part import Part
from sparring.learn.crew.process import Call, Crew, Launch
from sparring.learn.crew.trajectories import WAIT_S
from sparring.learn.feeding import draw_for
from sparring.learn.layout import state_width
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.learn.topologies import Sources, Turn, Wiring
from sparring.replay.feeder import Feeder
from sparring.replay.gate import RatioGate, open_gate
from sparring.replay.opening import open_table
from sparring.replay.table import Table
from sparring.store.protocol import Store
from sparring.wire.tree import Tree, rng_state, set_rng_state

BLOCK_TICKS, SLOTS = 16, 4
EPSILON, SPREAD = 0.4, 7.0  # ε_i = 0.4^(1 + 7 i / (n - 1))


def wire(plan: Plan, store: Store | None) -> Wiring:
    """Learner, table, gate, and a crew that starts with the first turn; a feeder where the store is mixed in."""
    learner = plan.algorithm.begin(plan.spec, plan.settings, plan.seed)
    part = _part(plan, learner)
    seat = plan.spec.seats[0]  # `begin` has refused a game whose seats differ
    streams = plan.actors * part.streams
    table = open_table(
        seat,
        plan.replay,
        streams=streams + 1,
        masks=seat.action.masks > 0,
        frame_stack=plan.spec.frame_stack,
        state_numbers=state_width(learner.network) if plan.algorithm.feeds == "sequences" else 0,
    )
    gate = open_gate(
        plan.replay.samples_per_insert,
        plan.replay.min_steps,
        plan.replay.slack_samples,
        insert_steps=part.ticks * part.streams,
        batch_steps=draw_for(plan.algorithm, plan.settings).steps,
    )
    feeding = np.random.default_rng([plan.seed, 3])
    feeder = None if store is None else Feeder(store, plan.spec, table, streams, feeding)
    return _Apex(plan, learner, part, table, gate, feeder)


def boldness(actor: int, actors: int) -> float:
    """ε of one actor of n: 0.4 of the first, 0.4^8 of the last."""
    return float(EPSILON ** (1 + SPREAD * actor / max(1, actors - 1)))


def _part(plan: Plan, learner: Learner) -> Part:
    """What every actor is told. Only values can be estimated from, so only who chooses by them says priorities."""
    estimates = plan.algorithm.feeds == "transitions" and plan.policy == "greedy"
    return Part(
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
        self, plan: Plan, learner: Learner, part: Part, table: Table, gate: RatioGate, feeder: Feeder | None
    ) -> None:
        self.plan, self.learner, self.part = plan, learner, part
        self.table, self.gate, self.feeder = table, gate, feeder
        self.leader, self.draw = Leader(plan, part), draw_for(plan.algorithm, plan.settings)
        self.rng = np.random.default_rng([plan.seed, 2])
        self.crew: Crew | None = None
        self._rings: dict[int, Blocks] = {}
        self._generation = 0
        self._next = 0  # whose ring is looked at first, so that none is always last
        self.env_steps = self.episodes = 0  # that were handed over
        self.played: Counter[str] = Counter()

    @property
    def position(self) -> int:
        return self.env_steps

    def turn(self) -> Turn:
        if self.crew is None:
            self.leader.publish(self.learner, self.env_steps)
            self.crew = Crew(self.plan.actors, self._launch, self._generation)
        self.crew.tend()
        ended = self._take_in()
        size = self.draw.steps
        if not self.table.ready or not self.gate.may_sample(size):
            if not len(ended.returns) and not self._waiting():
                self.crew.wait(WAIT_S)
            return Turn(None, None, ended, self.flow())
        batch, rows = self.draw.sample(self.table, self.rng)
        stale = 0.0 if batch.version is None else float(self.learner.updates - batch.version.mean())
        update = self.plan.algorithm.update(self.learner, batch)
        self.learner = update.learner
        self.table.learned(rows, update.priorities)
        self.gate.sample(size)
        self.leader.publish(self.learner, self.env_steps)
        return Turn(update, batch, ended, self.flow() | {"staleness_updates": stale})

    def _take_in(self) -> Episodes:
        """Every block that waits and that the gate lets in, from each actor in turn; the games that ended in them."""
        ended: list[Episodes] = []
        size, actors = self.part.ticks * self.part.streams, self.plan.actors
        self._next = (self._next + 1) % actors
        for turn in range(actors * SLOTS):
            actor = (self._next + turn) % actors
            blocks = self._rings.get(actor)
            if blocks is None or not blocks.ring.ready():
                continue
            if not self.gate.may_insert(size):
                break
            ended.append(self._insert(actor, blocks))
        if not ended:
            return Episodes(np.zeros(0, np.float32), np.zeros(0, bool))
        return Episodes(*(np.concatenate([getattr(one, name) for one in ended]) for name in Episodes.__slots__))

    def _insert(self, actor: int, blocks: Blocks) -> Episodes:
        """One block into the table; its slot is free again."""
        block = blocks.take_joined()
        (steps,) = block.steps
        self.table.insert(replace(steps, stream=steps.stream + actor * self.part.streams), lent=True)
        self.env_steps += block.env_steps
        self.episodes += block.games
        self.played["selfplay"] += len(steps)
        fed = 0 if self.feeder is None else self.feeder.keep_pace(len(steps), self.plan.replay.store_share)
        self.gate.insert(len(steps) + fed)
        ended = Episodes(block.episodes.returns.copy(), block.episodes.against_others.copy())
        blocks.ring.release()
        assert self.crew is not None
        self.crew.ring(actor)
        return ended

    def _waiting(self) -> int:
        """Blocks that could be taken in now."""
        if not self.gate.may_insert(self.part.ticks * self.part.streams):
            return 0
        return sum(blocks.ring.ready() for blocks in self._rings.values())

    def _launch(self, call: Call) -> Launch:
        """A fresh ring for whoever is started: what a dead one left is lost, and its games are not gone on with."""
        if (old := self._rings.pop(call.actor, None)) is not None:
            old.ring.close()
        for stream in range(call.actor * self.part.streams, (call.actor + 1) * self.part.streams):
            self.table.break_off(stream)
        blocks = self._rings[call.actor] = self.part.open_blocks()
        board, ring = self.leader.board.block.descriptor, blocks.ring.block.descriptor
        part = replaced(
            self.part,
            actor=call.actor,
            generation=call.generation,
            epsilon=boldness(call.actor, self.plan.actors),
            board=board,
            ring=ring,
            bell=call.bell,
        )
        return Launch(part.told(), (board, ring))

    def flow(self) -> dict[str, float]:
        """Where the gate stands, and how the crew does."""
        waiting = sum(blocks.ring.ready() for blocks in self._rings.values())
        restarts = 0 if self.crew is None else self.crew.restarts
        return self.gate.flow() | {"blocks_waiting": waiting, "actor_restarts": restarts}

    def sources(self) -> Sources:
        fed = Counter() if self.feeder is None else self.feeder.steps
        return Sources(dict(self.played + fed), None if self.feeder is None else self.feeder.until_ms)

    def close(self) -> None:
        """Stop the crew and give its memory back."""
        if self.crew is not None:
            self.crew.close()
            self.crew = None
        self.leader.close()
        for blocks in self._rings.values():
            blocks.ring.close()
        self._rings = {}

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "leader": self.leader.save(),
            "table": self.table.save(),
            "gate": [self.gate.inserted, self.gate.sampled],
            "feeder": None if self.feeder is None else self.feeder.save(),
            "rng": rng_state(self.rng),
            "played": dict(self.played),
            "generation": self._generation if self.crew is None else self.crew.generation,
            "env_steps": self.env_steps,
            "episodes": self.episodes,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.leader.load(state["leader"])
        self.table.load(state["table"])
        self.gate.inserted, self.gate.sampled = state["gate"]
        if self.feeder is not None:
            self.feeder.load(state["feeder"])
        set_rng_state(self.rng, state["rng"])
        self.played, self._generation = Counter(state["played"]), state["generation"]
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
