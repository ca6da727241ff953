"""SAC (Haarnoja et al. 2018) for boxes, and for discrete actions (Christodoulou 2019): two critics, a policy that earns
entropy beside reward, and a temperature that holds the entropy near a target. Page: docs/algorithms/sac.md
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.critics import Critics, critic_heads, critic_spec, smaller, value_of
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.optim.adam import Adam
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Categorical, Gaussian, distribution
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, default_heads
from sparring.nets.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation, Weights
from sparring.wire.tree import pack, unpack


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
        if min(self.n_steps, self.batch_steps) < 1 or not 0 <= self.discount <= 1:
            raise ConfigError(
                f"n_steps = {self.n_steps}, batch_steps = {self.batch_steps}, discount = {self.discount}",
                where="[sac]",
                do="Count from 1, and discount between 0 and 1",
            )
        if not (0 < self.target_rate <= 1 and self.temperature_first > 0 and 0 <= self.entropy_share < 1):
            raise ConfigError(
                f"target_rate = {self.target_rate}, temperature_first = {self.temperature_first}, "
                f"entropy_share = {self.entropy_share}",
                where="[sac]",
                do="Keep target_rate and temperature_first above 0, and entropy_share between 0 and 1",
            )


class SacLearner:
    """Policy, two critics with their targets, the temperature; an optimiser for each, and what draws its actions."""

    def __init__(self, game: GameSpec, config: SacConfig, seed: int) -> None:
        seat = one_seat(game, "sac", ("discrete", "box"))
        self.config, self.action = config, seat.action
        self.says = distribution(seat.action)
        heads = tuple(head for head in default_heads(seat.action) if head.name != "value")
        self.network = network_for(game, seat, config, heads)
        self.policy = Network(self.network, seed)
        views = network_for(game, seat, replace(config, network=""), critic_heads(seat.action))
        self.critics = Critics(critic_spec(views, seat.action), seed + 1)
        self.log_temperature = nn.Parameter(torch.tensor([math.log(config.temperature_first)]))
        self.critic_optimiser = Adam(self.critics.parameters(), config.learning_rate)
        self.policy_optimiser = Adam(self.policy.parameters(), config.learning_rate)
        self.temperature_optimiser = Adam([self.log_temperature], config.learning_rate)
        self.draw = torch.Generator().manual_seed(seed + 2)
        self.updates = 0

    @property
    def temperature(self) -> Tensor:
        """α [1], without a gradient."""
        return self.log_temperature.detach().exp()

    def weights(self) -> Weights:
        return self.policy.weights()

    def save(self) -> bytes:
        return pack(
            {
                "policy": save_module(self.policy),
                "critics": self.critics.save(),
                "optimisers": [one.save() for one in self._optimisers()],
                "log_temperature": self.log_temperature.item(),
                "draw": self.draw.get_state().numpy(),
                "updates": self.updates,
            }
        )

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        load_module(self.policy, tree["policy"])
        self.critics.load(tree["critics"])
        for optimiser, saved in zip(self._optimisers(), tree["optimisers"], strict=True):
            optimiser.load(saved)
        with torch.no_grad():
            self.log_temperature.fill_(tree["log_temperature"])
        self.draw.set_state(torch.from_numpy(tree["draw"].copy()))
        self.updates = tree["updates"]

    def _optimisers(self) -> list[Adam]:
        return [self.critic_optimiser, self.policy_optimiser, self.temperature_optimiser]


def soft_costs(
    learner: SacLearner, critics: Sequence[Network], seen: dict[str, Tensor], legal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """E_a~π[α log π(a|s) − min_i Q_i(s, a)], which is −V(s) and what the policy makes small, and π's entropy; both [n].

    Over discrete actions the expectation is a sum; over a box one action is drawn, through which the gradient goes.
    """
    out, says = learner.policy(seen), learner.says
    if isinstance(says, Categorical):
        logps = says.logps(out, legal)
        values = torch.minimum(*(one(seen)["logits"] for one in critics))
        chances = logps.exp()
        return (chances * (learner.temperature * logps - values)).sum(1), -(chances * logps).sum(1)
    assert isinstance(says, Gaussian)
    action, logp = says.draw(out, learner.draw)
    return learner.temperature * logp - smaller(critics, seen, action), -logp


def target_entropy(learner: SacLearner, legal: Tensor | None) -> Tensor | float:
    """What the temperature holds the entropy near, for all rows or for each."""
    config, action = learner.config, learner.action
    if not action.choices:
        low, high = bounds_of(action) or (-1.0, 1.0)
        return math.prod(action.shape) * (config.entropy_per_number + math.log((high - low) / 2))
    if legal is None:
        return config.entropy_share * math.log(action.masks)
    return config.entropy_share * legal.sum(1).clamp(min=1).float().log()


def td_errors(learner: SacLearner, batch: Batch) -> list[Tensor]:
    """δ_i = R + γᵐ V⁻(s') − Q_i(s, a) of each critic, [n]; V⁻ by the target critics and the policy as it is."""
    with torch.no_grad():
        next_legal = None if batch.next_legal is None else tensor(batch.next_legal).bool()
        cost, _ = soft_costs(learner, learner.critics.slow, tensors(batch.next_observation), next_legal)
        spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
        fade = learner.config.discount**spans * (tensor(batch.ending) != TERMINATED)
        goal = tensor(batch.reward) - fade * cost
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
        share = 1.0 if batch.weight is None else tensor(batch.weight)
        legal = None if batch.legal is None else tensor(batch.legal).bool()
        errors = td_errors(learner, batch)
        critic_loss = (share * 0.5 * (errors[0].square() + errors[1].square())).mean()
        norm = learner.critic_optimiser.descend(critic_loss, config.max_gradient_norm)
        with _still(learner.critics.online):
            costs, entropy = soft_costs(learner, learner.critics.online, tensors(batch.observation), legal)
            policy_loss = (share * costs).mean()
            learner.policy_optimiser.descend(policy_loss, config.max_gradient_norm)
        if config.tune_temperature:
            excess = (share * (entropy.detach() - target_entropy(learner, legal))).mean()
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
        """Its own noise explores."""
        return 0.0


@contextmanager
def _still(networks: Sequence[Network]) -> Iterator[None]:
    """Gradients pass through them, and not into their parameters, which would cost as much again."""
    for one in networks:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in networks:
            one.requires_grad_(True)
