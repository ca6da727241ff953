"""R2D2 (Kapturowski et al. 2019): DQN with a memory, learned from sequences that begin with the stored state.
Page: docs/algorithms/r2d2.md
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.algorithms.learner import QLearner, falling_epsilon
from sparring.learn.algorithms.returns import huber, rescaled, unscaled
from sparring.learn.optim import OptimiserSettings
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.distributions import ILLEGAL
from sparring.nets.shapes import STATE
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor, tensors
from sparring.replay.gather import Window
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Head


@dataclass(frozen=True, slots=True)
class R2d2Config(OptimiserSettings):
    """What can be set with --algo-set, beside how it descends (learn/optim.py)."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    n_steps: int = 5  # decisions that one target looks ahead; fewer at the end of a sequence
    batch_sequences: int = 32
    burn_in_steps: int = 10  # that only warm the memory up
    sequence_steps: int = 20  # that are learned, after those
    overlap_steps: int = 10  # that two neighbouring sequences of an episode share
    target_every_updates: int = 200  # the target network is a copy this old at most
    rescale: bool = True  # learn h(Q), in which large values are closer together
    priority_mix: float = 0.9  # η: of a sequence's largest error in its priority; the rest is the mean
    dueling: bool = True
    huber_threshold: float = 10.0  # of a TD error; beyond it the gradient no longer grows
    max_gradient_norm: float = 10.0
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_steps: int = 10_000  # over which ε falls from the first to the last
    network: str = ""  # a network of your own, as module:name (docs/models.md); "": by the settings below
    hidden_units: tuple[int, ...] = (128,)
    activation: Activation = "relu"
    image_layers: tuple[str, ...] = ()  # such as "64x4": channels x kernel; "flat": no convolutions; (): by size
    memory: str = "lstm:128"  # or "gru:128"

    def __post_init__(self) -> None:
        Window(self.sequence_steps, self.burn_in_steps, self.overlap_steps)  # refuses what cannot be
        if not self.memory and not self.network:
            raise ConfigError("it has no memory", where="[r2d2]", do='Set memory = "lstm:128", or use dqn')


class R2d2Learner(QLearner):
    """DQN's, with a memory."""

    def __init__(self, game: GameSpec, config: R2d2Config, seed: int) -> None:
        seat = one_seat(game, "r2d2")
        heads = (Head("logits", seat.action.masks, dueling=config.dueling),)
        network = network_for(game, seat, config, heads, memory=config.memory or "its own")
        if network.memory is None:
            do = "Give it a memory (docs/models.md), or use dqn"
            raise ConfigError("it has no memory", where=f"network {config.network!r}", do=do)
        super().__init__(config, network, seed)


@dataclass(frozen=True, slots=True)
class Sequences:
    """A batch with one place more: what was seen after the last step of each sequence stands right behind it."""

    seen: Mapping[str, Tensor]  # [burn-in + steps + 1, n, …]
    starts: Tensor  # bool, the same: an episode begins at this step, with an empty memory
    legal: Tensor | None  # bool [steps + 1, n, choices]
    lengths: Tensor  # int64 [n]: how many of the steps are there
    ended: Tensor  # bool [n]: the last of them is followed by nothing


def sequences(batch: Batch, burn_in: int) -> Sequences:
    """The batch, laid out to be unrolled."""
    assert batch.mask is not None
    behind = np.cumsum(batch.mask[::-1], axis=0)[::-1] == 0  # the padding that follows each sequence's last step
    behind = np.concatenate([behind, np.ones_like(behind[:1])])
    lengths = batch.mask[burn_in:].sum(axis=0)
    last = burn_in + lengths - 1
    starts = np.zeros(behind.shape, bool)
    starts[1:] = (batch.ending != RUNNING) & ~behind[1:]  # a cut episode's last view is seen with its memory
    legal = None
    if batch.legal is not None and batch.next_legal is not None:
        legal = tensor(_followed(batch.legal, batch.next_legal, behind)[burn_in:]).bool()
    return Sequences(
        tensors({name: _followed(batch.observation[name], x, behind) for name, x in batch.next_observation.items()}),
        tensor(starts),
        legal,
        tensor(lengths.astype(np.int64)),
        tensor(batch.ending[last, np.arange(len(last))] == TERMINATED),
    )


def _followed(column: Array, then: Array, behind: Array) -> Array:
    """`column` [time, n, …] with one place more, and `then` [n, …] where the sequence is over."""
    longer = np.concatenate([column, then[None]])
    padded = behind.reshape(*behind.shape, *(1,) * (then.ndim - 1))
    return np.where(padded, then[None], longer)


def unrolled(network: Network, given: Sequences, state: Tensor | None, burn_in: int) -> Tensor:
    """Values [steps + 1, n, choices] behind the burn-in, through which no gradient goes."""
    if burn_in:
        with torch.no_grad():
            early = {name: column[:burn_in] for name, column in given.seen.items()}
            state = network.unroll(early, state, given.starts[:burn_in])[STATE]
    out: dict[str, Tensor] = network.unroll(
        {name: column[burn_in:] for name, column in given.seen.items()}, state, given.starts[burn_in:]
    )
    return out["logits"]


def n_step_goals(
    reward: Tensor, value: Tensor, lengths: Tensor, ended: Tensor, n_steps: int, discount: float
) -> Tensor:
    """Σ_{k<m} γᵏ r_{t+k} + γᵐ v_{t+m} for each step [time, n], m = n_steps or what is left of the sequence.

    `value` [time + 1, n] is v at each step and behind the last one, where it is nothing after a true end.
    Steps beyond a sequence's length have no meaning.
    """
    time = len(reward)
    at = torch.arange(time).unsqueeze(1)
    there = at < lengths
    padded = torch.cat([reward * there, reward.new_zeros(n_steps, reward.shape[1])])
    goal = sum((discount**k * padded[k : k + time] for k in range(n_steps)), torch.zeros_like(reward))
    end = torch.minimum(at + n_steps, lengths.expand(time, -1))
    span = (end - at).clamp(min=0)
    follows = value.gather(0, end) * ~(ended & (end == lengths))
    return goal + discount**span * follows


def td_errors(online: Network, target: Network, batch: Batch, config: R2d2Config) -> tuple[Tensor, Tensor]:
    """δ = h(goal) − Q(s, a) [steps, n], and which of these steps are there.

    Goals look n steps ahead within the sequence and end with h⁻¹(Q⁻(s', argmax_a' Q(s', a'))), legal a' only.
    """
    burn_in = config.burn_in_steps
    given = sequences(batch, burn_in)
    state = None if batch.state is None else tensor(batch.state)
    values = unrolled(online, given, state, burn_in)
    with torch.no_grad():
        choosing = values if given.legal is None else values.masked_fill(~given.legal, ILLEGAL)
        old = unrolled(target, given, state, burn_in)
        following = old.gather(2, choosing.argmax(2, keepdim=True)).squeeze(2)
        if config.rescale:
            following = unscaled(following)
        reward = tensor(batch.reward)[burn_in:]
        goal = n_step_goals(reward, following, given.lengths, given.ended, config.n_steps, config.discount)
        if config.rescale:
            goal = rescaled(goal)
    action = tensor(batch.action)[burn_in:].long().unsqueeze(2)
    chosen = values[:-1].gather(2, action).squeeze(2)
    there = torch.arange(len(goal)).unsqueeze(1) < given.lengths
    return (goal - chosen) * there, there


class R2d2:
    """Fed with sequences of a replay table."""

    name = "r2d2"
    feeds = "sequences"
    policy = "greedy"
    settings = R2d2Config
    exploration = falling_epsilon

    def begin(self, game: GameSpec, config: R2d2Config, seed: int) -> R2d2Learner:
        return R2d2Learner(game, config, seed)

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One step of the optimiser on the mean Huber loss of each sequence's TD errors; priorities mix their sizes."""
        assert isinstance(learner, R2d2Learner)
        config = learner.config
        delta, there = td_errors(learner.online, learner.target, batch, config)
        counts = there.sum(0)
        metrics = learner.descend(huber(delta, config.huber_threshold).sum(0) / counts, batch)
        size = delta.detach().abs()
        mean = size.sum(0) / counts
        priorities = config.priority_mix * size.amax(0) + (1 - config.priority_mix) * mean
        metrics["td_error"] = mean.mean()
        return Update(learner, priorities.numpy(), {name: value.item() for name, value in metrics.items()})
