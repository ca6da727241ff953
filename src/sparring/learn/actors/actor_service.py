"""An actor as a service: each call plays one rollout or block, with the weights that the learner published last."""

from typing import Any

from msgspec.structs import replace

from sparring.learn.actors.actor_runner import ActorRunner
from sparring.learn.actors.actor_spec import read_actor_spec
from sparring.learn.actors.weights import TopicWeightsReader
from sparring.services.register import register


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
        self._out.ring.release()
        self._played += 1
        whose = {"actor": self._spec.actor, "generation": self._spec.generation, "number": self._played}
        return {**whose, "columns": columns}

    @register(idempotent=True)
    def state(self) -> bytes:
        """A synchronous actor as it was before it played last; empty where it has not."""
        return self._before

    def close(self) -> None:
        """Give sockets and memory back."""
        self._weights.close()
        self._out.ring.close()
