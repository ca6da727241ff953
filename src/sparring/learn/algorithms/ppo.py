"""PPO (Schulman et al. 2017) with generalised advantages, on trajectories of however many seats there are.

With records of the store beside a rollout (--from mix), self-imitation (Oh et al. 2018) is added: what
people did is made likelier where it turned out better than expected. Page: docs/algorithms/ppo.md
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.adam import Adam
from sparring.learn.feeding import network_for, one_seat
from sparring.learn.networks import Network, default_heads
from sparring.learn.operators import explained_variance, gae, next_values, normalised
from sparring.learn.protocol import Batch, Learner, Update, Weights
from sparring.learn.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation
from sparring.wire.tree import pack, rng_state, set_rng_state, unpack

ILLEGAL = -1e9


@dataclass(frozen=True, slots=True)
class PpoConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 1e-3
    anneal_steps: int = 0  # over which the rate falls in a straight line to a tenth; 0 keeps it
    discount: float = 0.99
    trace_decay: float = 0.95  # λ of generalised advantages
    rollout_ticks: int = 128  # of every game between two updates
    minibatch_steps: int = 512
    epochs: int = 4  # times that each rollout is learned from
    clip: float = 0.2  # how far the ratio of new to old probability counts
    value_clip: float = 0.0  # how far a value may move from its old one within an update; 0: as far as it likes
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    stop_at_kl: float = 0.0  # an update ends early above this divergence from the old policy; 0: never
    records_coefficient: float = 0.1  # weight of self-imitation, with --from mix
    records_steps: int = 512  # of the store beside each rollout
    records_n_steps: int = 64  # decisions over which what people did is judged
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    separate_value: bool = True  # the value has a trunk of its own
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if min(self.rollout_ticks, self.minibatch_steps, self.epochs) < 1 or not 0 <= self.discount <= 1:
            raise ConfigError(
                f"rollout_ticks = {self.rollout_ticks}, minibatch_steps = {self.minibatch_steps}, "
                f"epochs = {self.epochs}, discount = {self.discount}",
                where="[ppo]",
                do="Count from 1, and discount between 0 and 1",
            )


class PpoLearner:
    """Network, optimiser, and the chance that shuffles minibatches."""

    def __init__(self, game: GameSpec, config: PpoConfig, seed: int) -> None:
        self.config = config
        seat = one_seat(game, "ppo")
        heads = default_heads(seat.action)
        self.network = network_for(game, seat, config, heads, separate_value=config.separate_value)
        self.net = Network(self.network, seed)
        self.optimiser = Adam(self.net.parameters(), config.learning_rate, epsilon=1e-5)
        self.rng = np.random.default_rng([seed, 0x990])
        self.updates = 0
        self.steps = 0  # learned from so far; what annealing goes by

    def weights(self) -> Weights:
        return self.net.weights()

    def save(self) -> bytes:
        return pack(
            {
                "net": save_module(self.net),
                "optimiser": self.optimiser.save(),
                "rng": rng_state(self.rng),
                "updates": self.updates,
                "steps": self.steps,
            }
        )

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        load_module(self.net, tree["net"])
        self.optimiser.load(tree["optimiser"])
        set_rng_state(self.rng, tree["rng"])
        self.updates, self.steps = tree["updates"], tree["steps"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Steps without their order: what minibatches are cut from. The first axis of each tensor is the step."""

    observation: dict[str, Tensor]
    action: Tensor
    legal: Tensor | None
    logp: Tensor  # of the policy that acted
    advantage: Tensor
    value: Tensor  # as it was when the step was played
    goal: Tensor  # advantage + value: what the value should have been

    def __getitem__(self, rows: Tensor) -> "Samples":
        return Samples(
            {name: leaf[rows] for name, leaf in self.observation.items()},
            self.action[rows],
            None if self.legal is None else self.legal[rows],
            self.logp[rows],
            self.advantage[rows],
            self.value[rows],
            self.goal[rows],
        )


def judged(net: Network, batch: Batch, config: PpoConfig) -> Samples:
    """The trajectories' steps with their advantages, padding left out."""
    with torch.no_grad():
        bootstrap = net(tensors(batch.next_observation))["value"].numpy()
    assert batch.value is not None
    assert batch.behaviour_logp is not None
    following = next_values(batch.value, batch.ending, bootstrap, batch.truncation_value, batch.mask)
    advantage = gae(batch.reward, batch.value, following, batch.ending, config.discount, config.trace_decay)
    keep = np.ones(batch.reward.shape, bool) if batch.mask is None else batch.mask
    return Samples(
        {name: tensor(leaf[keep]) for name, leaf in batch.observation.items()},
        tensor(batch.action[keep]).long(),
        None if batch.legal is None else tensor(batch.legal[keep]).bool(),
        tensor(batch.behaviour_logp[keep]),
        tensor(advantage[keep]),
        tensor(batch.value[keep]),
        tensor((advantage + batch.value)[keep]),
    )


def log_policy(logits: Tensor, legal: Tensor | None) -> Tensor:
    """log π(a|s) for every a; impossible where a is not legal."""
    return torch.log_softmax(logits if legal is None else logits.masked_fill(~legal, ILLEGAL), 1)


def loss(net: Network, batch: Samples, config: PpoConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """−E[min(ρA, clip(ρ, 1±ε)A)] + c_v ½E[(V − goal)²] − c_e E[H(π)], where ρ = π(a|s) / π_old(a|s)."""
    out = net(batch.observation)
    logp_all = log_policy(out["logits"], batch.legal)
    log_ratio = logp_all.gather(1, batch.action.unsqueeze(1)).squeeze(1) - batch.logp
    ratio, advantage = log_ratio.exp(), normalised(batch.advantage)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_error = (out["value"] - batch.goal).square()
    if config.value_clip > 0:
        near = batch.value + (out["value"] - batch.value).clamp(-config.value_clip, config.value_clip)
        value_error = torch.max(value_error, (near - batch.goal).square())
    value_loss = 0.5 * value_error.mean()
    entropy = -(logp_all.exp() * logp_all).sum(1).mean()
    total = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
    with torch.no_grad():
        metrics = {
            "loss": total.detach(),
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "kl": (ratio - 1 - log_ratio).mean(),  # Schulman's estimate of KL(old ‖ new): never negative
            "clipped_share": ((ratio - 1).abs() > config.clip).float().mean(),
        }
    return total, metrics


def imitation(net: Network, records: Batch, config: PpoConfig) -> Tensor:
    """−E[max(G − V(s), 0) log π(a|s)]: people's actions, by how much better than expected they turned out."""
    out: dict[str, Tensor] = net(tensors(records.observation))
    assert records.n_steps is not None
    with torch.no_grad():
        after = net(tensors(records.next_observation))["value"] * (tensor(records.ending) != TERMINATED)
        earned = tensor(records.reward) + config.discount ** tensor(records.n_steps) * after
        better = (earned - out["value"]).clamp(min=0)
        better = better / (better.mean() + 1e-8)  # whatever the scale of rewards, the weights have mean 1
    legal = None if records.legal is None else tensor(records.legal).bool()
    action = tensor(records.action).long().unsqueeze(1)
    logp = log_policy(out["logits"], legal).gather(1, action).squeeze(1)
    mean: Tensor = -(better * logp).mean()
    return mean


class Ppo:
    """Fed with trajectories fresh from the actors."""

    name = "ppo"
    feeds = "trajectories"
    policy = "categorical"
    settings = PpoConfig

    def begin(self, game: GameSpec, config: PpoConfig, seed: int) -> PpoLearner:
        return PpoLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """Several epochs of minibatches over one rollout."""
        assert isinstance(learner, PpoLearner)
        config, samples = learner.config, judged(learner.net, batch, learner.config)
        count = len(samples.action)
        left = 1 - learner.steps / config.anneal_steps if config.anneal_steps else 1.0
        learner.optimiser.learning_rate = config.learning_rate * max(left, 0.1)
        history: list[dict[str, Tensor]] = []
        for _ in range(config.epochs):
            order = torch.from_numpy(learner.rng.permutation(count))
            for rows in torch.split(order, config.minibatch_steps):
                history.append(_descend(learner, samples[rows], batch.records))
            if 0 < config.stop_at_kl < history[-1]["kl"].item():
                break
        learner.updates += 1
        learner.steps += count
        metrics = {name: torch.stack([one[name] for one in history]).mean().item() for name in history[0]}
        metrics["explained_variance"] = explained_variance(samples.value.numpy(), samples.goal.numpy())
        metrics["learning_rate"] = learner.optimiser.learning_rate
        return Update(learner, None, metrics)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """The policy samples, and needs no other chance."""
        return 0.0


def _descend(learner: PpoLearner, batch: Samples, records: Batch | None) -> dict[str, Tensor]:
    """One step of Adam."""
    total, metrics = loss(learner.net, batch, learner.config)
    if records is not None:
        imitated = imitation(learner.net, records, learner.config)
        total = total + learner.config.records_coefficient * imitated
        metrics["imitation_loss"] = imitated.detach()
    metrics["gradient_norm"] = learner.optimiser.descend(total, learner.config.max_gradient_norm)
    return metrics
