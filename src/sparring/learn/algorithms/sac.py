"""SAC (Haarnoja et al. 2018) for boxes: two critics, a policy that earns entropy beside reward, and a temperature that
holds the entropy near a target. Page: docs/algorithms/sac.md
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import (
    TorchLearner,
    bootstrap_discounts,
    critics_for,
    no_exploration,
    smaller,
    value_of,
    weighted_mean,
)
from sparring.learn.algorithms.normalisation import InputStatistics
from sparring.learn.optim import Adam, OptimiserSettings, open_optimiser
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Gaussian
from sparring.nets.module_network import open_network
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, policy_heads
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class SacConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 3e-4  # of policy, critics and temperature
    discount: float = 0.99
    normalise_observations: bool = True  # floats, by the running mean and deviation of each entry
    n_steps: int = 5  # decisions that one target looks ahead; entropy in between is not counted
    batch_steps: int = 256
    target_rate: float = 0.005  # by which the target critics move towards the critics at each update
    temperature_first: float = 1.0  # α, what entropy is worth
    tune_temperature: bool = True  # towards the target entropy; False keeps the first
    entropy_per_number: float = -1.0  # the target for each number of an action, were it between -1 and 1
    max_gradient_norm: float = 100.0
    repeat_exploration: bool = True  # in games of one seat: the noise of an action is repeated for a random time
    network: str = ""  # a policy network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (256, 256)  # of the critics, too
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if not (0 < self.target_rate <= 1 and self.temperature_first > 0):
            wrong = f"target_rate = {self.target_rate}, temperature_first = {self.temperature_first}"
            raise ConfigError(wrong, where="[sac]", do="Keep both above 0, and target_rate at most 1")


class SacLearner(TorchLearner):
    """Policy, two critics with their targets, the temperature; an optimiser for each; what draws actions."""

    def __init__(self, game: GameSpec, config: SacConfig, seed: int) -> None:
        seat = one_seat(game, "sac", ("box",))
        self.action, self.distribution = seat.action, Gaussian(bounds_of(seat.action), seat.action.shape)
        network = network_for(game, seat, config, policy_heads(seat.action))
        self.policy, self.critics = open_network(network, seed), critics_for(game, seat, config, seed + 1)
        self.log_temperature = nn.Parameter(torch.tensor([math.log(config.temperature_first)]))
        self.critic_optimiser = open_optimiser(self.critics.parameters(), config)
        self.policy_optimiser = open_optimiser(self.policy.parameters(), config)
        self.temperature_optimiser = Adam([self.log_temperature], config.learning_rate)
        self.rng = torch.Generator().manual_seed(seed + 2)
        self.inputs = InputStatistics(self.policy, *self.critics.online, *self.critics.slow)
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
            inputs=self.inputs,
        )

    @property
    def temperature(self) -> Tensor:
        """α [1], without a gradient."""
        return self.log_temperature.detach().exp()


def soft_costs(learner: SacLearner, critics: Sequence[Network], seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """α log π(a|s) − min_i Q_i(s, a) of one action a drawn from π, through which the gradient goes: an estimate of
    −V(s), and what the policy makes small. And −log π(a|s), an estimate of π's entropy. Both [n]."""
    action, logp = learner.distribution.draw(learner.policy(seen), learner.rng)
    return learner.temperature * logp - smaller(critics, seen, action), -logp


def target_entropy(learner: SacLearner) -> float:
    """What the temperature holds the entropy near."""
    low, high = bounds_of(learner.action) or (-1.0, 1.0)
    per_number: float = learner.config.entropy_per_number
    return math.prod(learner.action.shape) * (per_number + math.log((high - low) / 2))


def td_errors(learner: SacLearner, batch: Batch) -> list[Tensor]:
    """δ_i = R + γᵐ V⁻(s') − Q_i(s, a) of each critic, [n]; V⁻ by the target critics and the policy as it is."""
    with torch.no_grad():
        cost, _ = soft_costs(learner, learner.critics.slow, tensors(batch.next_observation))
        goal = tensor(batch.reward) - bootstrap_discounts(batch, learner.config.discount) * cost
    seen, action = tensors(batch.observation), tensor(batch.action)
    return [goal - value_of(one, seen, action) for one in learner.critics.online]


class Sac:
    """Fed with transitions from a replay table."""

    name = "sac"
    feeds = "transitions"
    policy = "gaussian"
    settings = SacConfig
    exploration = no_exploration

    def replay(self, config: SacConfig) -> dict[str, float]:
        """Settings of replay where neither user nor preset says others: one update for each step."""
        return {"samples_per_insert": float(config.batch_steps), "slack_samples": 400.0 * config.batch_steps}

    def begin(self, game: GameSpec, config: SacConfig, seed: int) -> SacLearner:
        return SacLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step for the critics, then the policy, then the temperature; then the targets move a little."""
        assert isinstance(learner, SacLearner)
        config = learner.config
        learner.inputs.learn(batch.observation)
        learner.inputs.apply()
        errors = td_errors(learner, batch)
        critic_loss = weighted_mean(0.5 * (errors[0].square() + errors[1].square()), batch)
        norm = learner.minimise(critic_loss, learner.critic_optimiser)
        with _frozen(learner.critics.online):
            costs, entropy = soft_costs(learner, learner.critics.online, tensors(batch.observation))
            policy_loss = weighted_mean(costs, batch)
            learner.minimise(policy_loss, learner.policy_optimiser)
        if config.tune_temperature:
            excess = weighted_mean(entropy.detach() - target_entropy(learner), batch)
            learner.minimise((learner.log_temperature * excess).sum(), learner.temperature_optimiser)
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
