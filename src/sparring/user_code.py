"""Code that a user names as `module:name` on a command line or in spar.toml; never from a request or a model card."""

import importlib
import os
import sys
from typing import Any

from sparring.errors import ConfigError, Missing


def import_from_current_folder() -> None:
    """Let imports find modules in the current folder, where an installed command does not look by itself."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())


def load_code(name: str, what: str) -> Any:
    """The object at `module:name`; ConfigError where `name` has another form, Missing where nothing is there.

    `what` it should be ("network", "policy") begins the error's sentence. The current folder is searched, too.
    """
    where = f"{what} {name!r}"
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError("it is no module:name", where=where, do="Write the module, a colon, and the name in it")
    import_from_current_folder()
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise Missing(f"there is no module {module!r}", where=where, do="Mend its name") from None
    except AttributeError:
        raise Missing(f"{module} has no {attribute!r}", where=where, do="Name one that is there") from None
