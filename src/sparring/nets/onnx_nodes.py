"""An ONNX graph while it is written: nodes, constants, inputs and outputs, each value by its name."""

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

from sparring.wire.chunk import Array

OPSET, IR = 15, 8  # the newest that engines' own runtimes take (docs/decisions/0050); ONNX Runtime takes it too


class Graph:
    """Nodes as they are added; every value has a name, and `add` returns it."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def add(self, kind: str, given: list[str], name: str = "", **attributes: int | list[int]) -> str:
        """One node with one output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self._node(kind, given, [name], attributes)
        return name

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """x cut along its second axis."""
        names = [f"split_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        self._node("Split", [x, self.integers(sizes)], names, {"axis": 1})
        return names

    def constant(self, name: str, value: Array) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def weight(self, place: str) -> list[str]:
        """The weight and the bias of a place."""
        return [self.constant(f"{place}/{part}", self.weights[f"{place}/{part}"]) for part in ("weight", "bias")]

    def integers(self, values: list[int]) -> str:
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(f"number_{len(self.constants)}", np.array(value, np.float32))

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["batch", *shape]))
        return name

    def output(self, name: str, shape: tuple[int, ...], made: str) -> None:
        assert name == made  # an output is a value's name
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]))

    def encoded(self) -> bytes:
        """The whole graph as a file's bytes, checked."""
        graph = helper.make_graph(self.nodes, "sparring", self.inputs, self.outputs, list(self.constants.values()))
        model = helper.make_model(
            graph, producer_name="sparring", ir_version=IR, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _node(self, kind: str, given: list[str], names: list[str], attributes: Mapping[str, int | list[int]]) -> None:
        node = helper.make_node(kind, given, names, name=f"node_{len(self.nodes)}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)
