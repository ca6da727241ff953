"""A network as an ONNX graph, built straight from its spec: no tracing, no framework.

Inputs: each observation leaf by its name, in its own dtype, [batch, *shape]; where there are logits also
`legal`, uint8 [batch, choices]. Outputs: each head by its name; logits are ILLEGAL where `legal` is 0, and
value is [batch].
"""

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

from sparring.learn.layout import fit, flats, head_layer, images, trunk_of, width
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Conv, Input, Layer, NetworkSpec

OPSET, IR = 15, 8  # the newest that engines' own runtimes take (docs/decisions/0050); ONNX Runtime takes it too
ILLEGAL = -1e9  # below any logit, and still a finite float32
LEGAL = "legal"
_ACTIVATIONS: dict[Activation, str] = {"relu": "Relu", "tanh": "Tanh"}


def to_onnx(spec: NetworkSpec, weights: Mapping[str, Array]) -> bytes:
    """The graph as a file's bytes; equal networks give equal bytes."""
    fit(spec, weights)
    graph = _Graph(weights)
    joined = graph.joined(spec)
    trunks = {"trunk": graph.stack("trunk", spec.trunk, joined)}
    if spec.separate_value:
        trunks["value_trunk"] = graph.stack("value_trunk", spec.trunk, joined)
    for head in spec.heads:
        out = graph.dense(f"{head.name}/folded", *head_layer(head, weights), trunks[trunk_of(spec, head)])
        if head.name == "logits":
            graph.mask(out, head.units)
        elif head.name == "value" and head.units == 1:
            graph.output("value", (), graph.add("Squeeze", [out, graph.integers([1])], "value"))
        else:
            graph.output(head.name, (head.units,), graph.add("Identity", [out], head.name))
    return graph.encoded()


class _Graph:
    """Nodes as they are added; every value has a name, and `add` returns it."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def add(self, kind: str, given: list[str], name: str = "", **attributes: int | list[int]) -> str:
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        node = helper.make_node(kind, given, [name], name=f"node_{len(self.nodes)}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)
        return name

    def constant(self, name: str, value: Array) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

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

    def joined(self, spec: NetworkSpec) -> str:
        raw = {leaf.name: self.input(leaf.name, leaf.dtype, leaf.shape) for leaf in spec.inputs}
        parts = []
        if pictures := images(spec):
            frames = [self.picture(leaf, raw[leaf.name]) for leaf in pictures]
            frame = frames[0] if len(frames) == 1 else self.add("Concat", frames, axis=1)
            parts.append(self.add("Flatten", [self.stack("image", spec.image, frame)], axis=1))
        for leaf in flats(spec):
            parts.append(self.add("Reshape", [self.scaled(leaf, raw[leaf.name]), self.integers([0, width(leaf)])]))
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, axis=1)

    def picture(self, leaf: Input, raw: str) -> str:
        x = self.scaled(leaf, raw)
        return x if len(leaf.shape) == 3 else self.add("Unsqueeze", [x, self.integers([1])])

    def scaled(self, leaf: Input, raw: str) -> str:
        if leaf.one_hot:
            whole = self.add("Cast", [raw], to=TensorProto.INT64)
            spread = self.add("Unsqueeze", [whole, self.integers([-1])])
            hit = self.add("Equal", [spread, self.integers(list(range(leaf.one_hot)))])
            return self.add("Cast", [hit], to=TensorProto.FLOAT)
        x = raw if leaf.dtype == "float32" else self.add("Cast", [raw], to=TensorProto.FLOAT)
        if leaf.shift != 0.0:
            x = self.add("Sub", [x, self.number(leaf.shift)])
        return x if leaf.scale == 1.0 else self.add("Mul", [x, self.number(leaf.scale)])

    def stack(self, place: str, layers: tuple[Layer, ...], x: str) -> str:
        for i, layer in enumerate(layers):
            weight, bias = self.weights[f"{place}/{i}/weight"], self.weights[f"{place}/{i}/bias"]
            if isinstance(layer, Conv):
                names = [self.constant(f"{place}/{i}/weight", weight), self.constant(f"{place}/{i}/bias", bias)]
                kernel, strides, pads = [layer.kernel] * 2, [layer.stride] * 2, [layer.padding] * 4
                x = self.add("Conv", [x, *names], kernel_shape=kernel, strides=strides, pads=pads)
            else:
                if place == "image" and (i == 0 or isinstance(layers[i - 1], Conv)):
                    x = self.add("Flatten", [x], axis=1)
                x = self.dense(f"{place}/{i}", weight, bias, x)
            if layer.activation != "none":
                x = self.add(_ACTIVATIONS[layer.activation], [x])
        return x

    def dense(self, place: str, weight: Array, bias: Array, x: str) -> str:
        return self.add(
            "Gemm", [x, self.constant(f"{place}/weight", weight), self.constant(f"{place}/bias", bias)], transB=1
        )

    def mask(self, logits: str, choices: int) -> None:
        allowed = self.add("Cast", [self.input(LEGAL, "uint8", (choices,))], to=TensorProto.BOOL)
        self.output("logits", (choices,), self.add("Where", [allowed, logits, self.number(ILLEGAL)], "logits"))

    def encoded(self) -> bytes:
        graph = helper.make_graph(self.nodes, "sparring", self.inputs, self.outputs, list(self.constants.values()))
        model = helper.make_model(
            graph, producer_name="sparring", ir_version=IR, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content


def legal_choices(spec: NetworkSpec) -> int:
    """How wide `legal` is; 0 where the network has no logits and so no such input."""
    return next((head.units for head in spec.heads if head.name == "logits"), 0)
