"""A learner of the ring as a service: it plays and learns its share, one update for each call, and does not decide."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch

from sparring.config import Config
from sparring.learn.plan import Plan, from_record
from sparring.learn.protocol import Topology
from sparring.learn.ring_allreduce import RingAlgorithm, RingAllReduce, RingBroken, visit
from sparring.learn.topologies import single
from sparring.services.register import register
from sparring.wire.tree import pack, unpack


def share_of(plan: Plan) -> tuple[RingAlgorithm, Topology]:
    """What one learner of the ring does: it plays in its own process, and learns with the others."""
    algorithm = RingAlgorithm(plan.algorithm)
    return algorithm, single.build(replace(plan, algorithm=algorithm), None)


def digest(weights: Any) -> str:
    """By which equal weights are known."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(np.ascontiguousarray(weights[name]).tobytes())
    return found.hexdigest()


class RingLearner:
    """`record` is the plan's, as JSON; `seed` this learner's own, for what it plays."""

    def __init__(self, game: str, seed: int, record: bytes) -> None:
        torch.set_num_threads(1)  # the machine's cores are the learners' to share
        self._algorithm, self._topology = share_of(from_record(game, seed, msgspec.json.decode(record), Config()))

    @register()
    def join(self, place: list[Any], generation: int, seat: list[int], state: bytes, deadline_s: float) -> bool:
        """Enter a generation of the ring with everybody's state; False where it broke before it began."""
        (host, port), (rank, world) = place, seat
        self._algorithm.leave()
        self._algorithm.take(self._topology.learner, state)
        try:
            self._algorithm.ring = RingAllReduce(visit(host, port), host, generation, (rank, world), deadline_s)
        except RingBroken:
            return False
        return True

    @register()
    def iterate(self) -> dict[str, Any]:
        """Play, and learn with the others. `completed` says of which update all of it is known."""
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
            "env_steps": self._topology.env_steps,
            "episodes": self._topology.episodes,
            "steps": dict(self._topology.sources().steps),
            "returns": None if ended is None else ended.returns,
            "against_others": None if ended is None else ended.against_others.astype(np.uint8),
        }

    @register(idempotent=True)
    def state(self) -> bytes:
        """The learner, for others to go on from."""
        return self._topology.learner.save()

    @register(idempotent=True)
    def digest(self) -> str:
        """Of its weights."""
        return digest(self._topology.learner.weights())

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
