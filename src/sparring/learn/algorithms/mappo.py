"""MAPPO (Yu et al. 2022): PPO whose critic sees the joint view of all seats, in training alone.

Seats of one kind share a policy, which acts on what its seat sees. Everything but the value is PPO's. A seat that has
ended has no steps; in the joint view it is zeros, and marked as gone. Page: docs/algorithms/mappo.md
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from sparring.errors import ConfigError
from sparring.games.joint_view import joint_spec
from sparring.games.protocol import TRUNCATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for
from sparring.learn.algorithms.learner import ActorCritic, no_exploration
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.algorithms.trajectories import grid, true_steps
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor
from sparring.wire.network import Activation, Head, NetworkSpec


@dataclass(frozen=True, slots=True)
class MappoConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py). Names as in PPO mean the same."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    trace_decay: float = 0.95
    normalise_observations: bool = True
    normalise_rewards: bool = True
    reward_scale: float = 1.0
    rollout_ticks: int = 128
    minibatch_steps: int = 1024  # minibatches are large: advantages of seats of one game are alike
    epochs: int = 10
    clip: float = 0.2
    value_clip: float = 0.0
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    stop_at_kl: float = 0.03
    network: str = ""  # a network of your own for the policy, as module:name (docs/models.md)
    hidden_units: tuple[int, ...] = (64, 64)  # of the policy
    critic_units: tuple[int, ...] = (128, 128)
    activation: Activation = "tanh"
    memory: str = ""  # of the policy; the critic has none
    image_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.minibatch_steps < 1:
            raise ConfigError(f"minibatch_steps = {self.minibatch_steps}", where="[mappo]", do="Count from 1")


def critic_for(shown: GameSpec, config: MappoConfig) -> NetworkSpec:
    """A network of what the seats are shown, the joint view and what each sees itself, with a value."""
    layers = replace(config, network="", hidden_units=config.critic_units)
    return network_for(shown, shown.seats[0], layers, (Head("value", 1),))


def with_values(critic: Network, batch: Batch) -> Batch:
    """The trajectories with the critic's value of every step, and of the views at which some were cut short."""
    assert batch.final_observation is not None
    cut = batch.ending == TRUNCATED if batch.mask is None else (batch.ending == TRUNCATED) & batch.mask
    cut_value = np.zeros(batch.reward.shape, np.float32)
    with torch.no_grad():
        value = critic({name: true_steps(batch, leaf) for name, leaf in batch.observation.items()})["value"]
        if cut.any():
            seen = {name: tensor(leaf[cut]) for name, leaf in batch.final_observation.items()}
            cut_value[cut] = critic(seen)["value"].numpy()
    return replace(batch, value=grid(batch, value), truncation_value=cut_value)


class Mappo:
    """Fed with trajectories fresh from the actors, in which every seat is shown the joint view, too."""

    name = "mappo"
    feeds = "trajectories"
    policy = "categorical"  # and a Gaussian of boxes
    settings = MappoConfig
    exploration = no_exploration
    joint = True

    def begin(self, game: GameSpec, config: MappoConfig, seed: int, shown: GameSpec | None = None) -> ActorCritic:
        """`shown`: the seats with the joint view, where `game` is one kind of seats of a larger game."""
        critic = critic_for(shown or joint_spec(game), config)
        return ActorCritic(game, config, "mappo", seed, 0x3A990, critic)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """PPO's, with the critic's values in place of the actors'."""
        assert isinstance(learner, ActorCritic)
        return Ppo().update(learner, with_values(learner.net, batch))
