"""A network of the user's own: `module:name`, a function (or a class without arguments) that a seat is given to and
that answers with a NetworkSpec. Data, not a module of torch, so that it acts, exports and travels like any other."""

from typing import Any

from msgspec.structs import replace

from sparring.errors import ConfigError
from sparring.games.spec import SeatSpec
from sparring.nets.shapes import parameters
from sparring.user_code import found_code
from sparring.wire.network import Head, NetworkSpec


def own_network(
    name: str, seat: SeatSpec, heads: tuple[Head, ...], *, memory: bool = False, frame_stack: int = 1
) -> NetworkSpec:
    """What `name` makes for `seat` (its leaves in stacks, as a network sees them), where it suits it and has the
    `heads` that an algorithm needs (by name and units); `memory`: the algorithm carries a state. Missing or
    ConfigError otherwise.

    Any code may stand behind a name: take it from a command line or spar.toml, never from a request.
    """
    leaves = tuple(replace(leaf, shape=leaf.stacked(frame_stack)) for leaf in seat.observation)
    seat = replace(seat, observation=leaves)
    made = _maker(name)(seat)
    if not isinstance(made, NetworkSpec):
        raise _wrong(name, f"it made a {type(made).__name__}", "Return a sparring.wire.network.NetworkSpec")
    parameters(made)
    seen = {leaf.name: leaf for leaf in seat.observation}
    for given in made.inputs:
        leaf = seen.get(given.name)
        if leaf is None or (leaf.shape, leaf.dtype) != (given.shape, given.dtype):
            wanted = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
            wrong = f"its input {given.name!r} is {given.dtype} {given.shape}, the seat sees {wanted}"
            raise _wrong(name, wrong, "Take each leaf as the seat gives it; default_network shows how")
    units = {head.name: head.units for head in made.heads}
    for head in heads:
        if units.get(head.name) != head.units:
            wrong = f"its head {head.name!r} has {units.get(head.name, 'no')} units, the algorithm needs {head.units}"
            raise _wrong(name, wrong, f"Give it the heads {', '.join(f'{one.name} ({one.units})' for one in heads)}")
    if made.memory is not None and not memory:
        raise _wrong(name, "it has a memory, and the algorithm carries none", "Leave the memory out")
    return made


def _maker(name: str) -> Any:
    found = found_code(name, "network")
    maker = found() if isinstance(found, type) else found
    if not callable(maker):
        raise _wrong(name, f"it is a {type(maker).__name__}", "Name a function, or a class whose objects can be called")
    return maker


def _wrong(name: str, wrong: str, do: str) -> ConfigError:
    return ConfigError(wrong, where=f"network {name!r}", do=do)
