"""CQL(H) (Kumar et al. 2020): values of actions that are not in the records are pushed down, so that the policy stays
near what players did. On double, dueling DQN where actions are choices, on two critics and a Gaussian policy, as in
SAC, where they are a box. Page: docs/algorithms/cql.md
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec, SeatSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import (
    QLearner,
    TorchLearner,
    bootstrap_discounts,
    critics_for,
    legal_values,
    no_exploration,
    smaller,
    value_of,
    values_of_many,
    weighted_mean,
)
from sparring.learn.algorithms.returns import huber
from sparring.learn.optim import OptimiserSettings, open_optimiser
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Gaussian, Outputs
from sparring.nets.module_network import open_network
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, policy_heads
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation, Head


@dataclass(frozen=True, slots=True)
class CqlConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    n_steps: int = 1  # decisions that one target looks ahead; the players' own, uncorrected, beyond the first
    batch_steps: int = 256
    reward_scale: float = 1.0  # rewards are multiplied by it; returns of the order of 1 to 10 are learned best
    target_every_updates: int = 200  # the target network is a copy this old at most; choices alone
    conservatism: float = 1.0  # α: weight of the penalty beside the TD loss; 0 is DQN
    double: bool = True  # the online network chooses the next action, the target network values it; choices alone
    dueling: bool = True  # choices alone
    target_rate: float = 0.005  # by which the target critics of a box move towards the critics at each update
    sampled_actions: int = 10  # of a box: drawn in each view from the policy, and as many evenly
    entropy_worth: float = 0.05  # of a box: what a nat of the policy's entropy is worth, in scaled reward
    huber_threshold: float = 1.0  # of a TD error, in units of scaled reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if self.conservatism < 0:
            raise ConfigError(f"conservatism = {self.conservatism}", where="[cql]", do="Let it be 0 or more")


def goals(online: Network, target: Network, batch: Batch, config: CqlConfig) -> Tensor:
    """R + γᵐ Q⁻(s', argmax_a' Q(s', a')) over legal a'; R alone after a true end."""
    with torch.no_grad():
        seen = tensors(batch.next_observation)
        next_values = target(seen)["logits"]
        choosing = online(seen)["logits"] if config.double else next_values
        best = legal_values(choosing, batch.next_legal).argmax(1, keepdim=True)
        value = next_values.gather(1, best).squeeze(1) * bootstrap_discounts(batch, config.discount)
        goal: Tensor = config.reward_scale * tensor(batch.reward) + value
    return goal


def losses(online: Network, target: Network, batch: Batch, config: CqlConfig) -> tuple[Tensor, Tensor, Tensor]:
    """For each step: its loss, its TD error δ, and its penalty log Σ_a exp Q(s, a) − Q(s, recorded a), legal a only.

    Loss = α · penalty + huber(δ). The penalty is the negative log-likelihood of the recorded action under a softmax
    policy on Q: CQL is DQN that is also asked to make what people did look likely.
    """
    goal = goals(online, target, batch, config)
    values: Tensor = online(tensors(batch.observation))["logits"]
    chosen = values.gather(1, tensor(batch.action).long().unsqueeze(1)).squeeze(1)
    penalty = torch.logsumexp(legal_values(values, batch.legal), 1) - chosen
    delta = goal - chosen
    return config.conservatism * penalty + huber(delta, config.huber_threshold), delta, penalty


class CqlBoxLearner(TorchLearner):
    """A Gaussian policy, two critics with their targets, an optimiser for each; what draws actions."""

    def __init__(self, game: GameSpec, seat: SeatSpec, config: CqlConfig, seed: int) -> None:
        self.policy = Gaussian(bounds_of(seat.action), seat.action.shape)
        network = network_for(game, seat, config, policy_heads(seat.action))
        self.net, self.critics = open_network(network, seed), critics_for(game, seat, config, seed + 1)
        self.optimiser = open_optimiser(self.critics.parameters(), config)
        self.policy_optimiser = open_optimiser(self.net.parameters(), config)
        self.rng = torch.Generator().manual_seed(seed + 2)
        optimisers = {"optimiser": self.optimiser, "policy_optimiser": self.policy_optimiser}
        super().__init__(config, network, self.net, net=self.net, critics=self.critics, rng=self.rng, **optimisers)


def sampled_actions(learner: CqlBoxLearner, out: Outputs) -> tuple[Tensor, Tensor]:
    """Actions [n, 2 x sampled, *shape] and their log-densities: half of the policy's own, half drawn evenly."""
    n, count, shape = len(out["mean"]), learner.config.sampled_actions, learner.policy.shape
    low, high = learner.policy.bounds or (-1.0, 1.0)
    wide = {name: value.detach().repeat_interleave(count, 0) for name, value in out.items()}
    own, logp = learner.policy.draw(wide, learner.rng)
    even = low + (high - low) * torch.rand((n, count, *shape), generator=learner.rng)
    actions = torch.cat((own.reshape(n, count, *shape), even), 1)
    uniform_logp = torch.full((n, count), -math.prod(shape) * math.log(high - low))
    return actions, torch.cat((logp.reshape(n, count), uniform_logp), 1)


def box_losses(learner: CqlBoxLearner, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """As `losses`, of both critics: log Σ_a exp Q is log mean exp(Q − log density) over the actions that were tried."""
    config, critics = learner.config, learner.critics
    seen, then, action = tensors(batch.observation), tensors(batch.next_observation), tensor(batch.action)
    with torch.no_grad():
        after, _ = learner.policy.draw(learner.net(then), learner.rng)
        value = smaller(critics.slow, then, after) * bootstrap_discounts(batch, config.discount)
        goal = config.reward_scale * tensor(batch.reward) + value
        actions, logp = sampled_actions(learner, learner.net(seen))
    each, penalty = torch.zeros_like(goal), torch.zeros_like(goal)
    for critic in critics.online:
        chosen = value_of(critic, seen, action)
        pushed = torch.logsumexp(values_of_many(critic, seen, actions) - logp, 1) - math.log(logp.shape[1])
        delta, penalty = goal - chosen, pushed - chosen
        each = each + config.conservatism * penalty + huber(delta, config.huber_threshold)
    return each, delta, penalty


def policy_loss(learner: CqlBoxLearner, batch: Batch) -> Tensor:
    """E[entropy_worth · log π(a|s) − min Q(s, a)], a drawn from π."""
    seen = tensors(batch.observation)
    action, logp = learner.policy.draw(learner.net(seen), learner.rng)
    each = learner.config.entropy_worth * logp - smaller(learner.critics.online, seen, action)
    return weighted_mean(each, batch)


class Cql:
    """Fed with records of the store."""

    name = "cql"
    feeds = "records"
    policy = "greedy"  # and a Gaussian of boxes
    settings = CqlConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: CqlConfig, seed: int) -> QLearner | CqlBoxLearner:
        seat = one_seat(game, "cql", ("discrete", "box"))
        if not seat.action.choices:
            return CqlBoxLearner(game, seat, config, seed)
        network = network_for(game, seat, config, (Head("logits", seat.action.masks, dueling=config.dueling),))
        return QLearner(config, network, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser; the sizes of the TD errors are the priorities."""
        if isinstance(learner, CqlBoxLearner):
            metrics, delta = _update_box(learner, batch)
        else:
            assert isinstance(learner, QLearner)
            each, delta, penalty = losses(learner.online, learner.target, batch, learner.config)
            metrics = learner.descend(each, batch) | {"penalty": penalty.mean()}
        size = delta.detach().abs()
        metrics["td_error"] = size.mean()
        return Update(learner, size.numpy(), {name: value.item() for name, value in metrics.items()})


def _update_box(learner: CqlBoxLearner, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """A step for the critics, one for the policy by the new critics, then the targets move. Metrics, and δ."""
    each, delta, penalty = box_losses(learner, batch)
    loss = weighted_mean(each, batch)
    norm = learner.minimise(loss)
    cost = policy_loss(learner, batch)
    learner.minimise(cost, learner.policy_optimiser)
    learner.critics.follow(learner.config.target_rate)
    learner.updates += 1
    return {"loss": loss, "gradient_norm": norm, "penalty": penalty.mean(), "policy_loss": cost}, delta
