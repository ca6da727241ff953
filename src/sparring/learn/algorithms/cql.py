"""CQL(H) (Kumar et al. 2020): values of actions that nobody took are pushed down, so that the policy stays where the
records can vouch for it. On double, dueling DQN where actions are choices, on two critics and a Gaussian policy, as in
SAC, where they are a box. Page: docs/algorithms/cql.md
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.critics import (
    Critics,
    critic_heads,
    critic_spec,
    smaller,
    uniform_logp,
    value_of,
    values_of_many,
)
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.returns import annealed, huber
from sparring.learn.optim.adam import Adam
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import Gaussian, Outputs
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, default_heads
from sparring.nets.torch_state import load_module, save_module, tensor, tensors
from sparring.wire.network import Activation, Head, Weights
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
    reward_scale: float = 1.0  # rewards are multiplied by it; returns of the order of 1 to 10 are learned best
    target_every_updates: int = 200  # the target network is a copy this old at most; choices alone
    conservatism: float = 1.0  # α: weight of the penalty beside the TD loss; 0 is DQN
    double: bool = True  # the online network chooses the next action, the target network values it; choices alone
    dueling: bool = True  # choices alone
    target_rate: float = 0.005  # by which the target critics of a box move towards the critics at each update
    sampled_actions: int = 10  # of a box: drawn in each view from the policy, and as many evenly
    entropy_worth: float = 0.05  # of a box: what a nat of the policy's entropy is worth, in scaled reward
    huber_threshold: float = 1.0  # of a TD error, in units of scaled reward; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128, 128)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    def __post_init__(self) -> None:
        counts = min(self.n_steps, self.batch_steps, self.target_every_updates, self.sampled_actions)
        if counts < 1 or not 0 <= self.discount <= 1 or self.conservatism < 0:
            raise ConfigError(
                f"n_steps = {self.n_steps}, batch_steps = {self.batch_steps}, target_every_updates = "
                f"{self.target_every_updates}, sampled_actions = {self.sampled_actions}, discount = {self.discount}, "
                f"conservatism = {self.conservatism}",
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
        goal: Tensor = config.reward_scale * tensor(batch.reward) + config.discount**spans * value * goes_on
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


class BoxLearner:
    """A Gaussian policy, two critics with their targets, an optimiser for each."""

    def __init__(self, game: GameSpec, config: CqlConfig, seed: int) -> None:
        seat = one_seat(game, "cql", ("box",))
        self.config, self.seed, self.action = config, seed, seat.action
        self.policy = Gaussian(bounds_of(seat.action), seat.action.shape)
        heads = tuple(head for head in default_heads(seat.action) if head.name != "value")
        self.network = network_for(game, seat, config, heads)
        self.net = Network(self.network, seed)
        views = network_for(game, seat, replace(config, network=""), critic_heads(seat.action))
        self.critics = Critics(critic_spec(views, seat.action), seed + 1)
        self.optimiser = Adam(self.critics.parameters(), config.learning_rate)
        self.policy_optimiser = Adam(self.net.parameters(), config.learning_rate)
        self.updates = 0

    def weights(self) -> Weights:
        return self.net.weights()

    def chance(self) -> torch.Generator:
        """Of the next update: a seed and a count say all, so that nothing else has to be saved."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + self.updates)

    def save(self) -> bytes:
        return pack(
            {
                "net": save_module(self.net),
                "critics": self.critics.save(),
                "optimiser": self.optimiser.save(),
                "policy_optimiser": self.policy_optimiser.save(),
                "updates": self.updates,
                "seed": self.seed,
            }
        )

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        load_module(self.net, tree["net"])
        self.critics.load(tree["critics"])
        self.optimiser.load(tree["optimiser"])
        self.policy_optimiser.load(tree["policy_optimiser"])
        self.updates, self.seed = tree["updates"], tree["seed"]


def tried(learner: BoxLearner, out: Outputs, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions [n, 2 x sampled, *shape] and their log-densities: half of the policy's own, half drawn evenly."""
    n, count, shape = len(out["mean"]), learner.config.sampled_actions, learner.action.shape
    low, high = learner.policy.bounds or (-1.0, 1.0)
    wide = {name: value.detach().repeat_interleave(count, 0) for name, value in out.items()}
    own, logp = learner.policy.draw(wide, draw)
    even = low + (high - low) * torch.rand((n, count, *shape), generator=draw)
    actions = torch.cat((own.reshape(n, count, *shape), even), 1)
    return actions, torch.cat((logp.reshape(n, count), torch.full((n, count), uniform_logp(learner.action))), 1)


def box_losses(learner: BoxLearner, batch: Batch, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """As `losses`, of both critics: log Σ_a exp Q is log mean exp(Q − log density) over the actions that were tried."""
    config, critics = learner.config, learner.critics
    seen, then, action = tensors(batch.observation), tensors(batch.next_observation), tensor(batch.action)
    with torch.no_grad():
        after, _ = learner.policy.draw(learner.net(then), draw)
        spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
        worth = smaller(critics.slow, then, after) * (tensor(batch.ending) != TERMINATED)
        goal = config.reward_scale * tensor(batch.reward) + config.discount**spans * worth
        actions, logp = tried(learner, learner.net(seen), draw)
    each, penalty = torch.zeros_like(goal), torch.zeros_like(goal)
    for critic in critics.online:
        chosen = value_of(critic, seen, action)
        pushed = torch.logsumexp(values_of_many(critic, seen, actions) - logp, 1) - math.log(logp.shape[1])
        delta, penalty = goal - chosen, pushed - chosen
        each = each + config.conservatism * penalty + huber(delta, config.huber_threshold)
    return each, delta, penalty


def policy_loss(learner: BoxLearner, batch: Batch, draw: torch.Generator) -> Tensor:
    """E[entropy_worth · log π(a|s) − min Q(s, a)], a drawn from π."""
    seen = tensors(batch.observation)
    action, logp = learner.policy.draw(learner.net(seen), draw)
    each = learner.config.entropy_worth * logp - smaller(learner.critics.online, seen, action)
    return _mean(each, batch)


class Cql:
    """Fed with records of the store."""

    name = "cql"
    feeds = "records"
    policy = "greedy"  # and a Gaussian of boxes
    settings = CqlConfig

    def begin(self, game: GameSpec, config: CqlConfig, seed: int) -> CqlLearner | BoxLearner:
        seat = one_seat(game, "cql", ("discrete", "box"))
        return CqlLearner(game, config, seed) if seat.action.choices else BoxLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of Adam; the sizes of the TD errors are the priorities."""
        if isinstance(learner, BoxLearner):
            return _update_box(learner, batch)
        assert isinstance(learner, CqlLearner)
        config = learner.config
        each, delta, penalty = losses(learner.online, learner.target, batch, config)
        metrics = _descended(learner, _mean(each, batch))
        if learner.updates % config.target_every_updates == 0:
            learner.target.load_state_dict(learner.online.state_dict())
        return _updated(learner, delta, metrics | {"penalty": penalty.mean()})

    def exploration(self, learner: Learner, env_steps: int) -> float:
        """Nobody plays while it learns."""
        return 0.0


def _update_box(learner: BoxLearner, batch: Batch) -> Update:
    """Critics, then the policy by the new critics, then the targets."""
    draw = learner.chance()
    each, delta, penalty = box_losses(learner, batch, draw)
    metrics = _descended(learner, _mean(each, batch))
    learner.policy_optimiser.learning_rate = learner.optimiser.learning_rate
    cost = policy_loss(learner, batch, draw)
    learner.policy_optimiser.descend(cost, learner.config.max_gradient_norm)
    learner.critics.follow(learner.config.target_rate)
    return _updated(learner, delta, metrics | {"penalty": penalty.mean(), "policy_loss": cost})


def _mean(each: Tensor, batch: Batch) -> Tensor:
    return each.mean() if batch.weight is None else (tensor(batch.weight) * each).mean()


def _descended(learner: CqlLearner | BoxLearner, loss: Tensor) -> dict[str, Tensor]:
    """One step of Adam at the rate that this update has; metrics."""
    config = learner.config
    learner.optimiser.learning_rate = annealed(config.learning_rate, learner.updates, config.anneal_updates)
    learner.updates += 1
    return {"loss": loss, "gradient_norm": learner.optimiser.descend(loss, config.max_gradient_norm)}


def _updated(learner: CqlLearner | BoxLearner, delta: Tensor, metrics: dict[str, Tensor]) -> Update:
    size = delta.detach().abs()
    metrics["td_error"] = size.mean()
    return Update(learner, size.numpy(), {name: value.item() for name, value in metrics.items()})
