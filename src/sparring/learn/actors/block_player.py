"""Playing block after block, wherever the actor lives."""

from collections.abc import Sequence

from sparring.acting.actor import Actor
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.initial_priorities import PriorityEstimator, Said, with_priorities
from sparring.learn.actors.step_blocks import StepBlockRing
from sparring.replay.steps import Steps


class BlockPlayer:
    """Where priorities are estimated one tick is held back: what the network says at it values the steps before it."""

    def __init__(self, part: ActorSpec, estimates: PriorityEstimator | None) -> None:
        self._part, self._estimates = part, estimates
        self._held: list[Steps] = []
        self._said: list[Said] = []

    def play(self, actor: Actor, out: StepBlockRing, epsilon: float, version: int) -> None:
        """One block into a ring that has room for it."""
        part, estimates = self._part, self._estimates
        before, games = actor.env_steps, actor.episodes
        while len(self._held) < part.ticks + (estimates is not None):
            self._held.append(actor.step(epsilon))
            if estimates is not None:
                self._said.append(estimates.last())
        ticks: Sequence[Steps] = self._held[: part.ticks]
        if estimates is not None:
            ticks = with_priorities(ticks, self._said, part.n_steps, part.discount)
        self._held, self._said = self._held[part.ticks :], self._said[part.ticks :]
        out.write(
            ticks, actor.ended(), version=version, env_steps=actor.env_steps - before, games=actor.episodes - games
        )
