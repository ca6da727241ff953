"""A network as an ONNX graph, built straight from its spec without tracing, and ONNX Runtime to run it.

Inputs: each observation leaf by its name, in its own dtype, [batch, *shape]; where there are logits also
`legal`, uint8 [batch, choices]; with a memory `state`, float32 [batch, numbers], zeros where an episode
begins. Outputs: each head by its name; logits are ILLEGAL where `legal` is 0, value is [batch], and a mean with
bounds lies between them; with a memory `state_out`, which the next step is given as its `state` (in ONNX no two
values share a name).

Memories and attention are written out in products, sums and σ, which every runtime has that runs dense layers.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, ValueInfoProto, checker, helper, load_model_from_string, numpy_helper

from sparring.errors import ModelDamaged
from sparring.games.protocol import Columns
from sparring.nets import shapes
from sparring.nets.chooser import open_session
from sparring.nets.shapes import STATE
from sparring.wire.chunk import Array
from sparring.wire.network import (
    NORMALISED_LIMIT,
    Activation,
    Conv,
    Dense,
    Entities,
    Gru,
    Input,
    Layer,
    NetworkSpec,
    Pool,
    Residual,
)

OPSET, IR = 15, 8  # the newest that engines' own runtimes take (docs/decisions/0050); ONNX Runtime takes it too
ILLEGAL = -1e9  # below any logit, and still a finite float32
ABSENT = -1e9  # the attention score of an entity that is not there
LOWEST = -3e38  # below any number of an entity; a finite float32, since engines differ about infinities
LEGAL, STATE_OUT = "legal", "state_out"
NET, NET_OUT = "net/", "net/out/"  # before the names of a module's own values, and of what it gives
SESSION_AFTER = 8  # runs with the same weights, after which an image network has a session of its own
_ACTIVATIONS: dict[Activation, str] = {"relu": "Relu", "tanh": "Tanh"}


class OnnxForward:
    """A Forward (nets/forward.py) by ONNX Runtime on one thread. It runs any graph that `to_onnx` made."""

    def __init__(self, spec: NetworkSpec, graph: bytes, session: Any = None) -> None:
        self.spec, self._session = spec, session or open_session(graph)
        self._leaves = tuple(leaf.name for leaf in spec.inputs)
        # The graph masks logits, and policies mask them too: here all actions are legal.
        self._choices = next((head.units for head in spec.heads if head.name == "logits"), 0)
        self._names = [STATE if out.name == STATE_OUT else out.name for out in self._session.get_outputs()]

    def __call__(self, observation: Columns, state: Array | None = None) -> dict[str, Array]:
        rows = len(observation[self._leaves[0]])
        given = {name: observation[name] for name in self._leaves}
        if self._choices:
            given[LEGAL] = np.ones((rows, self._choices), np.uint8)
        if self.spec.memory is not None:
            given[STATE] = shapes.initial_state(self.spec, rows) if state is None else state
        return dict(zip(self._names, self._run(given), strict=True))

    def _run(self, given: dict[str, Array]) -> list[Array]:
        outputs: list[Array] = self._session.run(None, given)
        return outputs


class ModuleForward(OnnxForward):
    """A module network (`NetworkSpec.module`) with these weights (not copied), which are inputs of the graph: new
    weights cost microseconds, where a session of their own takes 3 ms to make for an MLP and 45 ms for an image
    network. That of an image network runs twice as fast, so it is made after some runs with the same weights."""

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, Array]) -> None:
        self._raw = replace(spec, heads=tuple(replace(head, bounds=None) for head in spec.heads))
        shapes.fit(spec, weights)
        super().__init__(spec, b"", _session_without_weights(self._raw))
        taken = {entry.name for entry in self._session.get_inputs()}
        fed = {f"{NET}{name}": value for name, value in weights.items() if f"{NET}{name}" in taken}
        self._ready = self._session, fed  # one value, since threads may share this
        self._runs_left = SESSION_AFTER if shapes.images(spec) else -1

    def _run(self, given: dict[str, Array]) -> list[Array]:
        self._runs_left -= 1
        session, weights = self._ready
        if self._runs_left == 0:
            whole = {name.removeprefix(NET): value for name, value in weights.items()}
            self._ready = session, weights = open_session(to_onnx(self._raw, whole)), {}
        outputs: list[Array] = session.run(None, given | weights)
        return outputs


@lru_cache(maxsize=8)
def _session_without_weights(spec: NetworkSpec) -> Any:
    return open_session(to_onnx(spec, {}))


def to_onnx(spec: NetworkSpec, weights: Mapping[str, Array]) -> bytes:
    """The graph as a file's bytes; equal networks give equal bytes. Tensors of a module that `weights` lack are inputs
    of the graph."""
    graph = Graph(weights)
    outs = _layer_heads(graph, spec) if spec.module is None else _module_heads(graph, spec)
    for head in spec.heads:
        out = outs[head.name]
        if head.name == "logits":
            _mask(graph, out, head.units)
        elif head.bounds is not None:
            _squash(graph, head.name, out, head.units, head.bounds)
        elif head.name == "value" and head.units == 1:
            graph.output(graph.add("Squeeze", [out, graph.integers([1])], "value"), ())
        else:
            graph.output(graph.add("Identity", [out], head.name), (head.units,))
    if spec.memory is not None:
        graph.output(STATE_OUT, (shapes.state_width(spec),))
    return graph.encoded()


class Graph:
    """Nodes as they are added; every value has a name, and `add` returns it."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self.opset, self.ir = OPSET, IR
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

    def output(self, name: str, shape: tuple[int, ...]) -> None:
        """The value of that name is an output."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]))

    def encoded(self) -> bytes:
        """The whole graph as a file's bytes, checked."""
        graph = helper.make_graph(self.nodes, "sparring", self.inputs, self.outputs, list(self.constants.values()))
        model = helper.make_model(
            graph, producer_name="sparring", ir_version=self.ir, opset_imports=[helper.make_opsetid("", self.opset)]
        )
        checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _node(self, kind: str, given: list[str], names: list[str], attributes: Mapping[str, int | list[int]]) -> None:
        node = helper.make_node(kind, given, names, name=f"node_{len(self.nodes)}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)


def _layer_heads(graph: Graph, spec: NetworkSpec) -> dict[str, str]:
    shapes.fit(spec, graph.weights)
    features, outs = _trunks(graph, spec, _joined(graph, spec)), {}
    for head in spec.heads:
        layer = zip(("weight", "bias"), shapes.head_layer(head, graph.weights), strict=True)
        names = [graph.constant(f"{head.name}/folded/{part}", value) for part, value in layer]
        outs[head.name] = graph.add("Gemm", [features[shapes.trunk_of(spec, head)], *names], transB=1)
    return outs


def _module_heads(graph: Graph, spec: NetworkSpec) -> dict[str, str]:
    """What the module's own nodes give for each head; the next state is named on the way."""
    assert spec.module is not None
    whole = load_model_from_string(spec.module.graph)
    domains = {one.domain: one.version for one in whole.opset_import}
    if stray := sorted(set(domains) - {""}) or [one.name for one in whole.graph.initializer if one.data_location]:
        raise ModelDamaged(
            f"its graph uses {stray[0]!r}", where="network", do="Use ONNX's own operations, and no files"
        )
    graph.opset, graph.ir = domains[""], whole.ir_version
    for leaf in spec.inputs:
        graph.add("Identity", [_scaled(graph, leaf, graph.input(leaf.name, leaf.dtype, leaf.shape))], NET + leaf.name)
    if spec.memory is not None:
        graph.add("Identity", [graph.input(STATE, "float32", (shapes.state_width(spec),))], NET + STATE)
    needed = {name for node in whole.graph.node for name in node.input}
    for name, shape in spec.module.tensors:
        if name in graph.weights:
            graph.constant(NET + name, graph.weights[name])
        elif NET + name in needed:
            graph.inputs.append(helper.make_tensor_value_info(NET + name, TensorProto.FLOAT, shape))
    graph.constants |= {one.name: one for one in whole.graph.initializer}
    graph.nodes += whole.graph.node
    if spec.memory is not None:
        graph.add("Identity", [f"{NET_OUT}{STATE}"], STATE_OUT)
    return {head.name: NET_OUT + head.name for head in spec.heads}


def _joined(graph: Graph, spec: NetworkSpec) -> str:
    raw = {leaf.name: graph.input(leaf.name, leaf.dtype, leaf.shape) for leaf in spec.inputs}
    parts = []
    if images := shapes.images(spec):
        frames = [_image(graph, leaf, raw[leaf.name]) for leaf in images]
        frame = frames[0] if len(frames) == 1 else graph.add("Concat", frames, axis=1)
        parts.append(graph.add("Flatten", [_stack(graph, "image", spec.image, frame, image=True)], axis=1))
    for i, (encoder, leaf, count) in enumerate(shapes.entity_sets(spec)):
        stacked, most, features = shapes.set_shape(leaf)
        x = _scaled(graph, leaf, raw[leaf.name])
        each = graph.add("Reshape", [x, graph.integers([-1, most, features])])
        there = graph.add("Reshape", [raw[count.name], graph.integers([-1, 1])])
        pooled = _entities(graph, f"entities/{i}", encoder, most, each, there)
        parts.append(graph.add("Reshape", [pooled, graph.integers([-1, stacked * encoder.units])]))
    for leaf in shapes.flats(spec):
        x = _scaled(graph, leaf, raw[leaf.name])
        if leaf.normalise:
            mean, deviation = (graph.constant(name, graph.weights[name]) for name in shapes.statistics_of(spec, leaf))
            x = graph.add("Div", [graph.add("Sub", [x, mean]), deviation])
            x = graph.add("Clip", [x, graph.number(-NORMALISED_LIMIT), graph.number(NORMALISED_LIMIT)])
        parts.append(graph.add("Reshape", [x, graph.integers([0, shapes.width(leaf)])]))
    return parts[0] if len(parts) == 1 else graph.add("Concat", parts, axis=1)


def _trunks(graph: Graph, spec: NetworkSpec, joined: str) -> dict[str, str]:
    """What feeds the heads of each trunk; the next state is named on the way."""
    seen = {place: _stack(graph, place, spec.trunk, joined, image=False) for place in shapes.trunks(spec)}
    if spec.memory is None:
        return seen
    whole = graph.input(STATE, "float32", (shapes.state_width(spec),))
    size = shapes.memory_width(spec.memory)
    states = graph.split(whole, [size] * len(seen)) if len(seen) > 1 else [whole]
    after = []
    for (place, x), state in zip(seen.items(), states, strict=True):
        seen[place], last = _memory(graph, shapes.memory_of(place), spec, x, state)
        after.append(last)
    graph.add("Concat", after, STATE_OUT, axis=1)
    return seen


def _image(graph: Graph, leaf: Input, raw: str) -> str:
    x = _scaled(graph, leaf, raw)
    return x if len(leaf.shape) == 3 else graph.add("Unsqueeze", [x, graph.integers([1])])


def _scaled(graph: Graph, leaf: Input, raw: str) -> str:
    if leaf.one_hot:
        whole = graph.add("Cast", [raw], to=TensorProto.INT64)
        spread = graph.add("Unsqueeze", [whole, graph.integers([-1])])
        hit = graph.add("Equal", [spread, graph.integers(list(range(leaf.one_hot)))])
        return graph.add("Cast", [hit], to=TensorProto.FLOAT)
    x = raw if leaf.dtype == "float32" else graph.add("Cast", [raw], to=TensorProto.FLOAT)
    if leaf.shift != 0.0:
        x = graph.add("Sub", [x, graph.number(leaf.shift)])
    return x if leaf.scale == 1.0 else graph.add("Mul", [x, graph.number(leaf.scale)])


def _squash(graph: Graph, name: str, raw: str, units: int, bounds: tuple[float, float]) -> None:
    low, high = bounds
    share = graph.add("Add", [graph.add("Tanh", [raw]), graph.number(1.0)])
    x = graph.add("Add", [graph.add("Mul", [share, graph.number(0.5 * (high - low))]), graph.number(low)])
    graph.output(graph.add("Clip", [x, graph.number(low), graph.number(high)], name), (units,))


def _mask(graph: Graph, logits: str, choices: int) -> None:
    allowed = graph.add("Cast", [graph.input(LEGAL, "uint8", (choices,))], to=TensorProto.BOOL)
    graph.output(graph.add("Where", [allowed, logits, graph.number(ILLEGAL)], "logits"), (choices,))


def _stack(graph: Graph, place: str, layers: tuple[Layer, ...], x: str, *, image: bool) -> str:
    """The layers one behind the other; `image`: x has channels, height and width."""
    for i, layer in enumerate(layers):
        at = f"{place}/{i}"
        if isinstance(layer, Dense):
            if image:
                x, image = graph.add("Flatten", [x], axis=1), False
            x = _activate(graph, layer.activation, _gemm(graph, at, x))
        elif isinstance(layer, Conv):
            x = _activate(graph, layer.activation, _conv(graph, at, x, layer.kernel, layer.stride, layer.padding))
        elif isinstance(layer, Pool):
            kernel, strides, pads = [layer.kernel] * 2, [layer.stride] * 2, [layer.padding] * 4
            x = graph.add("MaxPool", [x], kernel_shape=kernel, strides=strides, pads=pads)
        else:
            x = _residual(graph, at, layer, x, image=image)
    return x


def _activate(graph: Graph, activation: Activation, x: str) -> str:
    """x behind that activation."""
    return x if activation == "none" else graph.add(_ACTIVATIONS[activation], [x])


def _memory(graph: Graph, place: str, spec: NetworkSpec, x: str, state: str) -> tuple[str, str]:
    """The memory's output, and its own part of the next state."""
    memory = spec.memory
    assert memory is not None
    u = memory.units
    if isinstance(memory, Gru):
        seen = graph.split(_gemm(graph, f"{place}/input", x), [u] * 3)
        held = graph.split(_gemm(graph, f"{place}/hidden", state), [u] * 3)
        r, z = (graph.add("Sigmoid", [graph.add("Add", [seen[i], held[i]])]) for i in range(2))
        n = graph.add("Tanh", [graph.add("Add", [seen[2], graph.add("Mul", [r, held[2]])])])
        h = graph.add("Add", [n, graph.add("Mul", [z, graph.add("Sub", [state, n])])])
        return h, h
    h, c = graph.split(state, [u, u])
    both = graph.add("Add", [_gemm(graph, f"{place}/input", x), _gemm(graph, f"{place}/hidden", h)])
    i, f, g, o = graph.split(both, [u] * 4)
    kept = graph.add("Mul", [graph.add("Sigmoid", [f]), c])
    c = graph.add("Add", [kept, graph.add("Mul", [graph.add("Sigmoid", [i]), graph.add("Tanh", [g])])])
    h = graph.add("Mul", [graph.add("Sigmoid", [o]), graph.add("Tanh", [c])])
    return h, graph.add("Concat", [h, c], axis=1)


def _entities(graph: Graph, place: str, encoder: Entities, most: int, x: str, count: str) -> str:
    """Sets [n, most, features] of which the first `count` [n, 1] are there, as [n, units]."""
    ranks = graph.constant(f"ranks_{most}", np.arange(most, dtype=np.float32))
    there = graph.add("Less", [ranks, graph.add("Cast", [count], to=TensorProto.FLOAT)])  # [n, most]
    column = graph.add("Unsqueeze", [there, graph.integers([2])])
    keys = graph.add("Unsqueeze", [there, graph.integers([1, 2])])  # [n, 1, 1, most]
    zero = graph.number(0.0)
    x = graph.add("Relu", [_each(graph, f"{place}/embed", graph.add("Where", [column, x, zero]))])
    for block in range(encoder.blocks):
        x = _block(graph, f"{place}/{block}", encoder, most, x, keys)
    present = graph.add("Cast", [there], to=TensorProto.FLOAT)
    total = graph.add("ReduceSum", [present, graph.integers([1])], keepdims=1)  # [n, 1]
    if encoder.pool == "mean":
        sums = graph.add("ReduceSum", [graph.add("Where", [column, x, zero]), graph.integers([1])], keepdims=0)
        return graph.add("Div", [sums, graph.add("Max", [total, graph.number(1.0)])])
    top = graph.add("ReduceMax", [graph.add("Where", [column, x, graph.number(LOWEST)])], axes=[1], keepdims=0)
    return graph.add("Where", [graph.add("Greater", [total, zero]), top, zero])


def _block(graph: Graph, place: str, encoder: Entities, most: int, x: str, keys: str) -> str:
    units, heads, size = encoder.units, encoder.heads, encoder.units // encoder.heads
    parts = []
    for i, name in enumerate(("query", "key", "value")):
        rows = slice(i * units, (i + 1) * units)
        weight, bias = graph.weights[f"{place}/attend/weight"][rows], graph.weights[f"{place}/attend/bias"][rows]
        made = graph.add("MatMul", [x, graph.constant(f"{place}/{name}/weight", weight.T)])
        made = graph.add("Add", [made, graph.constant(f"{place}/{name}/bias", bias)])
        made = graph.add("Reshape", [made, graph.integers([0, most, heads, size])])
        order = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
        parts.append(graph.add("Transpose", [made], perm=order))
    query, key, value = parts
    scores = graph.add("Mul", [graph.add("MatMul", [query, key]), graph.number(1 / math.sqrt(size))])
    share = graph.add("Softmax", [graph.add("Where", [keys, scores, graph.number(ABSENT)])], axis=3)
    mixed = graph.add("Transpose", [graph.add("MatMul", [share, value])], perm=[0, 2, 1, 3])
    mixed = graph.add("Reshape", [mixed, graph.integers([0, most, units])])
    x = graph.add("Add", [x, _each(graph, f"{place}/join", mixed)])
    inner = graph.add("Relu", [_each(graph, f"{place}/first", x)])
    return graph.add("Add", [x, _each(graph, f"{place}/second", inner)])


def _residual(graph: Graph, place: str, layer: Residual, x: str, *, image: bool) -> str:
    y = _activate(graph, layer.activation, x)
    for name, activation in (("first", layer.activation), ("second", "none")):
        at = f"{place}/{name}"
        y = _conv(graph, at, y, layer.kernel, 1, layer.kernel // 2) if image else _gemm(graph, at, y)
        y = _activate(graph, activation, y)
    return _activate(graph, layer.out, graph.add("Add", [x, y]))


def _conv(graph: Graph, place: str, x: str, kernel: int, stride: int, padding: int) -> str:
    pads = [padding] * 4
    return graph.add("Conv", [x, *graph.weight(place)], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)


def _gemm(graph: Graph, place: str, x: str) -> str:
    return graph.add("Gemm", [x, *graph.weight(place)], transB=1)


def _each(graph: Graph, place: str, x: str) -> str:
    """The dense layer at that place for each entity: Gemm takes no third axis."""
    made = graph.add("MatMul", [x, graph.constant(f"{place}/weight", graph.weights[f"{place}/weight"].T)])
    return graph.add("Add", [made, graph.constant(f"{place}/bias", graph.weights[f"{place}/bias"])])
