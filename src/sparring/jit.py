"""Functions over arrays that numba compiles once per machine: loops over rows of replay, windows of images
and trees of a search.

A compiled function holds the interpreter lock (GIL) unless it is `released`, as NumPy does for small arrays: most take
some 10 µs, and a change of thread several times that (docs/performance.md).
"""

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from sparring.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def released(function: Function) -> Function:
    """As `compiled`, without the interpreter lock: other threads run meanwhile. For functions that take long."""
    return compiled(function, nogil=True)


def released_where_possible(function: Function) -> Function:
    """As `released`; without numba, which a game's own process may lack, the function itself, many times slower."""
    return released(function) if importlib.util.find_spec("numba") else function


def compiled(function: Function, *, nogil: bool = False) -> Function:
    """`function` as machine code, cached beside its file for the next process; ConfigError without numba."""
    try:
        numba = importlib.import_module("numba")  # has no types; said once, here
    except ModuleNotFoundError:
        wrong = "replay is compiled, and numba is not installed"
        raise ConfigError(wrong, where="[replay]", do="Install `sparring[train]`") from None
    made: Function = numba.njit(cache=True, nogil=nogil, error_model="numpy")(function)
    return made
