"""Networks and observations drawn at random, small and of every kind."""

import numpy as np

from sparring.nets.policies import squashed
from sparring.wire.network import Conv, Dense, Entities, Gru, Head, Input, Lstm, NetworkSpec, Pool, Residual

ACTIVATIONS = ("relu", "tanh", "none")


def draw_network(rng, *, logits=None, memory=None):
    """A small network: dense or convolutional, with one-hot, scaled, dueling, separate, residual and recurrent parts
    and sets of entities by chance; `memory` True or False says whether it is recurrent."""
    inputs = [_draw_flat(rng, i) for i in range(int(rng.integers(0, 3)))]
    image = ()
    if not inputs or rng.random() < 0.5:
        high, wide = int(rng.integers(5, 12)), int(rng.integers(5, 12))
        for i in range(int(rng.integers(1, 3))):
            shape = (high, wide) if rng.random() < 0.3 else (int(rng.integers(1, 4)), high, wide)
            scaled = rng.random() < 0.5
            leaf = Input(f"observation/p{i}", shape, 0.0, 1 / 255, dtype="uint8", image=True)
            leaf = leaf if scaled else Input(f"observation/p{i}", shape, image=True)
            inputs.insert(int(rng.integers(0, len(inputs) + 1)), leaf)
        image = _draw_image(rng)
    entities = tuple(_draw_entities(rng, i, inputs) for i in range(int(rng.choice([0, 0, 1, 2]))))
    trunk = tuple(_draw_flat_layer(rng) for _ in range(int(rng.integers(0, 3))))
    heads = [Head("logits", logits or int(rng.integers(2, 7)), bool(rng.random() < 0.4))]
    if logits is None and rng.random() < 0.3:
        bounds = (float(rng.normal() - 2), float(rng.normal() + 5)) if rng.random() < 0.7 else None
        heads = [Head("mean", 2, bounds=bounds), Head("log_std", 2)]
    if rng.random() < 0.7:
        heads.append(Head("value", 1))
    separate = bool(rng.random() < 0.4)
    if memory is None:
        memory = rng.random() < 0.4
    kind = (Gru, Lstm)[int(rng.integers(2))](int(rng.integers(1, 12))) if memory else None
    return NetworkSpec(tuple(inputs), tuple(heads), trunk, image, separate, kind, entities)


def in_game_units(spec, out):
    """The heads as whoever plays with the model alone gets them: a bounded mean between its bounds."""
    bounds = {head.name: head.bounds for head in spec.heads}
    return {name: squashed(column, bounds.get(name)) for name, column in out.items()}


def draw_observation(spec, n, rng):
    """n rows of what the network's inputs take; counts from none to all that fit."""
    rows = {leaf.name: _draw_rows(leaf, n, rng) for leaf in spec.inputs}
    by_name = {leaf.name: leaf for leaf in spec.inputs}
    for encoder in spec.entities:
        count, most = by_name[encoder.count], by_name[encoder.leaf].shape[-2]
        rows[count.name] = rng.integers(0, most + 1, (n, *count.shape)).astype(count.dtype)
    return rows


def _draw_rows(leaf, n, rng):
    shape = (n, *leaf.shape)
    if leaf.one_hot:
        return rng.integers(0, leaf.one_hot, shape).astype(leaf.dtype)
    if np.dtype(leaf.dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(leaf.dtype)
    return rng.normal(leaf.shift, 1 / leaf.scale, shape).astype(leaf.dtype)


def _draw_flat(rng, i):
    name, shape = f"observation/x{i}", tuple(int(side) for side in rng.integers(1, 6, int(rng.integers(0, 3))))
    kind = rng.integers(0, 4)
    if kind == 0:
        return Input(name, shape, one_hot=int(rng.integers(1, 6)), dtype=str(rng.choice(["int8", "int32", "int64"])))
    if kind == 1:
        return Input(name, shape, float(rng.normal(0, 10)), float(rng.random() + 0.01), dtype="float64")
    if kind == 2:
        return Input(name, shape, 50.0, 0.02, dtype=str(rng.choice(["uint8", "int8", "int16"])))
    return Input(name, shape, normalise=bool(rng.random() < 0.5))


def _draw_entities(rng, i, inputs):
    frames = (int(rng.integers(2, 4)),) if rng.random() < 0.3 else ()
    most, features = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    name, shift = f"observation/e{i}", float(rng.normal())
    inputs.insert(int(rng.integers(0, len(inputs) + 1)), Input(name, (*frames, most, features), shift, 0.7))
    single = frames or ((), (1,))[int(rng.integers(2))]
    one_hot, dtype = (most + 1, "int32") if rng.random() < 0.5 else (0, "float32")
    inputs.append(Input(f"{name}/count", single, one_hot=one_hot, dtype=dtype))
    heads = int(rng.integers(1, 4))
    units, blocks = heads * int(rng.integers(1, 5)), int(rng.integers(0, 3))
    return Entities(name, f"{name}/count", units, heads, blocks, str(rng.choice(["mean", "max"])))


def _draw_image(rng):
    layers = []
    for _ in range(int(rng.integers(0, 4))):
        kind = rng.integers(0, 4)
        if kind == 0:
            layers.append(Pool())
        elif kind == 1:
            layers.append(_draw_residual(rng))
        else:
            stride = int(rng.integers(1, 3))
            layers.append(Conv(int(rng.integers(1, 6)), 3, stride, 1, str(rng.choice(ACTIVATIONS))))
    for _ in range(int(rng.choice([0, 0, 1, 2]))):
        layers.append(_draw_flat_layer(rng) if layers and isinstance(layers[-1], Dense) else _draw_dense(rng))
    return tuple(layers)


def _draw_flat_layer(rng):
    return _draw_residual(rng) if rng.random() < 0.3 else _draw_dense(rng)


def _draw_residual(rng):
    inner, out = (str(rng.choice(ACTIVATIONS)) for _ in range(2))
    return Residual(int(rng.choice([0, 0, 3])), int(rng.choice([1, 3])), inner, out)


def _draw_dense(rng):
    return Dense(int(rng.integers(1, 33)), str(rng.choice(ACTIVATIONS)))
