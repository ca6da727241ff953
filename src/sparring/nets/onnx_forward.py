"""The same networks by ONNX Runtime, for actor processes, which have no torch.

New weights cost some 20 ms here and 4 in NumPy, and a row of images half as much as in NumPy, so this is for networks
that see images (docs/decisions/0160-images-by-torch.md).
"""

from collections.abc import Mapping

import numpy as np

from sparring.games.protocol import Columns
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import STATE
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec


class OnnxForward(NumpyForward):
    """Called like NumpyForward, and answers the same to the last digits. It passes images on one thread."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        import onnxruntime

        from sparring.nets.onnx_export import STATE_OUT, legal_choices, to_onnx

        self.spec = spec
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            to_onnx(spec, weights), options, providers=["CPUExecutionProvider"]
        )
        self._leaves = tuple(leaf.name for leaf in spec.inputs)
        self._choices = legal_choices(spec)  # the graph masks logits; whoever chooses does so here, so all are legal
        self._names = [STATE if out.name == STATE_OUT else out.name for out in self._session.get_outputs()]

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        rows = len(observation[self._leaves[0]])
        given = {name: observation[name] for name in self._leaves}
        if self._choices:
            given["legal"] = np.ones((rows, self._choices), np.uint8)
        if self.spec.memory is not None:
            given[STATE] = self.initial_state(rows) if state is None else state
        return dict(zip(self._names, self._session.run(None, given), strict=True))


def without_torch(spec: NetworkSpec, weights: Mapping[str, Array]) -> NumpyForward:
    """What acts fastest with these weights (copied) where there is no torch.

    The graph gives means in the game's units (docs/models.md) and actors need them raw, so boxes stay with NumPy.
    """
    boxes = any(head.name == "mean" for head in spec.heads)
    return OnnxForward(spec, weights) if spec.image and not boxes else NumpyForward(spec, weights)
