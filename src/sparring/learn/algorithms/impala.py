"""IMPALA (Espeholt et al. 2018): an actor-critic whose actors may lag behind, corrected by V-trace.

With `clip` its policy loss is PPO's on V-trace's advantages, so that a batch can be learned from several times: APPO
(Petrenko et al. 2020). Page: docs/algorithms/impala.md
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.learner import ActorCritic, no_exploration
from sparring.learn.algorithms.returns import Truncation, explained_variance, next_values, normalised, vtrace
from sparring.learn.algorithms.trajectories import actions, bootstrap, grid, of_streams, outputs, parts, true_steps
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Distribution
from sparring.nets.torch_network import Network
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class ImpalaConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    normalise_observations: bool = True  # floats, by the running mean and deviation of each entry
    normalise_rewards: bool = True  # by the running deviation of discounted returns
    reward_scale: float = 1.0  # rewards times this are learned: values of the order of one are learned soonest
    rollout_ticks: int = 32  # of every game between two updates
    correction_clip: float = 1.0  # ρ̄ of V-trace
    trace_clip: float = 1.0  # c̄ of V-trace
    trace_decay: float = 1.0  # λ of V-trace
    epochs: int = 1  # times that each batch is learned from
    minibatch_steps: int = 0  # about so many, in whole streams; 0: the batch at once
    clip: float = 0.0  # how far the ratio of new to old probability counts (APPO); 0: the policy gradient as it is
    normalise: bool = True  # advantages, in each minibatch
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    memory: str = ""  # "gru:128" or "lstm:128" behind the hidden units; "": none
    separate_value: bool = True  # the value has a trunk of its own
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.correction_clip <= 0 or self.trace_clip < 0 or self.clip < 0:
            raise ConfigError(
                f"epochs = {self.epochs}, correction_clip = {self.correction_clip}, "
                f"trace_clip = {self.trace_clip}, clip = {self.clip}",
                where="[impala]",
                do="Count epochs from 1, let correction_clip be positive, and the others not negative",
            )


def corrected(
    net: Network, batch: Batch, value: Tensor, log_ratio: Tensor, config: ImpalaConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """V-trace's v, A (with ρ in it) and ρ (cut) of each step, by the values and the policy as they are now; a cut
    episode goes on with the value that its actor gave it."""
    values, ratio = grid(batch, value), np.exp(grid(batch, log_ratio))
    following = next_values(values, batch.ending, bootstrap(net, batch), batch.truncation_value, batch.mask)
    cut = Truncation(config.correction_clip, config.trace_clip, config.trace_decay)
    reward = batch.reward * np.float32(config.reward_scale)
    goal, advantage = vtrace(reward, values, following, batch.ending, ratio, config.discount, cut)
    correction = np.minimum(ratio, np.float32(cut.correction))
    return true_steps(batch, goal), true_steps(batch, advantage), true_steps(batch, correction)


def loss(net: Network, batch: Batch, chosen: Distribution, config: ImpalaConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """−E[A log π(a|s)] + c_v ½E[(v − V)²] − c_e E[H(π)], with v and A of V-trace.

    With `clip` the first is −E[min(rB, clip(r, 1±ε)B)], where r = π(a|s) / μ(a|s) and B is A without its ρ.
    """
    assert batch.behaviour_logp is not None
    out = outputs(net, batch)
    legal = None if batch.legal is None else true_steps(batch, batch.legal)
    logp, entropies = chosen.evaluate(out, actions(batch), legal)
    log_ratio = logp - true_steps(batch, batch.behaviour_logp)
    goal, advantage, correction = corrected(net, batch, out["value"], log_ratio, config)
    if config.clip > 0:
        advantage = advantage / correction.clamp(min=1e-8)
    if config.normalise:
        advantage = normalised(advantage)
    if config.clip > 0:
        ratio = log_ratio.exp()
        near = ratio.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.min(ratio * advantage, near * advantage).mean()
    else:
        policy_loss = -(advantage * logp).mean()
    value_loss = 0.5 * (goal - out["value"]).square().mean()
    entropy = entropies.mean()
    total = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
    with torch.no_grad():
        metrics = {
            "loss": total.detach(),
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "kl": (log_ratio.exp() - 1 - log_ratio).mean(),  # of the policy that acted to this one
            "correction": correction.mean(),
            "explained_variance": torch.tensor(explained_variance(out["value"].detach().numpy(), goal.numpy())),
        }
    return total, metrics


class Impala:
    """Fed with trajectories of actors that may have played with older weights."""

    name = "impala"
    feeds = "trajectories"
    policy = "categorical"  # and a Gaussian of boxes
    settings = ImpalaConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: ImpalaConfig, seed: int) -> ActorCritic:
        return ActorCritic(game, config, "impala", seed, 0x193)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser, or one for each minibatch of each epoch."""
        assert isinstance(learner, ActorCritic)
        config, batch = learner.config, learner.scaled(batch)
        history: list[dict[str, Tensor]] = []
        for _ in range(config.epochs):
            for part in _parts(learner, batch):
                total, metrics = loss(learner.net, part, learner.chosen, config)
                metrics["gradient_norm"] = learner.minimise(total)
                history.append(metrics)
        learner.inputs.apply()
        learner.updates += 1
        means = {name: torch.stack([one[name] for one in history]).mean().item() for name in history[0]}
        return Update(learner, None, means | {"learning_rate": learner.optimiser.learning_rate})


def _parts(learner: ActorCritic, batch: Batch) -> list[Batch]:
    """The batch whole, or by groups of its streams."""
    if not learner.config.minibatch_steps:
        return [batch]
    return [of_streams(batch, streams) for streams in parts(batch, learner.rng, learner.config.minibatch_steps)]
