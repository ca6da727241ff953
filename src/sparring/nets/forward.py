"""A network with its weights, ready to act, behind one protocol: NumPy, ONNX Runtime or torch run it, and all three
answer the same up to the last digits.

NumPy is fastest where no layer is a convolution: a call costs torch some tens of microseconds more, and new weights
cost ONNX Runtime 20 ms. A row of images costs half as much in either of them (docs/performance.md). A user's torch
module (NetworkSpec.module) runs in ONNX Runtime.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol

from sparring.games.protocol import Columns
from sparring.nets.numpy_forward import NumpyForward, sees_bytes
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec


class Forward(Protocol):
    """Called with leaf name → [n, *shape]. Threads may share one."""

    spec: NetworkSpec

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        """Heads by name: float32 [n, units], and "value" as [n].

        With a memory also "state" [n, state_width], which the next step takes; without a state an episode begins.
        """


def forward_without_torch(spec: NetworkSpec, weights: Mapping[str, Array]) -> Forward:
    """The fastest with these weights (copied) for actor processes, which do not load torch.

    The graph gives means in the game's units (docs/models.md) and actors need them raw, so boxes stay with NumPy.
    A module network always runs in ONNX Runtime, and gives raw means.
    """
    if spec.module is not None:
        from sparring.nets.onnx_graph import ModuleForward

        return ModuleForward(spec, weights)
    if not spec.image or any(head.name == "mean" for head in spec.heads):
        return NumpyForward(spec, weights)
    from sparring.nets.onnx_graph import OnnxForward, to_onnx

    return OnnxForward(spec, to_onnx(spec, weights))


def forward_for_matches(spec: NetworkSpec, weights: Mapping[str, Array]) -> Forward:
    """As `forward_without_torch`, for many games of two networks at once: where the network sees a board and numba is
    installed its first layers skip what is empty. Every match of a league has to be played by the same: the last digits
    of a row's outputs are others than those of `forward_without_torch`."""
    if spec.module is None and sees_bytes(spec) and find_spec("numba") is not None:
        return NumpyForward(spec, weights, sparse=True)
    return forward_without_torch(spec, weights)


def forward_with_torch(spec: NetworkSpec, weights: Mapping[str, Array]) -> Forward:
    """The fastest with these weights (copied) where torch is loaded."""
    if spec.module is not None:  # a call of torch modules costs several times as much as one of ONNX Runtime
        return forward_without_torch(spec, weights)
    if not spec.image:
        return NumpyForward(spec, weights)
    from sparring.nets.torch_network import Network, TorchForward

    return TorchForward(Network.with_weights(spec, weights))
