"""Adam (Kingma & Ba 2015) on all parameters as one flat buffer.

m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α · (m / (1−β₁ᵗ)) / (√(v / (1−β₂ᵗ)) + ε)

Parameters and gradients become views of two buffers, so a step is three operations however many layers there are:
the norm, its shortening, and the fused step that torch.optim.Adam(fused=True) calls. Making that optimiser itself
imports torch's compiler, which takes longer than learning CartPole does.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sparring.nets.row_threads import granted, together
from sparring.wire.tree import Tree

BETA_1, BETA_2 = 0.9, 0.999
FEW = 1 << 18  # numbers: up to here one thread is as fast as several

T = TypeVar("T")


class Adam:
    """Owns the memory of `parameters`: they may be copied into, never replaced."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, epsilon: float = 1e-8) -> None:
        self.learning_rate, self._epsilon = learning_rate, epsilon
        owned = list(parameters)
        sizes = [value.numel() for value in owned]
        self._value, self._gradient = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
        self.average: Callable[[Tensor], None] | None = None  # of several learners: makes the gradient theirs together
        with torch.no_grad():
            parts = zip(owned, self._value.split(sizes), self._gradient.split(sizes), strict=True)  # type: ignore[no-untyped-call]
            for value, place, gradient in parts:
                # The same strides: channels_last stays channels_last.
                view = place.as_strided(value.shape, value.stride(), place.storage_offset())
                view.copy_(value)
                value.data = view
                value.grad = gradient.as_strided(value.shape, value.stride(), gradient.storage_offset())
        self._mean, self._square = torch.zeros_like(self._value), torch.zeros_like(self._value)
        self._steps = torch.zeros(())

    def descend(self, loss: Tensor, max_norm: float) -> Tensor:
        """One step down the gradient of `loss`, shortened to `max_norm`; its norm before that."""
        self._each(lambda part: self._gradient[part].zero_())  # another's loss may have passed these parameters too
        loss.backward()  # type: ignore[no-untyped-call]
        if self.average is not None:
            self.average(self._gradient)
        return self.step(max_norm)

    @property
    def gradient(self) -> Tensor:
        """That of the next step, flat."""
        return self._gradient

    def step(self, max_norm: float) -> Tensor:
        """One step down the gradient as it stands, shortened to `max_norm`; its norm before that."""
        with torch.no_grad():
            norm = self._each(lambda part: torch.linalg.vector_norm(self._gradient[part]))
            length = norm[0] if len(norm) == 1 else torch.linalg.vector_norm(torch.stack(norm))
            shorter = (max_norm / (length + 1e-6)).clamp(max=1.0)
            self._steps += 1
            self._each(lambda part: self._step(part, shorter))
        result: Tensor = length
        return result

    def _step(self, part: slice, shorter: Tensor) -> None:
        """Move that part of the parameters by its gradient, which is left at 0."""
        gradient = self._gradient[part].mul_(shorter)
        torch._fused_adam_(
            [self._value[part]],
            [gradient],
            [self._mean[part]],
            [self._square[part]],
            [],
            [self._steps],
            lr=self.learning_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )
        gradient.zero_()

    def _each(self, call: Callable[[slice], T]) -> list[T]:
        """The call for each thread's part of the numbers; by this thread alone where they are few."""
        size = len(self._value)
        parts = granted() if size > FEW else 1
        bounds = [size * part // parts for part in range(parts + 1)]
        return together([partial(_ungraded, call, slice(*pair)) for pair in pairwise(bounds)])

    def everything(self) -> list[Tensor]:
        """Parameters and what is remembered of their gradients, flat: whoever has the same takes the same steps."""
        return [self._value, self._mean, self._square]

    def save(self) -> Tree:
        """What it remembers of the gradients; the parameters are their module's to save."""
        return {"mean": _array(self._mean), "square": _array(self._square), "steps": int(self._steps)}

    def load(self, state: Tree) -> None:
        """Back to what `save` gave."""
        self._mean.copy_(torch.from_numpy(state["mean"].copy()))
        self._square.copy_(torch.from_numpy(state["square"].copy()))
        self._steps.fill_(state["steps"])


def _ungraded(call: Callable[[slice], T], part: slice) -> T:
    with torch.no_grad():  # which is each thread's own
        return call(part)


def _array(value: Tensor) -> Tree:
    return np.array(value.numpy())
