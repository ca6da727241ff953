"""Each kind of layer as ONNX nodes; nets/torch_layers.py and nets/numpy_layers.py say the same in their terms.

Memories and attention are written out in products, sums and σ, which run wherever dense layers do.
"""

import math

import numpy as np
from onnx import TensorProto

from sparring.nets.onnx_nodes import Graph
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Conv, Dense, Entities, Gru, Layer, Memory, Pool, Residual

HIDDEN = -1e9  # the score of an entity that is not there
LOWEST = -3e38  # below whatever an entity may say; a finite float32, since engines differ about infinities
_ACTIVATIONS: dict[Activation, str] = {"relu": "Relu", "tanh": "Tanh"}


def stack(graph: Graph, place: str, layers: tuple[Layer, ...], x: str, *, image: bool) -> str:
    """The layers one behind the other; `image`: x has channels, height and width."""
    for i, layer in enumerate(layers):
        at = f"{place}/{i}"
        if isinstance(layer, Dense):
            if image:
                x, image = graph.add("Flatten", [x], axis=1), False
            x = dense(graph, at, graph.weights[f"{at}/weight"], graph.weights[f"{at}/bias"], x)
            x = activated(graph, layer.activation, x)
        elif isinstance(layer, Conv):
            x = activated(graph, layer.activation, _conv(graph, at, x, layer.kernel, layer.stride, layer.padding))
        elif isinstance(layer, Pool):
            kernel, strides, pads = [layer.kernel] * 2, [layer.stride] * 2, [layer.padding] * 4
            x = graph.add("MaxPool", [x], kernel_shape=kernel, strides=strides, pads=pads)
        else:
            x = _residual(graph, at, layer, x, image=image)
    return x


def dense(graph: Graph, place: str, weight: Array, bias: Array, x: str) -> str:
    """x Wᵀ + b for x [n, inputs]."""
    names = [graph.constant(f"{place}/weight", weight), graph.constant(f"{place}/bias", bias)]
    return graph.add("Gemm", [x, *names], transB=1)


def activated(graph: Graph, activation: Activation, x: str) -> str:
    """x behind that activation."""
    return x if activation == "none" else graph.add(_ACTIVATIONS[activation], [x])


def remembered(graph: Graph, place: str, memory: Memory, x: str, state: str) -> tuple[str, str]:
    """The memory's output, and its own part of the next state."""
    u = memory.units
    if isinstance(memory, Gru):
        seen = graph.split(_gemm(graph, f"{place}/input", x), [u] * 3)
        held = graph.split(_gemm(graph, f"{place}/hidden", state), [u] * 3)
        r, z = (_sigmoid(graph, graph.add("Add", [seen[i], held[i]])) for i in range(2))
        n = graph.add("Tanh", [graph.add("Add", [seen[2], graph.add("Mul", [r, held[2]])])])
        h = graph.add("Add", [n, graph.add("Mul", [z, graph.add("Sub", [state, n])])])
        return h, h
    h, c = graph.split(state, [u, u])
    both = graph.add("Add", [_gemm(graph, f"{place}/input", x), _gemm(graph, f"{place}/hidden", h)])
    i, f, g, o = graph.split(both, [u] * 4)
    kept = graph.add("Mul", [_sigmoid(graph, f), c])
    c = graph.add("Add", [kept, graph.add("Mul", [_sigmoid(graph, i), graph.add("Tanh", [g])])])
    h = graph.add("Mul", [_sigmoid(graph, o), graph.add("Tanh", [c])])
    return h, graph.add("Concat", [h, c], axis=1)


def encoded(graph: Graph, place: str, encoder: Entities, most: int, x: str, count: str) -> str:
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
    share = graph.add("Softmax", [graph.add("Where", [keys, scores, graph.number(HIDDEN)])], axis=3)
    mixed = graph.add("Transpose", [graph.add("MatMul", [share, value])], perm=[0, 2, 1, 3])
    mixed = graph.add("Reshape", [mixed, graph.integers([0, most, units])])
    x = graph.add("Add", [x, _each(graph, f"{place}/join", mixed)])
    inner = graph.add("Relu", [_each(graph, f"{place}/first", x)])
    return graph.add("Add", [x, _each(graph, f"{place}/second", inner)])


def _residual(graph: Graph, place: str, layer: Residual, x: str, *, image: bool) -> str:
    y = activated(graph, layer.activation, x)
    for name, activation in (("first", layer.activation), ("second", "none")):
        at = f"{place}/{name}"
        y = _conv(graph, at, y, layer.kernel, 1, layer.kernel // 2) if image else _gemm(graph, at, y)
        y = activated(graph, activation, y)
    return activated(graph, layer.out, graph.add("Add", [x, y]))


def _conv(graph: Graph, place: str, x: str, kernel: int, stride: int, padding: int) -> str:
    pads = [padding] * 4
    return graph.add("Conv", [x, *graph.weight(place)], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)


def _gemm(graph: Graph, place: str, x: str) -> str:
    return graph.add("Gemm", [x, *graph.weight(place)], transB=1)


def _each(graph: Graph, place: str, x: str) -> str:
    """The dense layer at that place for each entity: Gemm takes no third axis."""
    made = graph.add("MatMul", [x, graph.constant(f"{place}/weight", graph.weights[f"{place}/weight"].T)])
    return graph.add("Add", [made, graph.constant(f"{place}/bias", graph.weights[f"{place}/bias"])])


def _sigmoid(graph: Graph, x: str) -> str:
    return graph.add("Sigmoid", [x])
