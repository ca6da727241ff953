"""Gymnasium's spaces as flat named leaves, and its values as their arrays; PettingZoo uses the same spaces."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import Columns
from sparring.games.spec import Leaf
from sparring.wire.chunk import DTYPES, Array

_UNBOUNDED = 1e30  # some libraries write "no bound" as the largest float
_MOST_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Reader:
    """How a value of one space becomes arrays."""

    leaves: tuple[Leaf, ...]
    read: Callable[[Any], Columns]
    plain: bool = False  # its one leaf holds a value's numbers as they come, so many values can be read at once


def observation(space: Any, where: str) -> Reader:
    """The leaves of an observation space: one for each space that is not a Dict or Tuple, named by its path."""
    return _reader(space, "", where)


def action(space: Any, where: str) -> tuple[Leaf, Callable[[Array], Any]]:
    """The action leaf, and how one action becomes what the environment takes."""
    kind = type(space).__name__
    if kind == "Discrete":
        start = int(space.start)
        return _discrete("action", int(space.n)), lambda chosen: int(chosen) + start
    if kind in ("MultiDiscrete", "MultiBinary"):
        leaf = _multi_discrete("action", space)
        return leaf, lambda chosen: chosen.reshape(space.shape).astype(space.dtype)
    if kind == "Box":
        low, high = _bounds(space)
        shape = tuple(space.shape) or (1,)
        leaf = Leaf(name="action", kind="box", shape=shape, dtype="float32", low=low, high=high)
        # A leaf has one bound for all entries, the space one for each.
        return leaf, lambda chosen: np.clip(chosen.reshape(space.shape), space.low, space.high).astype(space.dtype)
    raise _unsupported(space, "action", where)


def _reader(space: Any, path: str, where: str) -> Reader:
    kind = type(space).__name__
    if kind == "Dict":
        return _joined({str(key): (key, inner) for key, inner in space.spaces.items()}, path, where)
    if kind == "Tuple":
        return _joined({str(i): (i, inner) for i, inner in enumerate(space.spaces)}, path, where)
    name = f"observation{path or ('/image' if _is_image(space) else '/state')}"
    if kind == "Discrete":
        start, leaf = int(space.start), _discrete(name, int(space.n))
        return Reader((leaf,), lambda value: {name: np.asarray(int(value) - start, np.int32)})
    if kind in ("MultiDiscrete", "MultiBinary"):
        leaf = _multi_discrete(name, space)
        return Reader((leaf,), lambda value: {name: np.asarray(value, np.int32).reshape(-1)})
    if kind == "Box":
        return _image(name, space) if _is_image(space) else _numbers(name, space)
    raise _unsupported(space, name, where)


def _joined(inner: dict[str, tuple[Any, Any]], path: str, where: str) -> Reader:
    parts = [(key, _reader(space, f"{path}/{name}", where)) for name, (key, space) in inner.items()]
    leaves = tuple(leaf for _, part in parts for leaf in part.leaves)
    return Reader(leaves, lambda value: {k: a for key, part in parts for k, a in part.read(value[key]).items()})


def _numbers(name: str, space: Any) -> Reader:
    dtype = _dtype(space.dtype)
    shape = tuple(space.shape) or (1,)
    low, high = _bounds(space)
    kind: Any = "vector" if len(shape) == 1 else "box"
    leaf = Leaf(name=name, kind=kind, shape=shape, dtype=dtype, low=low, high=high)
    return Reader((leaf,), lambda value: {name: np.asarray(value, dtype).reshape(shape)}, plain=True)


def _image(name: str, space: Any) -> Reader:
    """Images travel as [channels, height, width]; Gymnasium's have their channels last, or none."""
    shape = tuple(space.shape)
    chw = (1, *shape) if len(shape) == 2 else (shape[2], shape[0], shape[1])
    leaf = Leaf(name=name, kind="image", shape=chw, dtype="uint8", low=0.0, high=255.0)
    if len(shape) == 2:
        return Reader((leaf,), lambda value: {name: np.asarray(value)[None]})
    return Reader((leaf,), lambda value: {name: np.asarray(value).transpose(2, 0, 1)})


def _is_image(space: Any) -> bool:
    if type(space).__name__ != "Box" or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] <= _MOST_CHANNELS)


def _discrete(name: str, n: int) -> Leaf:
    return Leaf(name=name, kind="discrete", dtype="int32", choices=(n,))


def _multi_discrete(name: str, space: Any) -> Leaf:
    size = math.prod(space.shape)
    choices = (2,) * size if type(space).__name__ == "MultiBinary" else tuple(int(n) for n in np.ravel(space.nvec))
    return Leaf(name=name, kind="multi-discrete", shape=(size,), dtype="int32", choices=choices)


def _dtype(dtype: Any) -> str:
    """float64 becomes float32, which is what networks see; what the wire lacks becomes the next wider integer."""
    name = np.dtype(dtype).name
    if np.dtype(dtype).kind == "f":
        return "float32"
    wider = {"bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    return name if name in DTYPES else wider[name]


def _bounds(space: Any) -> tuple[float | None, float | None]:
    low, high = float(np.min(space.low)), float(np.max(space.high))
    return (low if low > -_UNBOUNDED else None), (high if high < _UNBOUNDED else None)


def _unsupported(space: Any, name: str, where: str) -> ConfigError:
    return ConfigError(
        f"{name} is a {type(space).__name__} space",
        where=where,
        do="Use Discrete, MultiDiscrete, MultiBinary, Box, or for observations Dict and Tuple of them",
    )
