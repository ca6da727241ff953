"""A policy and a value in one network, moved by one optimiser: the learner of PPO, IMPALA and A3C."""

from typing import Any

import numpy as np

from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import ANY_ACTION, network_for, one_seat
from sparring.learn.algorithms.learner import TorchLearner
from sparring.learn.optim import Adam
from sparring.nets.distributions import distribution
from sparring.nets.torch_network import Network, default_heads


class ActorCritic(TorchLearner):
    """Network, optimiser, and the random generator that shuffles minibatches. `salt` makes its numbers differ from
    those of other uses of the seed."""

    def __init__(self, game: GameSpec, config: Any, algorithm: str, seed: int, salt: int) -> None:
        seat = one_seat(game, algorithm, ANY_ACTION)
        heads, separate = default_heads(seat.action), config.separate_value
        network = network_for(game, seat, config, heads, separate_value=separate, memory=config.memory)
        self.chosen = distribution(seat.action)
        self.net = Network(network, seed)
        self.optimiser = self._optimiser(config)
        self.rng = np.random.default_rng([seed, salt])
        super().__init__(config, network, self.net, net=self.net, optimiser=self.optimiser, rng=self.rng)

    def _optimiser(self, config: Any) -> Any:
        return Adam(self.net.parameters(), config.learning_rate, epsilon=1e-5)
