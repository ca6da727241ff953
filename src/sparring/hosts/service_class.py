"""A service's class as text that another process can import, and the arguments of its constructor."""

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from sparring.errors import ConfigError
from sparring.hosts.protocol import Given
from sparring.services.register import verbs_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def path_of(service: type) -> str:
    """ "module:Class"; ConfigError where another process could not find it, or where it offers nothing."""
    path = f"{service.__module__}:{service.__qualname__}"
    if service.__module__ == "__main__" or "<locals>" in service.__qualname__:
        raise ConfigError(
            f"{path} cannot be imported by another process", where="host", do="Define the class in a module"
        )
    if not verbs_of(service):
        raise ConfigError(f"{path} has no verb", where="host", do="Decorate a method with @register()")
    return path


def class_at(path: str) -> type:
    """The class behind "module:Class"."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise ConfigError(f"{path} is no class", where="host", do="Name a class with @register methods")
    return found


def checked_name(name: str) -> str:
    """`name` where it may name a service."""
    if not _NAME.fullmatch(name):
        do = "Use at most 32 letters, digits, - and _"
        raise ConfigError(f"{name!r} cannot name a service", where="host", do=do)
    return name


def given_each(given: Given, count: int, name: str) -> list[dict[str, Any]]:
    """The constructor's arguments of each of `count` instances."""
    if callable(given):
        return [dict(given(index, count)) for index in range(count)]
    if isinstance(given, Mapping):
        return [dict(given) for _ in range(count)]
    if len(given) != count:
        do = "Give one mapping for all, or one for each"
        raise ConfigError(f"{count} instances and {len(given)} mappings", where=f"service {name}", do=do)
    return [dict(one) for one in given]


def construct(service: type, given: Mapping[str, Any], index: int, generation: int) -> object:
    """An instance; it is given `index` and `generation` where its constructor has parameters so named."""
    asked = inspect.signature(service).parameters
    own = {"index": index, "generation": generation}
    return service(**given, **{name: value for name, value in own.items() if name in asked and name not in given})
