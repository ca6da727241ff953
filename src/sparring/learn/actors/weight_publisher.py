"""What a learner shows its crew: the newest weights, how much to explore, and past selves to play against."""

from typing import Protocol

import numpy as np

from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.shared_weights import NONE
from sparring.learn.plan import Plan
from sparring.learn.protocol import Learner
from sparring.wire.network import Weights
from sparring.wire.tree import Tree, rng_state, set_rng_state

PAST_EVERY_STEPS = 100_000  # ticks of all games between two past selves
_CHANCE = 4  # of the streams of chance that a seed has


class WeightChannel(Protocol):
    """Where weights are shown to actors: a board in shared memory (weights.py), or editions on a host (hosted.py)."""

    past: int  # places for past selves

    @property
    def version(self) -> int: ...

    def wants(self, version: int) -> bool:
        """Whether that version is worth showing now."""
        ...

    def publish(self, weights: Weights, version: int, epsilon: float = 0.0) -> None: ...

    def remember(self, place: int, weights: Weights, version: int) -> None: ...

    def close(self) -> None: ...


class WeightPublisher:
    """The writer's side of a board."""

    def __init__(self, plan: Plan, board: WeightChannel) -> None:
        self._plan, self.board = plan, board
        self._rng = np.random.default_rng([plan.seed, _CHANCE])
        self._past: list[Weights] = []
        self._past_kept = 0  # how often a past self was kept

    def publish(self, learner: Learner, env_steps: int) -> None:
        """Show what was learned; now and then that is kept to be played against later. Nothing new, nothing done."""
        if not self.board.wants(learner.updates):
            return
        weights = learner.weights()
        if self.board.past and self.board.version != NONE and env_steps // PAST_EVERY_STEPS > self._past_kept:
            self._past_kept = env_steps // PAST_EVERY_STEPS
            self._remember(weights, learner.updates)
        epsilon = self._plan.algorithm.exploration(learner, env_steps)
        self.board.publish(weights, learner.updates, epsilon)

    def _remember(self, weights: Weights, version: int) -> None:
        """In a new place, or in that of a random one, so that old ones thin out slowly."""
        place = len(self._past) if len(self._past) < self.board.past else int(self._rng.integers(self.board.past))
        self._past[place : place + 1] = [weights]
        self.board.remember(place, weights, version)

    def save(self) -> Tree:
        return {"past": list(self._past), "past_kept": self._past_kept, "rng": rng_state(self._rng)}

    def load(self, state: Tree) -> None:
        self._past, self._past_kept = list(state["past"]), state["past_kept"]
        set_rng_state(self._rng, state["rng"])
        for place, weights in enumerate(self._past):
            self.board.remember(place, weights, 0)

    def close(self) -> None:
        self.board.close()


def rollout_spec(plan: Plan, learner: Learner, *, slots: int, lanes: int, in_step: bool) -> ActorSpec:
    """What every actor of the plan is told that plays rollouts."""
    return ActorSpec(
        game=plan.game,
        spec=plan.spec,
        network=learner.network,
        policy=plan.policy,
        envs=plan.envs,
        seed=plan.seed,
        feeds="rollouts",
        ticks=plan.settings.rollout_ticks,
        slots=slots,
        lanes=lanes,
        in_step=in_step,
        reward_clip=plan.reward_clip,
        opponents=plan.opponents,
        opponent_share=plan.opponent_share,
        script_share=plan.script_share,
    )
