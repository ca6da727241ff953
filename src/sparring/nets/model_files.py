"""Weights and graph as a model's files, and back: strict, since a file may come from anyone.

A safetensors file is a u64 length, a JSON header and raw numbers. Reading checks the header against the
network's own parameters before any number is touched: exactly these names, float32, these shapes, in
consecutive places that fill the file.
"""

import hashlib
import math
import struct
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from sparring.errors import ConfigError, ModelDamaged
from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.nets.forward import Forward, forward_without_torch
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import bounds_of, squashed
from sparring.nets.shapes import STATE, fit, initial_state, parameters
from sparring.nets.user_code import MODULES
from sparring.wire.chunk import Array
from sparring.wire.model import ONNX, WEIGHTS, Card, Lineage, Model
from sparring.wire.network import Head, Input, NetworkSpec, Weights

MAX_HEADER_BYTES = 256 << 10
MAX_TENSORS = 1_024
TOLERANCE = 1e-5  # of the largest output, or of 1
MODULE_TOLERANCE = 1e-4  # of a user's module: torch and ONNX Runtime sum in different orders, over any depth
_STEPS = 4  # over which a memory is compared
_LENGTH = struct.Struct("<Q")


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def make_model(  # the model's every part, each once
    game: GameSpec,
    network: NetworkSpec,
    weights: Weights,
    policy: str,
    lineage: Lineage,
    now_ms: int,
    seats: tuple[int, ...] = (),
) -> Model:
    """The network as a model of `game`, of those `seats` where its seats are of several kinds; ModelDamaged where its
    ONNX graph and its weights do not agree, or a number is not finite; ConfigError where no seat sees what the network
    takes. A box's bounds become those of its mean, so that the model's graph gives actions in the game's own units.
    Where information is hidden from rivals a policy of probabilities samples, as it learned: its likeliest actions
    would give away what it knows."""
    from sparring.nets.onnx_graph import to_onnx

    places = [game.seats[place] for place in seats] or game.seats
    seat = next((seat for seat in places if _suits(network, seat, game.frame_stack)), None)
    if seat is None:
        raise ConfigError(f"no seat of {game.id} suits the network's inputs", where="model", do="Use default_network")
    network = replace(network, heads=tuple(_bounded(head, seat.action) for head in network.heads))
    files = {WEIGHTS: write_weights(network, weights), ONNX: to_onnx(network, weights)}
    check_agreement(network, weights, files[ONNX])
    card = Card(
        game=game.id,
        version=game.version,
        spec=game.hash,
        network=network,
        policy=policy,
        acts="sample" if game.hidden_information and game.has_rivals and policy == "categorical" else UNSET,
        seats=seats or UNSET,
        lineage=lineage,
        created_at_ms=now_ms,
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )
    return Model(card, files)


def write_weights(network: NetworkSpec, weights: Weights) -> bytes:
    """The weights as safetensors; equal weights give equal bytes."""
    from safetensors.numpy import save

    fit(network, weights)
    content: bytes = save({name: np.ascontiguousarray(weights[name]) for name in parameters(network)})
    return content


def read_weights(model: Model) -> Weights:
    """The model's weights, copied; ModelDamaged unless they are exactly its network's and finite."""
    if WEIGHTS not in model.files:
        raise _damaged(f"it has no {WEIGHTS}")
    return parse_weights(model.card.network, model.files[WEIGHTS])


def parse_weights(network: NetworkSpec, content: bytes) -> Weights:
    """The weights in a safetensors file, if they are exactly `network`'s; ModelDamaged otherwise."""
    header, start = _header(content)
    shapes = parameters(network)
    if stray := sorted(set(shapes) ^ set(header)):
        raise _damaged(f"{stray[0][:80]!r} is missing or not of this network")
    place, weights = 0, {}
    for name, tensor in sorted(header.items(), key=lambda item: item[1].data_offsets):
        first, last = tensor.data_offsets
        if tensor.dtype != "F32" or tensor.shape != shapes[name]:
            raise _damaged(f"{name} is {tensor.dtype} {tensor.shape}, not F32 {shapes[name]}")
        if first != place or last - first != 4 * math.prod(tensor.shape) or last > len(content) - start:
            raise _damaged(f"{name} lies at {first} to {last}, not at {place}")
        numbers = np.frombuffer(content, "<f4", math.prod(tensor.shape), start + first)
        weights[name], place = numbers.reshape(tensor.shape).astype(np.float32), last
    if place != len(content) - start:
        raise _damaged(f"{len(content) - start - place} bytes follow the last number")
    fit(network, weights, WEIGHTS)
    return {name: weights[name] for name in shapes}


def check_agreement(network: NetworkSpec, weights: Weights, onnx: bytes) -> float:
    """The largest difference between ONNX Runtime and NumPy (or a module's own torch) on random rows; ModelDamaged
    above TOLERANCE."""
    from sparring.nets.onnx_graph import OnnxForward

    forward = _reference(network, weights)
    try:
        worst = disagreement(network, forward, OnnxForward(network, onnx))
    except Exception as error:  # noqa: BLE001  (the runtime's errors share no base class but this)
        raise ModelDamaged(f"ONNX Runtime refuses it: {error}", where=ONNX, do="Do not use it") from None
    if worst > (TOLERANCE if network.module is None else MODULE_TOLERANCE):
        raise ModelDamaged(f"it differs from the weights by {worst:.2g}", where=ONNX, do="Do not use it")
    return worst


def disagreement(network: NetworkSpec, forward: Forward, runtime: Forward, rows: int = 16) -> float:
    """The largest difference between a network's raw outputs, squashed here where a head has bounds, and those of its
    graph on random rows; with a memory over several steps in which each carries its own state."""
    rng, worst = np.random.default_rng(0), 0.0
    mine = theirs = initial_state(network, rows) if network.memory is not None else None
    for _ in range(1 if mine is None else _STEPS):
        seen = {leaf.name: random_rows(leaf, rows, rng) for leaf in network.inputs}
        raw, other = forward(seen, mine), runtime(seen, theirs)
        ours = raw | {head.name: squashed(raw[head.name], head.bounds) for head in network.heads}
        differences = [_difference(ours[name], other[name], _size(raw[name])) for name in ours]
        worst = max(worst, *(math.inf if math.isnan(one) else one for one in differences))
        mine, theirs = ours.get(STATE), other.get(STATE)
    return worst


def _reference(network: NetworkSpec, weights: Weights) -> Forward:
    """What a graph is compared with: NumPy; of a module torch where its code is known, else the card's own graph."""
    if network.module is None:
        return NumpyForward(network, weights)
    if network.module in MODULES:
        from sparring.nets.module_network import torch_forward

        return torch_forward(network, weights)
    return forward_without_torch(network, weights)


def _header(content: bytes) -> tuple[Mapping[str, _Tensor], int]:
    if len(content) < _LENGTH.size:
        raise _damaged(f"{len(content)} bytes are too few")
    (size,) = _LENGTH.unpack_from(content)
    if size > min(MAX_HEADER_BYTES, len(content) - _LENGTH.size):
        raise _damaged(f"its header claims {size} bytes, the limit is {MAX_HEADER_BYTES} and the file's end")
    text = content[_LENGTH.size : _LENGTH.size + size]
    # Each tensor's entry has this key: counting it is cheap, decoding a hundred thousand entries is not.
    if (count := text.count(b'"data_offsets"')) > MAX_TENSORS:
        raise _damaged(f"{count} tensors, the limit is {MAX_TENSORS}")
    try:
        return msgspec.json.decode(text, type=dict[str, _Tensor]), _LENGTH.size + size
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(f"its header does not read: {error}") from None


def _suits(network: NetworkSpec, seat: SeatSpec, frame_stack: int) -> bool:
    seen = {leaf.name: (leaf.stacked(frame_stack), leaf.dtype) for leaf in seat.observation}
    units = {head.name: head.units for head in network.heads}
    wanted = {"logits": seat.action.masks} if seat.action.choices else {"mean": math.prod(seat.action.shape)}
    suits_heads = all(units.get(name, size) == size for name, size in wanted.items())
    return suits_heads and all(seen.get(leaf.name) == (leaf.shape, leaf.dtype) for leaf in network.inputs)


def _bounded(head: Head, action: Leaf) -> Head:
    return replace(head, bounds=bounds_of(action)) if head.name == "mean" else head


def random_rows(leaf: Input, rows: int, rng: np.random.Generator) -> Array:
    """Rows of a leaf as a game might give them, in its own dtype."""
    shape = (rows, *leaf.shape)
    if leaf.one_hot:
        return rng.integers(0, min(leaf.one_hot, 127), shape).astype(leaf.dtype)
    x = leaf.shift + rng.normal(size=shape) / (leaf.scale or 1.0)
    if np.dtype(leaf.dtype).kind in "iu":
        limits = np.iinfo(leaf.dtype)
        x = np.clip(np.rint(x), max(limits.min, -(2**31)), min(limits.max, 2**31))
    return np.asarray(x.astype(leaf.dtype))


def _difference(mine: Array, other: Array, raw: float) -> float:
    """As a share of the largest number; of a squashed one also of what it was before, whose last bits it shows."""
    if mine.shape != other.shape:
        return math.inf
    return float(np.abs(mine - other).max(initial=0)) / max(_size(mine), raw)


def _size(column: Array) -> float:
    return max(1.0, float(np.abs(column).max(initial=0)))


def _damaged(wrong: str) -> ModelDamaged:
    return ModelDamaged(wrong, where=WEIGHTS, do="Fetch the model again; if it persists, do not use it")
