"""SAC (Haarnoja et al. 2018) for boxes, and for discrete actions (Christodoulou 2019): two critics, a policy that earns
entropy beside reward, and a temperature that holds the entropy near a target. Page: docs/algorithms/sac.md
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.critics import critics_for, smaller, value_of
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import TorchLearner, bootstrap_discounts, mask_of, weighted_mean
from sparring.learn.optim import Adam
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Categorical, Gaussian, distribution
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, policy_heads
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class SacConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 3e-4  # of policy, critics and temperature
    discount: float = 0.99
    n_steps: int = 1  # decisions that one target looks ahead; entropy in between is not counted
    batch_steps: int = 256
    target_rate: float = 0.005  # by which the target critics move towards the critics at each update
    temperature_first: float = 1.0  # α, what entropy is worth
    tune_temperature: bool = True  # towards the target entropy; False keeps the first
    entropy_share: float = 0.5  # of discrete actions: the target as a part of the most that there can be
    entropy_per_number: float = -1.0  # of a box: the target for each number, were it between -1 and 1
    max_gradient_norm: float = 100.0
    network: str = ""  # a policy network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (256, 256)  # of the critics, too
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if not (0 < self.target_rate <= 1 and self.temperature_first > 0 and 0 <= self.entropy_share < 1):
            raise ConfigError(
                f"target_rate = {self.target_rate}, temperature_first = {self.temperature_first}, "
                f"entropy_share = {self.entropy_share}",
                where="[sac]",
                do="Keep target_rate and temperature_first above 0, and entropy_share between 0 and 1",
            )


class SacLearner(TorchLearner):
    """Policy, two critics with their targets, the temperature; an optimiser for each; what draws actions."""

    def __init__(self, game: GameSpec, config: SacConfig, seed: int) -> None:
        seat = one_seat(game, "sac", ("discrete", "box"))
        self.action, self.distribution = seat.action, distribution(seat.action)
        network = network_for(game, seat, config, policy_heads(seat.action))
        self.policy, self.critics = Network(network, seed), critics_for(game, seat, config, seed + 1)
        self.log_temperature = nn.Parameter(torch.tensor([math.log(config.temperature_first)]))
        self.critic_optimiser = Adam(self.critics.parameters(), config.learning_rate)
        self.policy_optimiser = Adam(self.policy.parameters(), config.learning_rate)
        self.temperature_optimiser = Adam([self.log_temperature], config.learning_rate)
        self.rng = torch.Generator().manual_seed(seed + 2)
        super().__init__(
            config,
            network,
            self.policy,
            policy=self.policy,
            critics=self.critics,
            log_temperature=nn.ParameterList([self.log_temperature]),
            critic_optimiser=self.critic_optimiser,
            policy_optimiser=self.policy_optimiser,
            temperature_optimiser=self.temperature_optimiser,
            rng=self.rng,
        )

    @property
    def temperature(self) -> Tensor:
        """α [1], without a gradient."""
        return self.log_temperature.detach().exp()


def soft_costs(
    learner: SacLearner, critics: Sequence[Network], seen: dict[str, Tensor], legal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """E_a~π[α log π(a|s) − min_i Q_i(s, a)], which is −V(s) and what the policy makes small, and π's entropy; both [n].

    Over discrete actions the expectation is a sum; over a box one action is drawn, through which the gradient goes.
    """
    out, chosen = learner.policy(seen), learner.distribution
    if isinstance(chosen, Categorical):
        logps = chosen.logps(out, legal)
        values = torch.minimum(*(one(seen)["logits"] for one in critics))
        probabilities = logps.exp()
        return (probabilities * (learner.temperature * logps - values)).sum(1), -(probabilities * logps).sum(1)
    assert isinstance(chosen, Gaussian)
    action, logp = chosen.draw(out, learner.rng)
    return learner.temperature * logp - smaller(critics, seen, action), -logp


def target_entropy(learner: SacLearner, legal: Tensor | None) -> Tensor | float:
    """What the temperature holds the entropy near, for all rows or for each."""
    config: SacConfig = learner.config
    action = learner.action
    if not action.choices:
        low, high = bounds_of(action) or (-1.0, 1.0)
        return math.prod(action.shape) * (config.entropy_per_number + math.log((high - low) / 2))
    if legal is None:
        return config.entropy_share * math.log(action.masks)
    return config.entropy_share * legal.sum(1).clamp(min=1).float().log()


def td_errors(learner: SacLearner, batch: Batch) -> list[Tensor]:
    """δ_i = R + γᵐ V⁻(s') − Q_i(s, a) of each critic, [n]; V⁻ by the target critics and the policy as it is."""
    with torch.no_grad():
        seen, legal = tensors(batch.next_observation), mask_of(batch.next_legal)
        cost, _ = soft_costs(learner, learner.critics.slow, seen, legal)
        goal = tensor(batch.reward) - bootstrap_discounts(batch, learner.config.discount) * cost
    seen, action = tensors(batch.observation), tensor(batch.action)
    return [goal - value_of(one, seen, action) for one in learner.critics.online]


class Sac:
    """Fed with transitions from a replay table."""

    name = "sac"
    feeds = "transitions"
    policy = "categorical"
    settings = SacConfig

    def begin(self, game: GameSpec, config: SacConfig, seed: int) -> SacLearner:
        return SacLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of Adam for the critics, then the policy, then the temperature; then the targets move a little."""
        assert isinstance(learner, SacLearner)
        config = learner.config
        legal = mask_of(batch.legal)
        errors = td_errors(learner, batch)
        critic_loss = weighted_mean(0.5 * (errors[0].square() + errors[1].square()), batch)
        norm = learner.critic_optimiser.descend(critic_loss, config.max_gradient_norm)
        with _frozen(learner.critics.online):
            costs, entropy = soft_costs(learner, learner.critics.online, tensors(batch.observation), legal)
            policy_loss = weighted_mean(costs, batch)
            learner.policy_optimiser.descend(policy_loss, config.max_gradient_norm)
        if config.tune_temperature:
            excess = weighted_mean(entropy.detach() - target_entropy(learner, legal), batch)
            learner.temperature_optimiser.descend((learner.log_temperature * excess).sum(), config.max_gradient_norm)
        learner.critics.follow(config.target_rate)
        learner.updates += 1
        size = (0.5 * (errors[0].abs() + errors[1].abs())).detach()
        metrics = {
            "loss": (critic_loss + policy_loss).item(),
            "critic_loss": critic_loss.item(),
            "policy_loss": policy_loss.item(),
            "entropy": entropy.mean().item(),
            "temperature": learner.temperature.item(),
            "td_error": size.mean().item(),
            "gradient_norm": norm.item(),
        }
        return Update(learner, size.numpy(), metrics)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """The policy samples, and needs no other exploration."""
        return 0.0


@contextmanager
def _frozen(networks: Sequence[Network]) -> Iterator[None]:
    """Gradients pass through them, and not into their parameters, which would cost as much again."""
    for one in networks:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in networks:
            one.requires_grad_(True)
