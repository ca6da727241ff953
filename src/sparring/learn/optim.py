"""How algorithms descend: the settings that all of them share, the schedule of the learning rate, and the optimisers.

Parameters and gradients are views of two flat buffers, so that a step is a few operations however many layers there
are. Adam is a compiled loop over them, and A3C's RMSProp shares its statistics between processes; every other name is
an optimiser of torch.optim on the same buffers. Ours are the defaults: making any optimiser of torch.optim imports
torch's compiler, which takes longer than learning CartPole does.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sparring.errors import ConfigError
from sparring.games.game_state import did_you_mean
from sparring.jit import released
from sparring.nets.row_threads import run_all, split, thread_count
from sparring.user_code import load_code
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

BETA_1, BETA_2 = 0.9, 0.999
THREADED_FROM = 1 << 18  # parameters: up to here one thread is as fast as several
OWN_OPTIONS = {"betas", "eps"}  # with which "adam" is ours; with others it is torch.optim's
# torch.optim's that treat each number alone: they see one flat tensor. The others see one tensor for each layer.
ELEMENTWISE = ("adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd")
BY_LAYER = ("adafactor", "muon")
NOT_OPTIONS = {"self", "params", "lr", "maximize", "foreach", "fused", "capturable", "differentiable"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """How an algorithm descends. The settings of each algorithm extend these."""

    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine", "exponential"] = "constant"  # how learning_rate falls
    schedule_steps: int = 0  # of the run, after which it has fallen to schedule_last; 0: all steps of the run
    schedule_last: float = 0.1  # as a share of learning_rate
    warmup_steps: int = 0  # of the run, over which the rate first rises from 0 in a straight line
    optimiser: str = "adam"  # adamw, sgd, rmsprop, radam, nadam, muon … of torch.optim; or your own, as module:name
    optimiser_options: dict[str, Any] = field(default_factory=dict)  # its arguments, such as {weight_decay = 0.01}
    max_gradient_norm: float = 10.0  # a longer gradient is scaled down to this


def check_settings(settings: OptimiserSettings, where: str) -> None:
    """ConfigError where no optimiser or schedule can be made of the settings."""
    if settings.schedule == "exponential" and not settings.schedule_last:
        raise ConfigError("an exponential schedule never falls to 0", where=where, do="Set schedule_last above 0")
    if settings.optimiser == "adam" and not settings.optimiser_options:
        return
    make = _maker(settings, where)
    known = {name for name in inspect.signature(make).parameters if name not in NOT_OPTIONS}
    for name in settings.optimiser_options:
        if name not in known:
            wrong = f"optimiser_options has {name!r}, and {settings.optimiser} has no such option"
            raise ConfigError(wrong, where=where, do=did_you_mean(name, known, f"Use {', '.join(sorted(known))}"))
    try:
        make([nn.Parameter(torch.zeros(2, 2))], lr=settings.learning_rate, **settings.optimiser_options)
    except (TypeError, ValueError) as error:
        wrong = f"{settings.optimiser} refuses optimiser_options = {settings.optimiser_options} ({error})"
        raise ConfigError(wrong, where=where, do="Correct the value") from None


def scheduled_rate(settings: OptimiserSettings, steps: int) -> float:
    """The learning rate after that many steps of the run."""
    done = min(1.0, steps / settings.schedule_steps) if settings.schedule_steps else 0.0
    last, share = settings.schedule_last, 1.0
    if settings.schedule == "linear":
        share = 1 - (1 - last) * done
    elif settings.schedule == "cosine":
        share = last + (1 - last) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "exponential":
        share = last**done
    warm = min(1.0, steps / settings.warmup_steps) if settings.warmup_steps else 1.0
    return settings.learning_rate * share * warm


class Optimiser(ABC):
    """Owns the memory of `parameters`: they may be copied into, never replaced."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._parameters = [value for value in parameters if value.requires_grad]
        self._value, self.gradient = _flat_buffers(self._parameters)  # flat; the gradient is that of the next step
        # Over several learners: of statistics, and of gradients, which may be compressed.
        self.average: Callable[[Tensor], object] | None = None
        self.average_gradient: Callable[[Tensor], object] | None = None

    def descend(self, loss: Tensor, max_norm: float) -> Tensor:
        """One step down the gradient of `loss`, clipped to `max_norm`; its norm before that."""
        self._each(lambda part: self.gradient[part].zero_())  # another loss may have left gradients here
        loss.backward()  # type: ignore[no-untyped-call]
        if self.average_gradient is not None:
            self.average_gradient(self.gradient)
        return self.step(max_norm)

    def step(self, max_norm: float) -> Tensor:
        """One step down the gradient as it stands, clipped to `max_norm`; its norm before that."""
        with torch.no_grad():
            norms = self._each(lambda part: torch.linalg.vector_norm(self.gradient[part]))
            norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            self._move(min(1.0, max_norm / (norm.item() + 1e-6)))
        return norm

    @abstractmethod
    def _move(self, scale: float) -> None:
        """Move the parameters by the gradient times `scale`."""

    def _each(self, call: Callable[[slice], T]) -> list[T]:
        """The call for each thread's part of the parameters; on this thread alone where they are few."""
        parts = split(len(self._value), thread_count() if len(self._value) > THREADED_FROM else 1)
        return run_all([partial(_without_grad, call, part) for part in parts])

    @abstractmethod
    def everything(self) -> list[Tensor]:
        """Parameters and statistics: two learners with equal ones take equal steps."""

    @abstractmethod
    def save(self) -> Tree:
        """The statistics; the module saves its parameters itself."""

    @abstractmethod
    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""


class Adam(Optimiser):
    """Adam (Kingma & Ba 2015).

    m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α · (m / (1−β₁ᵗ)) / (√(v / (1−β₂ᵗ)) + ε)
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        epsilon: float = 1e-8,
        betas: tuple[float, float] = (BETA_1, BETA_2),
    ) -> None:
        super().__init__(parameters, learning_rate)
        self._epsilon, self._betas = epsilon, betas
        self._mean, self._square = torch.zeros_like(self._value), torch.zeros_like(self._value)
        self._steps = 0

    def _move(self, scale: float) -> None:
        self._steps += 1
        beta_1, beta_2 = self._betas
        rate = self.learning_rate / (1 - beta_1**self._steps)
        root = 1 / math.sqrt(1 - beta_2**self._steps)
        numbers = tuple(map(np.float32, (scale, rate, root, self._epsilon, 1 - beta_1, beta_2, 1 - beta_2)))
        value, gradient, mean, square = (one.numpy() for one in (self._value, self.gradient, self._mean, self._square))
        self._each(lambda part: _adam(value[part], gradient[part], mean[part], square[part], numbers))

    def everything(self) -> list[Tensor]:
        return [self._value, self._mean, self._square]

    def save(self) -> Tree:
        mean, square = np.array(self._mean.numpy()), np.array(self._square.numpy())
        return {"mean": mean, "square": square, "steps": self._steps}

    def load(self, state: Tree) -> None:
        self._mean.copy_(torch.from_numpy(state["mean"].copy()))
        self._square.copy_(torch.from_numpy(state["square"].copy()))
        self._steps = state["steps"]


@released
def _adam(value: Array, gradient: Array, mean: Array, square: Array, numbers: tuple[Any, ...]) -> None:
    """The equation of Adam. In one pass: as several operations of torch it takes three times as long."""
    scale, rate, root, epsilon, rest_1, beta_2, rest_2 = numbers  # 1 − β, which float32 would round off
    for i in range(len(value)):
        g = gradient[i] * scale
        mean[i] += rest_1 * (g - mean[i])
        square[i] = beta_2 * square[i] + rest_2 * g * g
        value[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + epsilon)


class TorchOptimiser(Optimiser):
    """An optimiser of torch.optim, or a user's own of the same form."""

    def __init__(self, parameters: Iterable[nn.Parameter], settings: OptimiserSettings) -> None:
        super().__init__(parameters, settings.learning_rate)
        make, options, seen = _maker(settings, ""), dict(settings.optimiser_options), self._parameters
        if settings.optimiser in ELEMENTWISE:
            seen = [nn.Parameter(self._value)]
            seen[0].grad = self.gradient
            if "fused" in inspect.signature(make).parameters:
                options["fused"] = True
        self._own: list[Any] = []
        if settings.optimiser == "muon":  # takes matrices alone
            others = [value for value in seen if value.ndim != 2]
            seen = [value for value in seen if value.ndim == 2]
            options = {"adjust_lr_fn": "match_rms_adamw"} | options  # so that a rate means what it does to Adam
            self._own = [torch.optim.AdamW(others, lr=self.learning_rate)] if others else []
        if seen:
            self._own.append(make(seen, lr=self.learning_rate, **options))

    def _move(self, scale: float) -> None:
        self.gradient.mul_(scale)
        for one in self._own:
            for group in one.param_groups:
                group["lr"] = self.learning_rate
            one.step()

    def everything(self) -> list[Tensor]:
        states = [sorted(state.items()) for one in self._own for state in one.state.values()]
        return [self._value, *(value for state in states for _, value in state if isinstance(value, Tensor))]

    def save(self) -> Tree:
        return [
            {str(place): {name: _plain(value) for name, value in state.items()} for place, state in states.items()}
            for states in (one.state_dict()["state"] for one in self._own)
        ]

    def load(self, state: Tree) -> None:
        for one, saved in zip(self._own, state, strict=True):
            states = {int(place): {name: _tensor(x) for name, x in parts.items()} for place, parts in saved.items()}
            one.load_state_dict(one.state_dict() | {"state": states})


def open_optimiser(parameters: Iterable[nn.Parameter], settings: OptimiserSettings, epsilon: float = 1e-8) -> Optimiser:
    """The optimiser that the settings name. `epsilon` is Adam's where they give no `eps`."""
    owned, options = list(parameters), settings.optimiser_options
    on_cpu = all(value.device.type == "cpu" for value in owned)
    if settings.optimiser == "adam" and options.keys() <= OWN_OPTIONS and on_cpu:
        betas = options.get("betas", (BETA_1, BETA_2))
        return Adam(owned, settings.learning_rate, options.get("eps", epsilon), betas)
    return TorchOptimiser(owned, settings)


def _maker(settings: OptimiserSettings, where: str) -> Callable[..., Any]:
    """The class of torch.optim with that name, in small letters, or what `module:name` is."""
    name = settings.optimiser
    if ":" in name:
        made: Callable[..., Any] = load_code(name, "optimiser")
        return made
    known = {one.lower(): getattr(torch.optim, one) for one in dir(torch.optim)}
    there = sorted(one for one in (*ELEMENTWISE, *BY_LAYER) if one in known)
    if name not in there:
        do = did_you_mean(name, there, f"Use one of {', '.join(there)}, or module:name")
        raise ConfigError(f"there is no optimiser {name!r}", where=where, do=do)
    found: Callable[..., Any] = known[name]
    return found


def _plain(value: Any) -> Any:
    return np.array(value.detach().cpu().numpy()) if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


class Rmsprop:
    """RMSProp (Tieleman & Hinton 2012), as the "Shared RMSProp" of A3C. It owns the memory of `parameters`, a local
    copy of θ: they may be copied into, never replaced.

    g ← αg + (1−α)Δ²,  θ ← θ − η Δ / √(g + ε)

    θ and g lie in one buffer that several processes may share without a lock (Recht et al. 2011): two steps at the same
    time may lose a part of one of them, which is one noisy step. Gradients are taken on the local copy, which does not
    change while it plays and learns.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, decay: float, epsilon: float) -> None:
        self.learning_rate, self._decay, self._epsilon = learning_rate, decay, epsilon
        self._copy, self._gradient = _flat_buffers(parameters)
        self._memory = torch.stack((self._copy, torch.zeros_like(self._copy)))  # θ, g

    @property
    def numbers(self) -> Array:
        """θ and g, float32 [2, parameters], not copied."""
        return self._memory.numpy()

    def share(self, numbers: Array) -> None:
        """From now on θ and g are these, which other processes may change."""
        self._memory = torch.from_numpy(numbers)
        self.pull()

    def pull(self) -> None:
        """Bring the local copy up to date."""
        self._copy.copy_(self._memory[0])

    def push(self, *, add: bool = False) -> None:
        """Make θ what the local copy is; or `add` the copy to θ, which others may change meanwhile, and pull."""
        if add:
            self._memory[0].add_(self._copy)
            self.pull()
        else:
            self._memory[0].copy_(self._copy)

    def descend(self, loss: Tensor, max_norm: float) -> Tensor:
        """One step of θ down the gradient of `loss`, clipped to `max_norm`; its norm before that.

        A gradient that is not finite changes nothing: it would reach all workers.
        """
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            norm: Tensor = torch.linalg.vector_norm(self._gradient)
            if torch.isfinite(norm):
                self._gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
                value, square = self._memory
                square.mul_(self._decay).addcmul_(self._gradient, self._gradient, value=1 - self._decay)
                value.addcdiv_(self._gradient, (square + self._epsilon).sqrt_(), value=-self.learning_rate)
        return norm

    def save(self) -> Tree:
        """θ and g."""
        return np.array(self.numbers)

    def load(self, state: Tree) -> None:
        """Back to what `save` gave, for all processes that share it."""
        self._memory.copy_(torch.from_numpy(state.copy()))
        self.pull()


def _flat_buffers(parameters: Iterable[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Buffers of all values and of all gradients, of which the parameters become views."""
    owned = list(parameters)
    sizes, device = [value.numel() for value in owned], owned[0].device
    values, gradients = torch.empty(sum(sizes), device=device), torch.zeros(sum(sizes), device=device)
    with torch.no_grad():
        parts = zip(owned, values.split(sizes), gradients.split(sizes), strict=True)  # type: ignore[no-untyped-call]
        for value, place, gradient in parts:
            # The same strides: channels_last stays channels_last.
            view = place.as_strided(value.shape, value.stride(), place.storage_offset())
            view.copy_(value)
            value.data = view
            value.grad = gradient.as_strided(value.shape, value.stride(), gradient.storage_offset())
    return values, gradients


def _without_grad(call: Callable[[slice], T], part: slice) -> T:
    with torch.no_grad():  # each thread has its own
        return call(part)
