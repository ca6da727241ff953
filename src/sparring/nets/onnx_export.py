"""A network as an ONNX graph, built straight from its spec: no tracing, no framework.

Inputs: each observation leaf by its name, in its own dtype, [batch, *shape]; where there are logits also
`legal`, uint8 [batch, choices]; with a memory `state`, float32 [batch, numbers], zeros where an episode
begins. Outputs: each head by its name; logits are ILLEGAL where `legal` is 0, value is [batch], and a mean with
bounds lies between them; with a memory `state_out`, which the next step is given as its `state` (in ONNX no two
values share a name).
"""

from collections.abc import Mapping

from onnx import TensorProto

from sparring.nets.onnx_layers import dense, encoded, remembered, stack
from sparring.nets.onnx_nodes import IR, OPSET, Graph
from sparring.nets.shapes import (
    STATE,
    entity_sets,
    fit,
    flats,
    head_layer,
    images,
    memory_of,
    memory_width,
    set_shape,
    state_width,
    trunk_of,
    trunks,
    width,
)
from sparring.wire.chunk import Array
from sparring.wire.network import Input, NetworkSpec

__all__ = ["ILLEGAL", "IR", "LEGAL", "OPSET", "STATE_OUT", "legal_choices", "to_onnx"]

ILLEGAL = -1e9  # below any logit, and still a finite float32
LEGAL, STATE_OUT = "legal", "state_out"


def to_onnx(spec: NetworkSpec, weights: Mapping[str, Array]) -> bytes:
    """The graph as a file's bytes; equal networks give equal bytes."""
    fit(spec, weights)
    graph = Graph(weights)
    features = _trunks(graph, spec, _joined(graph, spec))
    for head in spec.heads:
        out = dense(graph, f"{head.name}/folded", *head_layer(head, weights), features[trunk_of(spec, head)])
        if head.name == "logits":
            _mask(graph, out, head.units)
        elif head.bounds is not None:
            _squash(graph, head.name, out, head.units, head.bounds)
        elif head.name == "value" and head.units == 1:
            graph.output("value", (), graph.add("Squeeze", [out, graph.integers([1])], "value"))
        else:
            graph.output(head.name, (head.units,), graph.add("Identity", [out], head.name))
    if spec.memory is not None:
        graph.output(STATE_OUT, (state_width(spec),), STATE_OUT)
    return graph.encoded()


def legal_choices(spec: NetworkSpec) -> int:
    """How wide `legal` is; 0 where the network has no logits and so no such input."""
    return next((head.units for head in spec.heads if head.name == "logits"), 0)


def _joined(graph: Graph, spec: NetworkSpec) -> str:
    raw = {leaf.name: graph.input(leaf.name, leaf.dtype, leaf.shape) for leaf in spec.inputs}
    parts = []
    if pictures := images(spec):
        frames = [_picture(graph, leaf, raw[leaf.name]) for leaf in pictures]
        frame = frames[0] if len(frames) == 1 else graph.add("Concat", frames, axis=1)
        parts.append(graph.add("Flatten", [stack(graph, "image", spec.image, frame, image=True)], axis=1))
    for i, (encoder, leaf, count) in enumerate(entity_sets(spec)):
        stacked, most, features = set_shape(leaf)
        x = _scaled(graph, leaf, raw[leaf.name])
        each = graph.add("Reshape", [x, graph.integers([-1, most, features])])
        there = graph.add("Reshape", [raw[count.name], graph.integers([-1, 1])])
        pooled = encoded(graph, f"entities/{i}", encoder, most, each, there)
        parts.append(graph.add("Reshape", [pooled, graph.integers([-1, stacked * encoder.units])]))
    for leaf in flats(spec):
        x = _scaled(graph, leaf, raw[leaf.name])
        parts.append(graph.add("Reshape", [x, graph.integers([0, width(leaf)])]))
    return parts[0] if len(parts) == 1 else graph.add("Concat", parts, axis=1)


def _trunks(graph: Graph, spec: NetworkSpec, joined: str) -> dict[str, str]:
    """What feeds the heads of each trunk; the next state is named on the way."""
    seen = {place: stack(graph, place, spec.trunk, joined, image=False) for place in trunks(spec)}
    if spec.memory is None:
        return seen
    whole = graph.input(STATE, "float32", (state_width(spec),))
    size = memory_width(spec.memory)
    states = graph.split(whole, [size] * len(seen)) if len(seen) > 1 else [whole]
    after = []
    for (place, x), state in zip(seen.items(), states, strict=True):
        seen[place], last = remembered(graph, memory_of(place), spec.memory, x, state)
        after.append(last)
    graph.add("Concat", after, STATE_OUT, axis=1)
    return seen


def _picture(graph: Graph, leaf: Input, raw: str) -> str:
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
    graph.output(name, (units,), graph.add("Clip", [x, graph.number(low), graph.number(high)], name))


def _mask(graph: Graph, logits: str, choices: int) -> None:
    allowed = graph.add("Cast", [graph.input(LEGAL, "uint8", (choices,))], to=TensorProto.BOOL)
    graph.output("logits", (choices,), graph.add("Where", [allowed, logits, graph.number(ILLEGAL)], "logits"))
