"""The parameters of a network and the sizes between its layers: where torch, NumPy and ONNX must agree.

Reads a NetworkSpec and nothing else, so that whoever checks weights needs no framework.
"""

import math
from collections.abc import Mapping

import numpy as np

from sparring.errors import ConfigError, ModelDamaged
from sparring.wire.chunk import DTYPES, Array
from sparring.wire.network import Conv, Dense, Head, Input, Layer, NetworkSpec

MAX_LAYERS = 256  # of one stack; a spec may come from a stranger's card
MAX_PARAMETERS = 1 << 28  # numbers in all: 1 GiB

Shape = tuple[int, ...]


def images(spec: NetworkSpec) -> tuple[Input, ...]:
    """The inputs that pass the image layers, joined along their channels."""
    return tuple(leaf for leaf in spec.inputs if leaf.image)


def flats(spec: NetworkSpec) -> tuple[Input, ...]:
    """The inputs that are flattened."""
    return tuple(leaf for leaf in spec.inputs if not leaf.image)


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
    if len(shape) != 3:
        raise _wrong("a convolution follows a dense layer", "Put convolutions first, and only in `image`")
    sides = tuple((side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in shape[1:])
    if min(sides) < 1:
        raise _wrong(f"a {layer.kernel}x{layer.kernel} convolution does not fit {shape}", "Use smaller kernels")
    return (layer.channels, *sides)


def parameters(spec: NetworkSpec) -> dict[str, Shape]:
    """Every parameter's shape by its name, in the order of the data; ConfigError where the spec cannot be."""
    _check_numbers(spec)
    shapes: dict[str, Shape] = {}
    joined = sum(width(leaf) for leaf in flats(spec))
    if (picture := image_shape(spec)) is not None:
        joined += math.prod(_stack(shapes, "image", spec.image, picture))
    trunk = _stack(shapes, "trunk", spec.trunk, (joined,))
    if spec.separate_value:
        _stack(shapes, "value_trunk", spec.trunk, (joined,))
    for head in spec.heads:
        _dense(shapes, head.name, head.units, trunk[0])
        if head.dueling:
            _dense(shapes, f"{head.name}/value", 1, trunk[0])
    if (total := sum(math.prod(shape) for shape in shapes.values())) > MAX_PARAMETERS:
        raise _wrong(f"{total} parameters, the limit is {MAX_PARAMETERS}", "Make it smaller")
    return shapes


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
            raise ModelDamaged(
                f"{name} is {array.dtype} {array.shape}, not float32 {shape}", where=where, do="Use its own weights"
            )
        if not np.isfinite(array).all():
            raise ModelDamaged(f"{name} holds NaN or infinity", where=where, do="Go back to an earlier model")


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
            shapes[f"{place}/{i}/weight"] = (layer.channels, shape[0], layer.kernel, layer.kernel)
            shapes[f"{place}/{i}/bias"] = (layer.channels,)
        else:
            _dense(shapes, f"{place}/{i}", layer.units, math.prod(shape))
        shape = behind
    return shape


def _dense(shapes: dict[str, Shape], place: str, units: int, inputs: int) -> None:
    shapes[f"{place}/weight"], shapes[f"{place}/bias"] = (units, inputs), (units,)


def _check_numbers(spec: NetworkSpec) -> None:
    layers = (*spec.image, *spec.trunk)
    names = [head.name for head in spec.heads]
    if not spec.inputs or not names or len(set(names)) != len(names) or len(layers) > MAX_LAYERS:
        raise _wrong(f"{len(spec.inputs)} inputs, heads {names}, {len(layers)} layers", "Name each head once")
    for layer in layers:
        sizes = (layer.units,) if isinstance(layer, Dense) else (layer.channels, layer.kernel, layer.stride)
        if min(sizes) < 1 or (isinstance(layer, Conv) and not 0 <= layer.padding < layer.kernel):
            raise _wrong(f"a layer of {layer}", "Give it sizes of at least 1, and less padding than its kernel")
    for leaf in spec.inputs:
        if leaf.dtype not in DTYPES or min(leaf.shape, default=1) < 1 or leaf.one_hot < 0:
            raise _wrong(f"input {leaf.name!r} of {leaf.dtype} {leaf.shape}", f"Use one of {', '.join(DTYPES)}")
        if (leaf.image and leaf.one_hot) or not (math.isfinite(leaf.shift) and math.isfinite(leaf.scale)):
            raise _wrong(f"input {leaf.name!r}", "An image is not one-hot; shift and scale are finite")
    if any(isinstance(layer, Conv) for layer in spec.trunk) or min(head.units for head in spec.heads) < 1:
        raise _wrong("the trunk holds a convolution, or a head has no unit", "Put convolutions in `image`")


def _wrong(text: str, do: str) -> ConfigError:
    return ConfigError(text, where="network", do=do)
