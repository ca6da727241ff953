"""Optimisers whose parameters and gradients are views of two flat buffers, so that a step is a few operations however
many layers there are."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sparring.nets.row_threads import run_all, split, thread_count
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

BETA_1, BETA_2 = 0.9, 0.999
THREADED_FROM = 1 << 18  # parameters: up to here one thread is as fast as several

T = TypeVar("T")


class Adam:
    """Adam (Kingma & Ba 2015). Owns the memory of `parameters`: they may be copied into, never replaced.

    m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α · (m / (1−β₁ᵗ)) / (√(v / (1−β₂ᵗ)) + ε)

    It calls the fused step that torch.optim.Adam(fused=True) calls: making that optimiser itself imports torch's
    compiler, which takes longer than learning CartPole does.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, epsilon: float = 1e-8) -> None:
        self.learning_rate, self._epsilon = learning_rate, epsilon
        self._value, self._gradient = _flat_buffers(parameters)
        self.average: Callable[[Tensor], None] | None = None  # averages the gradient over several learners
        self._mean, self._square = torch.zeros_like(self._value), torch.zeros_like(self._value)
        self._steps = torch.zeros(())

    def descend(self, loss: Tensor, max_norm: float) -> Tensor:
        """One step down the gradient of `loss`, clipped to `max_norm`; its norm before that."""
        self._each(lambda part: self._gradient[part].zero_())  # another loss may have left gradients here
        loss.backward()  # type: ignore[no-untyped-call]
        if self.average is not None:
            self.average(self._gradient)
        return self.step(max_norm)

    @property
    def gradient(self) -> Tensor:
        """That of the next step, flat."""
        return self._gradient

    def step(self, max_norm: float) -> Tensor:
        """One step down the gradient as it stands, clipped to `max_norm`; its norm before that."""
        with torch.no_grad():
            norms = self._each(lambda part: torch.linalg.vector_norm(self._gradient[part]))
            norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            self._steps += 1
            self._each(lambda part: self._step(part, scale))
        return norm

    def _step(self, part: slice, scale: Tensor) -> None:
        """Move that part of the parameters by its gradient, which is left at 0."""
        gradient = self._gradient[part].mul_(scale)
        value, mean, square = [self._value[part]], [self._mean[part]], [self._square[part]]
        step = partial(torch._fused_adam_, weight_decay=0.0, amsgrad=False, maximize=False)
        rate, epsilon = self.learning_rate, self._epsilon
        step(value, [gradient], mean, square, [], [self._steps], lr=rate, beta1=BETA_1, beta2=BETA_2, eps=epsilon)
        gradient.zero_()

    def _each(self, call: Callable[[slice], T]) -> list[T]:
        """The call for each thread's part of the parameters; on this thread alone where they are few."""
        parts = split(len(self._value), thread_count() if len(self._value) > THREADED_FROM else 1)
        return run_all([partial(_without_grad, call, part) for part in parts])

    def everything(self) -> list[Tensor]:
        """Parameters and moments, flat: two learners with equal ones take equal steps."""
        return [self._value, self._mean, self._square]

    def save(self) -> Tree:
        """The moments; the module saves its parameters itself."""
        mean, square = np.array(self._mean.numpy()), np.array(self._square.numpy())
        return {"mean": mean, "square": square, "steps": int(self._steps)}

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._mean.copy_(torch.from_numpy(state["mean"].copy()))
        self._square.copy_(torch.from_numpy(state["square"].copy()))
        self._steps.fill_(state["steps"])


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
    sizes = [value.numel() for value in owned]
    values, gradients = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
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
