"""A network as data: what torch builds, NumPy and JavaScript run, ONNX exports and a card carries.

Each observation leaf is scaled. Leaves marked `image` are joined along their channels and pass the
`image` layers (convolutions, then dense ones); their features, flattened as [channels, height, width],
come first, then every other leaf, flattened, in the order of `inputs`. All that passes the `trunk`; each
head is one dense layer on the trunk's output. Parameters are named by place: "image/0/weight",
"trunk/1/bias", "value_trunk/0/weight", "logits/weight"; a dueling head has "logits/value/weight" and
"logits/value/bias" (one unit) beside its advantages.
"""

from typing import Literal

import msgspec

Activation = Literal["relu", "tanh", "none"]


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


Layer = Dense | Conv


class Input(msgspec.Struct, frozen=True):
    """One observation leaf: x = (raw - shift) * scale, as float32."""

    name: str
    shape: tuple[int, ...]
    shift: float = 0.0
    scale: float = 1.0
    one_hot: int = 0  # > 0: each integer below it becomes one_hot numbers, a one among zeros; not scaled
    dtype: str = "float32"  # of the raw leaf, as it comes from the game
    image: bool = False  # [channels, height, width], or [height, width] as one channel


class Head(msgspec.Struct, frozen=True):
    """An output: "logits" or "mean", "value", … of `units` numbers; `dueling` adds value + advantage - mean."""

    name: str
    units: int
    dueling: bool = False


class NetworkSpec(msgspec.Struct, frozen=True):
    """Inputs in the spec's order, layers, heads."""

    inputs: tuple[Input, ...]
    heads: tuple[Head, ...]
    trunk: tuple[Layer, ...] = ()
    image: tuple[Layer, ...] = ()
    separate_value: bool = False  # value has a trunk of its own ("value_trunk/…"), as PPO likes on small nets
