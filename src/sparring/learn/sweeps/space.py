"""sweep.toml: how many trials of what length, what they are judged by, and the space in which settings are drawn.

[sweep]
trials = 20
steps = 50_000

[space]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
hidden_units = { choices = [[32], [64, 64]] }
"""

import difflib
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from sparring.config import read
from sparring.errors import ConfigError, Missing
from sparring.learn.algorithms import settings_of
from sparring.learn.protocol import Algorithm


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """The table [sweep]. A trial is `seeds` runs with the same settings; its value is their mean."""

    name: str = ""  # of its folder; by default game, algorithm and file
    trials: int = 20
    steps: int = 0  # of each run
    minutes: float = 0.0  # of each run, instead of steps
    objective: Literal["return", "steps", "seconds"] = "return"  # the final return, or what it takes to reach target
    target: float = math.nan  # a return, as --until takes it
    seeds: int = 1
    prune: bool = False  # stop a trial whose first run is below the median of the others at the same tenth

    def __post_init__(self) -> None:
        where = "[sweep]"
        if self.trials < 1 or self.seeds < 1 or self.steps < 0 or not 0 <= self.minutes < math.inf:
            raise ConfigError(
                f"trials = {self.trials}, seeds = {self.seeds}, steps = {self.steps}, minutes = {self.minutes:g}",
                where=where,
                do="Count trials and seeds from 1, and let nothing be negative",
            )
        if bool(self.steps) == bool(self.minutes):
            raise ConfigError("how long a run is must be said once", where=where, do="Give steps, or else minutes")
        if self.objective != "return" and not math.isfinite(self.target):
            raise ConfigError(f"objective = {self.objective!r} has no target", where=where, do="Give target = RETURN")


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


def read_sweep(path: Path, algorithm: Algorithm, fixed: dict[str, Any]) -> SweepFile:
    """The file, checked against the algorithm's settings; `fixed` are those that the sweep does not vary."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise Missing("there is no such file", where=str(path), do="Write one; docs/training.md shows how") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"it does not read: {error}", where=str(path), do="Correct it") from None
    for key in table:
        _check_key(key, ("sweep", "space"), path.name)
    sweep, space = table.get("sweep", {}), table.get("space", {})
    if not isinstance(sweep, dict) or not isinstance(space, dict) or not space:
        raise ConfigError("it has no table [space]", where=path.name, do="Name at least one setting to search")
    where = f"{path.name} [space]"
    kinds = get_type_hints(algorithm.settings)
    for key in space:
        _check_key(key, tuple(kinds), where)
    ranges = tuple(_range(key, value, kinds[key], where) for key, value in space.items())
    for one in ranges:
        for text in one.extremes:
            settings_of(algorithm, fixed, {one.key: tomllib.loads(f"value = {text}")["value"]})
    return SweepFile(read(SweepConfig, sweep, f"{path.name} [sweep]"), ranges)


def _check_key(key: str, keys: tuple[str, ...], where: str) -> None:
    if key not in keys:
        near = difflib.get_close_matches(key, keys, n=1)
        do = f"Did you mean {near[0]!r}" if near else f"The keys here are {', '.join(keys)}"
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
