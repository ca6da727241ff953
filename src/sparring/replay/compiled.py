"""Functions over arrays, compiled once per machine: what replay does per row is done here, not in Python.

A compiled function holds no lock of the interpreter, so that actors go on while a batch is made.
"""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from sparring.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function` as machine code, kept beside its file for the next process; ConfigError without numba."""
    try:
        numba = importlib.import_module("numba")  # has no types; said once, here
    except ModuleNotFoundError:
        raise ConfigError(
            "replay is compiled, and numba is not installed",
            where="[replay]",
            do="Install `sparring[train]`",
        ) from None
    made: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made
