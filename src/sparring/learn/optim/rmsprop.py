"""RMSProp (Tieleman & Hinton 2012) on parameters that others may change meanwhile: the "Shared RMSProp" of A3C.

g ← αg + (1−α)Δ²,  θ ← θ − η Δ / √(g + ε)

θ and g lie in one buffer that may be memory of several processes. Nobody locks it (Recht et al. 2011): two steps at the
same time may lose a part of one of them, which is one noisy step. Gradients are taken on a copy that stands still
while it plays and learns.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from sparring.wire.chunk import Array
from sparring.wire.tree import Tree


class Rmsprop:
    """Owns the memory of `parameters`, which are the copy: they may be copied into, never replaced."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, decay: float, epsilon: float) -> None:
        self.learning_rate, self._decay, self._epsilon = learning_rate, decay, epsilon
        owned = list(parameters)
        sizes = [value.numel() for value in owned]
        self._copy, self._gradient = torch.empty(sum(sizes)), torch.zeros(sum(sizes))
        with torch.no_grad():
            parts = zip(owned, self._copy.split(sizes), self._gradient.split(sizes), strict=True)  # type: ignore[no-untyped-call]
            for value, place, gradient in parts:
                view = place.as_strided(value.shape, value.stride(), place.storage_offset())
                view.copy_(value)
                value.data = view
                value.grad = gradient.as_strided(value.shape, value.stride(), gradient.storage_offset())
        self._memory = torch.stack((self._copy, torch.zeros_like(self._copy)))  # θ, g

    @property
    def numbers(self) -> Array:
        """θ and g, float32 [2, parameters], not copied."""
        return self._memory.numpy()

    def share(self, numbers: Array) -> None:
        """From now on θ and g are these, whoever else changes them."""
        self._memory = torch.from_numpy(numbers)
        self.pull()

    def pull(self) -> None:
        """Bring the copy up to date."""
        self._copy.copy_(self._memory[0])

    def descend(self, loss: Tensor, max_norm: float) -> Tensor:
        """One step of θ down the gradient of `loss`, shortened to `max_norm`; its norm before that.

        A gradient that is no finite number changes nothing: it would reach everybody.
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
        """Back to what `save` gave, for everybody."""
        self._memory.copy_(torch.from_numpy(state.copy()))
        self.pull()
