"""Torch modules as trees of arrays, columns as tensors, activations: what torch lacks for our networks and learners."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.errors import TrainingStopped
from sparring.wire.chunk import Array
from sparring.wire.network import Activation
from sparring.wire.tree import Tree


def tensors(columns: Mapping[str, Array]) -> dict[str, Tensor]:
    """Columns as tensors, without a copy where the arrays can be written to."""
    return {name: tensor(column) for name, column in columns.items()}


def tensor(column: Array) -> Tensor:
    """An array as a tensor. One that may not be written to is copied, as torch knows no such thing."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())


def take_rows(column: Tensor, rows: Tensor) -> Tensor:
    """column[rows], several times faster: whole rows are copied, also those of images with their channels last."""
    if column.dim() == 4 and column.is_contiguous(memory_format=torch.channels_last):
        return column.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return column.index_select(0, rows)


def activate(activation: Activation, x: Tensor) -> Tensor:
    """The activation of x."""
    if activation == "relu":
        return functional.relu(x)
    return torch.tanh(x) if activation == "tanh" else x


def activate_in_place(activation: Activation, x: Tensor) -> Tensor:
    """The activation of x, which may overwrite x: the gradient of the product before it does not need x."""
    return functional.relu(x, inplace=True) if activation == "relu" else activate(activation, x)


def save_module(module: nn.Module) -> Tree:
    """Every parameter by its name."""
    return {name: _array(value) for name, value in module.state_dict().items()}


def load_module(module: nn.Module, state: Tree) -> None:
    """Back to what `save_module` gave; TrainingStopped where another network was saved."""
    own = module.state_dict()
    if {name: tuple(value.shape) for name, value in own.items()} != {name: a.shape for name, a in state.items()}:
        raise TrainingStopped(
            "the saved network has other layers", where="checkpoint", do="Resume with the run's own settings"
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(torch.from_numpy(state[name].copy()))


def _array(value: Tensor) -> Array:
    return np.array(value.detach().cpu().numpy(), order="C")
