"""A network as data: what torch builds, NumPy and JavaScript run, ONNX exports and a card carries.

Each observation leaf is scaled. Leaves marked `image` are joined along their channels and pass the
`image` layers (convolutions, then dense ones); their features, flattened as [channels, height, width],
come first, then what the `entities` encoders make of theirs, then every other leaf, flattened, in the order
of `inputs`. All that passes the `trunk`, then the `memory` where there is one; each head is one dense layer
on that. Parameters are named by place: "image/0/weight", "trunk/1/bias", "value_trunk/0/weight",
"logits/weight"; a dueling head has "logits/value/weight" and "logits/value/bias" (one unit) beside its
advantages; a residual layer "trunk/2/first/weight" and "trunk/2/second/weight"; a memory
"memory/input/weight" and "memory/hidden/weight" (also "value_memory/…" where the value has a trunk of its
own); an encoder "entities/0/embed/weight" and for each block "entities/0/1/attend/weight", "…/join/weight",
"…/first/weight", "…/second/weight"; each with its bias. An input that is normalised has "inputs/2/mean" and
"inputs/2/deviation" by its place among the inputs: statistics of what was seen, which no gradient changes.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from sparring.wire.chunk import Array

Activation = Literal["relu", "tanh", "none"]
Weights = dict[str, Array]  # parameter name → float32
NORMALISED_LIMIT = 10.0  # deviations from the mean


class Dense(msgspec.Struct, frozen=True, tag="dense"):
    """y = activation(x Wᵀ + b); W is [units, inputs]."""

    units: int
    activation: Activation = "tanh"


class Conv(msgspec.Struct, frozen=True, tag="conv"):
    """2-D convolution over [channels, height, width]; W is [channels, inputs, kernel, kernel]."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    activation: Activation = "relu"


class Pool(msgspec.Struct, frozen=True, tag="pool"):
    """The largest of each window of an image, each channel for itself; the padding is never the largest."""

    kernel: int = 3
    stride: int = 2
    padding: int = 1


class Residual(msgspec.Struct, frozen=True, tag="residual"):
    """y = out(x + second(activation(first(activation(x))))), as in IMPALA's deep network (Espeholt et al. 2018).

    Over an image both are kernel x kernel convolutions that keep its size, over numbers dense layers;
    between them lie `units` channels or numbers, as many as x has where that is 0.
    """

    units: int = 0
    kernel: int = 3  # odd; of images alone
    activation: Activation = "relu"
    out: Activation = "none"


Layer = Dense | Conv | Pool | Residual


class Gru(msgspec.Struct, frozen=True, tag="gru"):
    """Cho et al. 2014, as torch has it: gates r, z, n, in this order; the reset gate after the product.

    "input/weight" is [3 units, inputs], "hidden/weight" [3 units, units]. Its state is h.
    """

    units: int


class Lstm(msgspec.Struct, frozen=True, tag="lstm"):
    """Hochreiter & Schmidhuber 1997, as torch has it: gates i, f, g, o, in this order.

    "input/weight" is [4 units, inputs], "hidden/weight" [4 units, units]. Its state is h, then c.
    """

    units: int


class Carried(msgspec.Struct, frozen=True, tag="carried"):
    """The state of a module network (`NetworkSpec.module`), whatever its module makes of these numbers."""

    units: int


Memory = Gru | Lstm | Carried


class ModuleGraph(msgspec.Struct, frozen=True):
    """A user's torch module as data: its tensors, and what it does with them as an ONNX graph without any weights.

    The graph takes each scaled leaf as "net/LEAF", float32, each tensor as "net/TENSOR", and with a memory "net/state";
    it gives each head, and with a memory the next state, as "net/out/HEAD" and "net/out/state", [batch, units].
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # the names of torch's state_dict, and shapes; float32
    graph: bytes


class Entities(msgspec.Struct, frozen=True):
    """A set of entities as `units` numbers: each through a dense layer with relu, `blocks` of self-attention
    (Vaswani et al. 2017, without normalisation: a block begins as the identity), and the mean or the largest
    of those that are there. What lies beyond the count is never seen.

    `leaf` names an input of shape (most, features), `count` one of a single number; or k frames of both,
    (k, most, features) and (k,), each frame a set by itself and all through the same encoder.
    """

    leaf: str
    count: str  # stays an ordinary input too: a mean does not say how many it is of
    units: int = 64
    heads: int = 4
    blocks: int = 1
    pool: Literal["mean", "max"] = "mean"


def _always(default: Callable[[], object]) -> Any:
    """A default that is written all the same: msgspec leaves out only what is the default itself, not what a
    function makes. Cards made before the fields that are left out have these in the JSON that names them."""
    return msgspec.field(default_factory=lambda: default())


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation leaf: x = (raw - shift) * scale, as float32; where it is normalised, then each entry as
    clip((x - mean) / deviation, ±NORMALISED_LIMIT)."""

    name: str
    shape: tuple[int, ...]
    shift: float = _always(float)
    scale: float = _always(lambda: 1.0)
    one_hot: int = _always(int)  # > 0: each integer below it becomes one_hot numbers, a one among zeros; not scaled
    dtype: str = _always(lambda: "float32")  # of the raw leaf, as it comes from the game
    image: bool = _always(bool)  # [channels, height, width], or [height, width] as one channel
    normalise: bool = False  # neither an image nor one-hot nor a set of entities


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output: "logits" or "mean", "value", … of `units` numbers; `dueling` adds value + advantage - mean.

    `bounds` are those of a "mean" in the game's own units: a player that has only the model (ONNX, JavaScript) gets
    low + (high - low)(tanh x + 1)/2 instead of x. torch and NumPy, which learn, always give x.
    """

    name: str
    units: int
    dueling: bool = _always(bool)
    bounds: tuple[float, float] | None = None  # None: as it is


class NetworkSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs in the spec's order, layers, heads. A field added later is left out of the JSON at its default,
    so that a model keeps its id."""

    inputs: tuple[Input, ...]
    heads: tuple[Head, ...]
    trunk: tuple[Layer, ...] = _always(tuple)
    image: tuple[Layer, ...] = _always(tuple)
    separate_value: bool = _always(bool)  # value has a trunk of its own ("value_trunk/…"), as PPO likes on small nets
    memory: Memory | None = None
    entities: tuple[Entities, ...] = ()
    module: ModuleGraph | None = None  # in place of every layer and head layer: `inputs` are scaled, `heads` are named
