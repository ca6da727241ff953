"""An actor as a service: it plays one rollout or block for each call, with the weights that came with the call."""

from typing import Any

from msgspec.structs import replace

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.block_player import BlockPlayer
from sparring.nets.forward import forward_without_torch
from sparring.services.register import register
from sparring.wire.chunk import Array
from sparring.wire.tree import pack, unpack


class ActorService:
    """`part` is a Part as JSON. One that takes a dead one's place begins new games, by a chance of its own."""

    def __init__(self, part: bytes, generation: int = 0) -> None:
        told = read_actor_spec(part)
        self._part = replace(
            told, slots=1, generation=told.generation + generation, state=b"" if generation else told.state
        )
        self._estimates = self._part.open_estimates()
        self._rollouts = self._part.open_rollouts() if told.feeds == "rollouts" else None
        self._blocks = self._part.open_blocks() if told.feeds == "steps" else None
        self._blocking = BlockPlayer(self._part, self._estimates)
        self._actor: Actor | None = None
        self._partners: Opponents | None = None
        self._version: int | None = None
        self._known: dict[int, int] = {}  # past selves: place → stamp
        self._before = b""
        self._played = 0

    @register(queue=8)
    def play(self, edition: dict[str, Any], stamps: list[int], *past: dict[str, Array]) -> dict[str, Any]:
        """A rollout or a block with the weights of an edition; `past` are the past selves, by place.

        The answer has beside the columns whose it is (`actor`, `life`) and which of its life (`number`).
        """
        actor = self._follow(edition, stamps, past)
        version, epsilon = int(edition["version"]), float(edition["epsilon"])
        if self._rollouts is not None:
            if self._part.in_step:
                self._before = pack(actor.save() | {"past": []})  # the learner has the past selves
            self._rollouts.play(actor, version)
            columns = self._rollouts.take_columns()
            self._rollouts.ring.release()
        else:
            assert self._blocks is not None
            own = self._part.epsilon
            self._blocking.play(actor, self._blocks, epsilon if own is None else own, version)
            columns = self._blocks.take_columns()
            self._blocks.ring.release()
        self._played += 1
        who = {"actor": self._part.actor, "life": self._part.generation, "number": self._played}
        return {**who, "columns": columns}

    @register(idempotent=True)
    def state(self) -> bytes:
        """This actor as it was before it played last, in step; empty where it has not."""
        return self._before

    def close(self) -> None:
        """Give the memory back."""
        for held in (self._rollouts, self._blocks):
            if held is not None:
                held.ring.close()

    def _follow(self, edition: dict[str, Any], stamps: list[int], past: tuple[dict[str, Array], ...]) -> Actor:
        version, weights = int(edition["version"]), edition["weights"]
        if self._actor is None:
            self._actor, self._partners = self._part.open_actor(weights, self._estimates)
            if self._part.state:
                self._actor.load(unpack(self._part.state) | {"past": []})
        if version != self._version:
            self._actor.use(forward_without_torch(self._part.network, weights), version)
            self._version = version
        assert self._partners is not None
        for place, (stamp, one) in enumerate(zip(stamps, past, strict=True)):
            if self._known.get(place, 0) < stamp:
                self._known[place] = stamp
                self._partners.put(place, one)
        return self._actor
