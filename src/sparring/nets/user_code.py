"""Networks and policies by name: built in, or `module:name` of the user's own, checked before they are used.

Any code may stand behind such a name: take it from a command line or spar.toml, never from a request or a model card.
"""

import difflib
from typing import Any

from msgspec.structs import replace

from sparring.errors import ConfigError, Missing
from sparring.games.spec import Leaf, SeatSpec
from sparring.nets.policies import BUILT_IN, Policy
from sparring.nets.shapes import parameters
from sparring.user_code import load_code
from sparring.wire.network import Head, NetworkSpec


def own_network(
    name: str, seat: SeatSpec, heads: tuple[Head, ...], *, memory: bool = False, frame_stack: int = 1
) -> NetworkSpec:
    """The network that the user's function (or class without arguments) at `name` makes for `seat`: a NetworkSpec,
    which is data and no torch module, so that it acts, exports and travels like any other.

    The function sees the seat's leaves stacked, as a network does. The spec must take the seat's leaves and have the
    `heads` that the algorithm needs (by name and units), and no memory unless the algorithm carries a state
    (`memory`). Missing or ConfigError otherwise.
    """
    leaves = tuple(replace(leaf, shape=leaf.stacked(frame_stack)) for leaf in seat.observation)
    seat = replace(seat, observation=leaves)
    found = load_code(name, "network")
    maker: Any = found() if isinstance(found, type) else found
    if not callable(maker):
        do = "Name a function, or a class whose objects can be called"
        raise _wrong("network", name, f"it is a {type(maker).__name__}", do)
    made = maker(seat)
    if not isinstance(made, NetworkSpec):
        raise _wrong("network", name, f"it made a {type(made).__name__}", "Return a sparring.wire.network.NetworkSpec")
    parameters(made)
    seen = {leaf.name: leaf for leaf in seat.observation}
    for given in made.inputs:
        leaf = seen.get(given.name)
        if leaf is None or (leaf.shape, leaf.dtype) != (given.shape, given.dtype):
            wanted = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
            wrong = f"its input {given.name!r} is {given.dtype} {given.shape}, the seat sees {wanted}"
            raise _wrong("network", name, wrong, "Take each leaf as the seat gives it; default_network shows how")
    units = {head.name: head.units for head in made.heads}
    for head in heads:
        if units.get(head.name) != head.units:
            wrong = f"its head {head.name!r} has {units.get(head.name, 'no')} units, the algorithm needs {head.units}"
            do = f"Give it the heads {', '.join(f'{one.name} ({one.units})' for one in heads)}"
            raise _wrong("network", name, wrong, do)
    if made.memory is not None and not memory:
        raise _wrong("network", name, "it has a memory, and the algorithm carries none", "Leave the memory out")
    return made


def open_policy(name: str, action: Leaf) -> Policy:
    """The policy of that name for such actions; a user's own is a class that is made with a seat's action leaf and
    offers what policies.Policy lists. Missing or ConfigError where there is none or it does not suit."""
    if name in BUILT_IN:
        return BUILT_IN[name](action)
    if ":" not in name:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        do = f"Did you mean {near[0]!r}" if near else f"Choose one of {', '.join(BUILT_IN)}, or give module:name"
        raise Missing(f"there is no policy {name!r}", where="train.policy", do=do)
    made = load_code(name, "policy")
    if not isinstance(made, type):
        raise _wrong("policy", name, f"it is a {type(made).__name__}", "Name a class")
    policy: Policy = made(action)
    if not callable(getattr(policy, "explore", None)):
        raise _wrong("policy", name, "it has no explore()", "Offer what policies.Policy in nets/policies.py lists")
    deployed = getattr(policy, "deployed", None)
    if deployed not in BUILT_IN:
        do = f"Set it to one of {', '.join(BUILT_IN)}: the policy by which a deployed model chooses"
        raise _wrong("policy", name, f"deployed is {deployed!r}, and a model's card names no code", do)
    BUILT_IN[deployed](action)  # which must suit the actions, too
    return policy


def _wrong(what: str, name: str, wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where=f"{what} {name!r}", do=do)
