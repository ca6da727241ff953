"""A3C (Mnih et al. 2016): workers that play a little, take one gradient of what they played, and change parameters
that all of them share, without a lock. Page: docs/algorithms/a3c.md

The workers are the topology's (learn/topologies/hogwild.py); one worker alone, as in `single`, is A2C.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.games.spec import GameSpec
from sparring.learn.algorithms.learner import ActorCritic, no_exploration
from sparring.learn.algorithms.returns import discounted_returns, explained_variance, next_values, normalised
from sparring.learn.algorithms.trajectories import actions, bootstrap, grid, outputs, true_steps
from sparring.learn.optim import Optimiser, OptimiserSettings, Rmsprop
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Distribution
from sparring.nets.torch_network import Network
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class A3cConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    reward_scale: float = 1.0  # rewards times this are learned: values of the order of one are learned soonest
    rollout_ticks: int = 16  # of every game of a worker between two of its gradients; the paper's t_max
    normalise: bool = False  # advantages, in each gradient
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    optimiser: str = "rmsprop"  # whose statistics workers share; its options are `alpha` (0.99) and `eps` (1e-5)
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    memory: str = ""  # "gru:128" or "lstm:128" behind the hidden units; "": none
    separate_value: bool = True  # the value has a trunk of its own
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size


class A3cLearner(ActorCritic):
    """An actor-critic whose network is a local copy of parameters that several workers may share."""

    def _optimiser(self, config: A3cConfig) -> Optimiser | Rmsprop:
        options = config.optimiser_options
        if config.optimiser != "rmsprop" or not options.keys() <= {"alpha", "eps"}:
            return super()._optimiser(config)
        return Rmsprop(
            self.net.parameters(), config.learning_rate, options.get("alpha", 0.99), options.get("eps", 1e-5)
        )


def loss(net: Network, batch: Batch, chosen: Distribution, config: A3cConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """−E[(G − V) log π(a|s)] + c_v ½E[(G − V)²] − c_e E[H(π)]; G is the return up to the sequence's end, then V."""
    out = outputs(net, batch)
    legal = None if batch.legal is None else true_steps(batch, batch.legal)
    logp, entropies = chosen.evaluate(out, actions(batch), legal)
    value = grid(batch, out["value"])
    following = next_values(value, batch.ending, bootstrap(net, batch), batch.truncation_value, batch.mask)
    reward = batch.reward * np.float32(config.reward_scale)
    goal = true_steps(batch, discounted_returns(reward, following, batch.ending, config.discount, batch.mask))
    surprise = goal - out["value"]
    advantage = normalised(surprise.detach()) if config.normalise else surprise.detach()
    policy_loss = -(advantage * logp).mean()
    value_loss, entropy = 0.5 * surprise.square().mean(), entropies.mean()
    total = policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy
    metrics = {
        "loss": total.detach(),
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "explained_variance": torch.tensor(explained_variance(out["value"].detach().numpy(), goal.numpy())),
    }
    return total, metrics


class A3c:
    """Fed with trajectories that the same worker has just played."""

    name = "a3c"
    feeds = "trajectories"
    policy = "categorical"  # and a Gaussian of boxes
    settings = A3cConfig
    exploration = no_exploration

    def begin(self, game: GameSpec, config: A3cConfig, seed: int) -> A3cLearner:
        return A3cLearner(game, config, "a3c", seed, 0xA3C)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One gradient, at the copy that played; one step of what is shared; and the copy follows."""
        assert isinstance(learner, A3cLearner)
        config = learner.config
        total, metrics = loss(learner.net, batch, learner.chosen, config)
        metrics["gradient_norm"] = learner.minimise(total)
        if isinstance(learner.optimiser, Rmsprop):
            learner.optimiser.pull()
        learner.updates += 1
        numbers = {name: value.item() for name, value in metrics.items()}
        return Update(learner, None, numbers | {"learning_rate": learner.optimiser.learning_rate})
