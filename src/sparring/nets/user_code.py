"""Networks and policies by name: built in, or `module:name` of the user's own, checked before they are used.

Any code may stand behind such a name: take it from a command line or spar.toml, never from a request or a model card.
"""

import copy
import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from sparring.errors import ConfigError, Missing
from sparring.games.spec import Leaf, SeatSpec
from sparring.nets.policies import BUILT_IN, Policy
from sparring.nets.shapes import parameters
from sparring.user_code import load_code
from sparring.wire.network import Head, Input, ModuleGraph, NetworkSpec

MODULES: dict[ModuleGraph, Callable[[], Any]] = {}  # what makes the torch module of a graph, where its code is known


def own_network(
    name: str, seat: SeatSpec, heads: tuple[Head, ...], *, memory: bool = False, frame_stack: int = 1
) -> NetworkSpec:
    """The network that the user's code at `name` makes for `seat`:

        a class of torch modules, or a function, of (inputs, outputs)     a torch module (nets/module_network.py)
        a module                                                          of which copies learn
        a function of the seat, or a class without arguments of such      a NetworkSpec, which is data
        no code but "{…}"                                                 a NetworkSpec as JSON

    `inputs` is the shape of what the module sees, or a mapping of such where the seat sees several leaves; `outputs` a
    mapping of heads to units. A function sees the seat's leaves stacked, as a network does. The network must take the
    seat's leaves and have the `heads` that the algorithm needs (by name and units), and no memory unless the algorithm
    carries a state (`memory`). Missing or ConfigError otherwise.
    """
    leaves = tuple(replace(leaf, shape=leaf.stacked(frame_stack)) for leaf in seat.observation)
    stacked = replace(seat, observation=leaves)
    maker, made = _network_maker(name, stacked, heads)
    if isinstance(made, NetworkSpec):
        _check_spec(name, made, stacked, heads)
    else:
        from sparring.nets.module_network import module_network

        made = module_network(name, maker, _inputs(stacked), heads)
    if made.memory is not None and not memory:
        raise network_error(name, "it has a memory, and the algorithm carries none", "Leave the memory out")
    return made


def _inputs(seat: SeatSpec) -> tuple[Input, ...]:
    from sparring.nets.torch_network import default_network

    return default_network(seat).inputs


def _network_maker(name: str, seat: SeatSpec, heads: tuple[Head, ...]) -> tuple[Callable[[], Any], Any]:
    """What makes the user's network for a seat, and the first that it made: a NetworkSpec or a torch module."""
    if name.startswith("{"):
        try:
            return dict, msgspec.json.decode(name, type=NetworkSpec)
        except msgspec.DecodeError as error:
            raise network_error(name[:80], f"it is no network: {error}", "Give a NetworkSpec as JSON") from None
    found = load_code(name, "network")
    from torch import nn, random

    given: tuple[Any, ...] = (seat,)
    if isinstance(found, nn.Module):
        found, given = copy.deepcopy, (found,)
    elif isinstance(found, type) and not issubclass(found, nn.Module):
        found = found()
    if not callable(found):
        do = "Name a class of torch modules, or a function that makes one"
        raise network_error(name, f"it is a {type(found).__name__}", do)
    arguments = inspect.signature(found)
    if (isinstance(found, type) or not _takes(arguments, given)) and found is not copy.deepcopy:
        sees = {leaf.name.removeprefix("observation/"): _seen_shape(leaf) for leaf in _inputs(seat)}
        given = (sees if len(sees) > 1 else next(iter(sees.values())), {head.name: head.units for head in heads})
        if not _takes(arguments, given):
            raise network_error(name, f"it takes {arguments}", "Let it take (inputs, outputs), as docs/models.md shows")
    maker = partial(found, *given)
    with random.fork_rng(devices=[]):
        made = maker()
    if not isinstance(made, NetworkSpec | nn.Module):
        raise network_error(name, f"it made a {type(made).__name__}", "Return a torch.nn.Module, or a NetworkSpec")
    return maker, made


def _takes(arguments: inspect.Signature, given: tuple[Any, ...]) -> bool:
    try:
        arguments.bind(*given)
    except TypeError:
        return False
    return True


def _seen_shape(leaf: Input) -> tuple[int, ...]:
    """Of one row as a module sees it."""
    return (*leaf.shape, leaf.one_hot) if leaf.one_hot else leaf.shape


def _check_spec(name: str, made: NetworkSpec, seat: SeatSpec, heads: tuple[Head, ...]) -> None:
    parameters(made)
    seen = {leaf.name: leaf for leaf in seat.observation}
    for given in made.inputs:
        leaf = seen.get(given.name)
        if leaf is None or (leaf.shape, leaf.dtype) != (given.shape, given.dtype):
            wanted = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
            wrong = f"its input {given.name!r} is {given.dtype} {given.shape}, the seat sees {wanted}"
            raise network_error(name, wrong, "Take each leaf as the seat gives it; default_network shows how")
    units = {head.name: head.units for head in made.heads}
    for head in heads:
        if units.get(head.name) != head.units:
            wrong = f"its head {head.name!r} has {units.get(head.name, 'no')} units, the algorithm needs {head.units}"
            do = f"Give it the heads {', '.join(f'{one.name} ({one.units})' for one in heads)}"
            raise network_error(name, wrong, do)


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


def network_error(name: str, wrong: str, do: str) -> ConfigError:
    """A network of the user's that cannot be used."""
    return _wrong("network", name, wrong, do)


def _wrong(what: str, name: str, wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where=f"{what} {name!r}", do=do)
