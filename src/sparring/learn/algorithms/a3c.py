"""A3C (Mnih et al. 2016): workers that play a little, take one gradient of what they played, and change parameters
that all of them share, without a lock. Page: docs/algorithms/a3c.md

The workers are the topology's (learn/topologies/hogwild.py); one worker alone, as in `single`, is A2C.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.actor_critic import ActorCritic
from sparring.learn.algorithms.returns import annealed, discounted_returns, explained_variance, next_values, normalised
from sparring.learn.algorithms.trajectories import actions, bootstrap, grid, outputs, true_steps
from sparring.learn.optim import Rmsprop
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Distribution
from sparring.nets.torch_network import Network
from sparring.wire.chunk import Array
from sparring.wire.network import Activation


@dataclass(frozen=True, slots=True)
class A3cConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 1e-3
    anneal_steps: int = 0  # over which the rate falls in a straight line to a tenth; 0 keeps it
    discount: float = 0.99
    reward_scale: float = 1.0  # rewards times this are learned: values of the order of one are learned soonest
    rollout_ticks: int = 16  # of every game of a worker between two of its gradients; the paper's t_max
    normalise: bool = False  # advantages, in each gradient
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    square_decay: float = 0.99  # α of RMSProp
    square_epsilon: float = 1e-5  # ε of RMSProp
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    memory: str = ""  # "gru:128" or "lstm:128" behind the hidden units; "": none
    separate_value: bool = True  # the value has a trunk of its own
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if not 0 <= self.square_decay < 1:
            raise ConfigError(f"square_decay = {self.square_decay}", where="[a3c]", do="Keep it at 0 or more, below 1")


class A3cLearner(ActorCritic):
    """An actor-critic whose network is a local copy of parameters that several workers may share."""

    def _optimiser(self, config: A3cConfig) -> Rmsprop:
        return Rmsprop(self.net.parameters(), config.learning_rate, config.square_decay, config.square_epsilon)

    @property
    def numbers(self) -> Array:
        """Parameters and squares, for a topology that lets several learners share them."""
        numbers: Array = self.optimiser.numbers
        return numbers

    def share(self, numbers: Array) -> None:
        """From now on these are the parameters and squares."""
        self.optimiser.share(numbers)

    def pull(self) -> None:
        """Take what the others have learned, before playing on."""
        self.optimiser.pull()


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

    def begin(self, game: GameSpec, config: A3cConfig, seed: int) -> A3cLearner:
        return A3cLearner(game, config, "a3c", seed, 0xA3C)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One gradient, at the copy that played; one step of what is shared; and the copy follows."""
        assert isinstance(learner, A3cLearner)
        config = learner.config
        learner.optimiser.learning_rate = annealed(config.learning_rate, learner.steps, config.anneal_steps)
        total, metrics = loss(learner.net, batch, learner.chosen, config)
        metrics["gradient_norm"] = learner.optimiser.descend(total, config.max_gradient_norm)
        learner.pull()
        learner.updates += 1
        learner.steps += batch.reward.size if batch.mask is None else int(batch.mask.sum())
        numbers = {name: value.item() for name, value in metrics.items()}
        return Update(learner, None, numbers | {"learning_rate": learner.optimiser.learning_rate})

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """The policy samples, and needs no other chance."""
        return 0.0
