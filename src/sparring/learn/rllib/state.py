"""What RLlib's learner holds, as a tree of ours and back: no pickle, which RLlib's own checkpoints are full of."""

from typing import Any

import numpy as np
import torch

from sparring.wire.tree import Tree

_PAIRS, _TENSOR, _TUPLE = "pairs", "tensor", "tuple"


def to_tree(value: Any) -> Tree:
    """Nested dicts with any plain keys, lists, tuples, arrays, tensors and numbers as a tree."""
    if isinstance(value, dict):
        return {_PAIRS: [[to_tree(key), to_tree(one)] for key, one in value.items()]}
    if isinstance(value, torch.Tensor):
        return {_TENSOR: value.detach().cpu().numpy().copy()}
    if isinstance(value, tuple):
        return {_TUPLE: [to_tree(one) for one in value]}
    if isinstance(value, list):
        return [to_tree(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a tree")


def from_tree(tree: Tree) -> Any:
    """Back to what `to_tree` was given; arrays are copied, since a tree's are read-only."""
    if isinstance(tree, dict):
        if _PAIRS in tree:
            return {from_tree(key): from_tree(one) for key, one in tree[_PAIRS]}
        if _TENSOR in tree:
            return torch.from_numpy(np.array(tree[_TENSOR]))
        return tuple(from_tree(one) for one in tree[_TUPLE])
    if isinstance(tree, list):
        return [from_tree(one) for one in tree]
    return np.array(tree) if isinstance(tree, np.ndarray) else tree
