"""PPO (Schulman et al. 2017) with generalised advantages, on trajectories of however many seats there are.

With records of the store beside a rollout (--from mix), self-imitation (Oh et al. 2018) is added: what
people did is made likelier where it turned out better than expected. Page: docs/algorithms/ppo.md
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.learner import ActorCritic, no_exploration
from sparring.learn.algorithms.returns import explained_variance, gae, next_values, normalised
from sparring.learn.algorithms.trajectories import actions, bootstrap, grid, of_streams, outputs, parts, true_steps
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Distribution, Outputs
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class PpoConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    trace_decay: float = 0.95  # λ of generalised advantages
    normalise_observations: bool = True  # floats, by the running mean and deviation of each entry
    normalise_rewards: bool = True  # by the running deviation of discounted returns
    reward_scale: float = 1.0  # rewards times this are learned: values of the order of one are learned soonest
    rollout_ticks: int = 128  # of every game between two updates
    minibatch_steps: int = 256
    epochs: int = 10  # times that each rollout is learned from
    clip: float = 0.2  # how far the ratio of new to old probability counts
    value_clip: float = 0.0  # how far a value may move from its old one within an update; 0: as far as it likes
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    stop_at_kl: float = 0.03  # an update ends with the epoch above this divergence from the old policy; 0: never
    records_coefficient: float = 0.1  # weight of self-imitation, with --from mix
    records_steps: int = 512  # of the store beside each rollout
    records_n_steps: int = 64  # decisions over which what people did is judged
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    memory: str = ""  # "gru:128" or "lstm:128" behind the hidden units; "": none
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
        """What a loss needs of those rows: what was seen is the network's to pick."""
        return Samples(
            {},
            self.action[rows],
            None if self.legal is None else self.legal[rows],
            self.logp[rows],
            self.advantage[rows],
            self.value[rows],
            self.goal[rows],
        )


def judged(net: Network, batch: Batch, config: PpoConfig) -> Samples:
    """The trajectories' steps with their advantages, padding left out."""
    assert batch.value is not None
    assert batch.behaviour_logp is not None
    following = next_values(batch.value, batch.ending, bootstrap(net, batch), batch.truncation_value, batch.mask)
    reward = batch.reward * np.float32(config.reward_scale)
    advantage = gae(reward, batch.value, following, batch.ending, config.discount, config.trace_decay)
    return Samples(
        net.arranged({name: true_steps(batch, leaf) for name, leaf in batch.observation.items()}),
        actions(batch),
        None if batch.legal is None else true_steps(batch, batch.legal),
        true_steps(batch, batch.behaviour_logp),
        true_steps(batch, advantage),
        true_steps(batch, batch.value),
        true_steps(batch, advantage + batch.value),
    )


def loss(out: Outputs, batch: Samples, chosen: Distribution, config: PpoConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """−E[min(ρA, clip(ρ, 1±ε)A)] + c_v ½E[(V − goal)²] − c_e E[H(π)], where ρ = π(a|s) / π_old(a|s)."""
    logp, entropies = chosen.evaluate(out, batch.action, batch.legal)
    log_ratio = logp - batch.logp
    ratio, advantage = log_ratio.exp(), normalised(batch.advantage)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_error = (out["value"] - batch.goal).square()
    if config.value_clip > 0:
        near = batch.value + (out["value"] - batch.value).clamp(-config.value_clip, config.value_clip)
        value_error = torch.max(value_error, (near - batch.goal).square())
    value_loss, entropy = 0.5 * value_error.mean(), entropies.mean()
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


def imitation(net: Network, records: Batch, chosen: Distribution, config: PpoConfig, scale: float = 1.0) -> Tensor:
    """−E[max(G − V(s), 0) log π(a|s)]: people's actions, by how much better than expected they turned out. `scale`
    normalises rewards."""
    out: Outputs = net(tensors(records.observation))
    assert records.n_steps is not None
    with torch.no_grad():
        after = net(tensors(records.next_observation))["value"] * (tensor(records.ending) != TERMINATED)
        reward = tensor(records.reward) * (config.reward_scale * scale)
        earned = reward + config.discount ** tensor(records.n_steps) * after
        better = (earned - out["value"]).clamp(min=0)
        better = better / (better.mean() + 1e-8)  # whatever the scale of rewards, the weights have mean 1
    legal = None if records.legal is None else tensor(records.legal).bool()
    mean: Tensor = -(better * chosen.logp(out, tensor(records.action), legal)).mean()
    return mean


def minibatches(learner: ActorCritic, batch: Batch, samples: Samples) -> Iterator[tuple[Outputs, Samples]]:
    """Every step once, by chance, with the outputs of the network as it is by then.

    Without a memory in any order; with one by whole streams, which are gone through from their first step.
    """
    net, size = learner.net, learner.config.minibatch_steps
    if learner.network.memory is None:
        for rows in torch.split(torch.from_numpy(learner.rng.permutation(len(samples.action))), size):
            yield net.at(samples.observation, rows), samples[rows]
        return
    place = grid(batch, torch.arange(len(samples.action)))
    for streams in parts(batch, learner.rng, size):
        some = of_streams(batch, streams)
        yield outputs(net, some), samples[true_steps(some, place[:, streams])]


class Ppo:
    """Fed with trajectories fresh from the actors."""

    name = "ppo"
    feeds = "trajectories"
    policy = "categorical"  # and a Gaussian of boxes
    settings = PpoConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: PpoConfig, seed: int) -> ActorCritic:
        return ActorCritic(game, config, "ppo", seed, 0x990)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """Several epochs of minibatches over one rollout."""
        assert isinstance(learner, ActorCritic)
        config, batch = learner.config, learner.scaled(batch)
        samples = judged(learner.net, batch, config)
        history: list[dict[str, Tensor]] = []
        for _ in range(config.epochs):
            epoch = [_descend(learner, out, part, batch.records) for out, part in minibatches(learner, batch, samples)]
            history += epoch
            if 0 < config.stop_at_kl < torch.stack([one["kl"] for one in epoch]).mean().item():
                break
        learner.inputs.apply()
        learner.updates += 1
        metrics = {name: torch.stack([one[name] for one in history]).mean().item() for name in history[0]}
        metrics["explained_variance"] = explained_variance(samples.value.numpy(), samples.goal.numpy())
        metrics["learning_rate"] = learner.optimiser.learning_rate
        return Update(learner, None, metrics)


def _descend(learner: ActorCritic, out: Outputs, batch: Samples, records: Batch | None) -> dict[str, Tensor]:
    """One step of the optimiser."""
    total, metrics = loss(out, batch, learner.chosen, learner.config)
    if records is not None:
        scale = learner.rewards.factor if learner.config.normalise_rewards else 1.0
        imitated = imitation(learner.net, records, learner.chosen, learner.config, scale)
        total = total + learner.config.records_coefficient * imitated
        metrics["imitation_loss"] = imitated.detach()
    metrics["gradient_norm"] = learner.minimise(total)
    return metrics
