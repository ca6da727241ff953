"""First priorities of an actor's steps: n-step errors of the values that it chose by (Horgan et al. 2018, §3).

Only for games whose streams all decide at every tick; steps of other games get the table's default priority.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.nets.policies import Choice, Policy, masked
from sparring.replay.steps import Steps
from sparring.wire.chunk import Array


class PriorityEstimator:
    """A policy that remembers, until it is asked, what its network said of each decision."""

    def __init__(self, policy: Policy, streams: int) -> None:
        self.deployed = policy.deployed
        self._policy, self._streams = policy, streams
        self._said: tuple[Array, Array] | None = None

    def explore(self, out: Mapping[str, Array], legal: Array | None, rng: Generator, epsilon: float | Array) -> Choice:
        choice = self._policy.explore(out, legal, rng, epsilon)
        values = out["logits"]
        self._said = None
        if len(values) == self._streams:
            self._said = values[np.arange(len(values)), choice.action], masked(values, legal).max(axis=-1)
        return choice

    def last(self) -> tuple[Array, Array] | None:
        """Of the last decision: the value of what was done, and of what was best. None: not all streams took it."""
        return self._said


Said = tuple[Array, Array] | None


def with_priorities(ticks: Sequence[Steps], said: Sequence[Said], n_steps: int, discount: float) -> Sequence[Steps]:
    """The steps of T ticks with first priorities; `said` is of their decisions and of the one after the last.

    p = |Σ_{k<m} γ^k r_{t+k} + γ^m max_a Q(s_{t+m}, a) − Q(s_t, a_t)|, m = n_steps or what is left of the block or the
    episode. After a true end nothing follows; where an episode was cut, the value of its last decision stands for
    that of the observation after it, which the network was not asked about.
    """
    streams = len(ticks[0]) if ticks else 0
    if any(one is None for one in said) or any(len(steps) != streams for steps in ticks):
        return ticks
    chosen, best = (np.stack([one[place] for one in said if one is not None]) for place in (0, 1))
    reward, ending = (np.stack([getattr(steps, name) for steps in ticks]) for name in ("reward", "ending"))
    errors = np.abs(n_step_goals(reward, ending, best, n_steps, discount) - chosen[:-1])
    return [replace(steps, priority=one) for steps, one in zip(ticks, errors.astype(np.float32), strict=True)]


def n_step_goals(reward: Array, ending: Array, best: Array, n_steps: int, discount: float) -> Array:
    """[T, streams] of rewards and endings [T, streams] and best values [T + 1, streams]; see `with_priorities`."""
    count = len(reward)
    goal, alive = np.zeros(reward.shape), np.ones(reward.shape, bool)
    for k in range(min(n_steps, count)):
        here = slice(k, count)  # the tick k steps after each of the first count - k
        there = alive[: count - k]
        goes_on = ending[here] == RUNNING
        cut = np.where(ending[here] == TERMINATED, 0.0, best[:-1][here])
        is_last = np.zeros_like(there)
        is_last[-1] = True  # the block ends here
        if k == n_steps - 1:
            is_last[:] = True
        follows = np.where(goes_on, np.where(is_last, best[1:][here], 0.0), cut)
        goal[: count - k] += there * discount**k * (reward[here] + discount * follows)
        alive[: count - k] = there & goes_on & ~is_last
    return goal
