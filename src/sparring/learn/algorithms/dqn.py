"""DQN (Mnih et al. 2015) with double targets (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step
returns (Hessel et al. 2018) and, where asked for, quantiles of returns (Dabney et al. 2018).
Page: docs/algorithms/dqn.md
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import QLearner, bootstrap_discounts, falling_epsilon, legal_values
from sparring.learn.algorithms.returns import huber, quantile_huber
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Head, NetworkSpec, Weights

STATE_VALUE = "state_value"  # with quantiles: the head of a dueling network's values


@dataclass(frozen=True, slots=True)
class DqnConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    normalise_observations: bool = True  # floats, by the running mean and deviation of each entry
    n_steps: int = 3  # decisions that one target looks ahead
    batch_steps: int = 128
    target_every_updates: int = 500  # the target network is a copy this old at most
    double: bool = True  # the online network chooses the next action, the target network values it
    dueling: bool = True
    quantiles: int = 0  # of each action's return, learned in place of its mean; 0: the mean alone
    huber_threshold: float = 10.0  # of a TD error, in units of reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_steps: int = 50_000  # over which ε falls from the first to the last
    repeat_exploration: bool = True  # in games of one seat: what is explored is repeated for a random time (εz-greedy)
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if self.quantiles < 0 or self.huber_threshold <= 0:
            do = "Learn at least one quantile, or 0 for none, and let huber_threshold be positive"
            wrong = f"quantiles = {self.quantiles}, huber_threshold = {self.huber_threshold}"
            raise ConfigError(wrong, where="[dqn]", do=do)


class DqnLearner(QLearner):
    """With `quantiles` the network that learns has N numbers for each action, and the one that acts their mean: a mean
    of linear heads is one linear head, so what acts is an ordinary network with one value for each action."""

    def __init__(self, game: GameSpec, config: DqnConfig, seed: int) -> None:
        seat = one_seat(game, "dqn")
        network = network_for(game, seat, config, (Head("logits", seat.action.masks, dueling=config.dueling),))
        if config.quantiles and network.module is not None:
            do = "Leave out quantiles, or return a NetworkSpec"
            raise ConfigError("quantiles need a linear head of ours", where=f"network {config.network!r}", do=do)
        learned = quantile_network(network, config.quantiles) if config.quantiles else network
        super().__init__(config, network, seed, learned)

    def weights(self) -> Weights:
        weights = super().weights()
        return mean_weights(weights, self.config.quantiles) if self.config.quantiles else weights


def returns(network: Network, seen: dict[str, Tensor], config: DqnConfig) -> Tensor:
    """What is thought to come of each action: [n, actions, quantiles], or its mean alone as [n, actions, 1]."""
    out = network(seen)
    return quantiles_of(out, config.quantiles) if config.quantiles else out["logits"].unsqueeze(2)


def outcomes(online: Network, target: Network, batch: Batch, config: DqnConfig) -> tuple[Tensor, Tensor]:
    """Z(s, a) and its goal R + γᵐ Z⁻(s', argmax_a' E Z(s', a')), both [n, quantiles]; legal a' only.

    m = batch.n_steps decisions. After a true end only R counts; a cut episode goes on with where it was cut.
    """
    with torch.no_grad():
        seen = tensors(batch.next_observation)
        following = returns(target, seen, config)
        choosing = (returns(online, seen, config) if config.double else following).mean(2)
        best = legal_values(choosing, batch.next_legal).argmax(1)
        discounts = bootstrap_discounts(batch, config.discount).unsqueeze(1)
        goal = tensor(batch.reward).unsqueeze(1) + discounts * _of(following, best)
    return _of(returns(online, tensors(batch.observation), config), tensor(batch.action).long()), goal


def _of(found: Tensor, action: Tensor) -> Tensor:
    """[n, quantiles] of one action in each row."""
    return found[torch.arange(len(action)), action]


def loss_of(chosen: Tensor, goal: Tensor, config: DqnConfig) -> Tensor:
    """Of each row: by quantiles, or the Huber loss of its TD error."""
    if config.quantiles:
        return quantile_huber(chosen, goal, config.huber_threshold)
    return huber(goal - chosen, config.huber_threshold).squeeze(1)


def quantile_network(spec: NetworkSpec, quantiles: int) -> NetworkSpec:
    """The network that learns `quantiles` for each action of the acting network `spec`."""
    logits = next(head for head in spec.heads if head.name == "logits")
    others = tuple(head for head in spec.heads if head.name != "logits")
    values = (Head(STATE_VALUE, quantiles),) if logits.dueling else ()
    return replace(spec, heads=(*others, Head("logits", logits.units * quantiles), *values))


def quantiles_of(out: Mapping[str, Tensor], quantiles: int) -> Tensor:
    """[n, actions, quantiles] of the outputs of a `quantile_network`; dueling is done for each quantile."""
    found = out["logits"].reshape(len(out["logits"]), -1, quantiles)
    if STATE_VALUE in out:
        found = found - found.mean(1, keepdim=True) + out[STATE_VALUE].unsqueeze(1)
    return found


def mean_weights(weights: Weights, quantiles: int) -> Weights:
    """Parameters of the acting network: those of the one that learns, with the mean of the quantiles in its head."""
    acting = {name: value for name, value in weights.items() if name.split("/")[0] not in ("logits", STATE_VALUE)}
    for part in ("weight", "bias"):
        value = weights[f"logits/{part}"]
        acting[f"logits/{part}"] = _mean(value.reshape(-1, quantiles, *value.shape[1:]))
        if f"{STATE_VALUE}/{part}" in weights:
            acting[f"logits/value/{part}"] = _mean(weights[f"{STATE_VALUE}/{part}"][None])
    return acting


def _mean(value: Array) -> Array:
    return np.ascontiguousarray(value.mean(axis=1, dtype=np.float64), np.float32)


class Dqn:
    """Fed with transitions from a replay table."""

    name = "dqn"
    feeds = "transitions"
    policy = "greedy"
    settings = DqnConfig
    exploration = falling_epsilon

    def replay(self, config: DqnConfig) -> dict[str, float]:
        """Settings of replay where neither user nor preset says others: one update for four steps."""
        return {"samples_per_insert": config.batch_steps / 4, "slack_samples": 400.0 * config.batch_steps}

    def begin(self, game: GameSpec, config: DqnConfig, seed: int) -> DqnLearner:
        return DqnLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser on what `loss_of` says; the sizes of the TD errors are the priorities."""
        assert isinstance(learner, DqnLearner)
        config = learner.config
        learner.inputs.learn(batch.observation)
        learner.inputs.apply()
        chosen, goal = outcomes(learner.online, learner.target, batch, config)
        metrics = learner.descend(loss_of(chosen, goal, config), batch)
        size = (goal - chosen.detach()).mean(1).abs()
        metrics["td_error"] = size.mean()
        return Update(learner, size.numpy(), {name: value.item() for name, value in metrics.items()})
