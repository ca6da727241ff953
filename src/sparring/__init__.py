"""Bots for games that learn from the people who play.

From Python (docs/python.md): `train` a bot, `evaluate` it, `load` a model and let it `predict`, `make` an environment
of one of our games, `connect` a game to a gateway, list the `runs` of a data folder.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.api.environments import make as make
    from sparring.api.models import LoadedModel as LoadedModel
    from sparring.api.models import Returns as Returns
    from sparring.api.models import evaluate as evaluate
    from sparring.api.models import load as load
    from sparring.api.runs import Run as Run
    from sparring.api.runs import runs as runs
    from sparring.api.runs import sweep as sweep
    from sparring.api.runs import train as train
    from sparring.client.connection import Connection as Connection
    from sparring.client.connection import connect as connect
    from sparring.errors import SparringError as SparringError

__version__ = "0.1.0"

_HOMES = {  # public name → module, imported when the name is first used: `import sparring` costs nothing
    "Connection": "sparring.client.connection",
    "LoadedModel": "sparring.api.models",
    "Returns": "sparring.api.models",
    "Run": "sparring.api.runs",
    "SparringError": "sparring.errors",
    "connect": "sparring.client.connection",
    "evaluate": "sparring.api.models",
    "load": "sparring.api.models",
    "make": "sparring.api.environments",
    "runs": "sparring.api.runs",
    "sweep": "sparring.api.runs",
    "train": "sparring.api.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparring' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from sparring.errors import missing_package

        raise missing_package(error) or error from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
