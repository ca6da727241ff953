"""Magnetic mirror descent (Sokota et al. 2022): self-play that comes near an equilibrium where information is hidden.

There, the policy that does best against itself goes in circles: whoever acts alike in one situation is exploited. So a
policy is moved by small steps towards what earns more, and drawn back by a magnet, the uniform policy, whose pull α
falls during the run. For every legal action a of a view s that was met, with step η:

    π'(a|s) ∝ ( π(a|s) · e^{ηQ(s,a)} )^{1/(1+αη)}

Q is a second network, learned from what was played, so that one view's update concerns all its actions and not only the
one that was drawn. The policy network learns π' by cross-entropy. Models get the average of the weights over the last
updates, which is harder to exploit than any of them. No tree, no table. Page: docs/algorithms/mmd.md
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import TorchLearner, critic_heads, follow_average, value_of
from sparring.learn.algorithms.normalisation import InputStatistics, RewardScale
from sparring.learn.algorithms.returns import explained_variance, gae, next_values
from sparring.learn.algorithms.trajectories import actions, grid, legal_actions, true_steps
from sparring.learn.optim import OptimiserSettings, open_optimiser
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import ILLEGAL
from sparring.nets.module_network import open_network
from sparring.nets.torch_network import Network, policy_heads
from sparring.nets.torch_state import tensors
from sparring.wire.network import Activation, Weights

Seen = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class MmdConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine", "exponential"] = "linear"
    discount: float = 1.0
    trace_decay: float = 0.95  # λ of the returns that Q learns
    normalise_observations: bool = True  # floats, by the running mean and deviation of each entry
    normalise_rewards: bool = True  # by the running deviation of returns, of which the magnet's pull is a part
    magnet_first: float = 0.3  # α: what entropy is worth, in deviations of the return
    magnet_last: float = 0.1  # reached at the end of the run; with much smaller ones the policy circles
    magnet_steps: int = 0  # of the run, over which α falls; 0: all
    random_moves: float = 0.0  # share of moves drawn by chance, so that Q also knows what the policy seldom does
    step_size: float = 1.0  # η as a multiple of α: with longer steps the policy circles around the equilibrium
    rollout_ticks: int = 64  # of every game between two updates
    minibatch_steps: int = 1024
    critic_epochs: int = 4  # times that Q learns from each rollout
    policy_epochs: int = 2
    average_updates: int = 200  # that the published weights are an average of, the last one counting most
    max_gradient_norm: float = 0.5
    network: str = ""  # a policy network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)  # of Q, too
    activation: Activation = "tanh"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        falls = 0 < self.magnet_last <= self.magnet_first
        if not falls or self.step_size <= 0 or self.random_moves >= 1 or self.minibatch_steps < 1:
            names = ("magnet_first", "magnet_last", "step_size", "random_moves", "minibatch_steps")
            wrong = ", ".join(f"{name} = {getattr(self, name):g}" for name in names)
            do = "Let the magnet fall and stay above 0, the step be above 0 and chance below 1, and count from 1"
            raise ConfigError(wrong, where="[mmd]", do=do)


class MmdLearner(TorchLearner):
    """The policy, its average, Q, an optimiser for each of the two that learn, and what shuffles minibatches."""

    def __init__(self, game: GameSpec, config: MmdConfig, seed: int) -> None:
        seat = one_seat(game, "mmd")
        network = network_for(game, seat, config, policy_heads(seat.action))
        self.policy, self.average = open_network(network, seed), open_network(network, seed)
        views = network_for(game, seat, replace(config, network=""), critic_heads(seat.action))
        self.critic = open_network(views, seed + 1)
        self.policy_optimiser = open_optimiser(self.policy.parameters(), config, epsilon=1e-5)
        self.critic_optimiser = open_optimiser(self.critic.parameters(), config, epsilon=1e-5)
        self.rng = np.random.default_rng([seed, 0x33D])
        shared = (self.policy, self.average, self.critic) if network.module is None else (self.critic,)
        self.inputs, self.rewards = InputStatistics(*shared), RewardScale(config.discount)
        super().__init__(
            config,
            network,
            self.policy,
            policy=self.policy,
            average=self.average,
            critic=self.critic,
            policy_optimiser=self.policy_optimiser,
            critic_optimiser=self.critic_optimiser,
            rng=self.rng,
            inputs=self.inputs,
            rewards=self.rewards,
        )

    @property
    def magnet(self) -> float:
        """α by now: it falls by the same share in equal times."""
        config = self.config
        gone = min(1.0, self.steps / config.magnet_steps) if config.magnet_steps else 0.0
        return float(config.magnet_first * (config.magnet_last / config.magnet_first) ** gone)

    def published(self) -> Weights:
        """What models get: the average."""
        return self.average.weights()


@dataclass(frozen=True, slots=True)
class Views:
    """The steps of a rollout without their order. The first axis of each tensor is the step."""

    seen: Seen
    legal: Tensor
    action: Tensor
    logps: Tensor  # of every action, by the policy before the update
    q: Tensor  # of every action, before the update

    @property
    def taken_q(self) -> Tensor:
        """Of the action that was taken."""
        return self.q.gather(1, self.action.unsqueeze(1)).squeeze(1)

    def minibatches(self, rng: np.random.Generator, size: int) -> Iterator[Tensor]:
        """Every step once, by chance."""
        yield from torch.split(torch.from_numpy(rng.permutation(len(self.action))), size)


def log_policy(net: Network, seen: Seen, legal: Tensor) -> Tensor:
    """log π(a|s) of every action, [n, choices]."""
    return torch.log_softmax(net(seen)["logits"].masked_fill(~legal, ILLEGAL), -1)


def views_of(learner: MmdLearner, batch: Batch) -> Views:
    """The rollout's true steps as the networks judge them before the update."""
    seen = {name: true_steps(batch, leaf) for name, leaf in batch.observation.items()}
    with torch.no_grad():
        q = learner.critic(seen)["logits"]
        legal = legal_actions(batch, q)
        return Views(seen, legal, actions(batch), log_policy(learner.policy, seen, legal), q)


def goals(learner: MmdLearner, batch: Batch, views: Views) -> Tensor:
    """What Q(s, a) of each step should have been: with V(s) = Σ_a π(a|s) Q(s, a) and δ = r + γV(s') − Q(s, a), the sum
    Q(s, a) + Σ_k (γλ)^k δ_k over the rest of the episode (Harutyunyan et al. 2016, where actions are the policy's)."""
    config = learner.config
    taken = grid(batch, views.taken_q)
    value = grid(batch, (views.logps.exp() * views.q).sum(-1))
    with torch.no_grad():
        seen = tensors(batch.next_observation)
        q = learner.critic(seen)["logits"]
        every = torch.ones_like(q, dtype=torch.bool)  # a rollout does not say what is legal behind it
        after = (log_policy(learner.policy, seen, every).exp() * q).sum(-1)
    values = next_values(value, batch.ending, after.numpy(), batch.truncation_value, batch.mask)
    advantage = gae(batch.reward, taken, values, batch.ending, config.discount, config.trace_decay)
    return true_steps(batch, taken + advantage)


def mirror_step(logps: Tensor, q: Tensor, legal: Tensor, magnet: float, step_size: float) -> Tensor:
    """π' ∝ (π e^{ηQ})^{1/(1+αη)}, [n, choices]: the uniform magnet is a constant factor, and drops out."""
    moved = (logps + step_size * q) / (1 + magnet * step_size)
    return torch.softmax(moved.masked_fill(~legal, ILLEGAL), -1)


class Mmd:
    """Fed with trajectories fresh from the actors."""

    name = "mmd"
    feeds = "trajectories"
    policy = "categorical"
    settings = MmdConfig
    train: ClassVar = {"opponents": 0, "script_share": 0.0}  # an equilibrium with others is another one

    def begin(self, game: GameSpec, config: MmdConfig, seed: int) -> MmdLearner:
        return MmdLearner(game, config, seed)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """The policy samples; a share of its moves is drawn by chance alone."""
        assert isinstance(learner, MmdLearner)
        return float(learner.config.random_moves)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """Q learns what was earned; then the policy takes one mirror step in every view of the rollout."""
        assert isinstance(learner, MmdLearner)
        config = learner.config
        average = getattr(learner.policy_optimiser, "average", None)  # of several learners, see learn/ring_allreduce.py
        learner.inputs.learn(batch.observation, batch.mask, average)
        if config.normalise_rewards:
            batch = replace(batch, reward=learner.rewards.scaled(batch, average))
        views = views_of(learner, batch)
        goal = goals(learner, batch, views)
        critic_loss = _learn_q(learner, views, goal)
        with torch.no_grad():
            q = learner.critic(views.seen)["logits"]
            target = mirror_step(views.logps, q, views.legal, learner.magnet, config.step_size * learner.magnet)
        policy_loss = _learn_policy(learner, views, target)
        learner.inputs.apply()
        learner.updates += 1
        follow_average(learner.average, learner.policy, learner.updates, config.average_updates)
        with torch.no_grad():
            new = log_policy(learner.policy, views.seen, views.legal)
            metrics = {
                "loss": critic_loss + policy_loss,
                "critic_loss": critic_loss,
                "policy_loss": policy_loss,
                "entropy": -(new.exp() * new).sum(-1).mean().item(),
                "kl": (views.logps.exp() * (views.logps - new)).sum(-1).mean().item(),
                "magnet": learner.magnet,
                "explained_variance": explained_variance(views.taken_q.numpy(), goal.numpy()),
                "learning_rate": learner.policy_optimiser.learning_rate,
            }
        return Update(learner, None, metrics)


def _learn_q(learner: MmdLearner, views: Views, goal: Tensor) -> float:
    """Minimise ½E[(Q(s, a) − goal)²]; its mean on the way."""
    losses = []
    for _ in range(learner.config.critic_epochs):
        for rows in views.minibatches(learner.rng, learner.config.minibatch_steps):
            q = value_of(learner.critic, _at(views.seen, rows), views.action[rows])
            loss = 0.5 * (q - goal[rows]).square().mean()
            learner.minimise(loss, learner.critic_optimiser)
            losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def _learn_policy(learner: MmdLearner, views: Views, target: Tensor) -> float:
    """Minimise −E[Σ_a π'(a|s) log π(a|s)]; its mean on the way."""
    losses = []
    for _ in range(learner.config.policy_epochs):
        for rows in views.minibatches(learner.rng, learner.config.minibatch_steps):
            loss = -(target[rows] * log_policy(learner.policy, _at(views.seen, rows), views.legal[rows])).sum(-1).mean()
            learner.minimise(loss, learner.policy_optimiser)
            losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def _at(seen: Seen, rows: Tensor) -> Seen:
    return {name: leaf[rows] for name, leaf in seen.items()}
