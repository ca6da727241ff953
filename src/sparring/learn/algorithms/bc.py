"""Behaviour cloning (Pomerleau 1988): do as the recorded players did, in choices or in numbers.
Page: docs/algorithms/bc.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import ANY_ACTION, network_for, one_seat
from sparring.learn.algorithms.learner import TorchLearner, mask_of, no_exploration, weighted_mean
from sparring.learn.optim import OptimiserSettings, open_optimiser
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Distribution, Gaussian, distribution
from sparring.nets.module_network import open_network
from sparring.nets.torch_network import Network, policy_heads
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class BcConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    batch_steps: int = 256
    label_smoothing: float = 0.0  # share of each goal that is spread over all legal actions; choices alone
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            do = "Smooth by at least 0 and less than 1"
            raise ConfigError(f"label_smoothing = {self.label_smoothing}", where="[bc]", do=do)

    @property
    def n_steps(self) -> int:
        """Rewards are not looked at."""
        return 1

    @property
    def discount(self) -> float:
        return 1.0


class BcLearner(TorchLearner):
    """Network and optimiser."""

    def __init__(self, game: GameSpec, config: BcConfig, seed: int) -> None:
        seat = one_seat(game, "bc", ANY_ACTION)
        self.policy = distribution(seat.action)
        network = network_for(game, seat, config, policy_heads(seat.action))
        self.net = open_network(network, seed)
        self.optimiser = open_optimiser(self.net.parameters(), config)
        super().__init__(config, network, self.net, net=self.net, optimiser=self.optimiser)


def loss(net: Network, policy: Distribution, batch: Batch, config: BcConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """−E[(1 − ε) log π(a|s) + ε mean over legal b of log π(b|s)], where ε is the label smoothing, 0 for boxes."""
    legal = mask_of(batch.legal)
    out, action = net(tensors(batch.observation)), tensor(batch.action)
    cost = -policy.logp(out, action, legal)
    if config.label_smoothing and not isinstance(policy, Gaussian):
        cost = (1 - config.label_smoothing) * cost - config.label_smoothing * policy.mean_logp(out, legal)
    total = weighted_mean(cost, batch)
    with torch.no_grad():
        metrics = {"loss": total.detach(), "entropy": policy.entropy(out, legal).mean()}
        if isinstance(policy, Gaussian):
            metrics["distance"] = (policy.squashed(out["mean"]) - action).abs().mean()
        else:
            metrics["agreement"] = (policy.best(out, legal) == action).float().mean()
    return total, metrics


class Bc:
    """Fed with records of the store."""

    name = "bc"
    feeds = "records"
    policy = "categorical"  # and a Gaussian of boxes
    settings = BcConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: BcConfig, seed: int) -> BcLearner:
        return BcLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser towards what was recorded."""
        assert isinstance(learner, BcLearner)
        total, metrics = loss(learner.net, learner.policy, batch, learner.config)
        metrics["gradient_norm"] = learner.minimise(total)
        learner.updates += 1
        return Update(learner, None, {name: value.item() for name, value in metrics.items()})
