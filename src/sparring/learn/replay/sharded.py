"""Replay in shards: services that hold a table each, fed by actors, drawn from in proportion to their priorities.

    actor i ─ block ─► shard i mod k                   on a cluster the block does not pass the learner
    learner ─ counts of TOGETHER batches ─► every shard ─► batches that wait to be learned
            ─ priorities of as many, in one call ──────► the shard that their rows came from

Of a batch each draw goes to shard j with probability M_j / M, M_j being the sum of its priorities as it said last, and
there to row i with p_i / M_j: together p_i / M. Where the sums are a little old, the weights are those of what was
drawn all the same. A shard that died begins empty; where less than half of `min_steps` is left, sampling waits until
all of them are there again.

A call costs as much as an update where networks are small, so that one call is for several batches, unless they are
large. What is ahead is no more than the sixteen batches of the paper (Horgan 2018).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np
from numpy.random import Generator

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, Unreachable
from sparring.hosts.protocol import Handle, Host, Pending, Resources, open_host
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.protocol import Actors
from sparring.learn.actors.remote import ANSWER_S, answer_of, keeps_ending
from sparring.learn.algorithms.feeds import draw_for
from sparring.learn.plan import Plan
from sparring.learn.replay.local import SAMPLING, InsertedBlock, Replay, memory_numbers
from sparring.learn.replay.shard_service import ReplayShard
from sparring.replay.rows import row_layout
from sparring.replay.steps import Batch
from sparring.replay.table import capacity
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree, rng_state, set_rng_state

SERVICE = "replay"
INSERTS = 8  # blocks under way to one shard
LOAD_S = 120.0  # a shard is still being started, and a cluster may have to find it a place
SNAPSHOT_BYTES = 256 << 20  # of all tables together; larger ones are not part of a checkpoint, and fill again
AHEAD = 2  # calls that are pending, or whose batches are being learned from
TOGETHER = 8  # batches of one call, at most
TOGETHER_BYTES = 1 << 20  # of those; of larger ones there is one a call
_BY_TIME = ("observation", "action", "reward", "ending", "legal", "behaviour_logp", "mask")  # of windows: [time, n]

# Where the rows of a batch are: shard, its generation, the rows there, and how many draws they are of.
ShardRows = list[tuple[int, int, Array, int]]


class ShardedReplay(Replay):
    """k tables elsewhere. A shard sees by a block's number whether it follows the last."""

    def __init__(self, plan: Plan, spec: ActorSpec, host: Host | None) -> None:
        k = plan.replay.shards
        if k > plan.actors:
            raise ConfigError(
                f"{k} shards for {plan.actors} actors", where="[replay]", do="Give every shard an actor that feeds it"
            )
        self._plan, self._spec = plan, spec
        count, windows = draw_for(plan.algorithm, plan.settings).count, plan.algorithm.feeds == "sequences"
        self._own_host = host is None
        self._host = open_host(plan.on, seen=plan.discovery) if host is None else host
        self._status: list[dict[str, Any]] = [_nothing() | {"generation": 0, "alive": True} for _ in range(k)]
        self._inserts: deque[tuple[int, Pending, Actors]] = deque()
        self._rng = np.random.default_rng([plan.seed, SAMPLING])
        self._restarts = 0
        self._handles = self._start(k)  # at once: a table takes its time
        self._sampler = ShardSampler(self._handles, count, windows=windows)

    def insert(self, actors: Actors, actor: int) -> None:
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
        return len(self._inserts)

    def ready(self) -> bool:
        most = rows_of_a_shard(self._plan, self._spec) * len(self._status)
        return self._steps() >= min(self._plan.replay.min_steps, most) // 2

    def sample(self) -> tuple[Batch, ShardRows] | None:
        """The oldest batch asked for, once it is there; as many more are asked for as may be under way."""
        self._ask_ahead()
        if not self._sampler.here:
            said = self._sampler.answered()
            for shard, one in said.items():
                if one is None:  # it died, or was restarted and is empty
                    self._lost(shard)
                else:
                    self._note(shard, one)
            self._ask_ahead()
        return self._sampler.here.popleft() if self._sampler.here else None

    def learned(self, rows: ShardRows, priorities: Array | None) -> None:
        if priorities is not None:
            self._sampler.learned(rows, priorities)

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
        return {"replay_steps": float(self._steps()), "shard_restarts": float(self._restarts)}

    def save(self) -> Tree:
        self._sampler.tell(now=True)
        states: Tree = None
        seat, numbers = self._plan.spec.seats[0], memory_numbers(self._plan, self._spec.network)
        row_bytes = row_layout(seat, masks=seat.action.masks > 0, state_numbers=numbers).itemsize
        if self._steps() * row_bytes <= SNAPSHOT_BYTES:
            both = zip(self._handles, self._status, strict=True)
            calls = [handle.ask("save") if one["alive"] else None for handle, one in both]
            states = [None if one is None else answer_of(one) for one in calls]
        return {"shards": states, "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        set_rng_state(self._rng, state["rng"])
        states = state["shards"]
        if states is not None:
            held = [shard for shard, state in enumerate(states) if state is not None]
            calls = [(shard, self._handles[shard].ask("load", states[shard])) for shard in held]
            for shard, one in calls:
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
                raise keeps_ending(event, "Set replay.shards to 0, or look into it")

    def _start(self, count: int) -> list[Handle]:
        plan, spec = self._plan, self._spec
        config = replace(plan.replay, capacity_steps=rows_of_a_shard(plan, spec), capacity_bytes=0)
        names = ("n_steps", "discount", "sequence_steps", "burn_in_steps", "overlap_steps")
        draw = {name: getattr(plan.settings, name, 0) for name in names} | {"actors": plan.actors}
        given = {
            "spec": msgspec.json.encode(spec.spec),
            "replay": asdict(config),
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

    def _steps(self) -> int:
        """In all shards."""
        return int(sum(one["size"] for one in self._status))

    def _note(self, shard: int, said: dict[str, Any]) -> None:
        before = self._status[shard]
        if said["generation"] != before["generation"] and "exponent" in before:
            self._restarts += 1
        status = {name: said[name] for name in ("generation", "size", "mass", "exponent")}
        self._status[shard] = status | {"alive": True}

    def _lost(self, shard: int) -> None:
        """The others are drawn from, and nothing that is under way is waited for. Its successor says what it holds
        when it takes in its first block; until then one at a time is sent: the rate limiter counts pending blocks."""
        self._sampler.forget()
        self._status[shard] |= _nothing() | {"alive": False}

    def _ask_ahead(self) -> None:
        mass = np.array([one["mass"] for one in self._status])
        self._sampler.ask_ahead(mass, self._rng)


def rows_of_a_shard(plan: Plan, spec: ActorSpec) -> int:
    """Its part of what the limits in steps and in bytes allow to all."""
    seat, config = plan.spec.seats[0], plan.replay
    rows = capacity(seat, config, masks=seat.action.masks > 0, state_numbers=memory_numbers(plan, spec.network))
    return max(2, rows // config.shards)


def _nothing() -> dict[str, Any]:
    return {"size": 0, "mass": 0.0}


class ShardSampler:
    """The batches ahead. `count` is of the draws of one, `windows` says that a draw is of several steps."""

    def __init__(self, handles: Sequence[Handle], count: int, *, windows: bool) -> None:
        self._handles, self._count, self._windows = handles, count, windows
        self._together = 1  # until it is known how large they are
        self._calls: deque[tuple[Array, dict[int, Pending]]] = deque()  # each shard's share, and what it was asked
        self.here: deque[tuple[Batch, ShardRows]] = deque()
        self._said: dict[tuple[int, int], list[tuple[Array, Array]]] = {}  # by shard and generation

    def ask_ahead(self, mass: Array, rng: Generator) -> None:
        """As many as may be under way, from each shard by its share of the mass."""
        if not mass.sum() > 0:
            return
        shares = mass / mass.sum()
        while len(self._calls) + bool(self.here) < AHEAD:
            counts = rng.multinomial(self._count, shares, size=self._together)
            drawn = np.flatnonzero(counts.any(axis=0)).tolist()
            asked = {shard: self._handles[shard].ask("sample", counts[:, shard].tolist()) for shard in drawn}
            self._calls.append((shares, asked))

    def answered(self) -> dict[int, Any]:
        """What the shards said to the oldest call; its batches are here where all of them said something. Empty: it is
        not there yet."""
        if not self._calls or not all(one.done() for one in self._calls[0][1].values()):
            return {}
        shares, asked = self._calls.popleft()
        said = {shard: answer_of(one) for shard, one in asked.items()}
        if all(said.values()):
            self.here.extend(self._joined(shares, said))
        return said

    def waits_for(self) -> list[Pending]:
        """Those that the next batch is waited for of."""
        return list(self._calls[0][1].values()) if self._calls and not self.here else []

    def learned(self, which: ShardRows, priorities: Array) -> None:
        """Tell the shards the priorities of a batch, together with those of others."""
        ends = np.cumsum([count for *_, count in which])[:-1]
        for (shard, generation, rows, _), said in zip(which, np.split(priorities, ends), strict=True):
            self._said.setdefault((shard, generation), []).append((rows, said))
        self.tell()

    def tell(self, *, now: bool = False) -> None:
        """Tell the shards what was kept, once that is of as many batches as a call is for."""
        for (shard, generation), kept in list(self._said.items()):
            if now or len(kept) >= self._together:
                rows, priorities = (np.concatenate(part, axis=-1) for part in zip(*kept, strict=True))
                self._handles[shard].ask("learned", rows, priorities, generation)
                del self._said[shard, generation]

    def forget(self) -> None:
        """Everything that is under way."""
        self._calls.clear()
        self.here.clear()

    def _joined(self, shares: Array, said: dict[int, Any]) -> list[tuple[Batch, ShardRows]]:
        found = []
        for place in range(len(next(iter(said.values()))["draws"])):
            there = {shard: answer["draws"][place] for shard, answer in said.items() if answer["draws"][place]}
            batch = self._batch({shard: (float(shares[shard]), draw) for shard, draw in there.items()}, said)
            which = [
                (shard, said[shard]["generation"], np.asarray(draw["rows"]), len(draw["chance"]))
                for shard, draw in there.items()
            ]
            found.append((batch, which))
        self._together = max(1, min(TOGETHER, TOGETHER_BYTES // _bytes_of(found[0][0])))
        return found

    def _batch(self, draws: dict[int, tuple[float, dict[str, Any]]], said: dict[int, Any]) -> Batch:
        columns: dict[str, Any] = {}
        each = [draw["batch"] for _, draw in draws.values()]
        for name, first in each[0].items():
            axis = 1 if self._windows and name in _BY_TIME else 0
            if isinstance(first, dict):
                columns[name] = {leaf: np.concatenate([one[name][leaf] for one in each], axis) for leaf in first}
            else:
                columns[name] = np.concatenate([one[name] for one in each], axis)
        exponent = said[next(iter(draws))]["exponent"]
        if exponent is not None:
            chance = np.concatenate([share * np.asarray(draw["chance"]) for share, draw in draws.values()])
            columns["weight"] = weights_of(chance, exponent)
        return Batch(**columns)


def weights_of(chance: Array, exponent: float) -> Array:
    """(n P(i))^-β over the largest of the batch: n is the same for all, so only the chances count."""
    return np.asarray((chance / chance.min()) ** -exponent, np.float32)


def _bytes_of(batch: Batch) -> int:
    columns = [getattr(batch, name) for name in Batch.__slots__]
    leaves = [leaf for one in columns for leaf in (one.values() if isinstance(one, dict) else [one])]
    return max(1, sum(int(leaf.nbytes) for leaf in leaves if leaf is not None))
