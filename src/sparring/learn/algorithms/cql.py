"""CQL(H) for discrete actions (Kumar et al. 2020) on double, dueling DQN: values of actions that nobody took are
pushed down, so that the policy stays where the records can vouch for it. Page: docs/algorithms/cql.md
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.adam import Adam
from sparring.learn.feeding import network_for, one_seat
from sparring.learn.networks import Network
from sparring.learn.operators import huber
from sparring.learn.protocol import Batch, Learner, Update, Weights
from sparring.learn.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation, Head
from sparring.wire.tree import pack, unpack

ILLEGAL = -1e9


@dataclass(frozen=True, slots=True)
class CqlConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 5e-4
    anneal_updates: int = 0  # over which the rate falls in a straight line to a tenth; 0 keeps it
    discount: float = 0.99
    n_steps: int = 1  # decisions that one target looks ahead; the players' own, uncorrected, beyond the first
    batch_steps: int = 256
    target_every_updates: int = 200  # the target network is a copy this old at most
    conservatism: float = 1.0  # α: weight of the penalty beside the TD loss; 0 is DQN
    double: bool = True  # the online network chooses the next action, the target network values it
    dueling: bool = True
    huber_threshold: float = 1.0  # of a TD error, in units of reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        counts = min(self.n_steps, self.batch_steps, self.target_every_updates)
        if counts < 1 or not 0 <= self.discount <= 1 or self.conservatism < 0:
            raise ConfigError(
                f"n_steps = {self.n_steps}, batch_steps = {self.batch_steps}, target_every_updates = "
                f"{self.target_every_updates}, discount = {self.discount}, conservatism = {self.conservatism}",
                where="[cql]",
                do="Count from 1, discount between 0 and 1, and let conservatism be 0 or more",
            )


class CqlLearner:
    """Online network, target network, optimiser."""

    def __init__(self, game: GameSpec, config: CqlConfig, seed: int) -> None:
        seat = one_seat(game, "cql")
        self.config = config
        self.network = network_for(game, seat, config, (Head("logits", seat.action.masks, dueling=config.dueling),))
        self.online, self.target = Network(self.network, seed), Network(self.network, seed)
        self.optimiser = Adam(self.online.parameters(), config.learning_rate)
        self.updates = 0

    def weights(self) -> Weights:
        return self.online.weights()

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


def goals(online: Network, target: Network, batch: Batch, config: CqlConfig) -> Tensor:
    """R + γᵐ Q⁻(s', argmax_a' Q(s', a')) over legal a'; R alone after a true end."""
    with torch.no_grad():
        seen = tensors(batch.next_observation)
        next_values = target(seen)["logits"]
        choosing = online(seen)["logits"] if config.double else next_values
        if batch.next_legal is not None:
            choosing = choosing.masked_fill(~tensor(batch.next_legal).bool(), ILLEGAL)
        value = next_values.gather(1, choosing.argmax(1, keepdim=True)).squeeze(1)
        goes_on = tensor(batch.ending) != TERMINATED
        spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
        goal: Tensor = tensor(batch.reward) + config.discount**spans * value * goes_on
    return goal


def losses(online: Network, target: Network, batch: Batch, config: CqlConfig) -> tuple[Tensor, Tensor, Tensor]:
    """For each step: its loss, its TD error δ, and its penalty log Σ_a exp Q(s, a) − Q(s, recorded a), legal a only.

    Loss = α · penalty + huber(δ). The penalty is the negative log-likelihood of the recorded action under a softmax
    policy on Q: CQL is DQN that is also asked to make what people did look likely.
    """
    goal = goals(online, target, batch, config)
    values: Tensor = online(tensors(batch.observation))["logits"]
    chosen = values.gather(1, tensor(batch.action).long().unsqueeze(1)).squeeze(1)
    if batch.legal is not None:
        values = values.masked_fill(~tensor(batch.legal).bool(), ILLEGAL)
    penalty = torch.logsumexp(values, 1) - chosen
    delta = goal - chosen
    return config.conservatism * penalty + huber(delta, config.huber_threshold), delta, penalty


class Cql:
    """Fed with records of the store."""

    name = "cql"
    feeds = "records"
    policy = "greedy"
    settings = CqlConfig

    def begin(self, game: GameSpec, config: CqlConfig, seed: int) -> CqlLearner:
        return CqlLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of Adam; the sizes of the TD errors are the priorities."""
        assert isinstance(learner, CqlLearner)
        config = learner.config
        each, delta, penalty = losses(learner.online, learner.target, batch, config)
        left = 1 - learner.updates / config.anneal_updates if config.anneal_updates else 1.0
        learner.optimiser.learning_rate = config.learning_rate * max(left, 0.1)
        loss = each.mean() if batch.weight is None else (tensor(batch.weight) * each).mean()
        norm = learner.optimiser.descend(loss, config.max_gradient_norm)
        learner.updates += 1
        if learner.updates % config.target_every_updates == 0:
            learner.target.load_state_dict(learner.online.state_dict())
        size = delta.detach().abs()
        metrics = {
            "loss": loss.item(),
            "td_error": size.mean().item(),
            "penalty": penalty.mean().item(),
            "gradient_norm": norm.item(),
        }
        return Update(learner, size.numpy(), metrics)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """Nobody plays while it learns."""
        return 0.0
