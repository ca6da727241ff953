"""Running statistics that a learner keeps: of what is seen, by which its networks normalise their inputs, and of
returns, by which rewards are scaled."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from sparring.games.protocol import RUNNING
from sparring.learn.protocol import Batch
from sparring.nets import shapes
from sparring.nets.torch_network import Network
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

MOST_ROWS = 1e6  # that the past counts for: what is seen changes with the policy
REWARD_LIMIT = 10.0  # of a scaled reward

Average = Callable[[Tensor], None]  # makes a tensor its mean over several learners, in place


class InputStatistics:
    """Mean and deviation of every entry of the inputs that the networks normalise, which share them.

    An entry that was never anything but -1, 0 or 1 stays as it is: a flag is no measurement.
    """

    def __init__(self, *networks: Network) -> None:
        self._shared: dict[str, list[Tensor]] = {}
        for network in networks:
            for leaf in network.spec.inputs:
                if leaf.normalise:
                    names = shapes.statistics_of(network.spec, leaf)
                    own = [getattr(network, name) for name in names]
                    for name, value in zip(names, self._shared.setdefault(leaf.name, own), strict=True):
                        setattr(network, name, value)
        self._rows = 0.0
        self._moments = {leaf: _Moments(mean.shape) for leaf, (mean, _) in self._shared.items()}

    def learn(
        self, observation: Mapping[str, Array], mask: Array | None = None, average: Average | None = None
    ) -> None:
        """Take in those rows of each leaf (`mask`: without padding); `average` makes several learners agree. The
        networks use what was learned from the next `apply` on."""
        if not self._shared:
            return
        seen = {
            leaf: observation[leaf][mask] if mask is not None else observation[leaf].reshape(-1, *mean.shape)
            for leaf, (mean, _) in self._shared.items()
        }
        count = _averaged(np.array([len(next(iter(seen.values())))]), average).item()
        share = count / (self._rows + count)
        self._rows = min(self._rows + count, MOST_ROWS)
        for leaf, moments in self._moments.items():
            moments.learn(seen[leaf], share, average)

    def apply(self) -> None:
        """Let the networks normalise by all that was learned."""
        for leaf, (mean, deviation) in self._shared.items():
            moments = self._moments[leaf]
            mean.copy_(torch.from_numpy(np.where(moments.flag, 0.0, moments.mean)))
            deviation.copy_(torch.from_numpy(np.where(moments.flag, 1.0, np.sqrt(moments.variance + 1e-8))))

    def save(self) -> Tree:
        return {"rows": self._rows, "leaves": {leaf: moments.save() for leaf, moments in self._moments.items()}}

    def load(self, state: Tree) -> None:
        """Back to what `save` gave; the networks save what they normalise by themselves."""
        self._rows = state["rows"]
        for leaf, saved in state["leaves"].items():
            self._moments[leaf].load(saved)


class _Moments:
    """Of the entries of one leaf, by the rows so far."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance, self.flag = np.zeros(shape), np.zeros(shape), np.ones(shape, bool)

    def learn(self, rows: Array, share: float, average: Average | None) -> None:
        """Rows [n, *shape] of which the share of all rows so far is `share`."""
        off = rows.astype(np.float64) - self.mean
        flag = (rows * rows == np.abs(rows)).all(axis=0)
        found = _averaged(np.stack([off.mean(axis=0), np.square(off).mean(axis=0), flag]), average)
        shift = share * found[0]
        self.variance = (1 - share) * self.variance + share * found[1] - np.square(shift)
        self.variance = np.maximum(self.variance, 0.0)
        self.mean = self.mean + shift
        self.flag = self.flag & (found[2] > 1 - 1e-6)

    def save(self) -> Tree:
        return [self.mean, self.variance, self.flag]

    def load(self, state: Tree) -> None:
        self.mean, self.variance, self.flag = (array.copy() for array in state)


class RewardScale:
    """Divides rewards by the deviation of discounted returns, as Gymnasium's NormalizeReward does: values are then of
    the order of one whatever a game pays."""

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._running = np.zeros(0)  # discounted return of each stream so far
        self._rows, self._mean, self._variance = 0.0, 0.0, 0.0

    def scaled(self, batch: Batch, average: Average | None = None) -> Array:
        """The rewards of trajectories [time, streams] in units of that deviation, ±REWARD_LIMIT at most."""
        self._learn(batch, average)
        if self._variance == 0.0:
            return batch.reward
        return np.clip(batch.reward / np.float32(np.sqrt(self._variance)), -REWARD_LIMIT, REWARD_LIMIT)

    @property
    def factor(self) -> float:
        """By which a reward is multiplied."""
        return 1.0 if self._variance == 0.0 else float(1 / np.sqrt(self._variance))

    def _learn(self, batch: Batch, average: Average | None) -> None:
        ticks, streams = batch.reward.shape
        running = self._running if len(self._running) == streams else np.zeros(streams)
        returns = np.zeros((ticks, streams))
        for t in range(ticks):
            here = np.ones(streams, bool) if batch.mask is None else batch.mask[t]
            running = np.where(here, running * self._discount + batch.reward[t], running)
            returns[t] = running
            running = np.where(here & (batch.ending[t] != RUNNING), 0.0, running)
        self._running = running
        seen = returns.ravel() if batch.mask is None else returns[batch.mask]
        off = seen - self._mean
        found = _averaged(np.array([off.mean(), np.square(off).mean(), len(seen)]), average)
        share = float(found[2] / (self._rows + found[2]))
        self._rows = min(self._rows + float(found[2]), MOST_ROWS)
        shift = share * found[0]
        self._variance = max(float((1 - share) * self._variance + share * found[1] - shift**2), 0.0)
        self._mean += float(shift)

    def save(self) -> Tree:
        return {"running": self._running, "rows": self._rows, "mean": self._mean, "variance": self._variance}

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._running, self._rows = state["running"].copy(), state["rows"]
        self._mean, self._variance = state["mean"], state["variance"]


def _averaged(numbers: Array, average: Average | None) -> Array:
    """The mean over all learners, float64; the numbers themselves where there is one."""
    if average is None:
        return numbers.astype(np.float64)
    together = torch.from_numpy(numbers.astype(np.float32))
    average(together.view(-1))
    return together.numpy().astype(np.float64)
