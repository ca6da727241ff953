"""What the learners of several algorithms share: how they are saved, and the two networks of DQN, R2D2 and CQL."""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sparring.games.protocol import TERMINATED
from sparring.learn.algorithms.returns import annealed
from sparring.learn.optim import Adam
from sparring.learn.protocol import Batch
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import load_module, save_module, tensor
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree, pack, rng_state, set_rng_state, unpack

ILLEGAL = -1e9  # the value of an action that is not legal: below any other


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
        self.updates = 0
        self.steps = 0  # learned from so far

    def weights(self) -> Weights:
        return self._acting.weights()

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
        self.online, self.target = Network(learned or network, seed), Network(learned or network, seed)
        self.optimiser = Adam(self.online.parameters(), config.learning_rate)
        super().__init__(config, network, self.online, online=self.online, target=self.target, optimiser=self.optimiser)

    def descend(self, losses: Tensor, batch: Batch) -> dict[str, Tensor]:
        """One step of Adam on the mean of the rows' losses; the target network becomes a copy when it is time to."""
        config, loss = self.config, weighted_mean(losses, batch)
        self.optimiser.learning_rate = annealed(config.learning_rate, self.updates, config.anneal_updates)
        norm = self.optimiser.descend(loss, config.max_gradient_norm)
        self.updates += 1
        if self.updates % config.target_every_updates == 0:
            self.target.load_state_dict(self.online.state_dict())
        return {"loss": loss, "gradient_norm": norm}

    def epsilon(self, env_steps: int) -> float:
        """ε falls in a straight line from `epsilon_first` to `epsilon_last`, then stays."""
        config = self.config
        gone = min(1.0, env_steps / max(1, config.epsilon_steps))
        return float(config.epsilon_first + gone * (config.epsilon_last - config.epsilon_first))


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
