"""Replay in shards: services that hold a table each, fed by actors, drawn from in proportion to their priorities.

    actor i ─ block ─► shard i mod k          on a cluster the block does not pass the learner
    learner ─ sample(counts of its share) ─► every shard, some batches before they are needed (shard_sampler.py)
            ─ learned(rows, priorities) ──► the shard that they came from

Of a batch each draw goes to shard j with probability M_j / M, M_j being the sum of its priorities as it said last, and
there to row i with p_i / M_j: together p_i / M. Where the sums are a little old, the weights are those of what was
drawn all the same. A shard that died begins empty; where less than half of `min_steps` is left, sampling waits until
all of them are there again.
"""

from collections import deque
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped, Unreachable
from sparring.hosts.open import open_host
from sparring.hosts.protocol import Handle, Host, Pending, Resources
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.protocol import AsyncActors
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.replay.local import InsertedBlock, memory_numbers
from sparring.learn.replay.shard_sampler import ShardRows, ShardSampler
from sparring.learn.replay.shard_service import ReplayShard
from sparring.replay.feeder import Feeder
from sparring.replay.rows import row_layout
from sparring.replay.steps import Batch
from sparring.replay.table import capacity
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, rng_state, set_rng_state

SERVICE = "replay"
INSERTS = 8  # blocks under way to one shard
ANSWER_S = 30.0
LOAD_S = 120.0  # a shard is still being started, and a cluster may have to find it a place
SNAPSHOT_BYTES = 256 << 20  # of all tables together; larger ones are not part of a checkpoint, and fill again


class ShardedReplay:
    """k tables elsewhere."""

    feeder: Feeder | None = None

    def __init__(self, plan: Plan, spec: ActorSpec, host: Host | None) -> None:
        k = plan.replay.shards
        if k > plan.actors:
            raise ConfigError(
                f"{k} shards for {plan.actors} actors", where="[replay]", do="Give every shard an actor that feeds it"
            )
        self._plan, self._spec = plan, spec
        count, windows = draw_for(plan.algorithm, plan.settings).count, plan.algorithm.feeds == "sequences"
        self._sampler = ShardSampler(count, windows=windows)
        self._own_host = host is None
        self._host = open_host(plan.on, seen=plan.discovery) if host is None else host
        self._status: list[dict[str, Any]] = [_nothing() | {"generation": 0, "alive": True} for _ in range(k)]
        self._inserts: deque[tuple[int, Pending, AsyncActors[Any]]] = deque()
        self._rng = np.random.default_rng([plan.seed, 2])
        self._restarts = 0
        self._handles = self._start(k)  # at once: a table takes its time

    def insert(self, actors: AsyncActors[Any], actor: int) -> None:
        handle = self._handles[self._shard_of(actor)]
        self._inserts.append((actor, handle.ask("insert", actors.hand_over(actor)), actors))

    def inserted(self) -> list[InsertedBlock]:
        if self._own_host:
            self._watch()
        inserted: list[InsertedBlock] = []
        for _ in range(len(self._inserts)):
            actor, call, actors = self._inserts.popleft()
            if not call.done():
                self._inserts.append((actor, call, actors))
                continue
            try:
                said = call.result(ANSWER_S)
            except Unreachable:  # the actor or the shard died: the block is lost, and was never counted
                actors.lost(actor)
                continue
            actors.release(actor)
            self._note(self._shard_of(actor), said)
            ended = Episodes(np.asarray(said["returns"]), np.asarray(said["against"]))
            inserted.append(InsertedBlock(ended, said["env_steps"], said["games"], said["steps"]))
        return inserted

    def pending(self) -> int:
        """Blocks that are being taken in."""
        return len(self._inserts)

    def break_off(self, actor: int) -> None:
        """A shard sees by a block's number that it does not follow the last."""

    def ready(self) -> bool:
        least = self._plan.replay.min_steps
        return int(sum(one["size"] for one in self._status)) >= min(least, self._capacity() * len(self._status)) // 2

    def sample(self) -> tuple[Batch, ShardRows] | None:
        """The oldest batch call for, once it is there; then as many more are call for as may be under way."""
        self._ask_ahead()
        found = self._sampler.take()
        if found is not None:
            return found
        said = self._sampler.answered(_answer)
        lost = [shard for shard, one in said.items() if one is None]  # it died, or was restarted and is empty
        for shard in lost:
            self._lost(shard)
        for shard, one in said.items():
            if one is not None:
                self._note(shard, one)
        self._ask_ahead()
        return self._sampler.take()

    def learned(self, rows: ShardRows, priorities: Array | None) -> None:
        if priorities is not None:
            self._sampler.learned(rows, priorities)
            self._sampler.tell(self._handles)

    def emptied(self) -> bool:
        """By what is there now, not by what died: a checkpoint may be of a shard that was just restarted."""
        return not self.ready()

    def has_room(self, actor: int) -> bool:
        shard = self._shard_of(actor)
        under_way = sum(self._shard_of(other) == shard for other, _, _ in self._inserts)
        return under_way < (INSERTS if self._status[shard]["alive"] else 1)

    def wait(self, timeout_s: float) -> bool:
        pending = [call for actor, call, _ in self._inserts if self._status[self._shard_of(actor)]["alive"]]
        pending += self._sampler.waits_for()
        pending = [call for call in pending if not call.done()]
        if pending:
            self._host.wait(pending, timeout_s)
        return bool(pending)

    def flow(self) -> dict[str, float]:
        sizes = [one["size"] for one in self._status]
        return {"replay_steps": float(sum(sizes)), "shard_restarts": float(self._restarts)}

    def save(self) -> Tree:
        self._sampler.tell(self._handles, now=True)
        states: Tree = None
        if self._bytes() <= SNAPSHOT_BYTES:
            both = zip(self._handles, self._status, strict=True)
            call = [handle.ask("save") if one["alive"] else None for handle, one in both]
            states = [None if one is None else _answer(one) for one in call]
        return {"shards": states, "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        set_rng_state(self._rng, state["rng"])
        states = state["shards"]
        if states is not None:
            held = [shard for shard, state in enumerate(states) if state is not None]
            call = [(shard, self._handles[shard].ask("load", states[shard])) for shard in held]
            for shard, one in call:
                with suppress(Unreachable):  # it died meanwhile, and begins empty
                    self._note(shard, one.result(LOAD_S))

    def close(self) -> None:
        self._inserts.clear()
        self._sampler.forget()
        if self._own_host:
            self._host.close()

    def _watch(self) -> None:
        """A host that runs shards alone is watched here: without a shard that it gives up nothing is learned."""
        for event in self._host.watch():
            if event.kind == "gave up":
                raise TrainingStopped(
                    f"it keeps ending: {event.why}",
                    where=f"{event.service} {event.index}",
                    do="Set replay.shards to 0, or look into it; --resume goes on from the last checkpoint",
                )

    def _start(self, count: int) -> list[Handle]:
        plan, spec = self._plan, self._spec
        config = replace(plan.replay, capacity_steps=self._capacity(), capacity_bytes=0)
        names = ("n_steps", "discount", "sequence_steps", "burn_in_steps", "overlap_steps")
        draw = {name: getattr(plan.settings, name, 0) for name in names} | {"actors": plan.actors}
        given = {
            "spec": msgspec.json.encode(spec.spec),
            "replay": _plain(asdict(config)),
            "draw": draw,
            "streams": spec.streams,
            "state_numbers": memory_numbers(plan, spec.network),
            "seed": plan.seed,
        }
        needs = Resources(cpus=plan.cpus_per_actor, least=count, most=count)
        return self._host.start(ReplayShard, SERVICE, count, needs, given)

    def _shard_of(self, actor: int) -> int:
        """Whom it feeds."""
        return actor % len(self._status)

    def _capacity(self) -> int:
        """Of one shard."""
        return rows_of_a_shard(self._plan, self._spec)

    def _bytes(self) -> int:
        seat = self._plan.spec.seats[0]
        numbers = memory_numbers(self._plan, self._spec.network)
        row: int = row_layout(seat, masks=seat.action.masks > 0, state_numbers=numbers).itemsize
        return row * int(sum(one["size"] for one in self._status))

    def _note(self, shard: int, said: dict[str, Any]) -> None:
        before = self._status[shard]
        if said["generation"] != before["generation"] and "exponent" in before:
            self._restarts += 1
        status = {name: said[name] for name in ("generation", "size", "mass", "exponent", "prioritised")}
        self._status[shard] = status | {"alive": True}

    def _lost(self, shard: int) -> None:
        """The others are drawn from, and nothing that is under way is waited for. Its successor says what it holds
        when it takes in its first block; until then one at a time is sent: the rate limiter counts pending blocks."""
        self._sampler.forget()
        self._status[shard] |= _nothing() | {"alive": False}

    def _ask_ahead(self) -> None:
        mass = np.array([one["mass"] for one in self._status])
        self._sampler.ask_ahead(self._handles, mass, self._rng)


def rows_of_a_shard(plan: Plan, spec: ActorSpec) -> int:
    """Its part of what the limits in steps and in bytes allow to all."""
    seat, config = plan.spec.seats[0], plan.replay
    rows = capacity(seat, config, masks=seat.action.masks > 0, state_numbers=memory_numbers(plan, spec.network))
    return max(2, rows // config.shards)


def _nothing() -> dict[str, Any]:
    return {"size": 0, "mass": 0.0}


def _answer(call: Pending) -> Any:
    """What a shard said; None where it died: its successor holds next to nothing, and is not waited for."""
    try:
        return call.result(ANSWER_S)
    except Unreachable:
        return None


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """As TOML has it: `read` makes the same of it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
