"""Critics: networks that value an action in an observation. One number for each choice, or, where actions are a box,
one number of observation and action together: the action is then one more input of the network.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_setting
from typing import Any, Self

import torch
from msgspec.structs import replace
from torch import Tensor

from sparring.games.spec import GameSpec, Leaf, SeatSpec
from sparring.learn.algorithms.feeds import network_for
from sparring.nets.policies import bounds_of
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import load_module, save_module
from sparring.wire.network import Head, Input, NetworkSpec
from sparring.wire.tree import Tree

TAKEN = "action"  # the leaf that an action is to a critic of boxes


def critic_heads(action: Leaf) -> tuple[Head, ...]:
    """Of a critic's network, before `critic_spec`."""
    return (Head("logits", action.masks),) if action.choices else (Head("value", 1),)


def critic_spec(spec: NetworkSpec, action: Leaf) -> NetworkSpec:
    """A network of views, with `critic_heads`, as one that sees the action too where that is a box."""
    if action.choices:
        return spec
    shift, scale = 0.0, 1.0
    if (bounds := bounds_of(action)) is not None:
        shift, scale = (bounds[0] + bounds[1]) / 2, 2.0 / (bounds[1] - bounds[0])
    shape = action.shape or (1,)
    return replace(spec, inputs=(*spec.inputs, Input(TAKEN, shape, shift, scale, dtype="float32")))


def value_of(critic: Network, seen: Mapping[str, Tensor], action: Tensor) -> Tensor:
    """Q(s, a), [n]."""
    if critic.spec.inputs[-1].name == TAKEN:
        value: Tensor = critic({**seen, TAKEN: action.float().reshape(len(action), -1)})["value"]
        return value
    chosen: Tensor = critic(seen)["logits"].gather(1, action.long().unsqueeze(1)).squeeze(1)
    return chosen


def values_of_many(critic: Network, seen: Mapping[str, Tensor], actions: Tensor) -> Tensor:
    """Q(s, a) of several box actions in each view: actions [n, several, *shape] to values [n, several]."""
    n, several = actions.shape[:2]
    wide = {name: leaf.repeat_interleave(several, 0) for name, leaf in seen.items()}
    return value_of(critic, wide, actions.flatten(0, 1)).reshape(n, several)


class Critics:
    """Two critics that began apart, and a slower copy of each, which targets are made of."""

    def __init__(self, spec: NetworkSpec, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)  # one for both, so that they differ
        self.online = [Network(spec, draw) for _ in range(2)]
        self.slow = [Network(spec, 0) for _ in range(2)]
        self.follow(1.0)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are learned."""
        return [value for one in self.online for value in one.parameters()]

    def follow(self, rate: float) -> None:
        """The slow ones move towards the others by `rate`; 1 makes them the same."""
        with torch.no_grad():
            for online, slow in zip(self.online, self.slow, strict=True):
                for new, old in zip(online.parameters(), slow.parameters(), strict=True):
                    old.lerp_(new, rate)

    def save(self) -> Tree:
        return [save_module(one) for one in (*self.online, *self.slow)]

    def load(self, state: Tree) -> Self:
        """Back to what `save` gave."""
        for one, saved in zip((*self.online, *self.slow), state, strict=True):
            load_module(one, saved)
        return self


def critics_for(game: GameSpec, seat: SeatSpec, config: Any, seed: int) -> Critics:
    """Two critics with the layers of the settings; a network of the user's own is the policy's alone."""
    views = network_for(game, seat, replace_setting(config, network=""), critic_heads(seat.action))
    return Critics(critic_spec(views, seat.action), seed)


def smaller(critics: Sequence[Network], seen: Mapping[str, Tensor], action: Tensor) -> Tensor:
    """The smaller of two critics' Q(s, a), [n]: what chance makes too large in one is seldom so in the other."""
    return torch.min(value_of(critics[0], seen, action), value_of(critics[1], seen, action))


def uniform_logp(action: Leaf) -> float:
    """log-density of an action drawn evenly between the bounds, or from ±1 where there are none."""
    low, high = bounds_of(action) or (-1.0, 1.0)
    return -math.prod(action.shape) * math.log(high - low)
