"""Backends chosen by URL: the module that speaks a scheme, and what the rest of the URL says."""

import difflib
import importlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sparring.errors import ConfigError, Missing

Options = Mapping[str, tuple[str, str]]  # name → a pattern that all of its value must match, and that in words


def backend(url: str, modules: Mapping[str, str], what: str, setting: str, extra: str) -> Any:
    """The module for the URL's scheme; Missing where a package is not installed that sparring[extra] brings."""
    scheme = url.partition("://")[0]
    if scheme not in modules:
        known = ", ".join(f"{name}://" for name in modules)
        raise ConfigError(f"no {what} speaks {url!r}", where=setting, do=f"Use one of {known}")
    try:
        return importlib.import_module(modules[scheme])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("sparring"):
            raise
        do = f"Run pip install 'sparring[{extra}]'"
        raise Missing(f"the package {error.name!r} is not installed", where=setting, do=do) from None


def read_url(url: str, setting: str, place: str, form: str, secrets: str, options: Options) -> tuple[SplitResult, Any]:
    """The parts of a URL, and its options as a dict; ConfigError names `setting`, and never repeats a password.

    `place` is the pattern of host and path, and `form` the URL as it should be; credentials come from `secrets`.
    """
    parts, said = urlsplit(url), dict[str, str]()
    if "@" in parts.netloc:
        raise ConfigError("a URL is no place for credentials", where=setting, do=f"Set {secrets} in the environment")
    if not re.fullmatch(place, parts.netloc + parts.path) or parts.fragment:
        raise ConfigError(f"{url.partition('?')[0]!r} is not {form}", where=setting, do="Write it so")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in options or name in said:
            near = difflib.get_close_matches(name, options.keys() - said.keys(), n=1)
            do = f"Did you mean {near[0]}" if near else f"Use {', '.join(options)}, each once"
            raise ConfigError(f"unknown or repeated option {name!r} in it", where=setting, do=do)
        pattern, meaning = options[name]
        if not re.fullmatch(pattern, value, re.IGNORECASE):
            raise ConfigError(f"{name}={value!r} in it", where=setting, do=f"Give {meaning}")
        said[name] = value
    return parts, said
