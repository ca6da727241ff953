"""sweep.toml, or its tables from Python, read and checked: the length of a trial, and the space of settings."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from sparring.config import read
from sparring.errors import ConfigError, Missing
from sparring.games.game_state import did_you_mean
from sparring.learn.algorithms import settings_of
from sparring.learn.protocol import Algorithm
from sparring.learn.sweeps.trial import SweepConfig


@dataclass(frozen=True, slots=True)
class SearchRange:
    """Where one setting is drawn from: between two numbers, or among values written as TOML."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[str, ...] = ()

    @property
    def extremes(self) -> tuple[str, ...]:
        """Both ends, or all choices, as TOML."""
        ends = (self.low, self.high)
        return self.choices or tuple(str(int(end)) if self.whole else repr(float(end)) for end in ends)


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A whole sweep.toml."""

    sweep: SweepConfig
    space: tuple[SearchRange, ...]


def read_sweep(given: Path | Mapping[str, Any], algorithm: Algorithm, fixed: dict[str, Any]) -> SweepFile:
    """The file, or its tables, checked against the algorithm's settings; `fixed` are those that it does not vary."""
    table, source = (_read_toml(given), given.name) if isinstance(given, Path) else (given, "sweep")
    for key in table:
        _check_key(key, ("sweep", "space"), source)
    sweep, space = table.get("sweep", {}), table.get("space", {})
    if not isinstance(sweep, dict) or not isinstance(space, dict) or not space:
        raise ConfigError("it has no table [space]", where=source, do="Name at least one setting to search")
    where = f"{source} [space]"
    kinds = get_type_hints(algorithm.settings)
    for key in space:
        _check_key(key, tuple(kinds), where)
    ranges = tuple(_range(key, value, kinds[key], where) for key, value in space.items())
    for one in ranges:
        for text in one.extremes:
            settings_of(algorithm, fixed, {one.key: tomllib.loads(f"value = {text}")["value"]})
    return SweepFile(read(SweepConfig, sweep, f"{source} [sweep]"), ranges)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise Missing("there is no such file", where=str(path), do="Write one; docs/training.md shows how") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"it does not read: {error}", where=str(path), do="Correct it") from None


def _check_key(key: str, keys: tuple[str, ...], where: str) -> None:
    if key not in keys:
        do = did_you_mean(key, keys, f"The keys here are {', '.join(keys)}")
        raise ConfigError(f"unknown key {key!r}", where=where, do=do)


def _range(key: str, value: Any, kind: Any, where: str) -> SearchRange:
    write = "Write { low = 1, high = 9 }, { low = 1e-4, high = 1e-2, log = true } or { choices = [1, 2] }"
    if not isinstance(value, dict):
        raise ConfigError(f"{key} = {value!r} is no range", where=where, do=write)
    for name in value:
        _check_key(name, ("low", "high", "log", "choices"), f"{where} {key}")
    choices, log = value.get("choices"), value.get("log", False)
    if choices is not None:
        if not isinstance(choices, list) or not choices or len(value) > 1:
            raise ConfigError(f"{key} has no list of choices alone", where=where, do=write)
        return SearchRange(key, choices=tuple(json.dumps(choice) for choice in choices))
    low: Any = value.get("low")
    high: Any = value.get("high")
    numbers = all(type(end) in (int, float) and math.isfinite(end) for end in (low, high))
    if not numbers or not isinstance(log, bool) or kind not in (int, float):
        raise ConfigError(f"{key} = {value!r} is no range of numbers", where=where, do=write)
    if low >= high or (log and low <= 0) or (kind is int and not isinstance(low, int) & isinstance(high, int)):
        wrong = f"{key}: low = {low}, high = {high}, log = {str(log).lower()}"
        do = "Let low be below high, above 0 where log is true, and whole where the setting is"
        raise ConfigError(wrong, where=where, do=do)
    return SearchRange(key, float(low), float(high), log, kind is int)
