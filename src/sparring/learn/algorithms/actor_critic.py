"""What a policy with a value learns with, where one optimiser moves both: the learner of PPO and of IMPALA."""

from typing import Any, Protocol

import numpy as np

from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import ANY_ACTION, NetworkSettings, network_for, one_seat
from sparring.learn.optim.adam import Adam
from sparring.nets.distributions import distribution
from sparring.nets.torch_network import Network, default_heads
from sparring.nets.torch_state import load_module, save_module
from sparring.wire.network import Weights
from sparring.wire.tree import pack, rng_state, set_rng_state, unpack


class Settings(NetworkSettings, Protocol):
    """What both algorithms' settings say of it."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def separate_value(self) -> bool: ...
    @property
    def memory(self) -> str: ...


class ActorCritic:
    """Network, optimiser, and the chance that shuffles minibatches. `salt` keeps it from other uses of the seed."""

    def __init__(self, game: GameSpec, config: Settings, algorithm: str, seed: int, salt: int) -> None:
        self.config: Any = config  # the algorithm's own
        seat = one_seat(game, algorithm, ANY_ACTION)
        heads = default_heads(seat.action)
        self.network = network_for(
            game, seat, config, heads, separate_value=config.separate_value, memory=config.memory
        )
        self.chosen = distribution(seat.action)
        self.net = Network(self.network, seed)
        self.optimiser = Adam(self.net.parameters(), config.learning_rate, epsilon=1e-5)
        self.rng = np.random.default_rng([seed, salt])
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
