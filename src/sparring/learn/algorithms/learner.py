"""What the learners of several algorithms share: how they are saved, the two networks of DQN, R2D2 and CQL, the
actor-critic of PPO, MAPPO, IMPALA and A3C, and the critics of SAC, CQL and IQL.

A critic is a network that values an action in an observation. One number for each choice, or, where actions are a box,
one number of observation and action together: the action is then one more input of the network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_setting
from typing import Any, Protocol

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.learn.algorithms.feeds import ANY_ACTION, network_for, one_seat
from sparring.learn.algorithms.normalisation import InputStatistics, RewardScale
from sparring.learn.optim import Optimiser, Rmsprop, open_optimiser, scheduled_rate
from sparring.learn.protocol import Batch, Learner
from sparring.nets.distributions import ILLEGAL, Gaussian, distribution
from sparring.nets.model_files import read_weights
from sparring.nets.module_network import open_network
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network, default_heads, policy_heads
from sparring.nets.torch_state import load_module, save_module, tensor
from sparring.wire.chunk import Array
from sparring.wire.model import Model
from sparring.wire.network import Head, Input, NetworkSpec, Weights
from sparring.wire.tree import Tree, pack, rng_state, set_rng_state, unpack

LOG_STD_FIRST = -0.5  # of an actor-critic's box, before it is squashed
TAKEN = "action"  # the leaf that an action is to a critic of boxes


class Saved(Protocol):
    """A part with bytes of its own, such as an optimiser."""

    def save(self) -> Tree: ...
    def load(self, state: Tree) -> object: ...


Part = nn.Module | np.random.Generator | torch.Generator | Saved


class TorchLearner:
    """Saves and loads its parts. `acting` is the network that plays, and `network` its spec."""

    def __init__(self, config: Any, network: NetworkSpec, acting: Network, **parts: Part) -> None:
        self.config: Any = config  # the algorithm's own settings
        self.network, self._acting, self._parts = network, acting, parts
        self.updates = self.steps = 0

    optimiser: Any  # an Optimiser, or the Rmsprop of A3C; of algorithms that have one alone

    def minimise(self, loss: Tensor, optimiser: Optimiser | None = None) -> Tensor:
        """One step of the optimiser at the rate of the schedule; the norm of the gradient before it was clipped."""
        stepping = self.optimiser if optimiser is None else optimiser
        stepping.learning_rate = scheduled_rate(self.config, self.steps)
        norm: Tensor = stepping.descend(loss, self.config.max_gradient_norm)
        return norm

    def weights(self) -> Weights:
        return self._acting.weights()

    def set_weights(self, weights: Weights) -> None:
        """Give the acting network these parameters; slower copies of it stay as they are."""
        self._acting.set_weights(weights)

    def start_from(self, model: Model) -> None:
        """Begin with the model's weights; ConfigError where its network is another."""
        if model.card.network != self.network:
            wrong = "its network has other inputs, layers or heads than the run's"
            do = "Train with the settings of the model's run (`spar models show`), or from scratch"
            raise ConfigError(wrong, where=f"model {model.id[:12]}", do=do)
        weights = read_weights(model)
        for part in (self._acting, *self._parts.values()):  # and its slower copies
            if isinstance(part, Network) and part.spec == self.network:
                part.set_weights(weights)

    def save(self) -> bytes:
        parts = {name: _save(part) for name, part in self._parts.items()}
        return pack({"parts": parts, "updates": self.updates, "steps": self.steps})

    def load(self, state: bytes) -> None:
        tree = unpack(state)
        for name, part in self._parts.items():
            _load(part, tree["parts"][name])
        self.updates, self.steps = tree["updates"], tree["steps"]


class QLearner(TorchLearner):
    """Online network, target network, optimiser: of DQN, R2D2 and CQL. `learned` may have more heads than acts."""

    def __init__(self, config: Any, network: NetworkSpec, seed: int, learned: NetworkSpec | None = None) -> None:
        self.online, self.target = open_network(learned or network, seed), open_network(learned or network, seed)
        self.optimiser = open_optimiser(self.online.parameters(), config)
        self.inputs = InputStatistics(self.online, self.target)
        parts: dict[str, Part] = {"online": self.online, "target": self.target, "optimiser": self.optimiser}
        super().__init__(config, network, self.online, **parts, inputs=self.inputs)

    def descend(self, losses: Tensor, batch: Batch) -> dict[str, Tensor]:
        """One step down the mean of the rows' losses; the target network becomes a copy when it is time to."""
        loss = weighted_mean(losses, batch)
        norm = self.minimise(loss)
        self.updates += 1
        if self.updates % self.config.target_every_updates == 0:
            self.target.load_state_dict(self.online.state_dict())
        return {"loss": loss, "gradient_norm": norm}


class WithCritic(Network):
    """A network that acts and a critic that sees more, as one network to a loss: "value" is the critic's."""

    def __init__(self, acting: Network, critic: Network) -> None:
        nn.Module.__init__(self)
        self.spec = replace(acting.spec, heads=(*acting.spec.heads, *critic.spec.heads))
        self.acting, self.critic = acting, critic

    def forward(self, observation: Mapping[str, Tensor], state: Tensor | None = None) -> dict[str, Tensor]:
        heads: dict[str, Tensor] = {**self.acting(observation, state), **self.critic(observation)}
        return heads

    def at(self, observation: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        return self.acting.at(observation, rows) | self.critic.at(observation, rows)

    def unroll(
        self, observation: Mapping[str, Tensor], state: Tensor | None = None, starts: Tensor | None = None
    ) -> dict[str, Tensor]:
        return self.acting.unroll(observation, state, starts) | self.critic.unroll(observation)

    def arranged(self, observation: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.critic.arranged(self.acting.arranged(observation))


class ActorCritic(TorchLearner):
    """A policy and a value in one network, its optimiser, and the random generator that shuffles minibatches. `salt`
    makes its numbers differ from those of other uses of the seed.

    With a `critic` the value is that network's, which stays in the learner: the one that acts has a policy alone.
    """

    def __init__(
        self, game: GameSpec, config: Any, algorithm: str, seed: int, salt: int, critic: NetworkSpec | None = None
    ) -> None:
        seat = one_seat(game, algorithm, ANY_ACTION)
        heads = default_heads(seat.action) if critic is None else policy_heads(seat.action)
        separate = critic is None and config.separate_value
        network = network_for(game, seat, config, heads, separate_value=separate, memory=config.memory)
        self.chosen = distribution(seat.action)
        self.net = acting = open_network(network, seed)
        if isinstance(self.chosen, Gaussian) and network.module is None:
            # One deviation for all states (Andrychowicz et al. 2021): its weights stay 0, and its bias is learned.
            weight, bias = (self.net.get_parameter(f"log_std/{part}") for part in ("weight", "bias"))
            with torch.no_grad():
                weight.zero_()
                bias.fill_(LOG_STD_FIRST)
            weight.requires_grad_(False)
        self.inputs = InputStatistics(acting)
        if critic is not None:
            valuing = Network(critic, seed)
            self.inputs, self.net = InputStatistics(acting, valuing), WithCritic(acting, valuing)
        self.optimiser = self._optimiser(config)
        self.rng = np.random.default_rng([seed, salt])
        self.rewards = RewardScale(config.discount)
        super().__init__(
            config,
            network,
            acting,
            net=self.net,
            optimiser=self.optimiser,
            rng=self.rng,
            inputs=self.inputs,
            rewards=self.rewards,
        )

    def scaled(self, batch: Batch) -> Batch:
        """Trajectories with normalised rewards where the settings say so. What was seen is counted, too, for
        `inputs.apply` after the update: until then the network sees what its actors saw."""
        average = getattr(self.optimiser, "average", None)
        self.inputs.learn(batch.observation, batch.mask, average)
        if not self.config.normalise_rewards:
            return batch
        return replace_setting(batch, reward=self.rewards.scaled(batch, average))

    def _optimiser(self, config: Any) -> Optimiser | Rmsprop:
        return open_optimiser(self.net.parameters(), config, epsilon=1e-5)


def move_towards(slow: nn.Module, fast: nn.Module, rate: float) -> None:
    """The parameters of `slow` move towards those of `fast` by `rate`; 1 makes them the same."""
    with torch.no_grad():
        for new, old in zip(fast.parameters(), slow.parameters(), strict=True):
            old.lerp_(new, rate)


def follow_average(average: nn.Module, newest: nn.Module, updates: int, average_updates: int) -> None:
    """`average` moves on after the given update, so that it covers about the last `average_updates` of them; early on
    it moves faster, because it began with weights that knew nothing."""
    move_towards(average, newest, 1 / min(average_updates, 1 + updates / 2))


def falling_epsilon(algorithm: object, learner: Learner, env_steps: int) -> float:
    """`exploration` whose ε falls in a straight line from `epsilon_first` to `epsilon_last`, then stays."""
    assert isinstance(learner, QLearner)
    config = learner.config
    gone = min(1.0, env_steps / max(1, config.epsilon_steps))
    return float(config.epsilon_first + gone * (config.epsilon_last - config.epsilon_first))


def no_exploration(algorithm: object, learner: Learner, env_steps: int) -> float:
    """`exploration` of an algorithm whose policy samples, or learns while no actor plays."""
    return 0.0


def weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    """The mean of each row's loss times its importance weight, where replay is prioritised."""
    return losses.mean() if batch.weight is None else (tensor(batch.weight) * losses).mean()


def bootstrap_discounts(batch: Batch, discount: float) -> Tensor:
    """γᵐ [n], by which the value after each transition of m = n_steps decisions counts; 0 after a true end."""
    spans = 1 if batch.n_steps is None else tensor(batch.n_steps)
    discounts: Tensor = discount**spans * (tensor(batch.ending) != TERMINATED)
    return discounts


def mask_of(legal: Array | None) -> Tensor | None:
    """Which actions are legal, bool [n, choices]; None: all."""
    return None if legal is None else tensor(legal).bool()


def legal_values(values: Tensor, legal: Array | None) -> Tensor:
    """Values [n, choices] with ILLEGAL where an action is not legal."""
    return values if legal is None else values.masked_fill(~tensor(legal).bool(), ILLEGAL)


def _save(part: Part) -> Tree:
    if isinstance(part, nn.Module):
        return save_module(part)
    if isinstance(part, np.random.Generator):
        return rng_state(part)
    return part.get_state().numpy() if isinstance(part, torch.Generator) else part.save()


def _load(part: Part, state: Tree) -> None:
    if isinstance(part, nn.Module):
        load_module(part, state)
    elif isinstance(part, np.random.Generator):
        set_rng_state(part, state)
    elif isinstance(part, torch.Generator):
        part.set_state(torch.from_numpy(state.copy()))
    else:
        part.load(state)


def critic_heads(action: Leaf) -> tuple[Head, ...]:
    """Of a critic's network, before `critic_spec`."""
    return (Head("logits", action.masks),) if action.choices else (Head("value", 1),)


def critic_spec(spec: NetworkSpec, action: Leaf) -> NetworkSpec:
    """A network of views, with `critic_heads`, as one that sees the action too where that is a box."""
    if action.choices:
        return spec
    shift, scale = 0.0, 1.0
    if (bounds := bounds_of(action)) is not None:
        shift, scale = (bounds[0] + bounds[1]) / 2, 2.0 / (bounds[1] - bounds[0])
    shape = action.shape or (1,)
    return replace(spec, inputs=(*spec.inputs, Input(TAKEN, shape, shift, scale, dtype="float32")))


def value_of(critic: Network, seen: Mapping[str, Tensor], action: Tensor) -> Tensor:
    """Q(s, a), [n]."""
    if critic.spec.inputs[-1].name == TAKEN:
        value: Tensor = critic({**seen, TAKEN: action.float().reshape(len(action), -1)})["value"]
        return value
    chosen: Tensor = critic(seen)["logits"].gather(1, action.long().unsqueeze(1)).squeeze(1)
    return chosen


def values_of_many(critic: Network, seen: Mapping[str, Tensor], actions: Tensor) -> Tensor:
    """Q(s, a) of several box actions in each view: actions [n, several, *shape] to values [n, several]."""
    n, several = actions.shape[:2]
    wide = {name: leaf.repeat_interleave(several, 0) for name, leaf in seen.items()}
    return value_of(critic, wide, actions.flatten(0, 1)).reshape(n, several)


class Critics:
    """Two critics that began apart, and a slower copy of each, which targets are made of."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)  # one for both, so that they differ
        self.online = [Network(spec, draw) for _ in range(2)]
        self.slow = [Network(spec, 0) for _ in range(2)]
        self.follow(1.0)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are learned."""
        return [value for one in self.online for value in one.parameters()]

    def follow(self, rate: float) -> None:
        """The slow ones move towards the others by `rate`; 1 makes them the same."""
        for online, slow in zip(self.online, self.slow, strict=True):
            move_towards(slow, online, rate)

    def save(self) -> Tree:
        return [save_module(one) for one in (*self.online, *self.slow)]

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        for one, saved in zip((*self.online, *self.slow), state, strict=True):
            load_module(one, saved)


def critics_for(game: GameSpec, seat: SeatSpec, config: Any, seed: int) -> Critics:
    """Two critics with the layers of the settings; a network of the user's own is the policy's alone."""
    views = network_for(game, seat, replace_setting(config, network=""), critic_heads(seat.action))
    return Critics(critic_spec(views, seat.action), seed)


def smaller(critics: Sequence[Network], seen: Mapping[str, Tensor], action: Tensor) -> Tensor:
    """The smaller of two critics' Q(s, a), [n]: what chance makes too large in one is seldom so in the other."""
    return torch.min(value_of(critics[0], seen, action), value_of(critics[1], seen, action))
