"""IQL (Kostrikov et al. 2021) for discrete actions: values by expectile regression, so that no action outside the
records is ever asked about; then the records' actions are cloned by their advantage. Page: docs/algorithms/iql.md
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.adam import Adam
from sparring.learn.feeding import network_for, one_seat
from sparring.learn.networks import Network, default_heads
from sparring.learn.operators import huber
from sparring.learn.protocol import Batch, Learner, Update, Weights
from sparring.learn.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation, Head
from sparring.wire.tree import pack, unpack

ILLEGAL = -1e9


@dataclass(frozen=True, slots=True)
class IqlConfig:
    """What can be set with --algo-set."""

    learning_rate: float = 5e-4
    anneal_updates: int = 0  # over which the rate falls in a straight line to a tenth; 0 keeps it
    discount: float = 0.99
    n_steps: int = 1  # decisions that one target looks ahead; the players' own, uncorrected, beyond the first
    batch_steps: int = 256
    expectile: float = 0.7  # τ: ½ is the players' mean, towards 1 the best that they did
    temperature: float = 3.0  # β: 0 clones everything alike, larger prefers the better actions more
    max_weight: float = 100.0  # of one step in the cloning
    target_rate: float = 0.005  # by which the target critics move towards the critics at each update
    huber_threshold: float = 10.0  # of a TD error, in units of reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        if min(self.n_steps, self.batch_steps) < 1 or not 0 <= self.discount <= 1:
            raise ConfigError(
                f"n_steps = {self.n_steps}, batch_steps = {self.batch_steps}, discount = {self.discount}",
                where="[iql]",
                do="Count from 1, and discount between 0 and 1",
            )
        if not (0 < self.expectile < 1 and 0 < self.target_rate <= 1 and self.temperature >= 0):
            raise ConfigError(
                f"expectile = {self.expectile}, target_rate = {self.target_rate}, temperature = {self.temperature}",
                where="[iql]",
                do="Keep expectile between 0 and 1, target_rate at most 1, and temperature at 0 or more",
            )


class IqlLearner:
    """The policy with V in a trunk of its own, two critics with their targets, one optimiser."""

    def __init__(self, game: GameSpec, config: IqlConfig, seed: int) -> None:
        seat = one_seat(game, "iql")
        self.config = config
        self.network = network_for(game, seat, config, default_heads(seat.action), separate_value=True)
        critic = network_for(game, seat, replace(config, network=""), (Head("logits", seat.action.masks),))
        self.net = Network(self.network, seed)
        draw = torch.Generator().manual_seed(seed + 1)  # one for both critics, so that they differ
        self.critics = [Network(critic, draw) for _ in range(2)]
        self.targets = [Network(critic, 0) for _ in range(2)]
        for online, target in zip(self.critics, self.targets, strict=True):
            target.load_state_dict(online.state_dict())
        owned = chain(self.net.parameters(), *(one.parameters() for one in self.critics))
        self.optimiser = Adam(owned, config.learning_rate)
        self.updates = 0

    def weights(self) -> Weights:
        return self.net.weights()

    def save(self) -> bytes:
        return pack(
            {
                "net": save_module(self.net),
                "critics": [save_module(one) for one in self.critics],
                "targets": [save_module(one) for one in self.targets],
                "optimiser": self.optimiser.save(),
                "updates": self.updates,
            }
        )

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        load_module(self.net, tree["net"])
        for name, own in (("critics", self.critics), ("targets", self.targets)):
            for one, saved in zip(own, tree[name], strict=True):
                load_module(one, saved)
        self.optimiser.load(tree["optimiser"])
        self.updates = tree["updates"]


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(e < 0)| e²: with τ above ½, falling short of the better outcomes costs more than exceeding the worse."""
    return torch.where(error < 0, 1 - expectile, expectile) * error.square()


def of_action(critics: Sequence[Network], batch: Batch) -> list[Tensor]:
    """Q(s, recorded a) of each critic."""
    seen, action = tensors(batch.observation), tensor(batch.action).long().unsqueeze(1)
    return [one(seen)["logits"].gather(1, action).squeeze(1) for one in critics]


def loss(learner: IqlLearner, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """L_V + L_Q + L_π, whose gradients meet in no parameter, each step's TD error, and metrics.

    L_V = E[L_τ(min Q⁻(s,a) − V(s))],  L_Q = Σ_i E[huber(R + γᵐ V(s') − Q_i(s,a))],
    L_π = −E[min(exp(β A), max_weight) log π(a|s)],  A = min Q⁻(s,a) − V(s) in units of its spread in the batch.
    """
    config = learner.config
    out: dict[str, Tensor] = learner.net(tensors(batch.observation))
    with torch.no_grad():
        after = learner.net(tensors(batch.next_observation))["value"] * (tensor(batch.ending) != TERMINATED)
        spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
        goal = tensor(batch.reward) + config.discount**spans * after
        judged = torch.min(*of_action(learner.targets, batch))
    lead = judged - out["value"]
    deltas = [goal - q for q in of_action(learner.critics, batch)]
    with torch.no_grad():
        advantage = lead / (lead.std(correction=0) + 1e-6)
        weight = (config.temperature * advantage).exp().clamp(max=config.max_weight)
    logits = out["logits"]
    if batch.legal is not None:
        logits = logits.masked_fill(~tensor(batch.legal).bool(), ILLEGAL)
    logp = torch.log_softmax(logits, 1).gather(1, tensor(batch.action).long().unsqueeze(1)).squeeze(1)
    parts = {
        "value_loss": expectile_loss(lead, config.expectile),
        "critic_loss": huber(deltas[0], config.huber_threshold) + huber(deltas[1], config.huber_threshold),
        "policy_loss": -(weight * logp),
    }
    share = 1.0 if batch.weight is None else tensor(batch.weight)
    means = {name: (share * part).mean() for name, part in parts.items()}
    total = torch.stack(list(means.values())).sum()
    metrics = {name: value.detach() for name, value in means.items()}
    metrics |= {"advantage_weight": weight.mean(), "loss": total.detach()}
    return total, deltas[0].detach().abs(), metrics


class Iql:
    """Fed with records of the store."""

    name = "iql"
    feeds = "records"
    policy = "categorical"
    settings = IqlConfig

    def begin(self, game: GameSpec, config: IqlConfig, seed: int) -> IqlLearner:
        return IqlLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of Adam for policy, V and critics; then the targets move a little."""
        assert isinstance(learner, IqlLearner)
        config = learner.config
        left = 1 - learner.updates / config.anneal_updates if config.anneal_updates else 1.0
        learner.optimiser.learning_rate = config.learning_rate * max(left, 0.1)
        total, size, metrics = loss(learner, batch)
        metrics["gradient_norm"] = learner.optimiser.descend(total, config.max_gradient_norm)
        metrics["td_error"] = size.mean()
        with torch.no_grad():
            for online, target in zip(learner.critics, learner.targets, strict=True):
                for new, old in zip(online.parameters(), target.parameters(), strict=True):
                    old.lerp_(new, config.target_rate)
        learner.updates += 1
        return Update(learner, size.numpy(), {name: value.item() for name, value in metrics.items()})

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """Nobody plays while it learns."""
        return 0.0
