"""Each kind of layer in NumPy: made once from its weights, then a function that small batches pay little for."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from sparring.nets.shapes import Shape, after
from sparring.wire.chunk import Array
from sparring.wire.network import Activation, Conv, Entities, Gru, Memory, Pool, Residual

HIDDEN = np.float32(-1e9)  # the score of an entity that is not there

Step = Callable[[Array], Array]
Recall = Callable[[Array, Array], tuple[Array, Array]]  # features, state → output, state


def dense_of(weights: Mapping[str, Array], place: str, activation: Activation) -> Step:
    """The dense layer at that place."""
    return dense(weights[f"{place}/weight"], weights[f"{place}/bias"], activation)


def dense(weight: Array, bias: Array, activation: Activation) -> Step:
    """x [n, inputs] → [n, units]; leading axes may be more."""
    return _product(np.array(weight.T, order="C"), bias.copy(), activation)


def conv(layer: Conv, weight: Array, bias: Array, shape: Shape) -> Step:
    """x [n, height, width, channels] → the same behind the convolution; `shape` is [channels, height, width] before."""
    channels, kernel, stride, pad = shape[0], layer.kernel, layer.stride, layer.padding
    _, high, wide = after(layer, shape)
    matrix = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, layer.channels))
    product = _product(matrix, bias.copy(), layer.activation)

    def step(x: Array) -> Array:
        if pad:
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        n, (s0, s1, s2, s3) = len(x), x.strides
        windows = np.lib.stride_tricks.as_strided(
            x, (n, high, wide, kernel, kernel, channels), (s0, s1 * stride, s2 * stride, s1, s2, s3), writeable=False
        )
        return product(windows.reshape(n * high * wide, len(matrix))).reshape(n, high, wide, layer.channels)

    return step


def pool(layer: Pool, shape: Shape) -> Step:
    """The largest of each window, channels last. One maximum for each place in the window, over whole images."""
    kernel, stride, pad = layer.kernel, layer.stride, layer.padding
    _, high, wide = after(layer, shape)

    def step(x: Array) -> Array:
        if pad:
            x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=-np.inf)
        y: Array | None = None
        for i in range(kernel):
            for j in range(kernel):
                part = x[:, i : i + (high - 1) * stride + 1 : stride, j : j + (wide - 1) * stride + 1 : stride]
                y = part.copy() if y is None else np.maximum(y, part, out=y)
        assert y is not None
        return y

    return step


def residual(layer: Residual, place: str, weights: Mapping[str, Array], shape: Shape) -> Step:
    """Two layers around which x also passes: convolutions where `shape` is an image's, dense ones otherwise."""
    if len(shape) == 3:
        w1, b1, w2, b2 = (weights[f"{place}/{name}"] for name in _PARTS)
        between = (len(b1), *shape[1:])
        first = conv(Conv(len(b1), layer.kernel, 1, layer.kernel // 2, layer.activation), w1, b1, shape)
        second = conv(Conv(len(b2), layer.kernel, 1, layer.kernel // 2, "none"), w2, b2, between)
    else:
        first = dense_of(weights, f"{place}/first", layer.activation)
        second = dense_of(weights, f"{place}/second", "none")
    before, behind = _activation(layer.activation), _activation(layer.out)

    def step(x: Array) -> Array:
        y = second(first(before(x)))
        y += x
        return behind(y)

    return step


_PARTS = ("first/weight", "first/bias", "second/weight", "second/bias")


def memory_step(memory: Memory, place: str, weights: Mapping[str, Array]) -> Recall:
    """One step of a memory as a single product of [features, h]; σ(x) = (1 + tanh(x / 2)) / 2 never overflows,
    and its halving is in the weights."""
    u = memory.units
    into, offset = weights[f"{place}/input/weight"].T, weights[f"{place}/input/bias"]
    back, again = weights[f"{place}/hidden/weight"].T, weights[f"{place}/hidden/bias"]
    half = np.float32(0.5)
    if isinstance(memory, Gru):
        # Columns: r, z, and n's two sides apart, since r scales the one that comes from h.
        side = np.zeros((len(into), u), np.float32)
        top = np.concatenate([into, side], axis=1)
        low = np.concatenate([back[:, : 2 * u], np.zeros((u, u), np.float32), back[:, 2 * u :]], axis=1)
        bias = np.concatenate([offset[: 2 * u] + again[: 2 * u], offset[2 * u :], again[2 * u :]])
        sigmoids = [slice(0, 2 * u)]
    else:
        top, low, bias = into, back, offset + again
        sigmoids = [slice(0, 2 * u), slice(3 * u, 4 * u)]  # i and f, and o behind g
    matrix, bias = np.array(np.concatenate([top, low]), np.float32, order="C"), bias.astype(np.float32)
    for part in sigmoids:
        matrix[:, part] *= half
        bias[part] *= half
    gates = _product(matrix, bias, "none")
    concatenate, tanh = np.concatenate, np.tanh

    def gru(x: Array, h: Array) -> tuple[Array, Array]:
        y = gates(concatenate((x, h), axis=1))
        rz = y[:, : 2 * u]
        tanh(rz, out=rz)
        rz += 1
        rz *= half
        n = y[:, 2 * u : 3 * u]
        n += rz[:, :u] * y[:, 3 * u :]
        tanh(n, out=n)
        h = n + rz[:, u:] * (h - n)
        return h, h

    def lstm(x: Array, state: Array) -> tuple[Array, Array]:
        y = tanh(gates(concatenate((x, state[:, :u]), axis=1)))
        c = (half + half * y[:, u : 2 * u]) * state[:, u:] + (half + half * y[:, :u]) * y[:, 2 * u : 3 * u]
        h = (half + half * y[:, 3 * u :]) * tanh(c)
        return h, concatenate((h, c), axis=1)

    return gru if isinstance(memory, Gru) else lstm


def encoder_of(
    encoder: Entities, frames: int, place: str, weights: Mapping[str, Array]
) -> Callable[[Array, Array], Array]:
    """Sets [n x frames, most, features] and their counts [n, …], as [n, frames x units]."""
    embed = dense_of(weights, f"{place}/embed", "relu")
    blocks = [_block(encoder, f"{place}/{block}", weights) for block in range(encoder.blocks)]
    zero, numbers = np.float32(0), frames * encoder.units

    def encode(x: Array, count: Array) -> Array:
        there = np.arange(x.shape[1], dtype=np.float32) < count.astype(np.float32).reshape(-1, 1)
        column = there[:, :, None]
        x = embed(np.where(column, x, zero))
        for block in blocks:
            x = block(x, there)
        if encoder.pool == "mean":
            pooled = np.where(column, x, zero).sum(axis=1)
            pooled /= np.maximum(there.sum(axis=1, keepdims=True), 1).astype(np.float32)
        else:
            pooled = np.where(there.any(axis=1, keepdims=True), np.where(column, x, -np.inf).max(axis=1), zero)
        rows: Array = pooled.reshape(len(count), numbers)
        return rows

    return encode


def _block(encoder: Entities, place: str, weights: Mapping[str, Array]) -> Callable[[Array, Array], Array]:
    heads, size = encoder.heads, encoder.units // encoder.heads
    attend, join = dense_of(weights, f"{place}/attend", "none"), dense_of(weights, f"{place}/join", "none")
    first, second = dense_of(weights, f"{place}/first", "relu"), dense_of(weights, f"{place}/second", "none")
    scale = np.float32(1 / math.sqrt(size))

    def block(x: Array, there: Array) -> Array:
        n, most, units = x.shape
        query, key, value = attend(x).reshape(n, most, 3, heads, size).transpose(2, 0, 3, 1, 4)
        scores = np.where(there[:, None, None, :], query @ key.swapaxes(2, 3) * scale, HIDDEN)
        scores -= scores.max(axis=3, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=3, keepdims=True)
        x = x + join((scores @ value).transpose(0, 2, 1, 3).reshape(n, most, units))
        x += second(first(x))
        return x

    return block


def _activation(activation: Activation) -> Step:
    zero = np.float32(0)
    steps: dict[Activation, Step] = {"none": lambda x: x, "relu": lambda x: np.maximum(x, zero), "tanh": np.tanh}
    return steps[activation]


def _product(matrix: Array, bias: Array, activation: Activation) -> Step:
    multiply, maximum, tanh, zero = np.matmul, np.maximum, np.tanh, np.float32(0)

    def linear(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        return y

    def relu(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        maximum(y, zero, out=y)
        return y

    def hyperbolic(x: Array) -> Array:
        y: Array = multiply(x, matrix)
        y += bias
        tanh(y, out=y)
        return y

    return {"none": linear, "relu": relu, "tanh": hyperbolic}[activation]
