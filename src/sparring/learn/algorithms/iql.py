"""IQL (Kostrikov et al. 2021) for choices and boxes: values by expectile regression, so that no action outside the
records is ever asked about; then the records' actions are cloned by their advantage. Page: docs/algorithms/iql.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import (
    TorchLearner,
    bootstrap_discounts,
    critics_for,
    mask_of,
    no_exploration,
    smaller,
    value_of,
    weighted_mean,
)
from sparring.learn.algorithms.returns import huber
from sparring.learn.optim import OptimiserSettings, open_optimiser
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import distribution
from sparring.nets.module_network import open_network
from sparring.nets.torch_network import default_heads
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class IqlConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    n_steps: int = 1  # decisions that one target looks ahead; the players' own, uncorrected, beyond the first
    batch_steps: int = 256
    reward_scale: float = 1.0  # rewards are multiplied by it; returns of the order of 1 to 10 are learned best
    expectile: float = 0.7  # τ: ½ is the players' mean, towards 1 the best that they did
    temperature: float = 3.0  # β: 0 clones everything alike, larger prefers the better actions more
    max_weight: float = 100.0  # of one step in the cloning
    target_rate: float = 0.005  # by which the target critics move towards the critics at each update
    huber_threshold: float = 10.0  # of a TD error, in units of scaled reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if not (0 < self.expectile < 1 and 0 < self.target_rate <= 1 and self.temperature >= 0):
            raise ConfigError(
                f"expectile = {self.expectile}, target_rate = {self.target_rate}, temperature = {self.temperature}",
                where="[iql]",
                do="Keep expectile between 0 and 1, target_rate at most 1, and temperature at 0 or more",
            )


class IqlLearner(TorchLearner):
    """The policy with V in a trunk of its own, two critics with their targets, one optimiser."""

    def __init__(self, game: GameSpec, config: IqlConfig, seed: int) -> None:
        seat = one_seat(game, "iql", ("discrete", "box"))
        self.policy = distribution(seat.action)
        network = network_for(game, seat, config, default_heads(seat.action), separate_value=True)
        self.net, self.critics = open_network(network, seed), critics_for(game, seat, config, seed + 1)
        self.optimiser = open_optimiser([*self.net.parameters(), *self.critics.parameters()], config)
        super().__init__(config, network, self.net, net=self.net, critics=self.critics, optimiser=self.optimiser)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(e < 0)| e²: with τ above ½, falling short of the better outcomes costs more than exceeding the worse."""
    return torch.where(error < 0, 1 - expectile, expectile) * error.square()


def loss(learner: IqlLearner, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """L_V + L_Q + L_π, whose gradients meet in no parameter, each step's TD error, and metrics.

    L_V = E[L_τ(min Q⁻(s,a) − V(s))],  L_Q = Σ_i E[huber(R + γᵐ V(s') − Q_i(s,a))],
    L_π = −E[min(exp(β A), max_weight) log π(a|s)],  A = min Q⁻(s,a) − V(s) in units of its spread in the batch.
    """
    config, critics = learner.config, learner.critics
    seen, action = tensors(batch.observation), tensor(batch.action)
    out: dict[str, Tensor] = learner.net(seen)
    with torch.no_grad():
        after = learner.net(tensors(batch.next_observation))["value"] * bootstrap_discounts(batch, config.discount)
        goal = config.reward_scale * tensor(batch.reward) + after
        judged = smaller(critics.slow, seen, action)
    lead = judged - out["value"]
    deltas = [goal - value_of(one, seen, action) for one in critics.online]
    with torch.no_grad():
        advantage = lead / (lead.std(correction=0) + 1e-6)
        weight = (config.temperature * advantage).exp().clamp(max=config.max_weight)
    logp = learner.policy.logp(out, action, mask_of(batch.legal))
    parts = {
        "value_loss": expectile_loss(lead, config.expectile),
        "critic_loss": huber(deltas[0], config.huber_threshold) + huber(deltas[1], config.huber_threshold),
        "policy_loss": -(weight * logp),
    }
    means = {name: weighted_mean(part, batch) for name, part in parts.items()}
    total = torch.stack(list(means.values())).sum()
    metrics = {name: value.detach() for name, value in means.items()}
    metrics |= {"advantage_weight": weight.mean(), "loss": total.detach()}
    return total, deltas[0].detach().abs(), metrics


class Iql:
    """Fed with records of the store."""

    name = "iql"
    feeds = "records"
    policy = "categorical"  # and a Gaussian of boxes
    settings = IqlConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: IqlConfig, seed: int) -> IqlLearner:
        return IqlLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser for policy, V and critics; then the targets move a little."""
        assert isinstance(learner, IqlLearner)
        total, size, metrics = loss(learner, batch)
        metrics["gradient_norm"] = learner.minimise(total)
        metrics["td_error"] = size.mean()
        learner.critics.follow(learner.config.target_rate)
        learner.updates += 1
        return Update(learner, size.numpy(), {name: value.item() for name, value in metrics.items()})
