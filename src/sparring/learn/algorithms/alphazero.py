"""AlphaZero (Silver et al. 2018) with the search of Gumbel AlphaZero (Danihelka et al. 2022): a policy teaches itself
by looking ahead, in games without hidden information or chance.

Before each of its decisions an actor searches (nets/batch_search.py), plays the better policy π' that it finds, and
hands π' on with what the search thinks the position is worth. The network learns both:

    loss = −Σ_a π'(a|s) log π(a|s) + c_v ½ (V(s) − G)²

G is the λ-return of the search's values: with λ = 1 how the game ended, with less also what the search thought on the
way. Published models play without a search, or with one (docs/search.md). Page: docs/algorithms/alphazero.md
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import one_seat
from sparring.learn.algorithms.learner import ActorCritic, follow_average, no_exploration
from sparring.learn.algorithms.returns import explained_variance, gae, next_values
from sparring.learn.algorithms.trajectories import bootstrap, legal_actions, true_steps
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import ILLEGAL
from sparring.nets.module_network import open_network
from sparring.nets.torch_state import tensor, tensors
from sparring.nets.tree_search import SearchSpec
from sparring.wire.chunk import Array
from sparring.wire.network import Activation
from sparring.wire.tree import Tree

ROWS_AT_ONCE = 4096  # of a rollout, in one run of the network


@dataclass(frozen=True, slots=True)
class AlphaZeroConfig(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 1e-3
    discount: float = 0.99  # below 1 a win soon is better than one late
    trace_decay: float = 0.8  # λ: at 1 the value learns how games ended, at 0 what the next search thought
    simulations: int = 32  # of the search before each decision
    root_noise: float = 0.25  # share of noise in what the search tries first
    random_moves: float = 0.1  # share of moves that are drawn by chance, so that games differ
    value_scale: float = 0.3  # how far values move the policy that a search finds: Danihelka's c_scale
    rollout_ticks: int = 32  # of every game between two updates
    minibatch_steps: int = 512
    window_steps: int = 100_000  # of the newest ones that are learned from
    samples_per_step: float = 8.0  # how often each of them is, on average
    surprise_share: float = 0.5  # of them drawn by how far π' was from π when they came (KataGo), the others alike
    mirrored: bool = False  # the game is the same with the last axis of what is seen and the choices in reverse order
    average_updates: int = 6  # that the weights which play are an average of, the last one counting most
    value_coefficient: float = 1.0  # c_v
    max_gradient_norm: float = 1.0
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size

    # What an actor-critic may have, and a search cannot use.
    memory: ClassVar[str] = ""
    separate_value: ClassVar[bool] = False
    normalise_rewards: ClassVar[bool] = False
    normalise_observations: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.minibatch_steps < 1 or self.samples_per_step <= 0 or self.root_noise >= 1:
            names = ("minibatch_steps", "samples_per_step", "root_noise")
            wrong = ", ".join(f"{name} = {getattr(self, name):g}" for name in names)
            do = "Count steps from 1, let samples be more than 0 and noise less than 1"
            raise ConfigError(wrong, where="[alphazero]", do=do)


@dataclass(frozen=True, slots=True)
class Positions:
    """Steps without their order. The first axis of each tensor is the step."""

    seen: dict[str, Tensor]
    legal: Tensor
    policy: Tensor  # π'
    goal: Tensor  # G
    surprise: Tensor  # KL(π' ‖ π) when it came


class Window:
    """The newest positions, by whole rollouts; part of a learner's checkpoint."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rollouts: list[Positions] = []

    def add(self, newest: Positions) -> Positions:
        """All positions of the window, that rollout's too."""
        self._rollouts.append(newest)
        while sum(len(one.goal) for one in self._rollouts[1:]) >= self._steps:
            del self._rollouts[0]
        return self._joined()

    def _joined(self) -> Positions:
        parts = self._rollouts
        seen = {name: torch.cat([one.seen[name] for one in parts]) for name in parts[0].seen}
        return Positions(seen, *(torch.cat([getattr(one, name) for one in parts]) for name in _COLUMNS))

    def save(self) -> Tree:
        return [
            {"seen": _arrays(one.seen)} | _arrays({name: getattr(one, name) for name in _COLUMNS})
            for one in self._rollouts
        ]

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._rollouts = [
            Positions(tensors(one["seen"]), *(tensor(one[name].copy()) for name in _COLUMNS)) for one in state
        ]


_COLUMNS = ("legal", "policy", "goal", "surprise")


def _arrays(columns: dict[str, Tensor]) -> Tree:
    return {name: column.numpy() for name, column in columns.items()}


class AlphaZeroLearner(ActorCritic):
    """Policy and value in one network, the average of its weights, which plays, and the window that it learns from."""

    def __init__(self, game: GameSpec, config: AlphaZeroConfig, seed: int) -> None:
        one_seat(game, "alphazero")
        super().__init__(game, config, "alphazero", seed, 0xA0)
        images = 2 if config.mirrored else 1
        self.window, self.average = Window(images * config.window_steps), open_network(self.network, seed)
        self._acting = self.average
        self._parts |= {"window": self.window, "average": self.average}


def positions(learner: ActorCritic, batch: Batch) -> Positions:
    """What is to be learned from a rollout."""
    config = learner.config
    assert batch.value is not None
    assert batch.policy_target is not None
    following = next_values(
        batch.value, batch.ending, bootstrap(learner.net, batch), batch.truncation_value, batch.mask
    )
    ahead = gae(batch.reward, batch.value, following, batch.ending, config.discount, config.trace_decay)
    seen = {name: true_steps(batch, leaf) for name, leaf in batch.observation.items()}
    policy, goal = true_steps(batch, batch.policy_target), true_steps(batch, batch.value + ahead)
    legal = legal_actions(batch, policy)
    with torch.no_grad():
        arranged = learner.net.arranged(seen)
        starts = range(0, len(goal), ROWS_AT_ONCE)
        rows = [torch.arange(start, min(start + ROWS_AT_ONCE, len(goal))) for start in starts]
        logits = torch.cat([learner.net.at(arranged, some)["logits"] for some in rows])
        surprise = (_cross_entropy(logits, legal, policy) - _entropy(policy)).clamp_(min=0)
    if config.mirrored:
        seen = {name: _with_mirror_images(leaf) for name, leaf in seen.items()}
        legal, policy, goal = _with_mirror_images(legal), _with_mirror_images(policy), goal.repeat(2)
        arranged, surprise = learner.net.arranged(seen), surprise.repeat(2)
    return Positions(arranged, legal, policy, goal, surprise)


def _with_mirror_images(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.flip(-1)])


def _cross_entropy(logits: Tensor, legal: Tensor, policy: Tensor) -> Tensor:
    return -(policy * torch.log_softmax(logits.masked_fill(~legal, ILLEGAL), -1)).sum(-1)


def _entropy(policy: Tensor) -> Tensor:
    return -torch.xlogy(policy, policy).sum(-1)


def losses(learner: ActorCritic, found: Positions, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of those positions: the policy's cross-entropy with π', half the squared error of the value, and the entropy of
    π'."""
    out, target = learner.net.at(found.seen, rows), found.policy[rows]
    policy_loss = _cross_entropy(out["logits"], found.legal[rows], target).mean()
    value_loss = 0.5 * (out["value"] - found.goal[rows]).square().mean()
    return policy_loss, value_loss, _entropy(target).mean()


def chances(found: Positions, surprise_share: float) -> Array:
    """float64 [positions], rising to 1: the chances that each of them is drawn, summed up."""
    surprise = found.surprise.numpy().astype(np.float64)
    surprise += 1e-9  # where nothing surprised, all are drawn alike
    weights = np.cumsum(1 - surprise_share + surprise_share * surprise / surprise.mean())
    return np.asarray(weights / weights[-1])


class AlphaZero:
    """Fed with trajectories fresh from actors that search."""

    name = "alphazero"
    feeds = "trajectories"
    policy = "categorical"
    settings = AlphaZeroConfig
    train: ClassVar = {"opponents": 0, "script_share": 0.0}  # its rival is itself
    exploration = no_exploration

    def search(self, settings: AlphaZeroConfig) -> SearchSpec:
        """How its actors look ahead."""
        return SearchSpec(
            settings.simulations, settings.discount, settings.root_noise, settings.random_moves, settings.value_scale
        )

    def begin(self, game: GameSpec, config: AlphaZeroConfig, seed: int) -> AlphaZeroLearner:
        return AlphaZeroLearner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """As many minibatches of the window as the rollout's steps allow."""
        assert isinstance(learner, AlphaZeroLearner)
        assert batch.value is not None
        config = learner.config
        newest, values, history = positions(learner, batch), true_steps(batch, batch.value).numpy(), []
        found = learner.window.add(newest)
        samples, chance = config.samples_per_step * len(values), chances(found, config.surprise_share)
        for _ in range(max(1, round(samples / config.minibatch_steps))):
            rows = torch.from_numpy(np.searchsorted(chance, learner.rng.random(config.minibatch_steps), side="right"))
            policy_loss, value_loss, entropy = losses(learner, found, rows)
            norm = learner.minimise(policy_loss + config.value_coefficient * value_loss)
            history.append(torch.stack([one.detach() for one in (policy_loss, value_loss, entropy, norm)]))
        learner.updates += 1
        follow_average(learner.average, learner.net, learner.updates, config.average_updates)
        policy_loss, value_loss, entropy, norm = torch.stack(history).mean(0).tolist()
        metrics = {
            "loss": policy_loss + config.value_coefficient * value_loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "kl": policy_loss - entropy,  # of π' to π: what the search still adds
            "entropy": entropy,
            "gradient_norm": norm,
            "explained_variance": explained_variance(values, newest.goal[: len(values)].numpy()),
            "learning_rate": learner.optimiser.learning_rate,
        }
        return Update(learner, None, metrics)
