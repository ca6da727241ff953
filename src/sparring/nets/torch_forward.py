"""The same networks by torch, for actors in a process that has it anyway.

A call costs torch some tens of microseconds more than NumPy and a convolution a third to a half less, so this is for
networks that see images (docs/decisions/0160-images-by-torch.md). Actor processes have no torch and use NumpyForward.
"""

from collections.abc import Mapping

import torch

from sparring.games.protocol import Columns
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec


class TorchForward(NumpyForward):
    """Called like NumpyForward, and answers the same to the last digits."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        self.spec = spec
        self._net = Network.holding(spec, weights)

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        with torch.inference_mode():
            out = self._net(tensors(observation), None if state is None else tensor(state))
            return {name: y.numpy() for name, y in out.items()}


def beside_the_learner(spec: NetworkSpec, weights: Mapping[str, Array]) -> NumpyForward:
    """What acts fastest with these weights (copied) where torch is loaded."""
    return TorchForward(spec, weights) if spec.image else NumpyForward(spec, weights)
