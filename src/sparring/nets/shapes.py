"""The parameters of a network and the sizes between its layers: where torch, NumPy and ONNX must agree.

Reads a NetworkSpec and nothing else, so that checking weights needs no framework.
"""

import math
from collections.abc import Mapping

import numpy as np

from sparring.errors import ConfigError, ModelDamaged
from sparring.wire.chunk import DTYPES, Array
from sparring.wire.network import (
    Carried,
    Conv,
    Dense,
    Entities,
    Gru,
    Head,
    Input,
    Layer,
    Lstm,
    Memory,
    NetworkSpec,
    Pool,
    Residual,
)

MAX_LAYERS = 256  # of one stack; a spec may come from any card
MAX_PARAMETERS = 1 << 28  # numbers in all: 1 GiB
MAX_BLOCKS = 16  # of one encoder
STATE = "state"  # what a recurrent network takes and gives beside its leaves and heads, in each of its forms
RESERVED = (STATE, "state_out", "legal")  # names that no head and no leaf may have

Shape = tuple[int, ...]


def images(spec: NetworkSpec) -> tuple[Input, ...]:
    """The inputs that pass the image layers, joined along their channels."""
    return tuple(leaf for leaf in spec.inputs if leaf.image)


def flats(spec: NetworkSpec) -> tuple[Input, ...]:
    """The inputs that are flattened."""
    sets = {encoder.leaf for encoder in spec.entities}
    return tuple(leaf for leaf in spec.inputs if not leaf.image and leaf.name not in sets)


def entity_sets(spec: NetworkSpec) -> tuple[tuple[Entities, Input, Input], ...]:
    """Each encoder with the inputs that it reads: the entities and their count."""
    by_name = {leaf.name: leaf for leaf in spec.inputs}
    return tuple((encoder, by_name[encoder.leaf], by_name[encoder.count]) for encoder in spec.entities)


def set_shape(leaf: Input) -> tuple[int, int, int]:
    """Frames, entities in each at most, and numbers of each entity."""
    frames = leaf.shape[0] if len(leaf.shape) == 3 else 1
    return frames, leaf.shape[-2], leaf.shape[-1] * (leaf.one_hot or 1)


def statistics_of(spec: NetworkSpec, leaf: Input) -> tuple[str, str]:
    """The names of an input's mean and deviation."""
    place = f"inputs/{spec.inputs.index(leaf)}"
    return f"{place}/mean", f"{place}/deviation"


def trunks(spec: NetworkSpec) -> tuple[str, ...]:
    """The places of the stacks that run side by side."""
    return ("trunk", "value_trunk") if spec.separate_value else ("trunk",)


def memory_of(trunk: str) -> str:
    """The place of the memory behind that trunk."""
    return trunk.replace("trunk", "memory")


def memory_width(memory: Memory | None) -> int:
    """How many numbers one memory carries to the next step."""
    if memory is None:
        return 0
    return 2 * memory.units if isinstance(memory, Lstm) else memory.units


def state_width(spec: NetworkSpec) -> int:
    """How many numbers the whole state has: each trunk's memory in turn; 0 where there is none."""
    return memory_width(spec.memory) * len(trunks(spec))


def initial_state(spec: NetworkSpec, n: int) -> Array:
    """The memory of n episodes that begin: zeros [n, state_width]."""
    return np.zeros((n, state_width(spec)), np.float32)


def width(leaf: Input) -> int:
    """How many numbers a flattened input becomes."""
    return math.prod(leaf.shape) * (leaf.one_hot or 1)


def image_shape(spec: NetworkSpec) -> Shape | None:
    """[channels, height, width] of all images joined; None where there is none."""
    shapes = [leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape) for leaf in images(spec)]
    if not shapes:
        return None
    if any(len(shape) != 3 or shape[1:] != shapes[0][1:] for shape in shapes):
        raise _wrong(f"images of shapes {shapes} cannot be joined", "Give all images one height and width")
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def after(layer: Layer, shape: Shape) -> Shape:
    """The shape of one row behind `layer`."""
    if isinstance(layer, Dense):
        return (layer.units,)
    if isinstance(layer, Residual):
        return shape
    if len(shape) != 3:
        raise _wrong("a convolution or a pool follows a dense layer", "Put both first, and only in `image`")
    sides = tuple((side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in shape[1:])
    if min(sides) < 1:
        raise _wrong(f"a {layer.kernel}x{layer.kernel} window does not fit {shape}", "Use smaller kernels")
    return (shape[0] if isinstance(layer, Pool) else layer.channels, *sides)


def parameters(spec: NetworkSpec) -> dict[str, Shape]:
    """Every parameter's shape by its name, in the order of the data; ConfigError where the spec cannot be."""
    _check_numbers(spec)
    if spec.module is not None:
        return _within_limit(dict(spec.module.tensors))
    shapes: dict[str, Shape] = {}
    for leaf in flats(spec):
        if leaf.normalise:
            shapes |= dict.fromkeys(statistics_of(spec, leaf), leaf.shape)
    joined = sum(width(leaf) for leaf in flats(spec))
    if (picture := image_shape(spec)) is not None:
        joined += math.prod(_stack(shapes, "image", spec.image, picture))
    for i, (encoder, leaf, _) in enumerate(entity_sets(spec)):
        joined += _encoder(shapes, f"entities/{i}", encoder, leaf)
    behind = 0
    for place in trunks(spec):
        behind = _stack(shapes, place, spec.trunk, (joined,))[0]
        if spec.memory is not None:
            behind = _memory(shapes, memory_of(place), spec.memory, behind)
    for head in spec.heads:
        _dense(shapes, head.name, head.units, behind)
        if head.dueling:
            _dense(shapes, f"{head.name}/value", 1, behind)
    return _within_limit(shapes)


def _within_limit(shapes: dict[str, Shape]) -> dict[str, Shape]:
    if (total := sum(math.prod(shape) for shape in shapes.values())) > MAX_PARAMETERS:
        raise _wrong(f"{total} parameters, the limit is {MAX_PARAMETERS}", "Make it smaller")
    return shapes


def multiplications(spec: NetworkSpec) -> int:
    """Of one row on its way through the images' layers, and through every other parameter once."""
    total = sum(
        math.prod(s) for name, s in parameters(spec).items() if name.endswith("weight") and "image/" not in name
    )
    shape = image_shape(spec)
    for layer in spec.image if shape is not None else ():
        assert shape is not None
        before, shape = shape, after(layer, shape)
        if isinstance(layer, Dense):
            total += math.prod(before) * layer.units
        elif not isinstance(layer, Pool):
            kernels = 2 * (layer.units or before[0]) if isinstance(layer, Residual) else layer.channels
            total += math.prod(shape[1:]) * kernels * before[0] * layer.kernel**2
    return total


def trunk_of(spec: NetworkSpec, head: Head) -> str:
    """The name of the stack that feeds `head`."""
    return "value_trunk" if spec.separate_value and head.name == "value" else "trunk"


def fit(spec: NetworkSpec, weights: Mapping[str, Array], where: str = "weights") -> None:
    """Nothing, if `weights` are exactly the spec's parameters and finite; ModelDamaged otherwise."""
    shapes = parameters(spec)
    if stray := sorted(set(shapes) ^ set(weights)):
        raise ModelDamaged(f"{stray[0]!r} is missing or not of this network", where=where, do="Use its own weights")
    for name, shape in shapes.items():
        array = weights[name]
        if array.shape != shape or array.dtype != np.float32:
            wrong = f"{name} is {array.dtype} {array.shape}, not float32 {shape}"
            raise ModelDamaged(wrong, where=where, do="Use its own weights")
        if not np.isfinite(array).all():
            raise ModelDamaged(f"{name} holds NaN or infinity", where=where, do="Go back to an earlier model")
        if name.endswith("/deviation") and not (array > 0).all():
            raise ModelDamaged(f"{name} is not above 0", where=where, do="Go back to an earlier model")


def head_layer(head: Head, weights: Mapping[str, Array]) -> tuple[Array, Array]:
    """W and b of a head as one dense layer. A dueling head is linear, so value + advantage - mean folds into it."""
    weight, bias = weights[f"{head.name}/weight"], weights[f"{head.name}/bias"]
    if head.dueling:
        weight = weight - weight.mean(axis=0) + weights[f"{head.name}/value/weight"]
        bias = bias - bias.mean() + weights[f"{head.name}/value/bias"]
    return weight, bias


def _stack(shapes: dict[str, Shape], place: str, layers: tuple[Layer, ...], shape: Shape) -> Shape:
    for i, layer in enumerate(layers):
        behind = after(layer, shape)
        if isinstance(layer, Conv):
            _conv(shapes, f"{place}/{i}", layer.channels, shape[0], layer.kernel)
        elif isinstance(layer, Dense):
            _dense(shapes, f"{place}/{i}", layer.units, math.prod(shape))
        elif isinstance(layer, Residual):
            units = layer.units or shape[0]
            for name, out, into in (("first", units, shape[0]), ("second", shape[0], units)):
                if len(shape) == 3:
                    _conv(shapes, f"{place}/{i}/{name}", out, into, layer.kernel)
                else:
                    _dense(shapes, f"{place}/{i}/{name}", out, into)
        shape = behind
    return shape


def _encoder(shapes: dict[str, Shape], place: str, encoder: Entities, leaf: Input) -> int:
    frames, _, features = set_shape(leaf)
    units = encoder.units
    _dense(shapes, f"{place}/embed", units, features)
    for block in range(encoder.blocks):
        for name in ("attend", "join", "first", "second"):
            _dense(shapes, f"{place}/{block}/{name}", 3 * units if name == "attend" else units, units)
    return frames * units


def _memory(shapes: dict[str, Shape], place: str, memory: Memory, inputs: int) -> int:
    gates = (3 if isinstance(memory, Gru) else 4) * memory.units
    _dense(shapes, f"{place}/input", gates, inputs)
    _dense(shapes, f"{place}/hidden", gates, memory.units)
    return memory.units


def _conv(shapes: dict[str, Shape], place: str, channels: int, inputs: int, kernel: int) -> None:
    shapes[f"{place}/weight"], shapes[f"{place}/bias"] = (channels, inputs, kernel, kernel), (channels,)


def _dense(shapes: dict[str, Shape], place: str, units: int, inputs: int) -> None:
    shapes[f"{place}/weight"], shapes[f"{place}/bias"] = (units, inputs), (units,)


def _check_numbers(spec: NetworkSpec) -> None:
    layers = (*spec.image, *spec.trunk)
    names = [head.name for head in spec.heads]
    if not spec.inputs or not names or len(set(names)) != len(names) or len(layers) > MAX_LAYERS:
        raise _wrong(f"{len(spec.inputs)} inputs, heads {names}, {len(layers)} layers", "Name each head once")
    if taken := sorted({*names, *(leaf.name for leaf in spec.inputs)} & set(RESERVED)):
        raise _wrong(f"a head or leaf is called {taken[0]!r}", f"Leave {', '.join(RESERVED)} to the network itself")
    for layer in layers:
        if not _sound(layer):
            raise _wrong(f"a layer of {layer}", "Give it sizes of at least 1, and less padding than its kernel")
    for leaf in spec.inputs:
        if leaf.dtype not in DTYPES or min(leaf.shape, default=1) < 1 or leaf.one_hot < 0:
            raise _wrong(f"input {leaf.name!r} of {leaf.dtype} {leaf.shape}", f"Use one of {', '.join(DTYPES)}")
        if (leaf.image and leaf.one_hot) or not (math.isfinite(leaf.shift) and math.isfinite(leaf.scale)):
            raise _wrong(f"input {leaf.name!r}", "An image is not one-hot; shift and scale are finite")
    if any(isinstance(layer, Conv | Pool) for layer in spec.trunk) or min(head.units for head in spec.heads) < 1:
        raise _wrong("the trunk holds a convolution or a pool, or a head has no unit", "Put both in `image`")
    for head in spec.heads:
        if head.bounds is not None and not _between(head):
            do = 'Bound only "mean", by two finite numbers, lower first'
            raise _wrong(f"head {head.name!r} between {head.bounds}", do)
    if spec.memory is not None and spec.memory.units < 1:
        raise _wrong(f"a memory of {spec.memory.units} units", "Give it at least one")
    if isinstance(spec.memory, Carried) != (spec.module is not None and spec.memory is not None):
        raise _wrong(f"a memory of {spec.memory}", "A module carries its own state; layers have a Gru or an Lstm")
    _check_entities(spec)


def _between(head: Head) -> bool:
    low, high = head.bounds or (0.0, 0.0)
    return head.name == "mean" and not head.dueling and math.isfinite(low) and math.isfinite(high) and low < high


def _sound(layer: Layer) -> bool:
    if isinstance(layer, Dense):
        return layer.units >= 1
    if isinstance(layer, Residual):
        return layer.units >= 0 and layer.kernel >= 1 and layer.kernel % 2 == 1
    if isinstance(layer, Pool):  # at most half of it, or a window could lie in the padding alone
        return layer.kernel >= 1 and layer.stride >= 1 and 0 <= 2 * layer.padding <= layer.kernel
    return min(layer.channels, layer.kernel, layer.stride) >= 1 and 0 <= layer.padding < layer.kernel


def _check_entities(spec: NetworkSpec) -> None:
    by_name = {leaf.name: leaf for leaf in spec.inputs}
    leaves = [encoder.leaf for encoder in spec.entities]
    if len(set(leaves)) != len(leaves) or len(leaves) > MAX_LAYERS:
        raise _wrong(f"encoders of {leaves}", "Give each leaf one encoder")
    for encoder in spec.entities:
        leaf, count = by_name.get(encoder.leaf), by_name.get(encoder.count)
        if leaf is None or count is None or leaf.image or count.image or encoder.count in leaves:
            raise _wrong(f"an encoder of {encoder.leaf!r} and {encoder.count!r}", "Name two inputs that are no images")
        if len(leaf.shape) not in (2, 3) or math.prod(count.shape) != set_shape(leaf)[0]:
            do = "Use (most, features) and (), or one more axis of frames before both"
            raise _wrong(f"entities of shape {leaf.shape} with counts of {count.shape}", do)
        sizes = (encoder.units, encoder.heads)
        if min(sizes) < 1 or encoder.units % encoder.heads or not 0 <= encoder.blocks <= MAX_BLOCKS:
            raise _wrong(f"an encoder of {encoder}", f"Let heads divide units, and have at most {MAX_BLOCKS} blocks")


def _wrong(text: str, do: str) -> ConfigError:
    return ConfigError(text, where="network", do=do)
