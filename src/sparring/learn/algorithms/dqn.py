"""DQN (Mnih et al. 2015) with double targets (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step
returns (Hessel et al. 2018) and, where asked for, quantiles of returns (Dabney et al. 2018).
Page: docs/algorithms/dqn.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.quantiles import folded, quantiles_of, spread
from sparring.learn.algorithms.returns import annealed, huber, quantile_huber
from sparring.learn.optim.adam import Adam
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation, Head, Weights
from sparring.wire.tree import pack, unpack

ILLEGAL = -1e9


@dataclass(frozen=True, slots=True)
class DqnConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 5e-4
    anneal_updates: int = 0  # over which the rate falls in a straight line to a tenth; 0 keeps it
    discount: float = 0.99
    n_steps: int = 3  # decisions that one target looks ahead
    batch_steps: int = 128
    target_every_updates: int = 200  # the target network is a copy this old at most
    double: bool = True  # the online network chooses the next action, the target network values it
    dueling: bool = True
    quantiles: int = 0  # of each action's return, learned in place of its mean; 0: the mean alone
    huber_threshold: float = 1.0  # of a TD error, in units of reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_steps: int = 10_000  # over which ε falls from the first to the last
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if min(self.n_steps, self.batch_steps, self.target_every_updates) < 1 or not 0 <= self.discount <= 1:
            raise ConfigError(
                f"n_steps = {self.n_steps}, batch_steps = {self.batch_steps}, "
                f"target_every_updates = {self.target_every_updates}, discount = {self.discount}",
                where="[dqn]",
                do="Count from 1, and discount between 0 and 1",
            )
        if self.quantiles < 0 or self.huber_threshold <= 0:
            raise ConfigError(
                f"quantiles = {self.quantiles}, huber_threshold = {self.huber_threshold}",
                where="[dqn]",
                do="Learn at least one quantile, or 0 for none, and let huber_threshold be positive",
            )


class DqnLearner:
    """Online network, target network, optimiser."""

    def __init__(self, game: GameSpec, config: DqnConfig, seed: int) -> None:
        seat = one_seat(game, "dqn")
        self.config = config
        self.network = network_for(game, seat, config, (Head("logits", seat.action.masks, dueling=config.dueling),))
        learning = spread(self.network, config.quantiles) if config.quantiles else self.network
        self.online, self.target = Network(learning, seed), Network(learning, seed)
        self.optimiser = Adam(self.online.parameters(), config.learning_rate)
        self.updates = 0

    def weights(self) -> Weights:
        weights = self.online.weights()
        return folded(weights, self.config.quantiles) if self.config.quantiles else weights

    def save(self) -> bytes:
        return pack(
            {
                "online": save_module(self.online),
                "target": save_module(self.target),
                "optimiser": self.optimiser.save(),
                "updates": self.updates,
            }
        )

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        load_module(self.online, tree["online"])
        load_module(self.target, tree["target"])
        self.optimiser.load(tree["optimiser"])
        self.updates = tree["updates"]


def returns(network: Network, seen: dict[str, Tensor], config: DqnConfig) -> Tensor:
    """What is thought to come of each action: [n, actions, quantiles], or its mean alone as [n, actions, 1]."""
    out = network(seen)
    return quantiles_of(out, config.quantiles) if config.quantiles else out["logits"].unsqueeze(2)


def outcomes(online: Network, target: Network, batch: Batch, config: DqnConfig) -> tuple[Tensor, Tensor]:
    """Z(s, a) and its goal R + γᵐ Z⁻(s', argmax_a' E Z(s', a')), both [n, quantiles]; legal a' only.

    m = batch.n_steps decisions. After a true end only R counts; a cut episode goes on with where it was cut.
    """
    with torch.no_grad():
        seen = tensors(batch.next_observation)
        following = returns(target, seen, config)
        choosing = (returns(online, seen, config) if config.double else following).mean(2)
        if batch.next_legal is not None:
            choosing = choosing.masked_fill(~tensor(batch.next_legal).bool(), ILLEGAL)
        goes_on = tensor(batch.ending) != TERMINATED
        spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
        fade = config.discount**spans * goes_on
        goal = tensor(batch.reward).unsqueeze(1) + fade.unsqueeze(1) * _of(following, choosing.argmax(1))
    return _of(returns(online, tensors(batch.observation), config), tensor(batch.action).long()), goal


def _of(found: Tensor, action: Tensor) -> Tensor:
    """[n, quantiles] of one action in each row."""
    return found[torch.arange(len(action)), action]


def td_errors(online: Network, target: Network, batch: Batch, config: DqnConfig) -> Tensor:
    """δ = E goal − Q(s, a), [n]."""
    chosen, goal = outcomes(online, target, batch, config)
    return (goal - chosen).mean(1)


def loss_of(chosen: Tensor, goal: Tensor, config: DqnConfig) -> Tensor:
    """Of each row: by quantiles, or the Huber loss of its TD error."""
    if config.quantiles:
        return quantile_huber(chosen, goal, config.huber_threshold)
    return huber(goal - chosen, config.huber_threshold).squeeze(1)


class Dqn:
    """Fed with transitions from a replay table."""

    name = "dqn"
    feeds = "transitions"
    policy = "greedy"
    settings = DqnConfig

    def begin(self, game: GameSpec, config: DqnConfig, seed: int) -> DqnLearner:
        return DqnLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of Adam on what `loss_of` says; the sizes of the TD errors are the priorities."""
        assert isinstance(learner, DqnLearner)
        config = learner.config
        chosen, goal = outcomes(learner.online, learner.target, batch, config)
        losses = loss_of(chosen, goal, config)
        learner.optimiser.learning_rate = annealed(config.learning_rate, learner.updates, config.anneal_updates)
        loss = losses.mean() if batch.weight is None else (tensor(batch.weight) * losses).mean()
        norm = learner.optimiser.descend(loss, config.max_gradient_norm)
        learner.updates += 1
        if learner.updates % config.target_every_updates == 0:
            learner.target.load_state_dict(learner.online.state_dict())
        size = (goal - chosen.detach()).mean(1).abs()
        metrics = {"loss": loss.item(), "td_error": size.mean().item(), "gradient_norm": norm.item()}
        return Update(learner, size.numpy(), metrics)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """ε falls in a straight line, then stays."""
        assert isinstance(learner, DqnLearner)
        config = learner.config
        gone = min(1.0, env_steps / max(1, config.epsilon_steps))
        return config.epsilon_first + gone * (config.epsilon_last - config.epsilon_first)
