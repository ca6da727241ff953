"""What a game is: its seats, what each sees and does, and what it may earn.

A spec is data. A game that exists only in its players' clients is a spec in TOML and nothing else.
"""

import hashlib
import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from sparring.errors import ConfigError
from sparring.wire.champion import canonical
from sparring.wire.chunk import DTYPES, MAX_DIMENSIONS
from sparring.wire.ids import GameId

Kind = Literal["image", "vector", "entities", "discrete", "multi-discrete", "box"]
DISCRETE = ("discrete", "multi-discrete")
_DTYPE = "float32"
_ID = re.compile(r"[A-Za-z][A-Za-z0-9._:/()=,-]{0,99}")  # it stands in addresses and file names


class Leaf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One named array of fixed shape and dtype.

    discrete: shape (), values below choices[0]; multi-discrete: shape (k,), entry i below choices[i].
    entities: shape (most, features), with a leaf "<name>/count" beside it that says how many are there.
    low and high are inclusive; None means unbounded (but finite, always).
    """

    name: str  # "observation/board", "action"
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = _DTYPE
    choices: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.dtype == _DTYPE:  # msgspec leaves out what *is* the default: equal specs must have one hash
            msgspec.structs.force_setattr(self, "dtype", _DTYPE)

    @property
    def masks(self) -> int:
        """How many entries a legal mask has: one per choice; 0 where a mask makes no sense."""
        return sum(self.choices)

    def stacked(self, frames: int) -> tuple[int, ...]:
        """The shape of `frames` of it in a row, oldest first: joined along the first of three axes (the
        channels of an image), along a new first axis otherwise; one frame stays as it is."""
        if frames == 1:
            return self.shape
        if len(self.shape) == 3:
            return (frames * self.shape[0], *self.shape[1:])
        return (frames, *self.shape)


class SeatSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One place at the table. Seats of one team share their interest; by default all are of one."""

    name: str
    team: int = 0
    observation: tuple[Leaf, ...]
    action: Leaf
    reward_bounds: tuple[float, float]  # of one step
    sees_others: bool = True  # False: its records show nothing of what other seats do, and outlive their erasure

    def leaf(self, name: str) -> Leaf:
        """The observation leaf of that full name."""
        return next(leaf for leaf in self.observation if leaf.name == name)


class GameSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that makes two games' data exchangeable or not."""

    id: GameId
    version: str = "1"
    turns: Literal["alternating", "simultaneous"]
    seats: tuple[SeatSpec, ...]
    max_ticks: int
    resimulates: bool = False  # save, restore and step give the same transition again
    frame_stack: int = 1  # single frames travel; stacks of this many are made on reading
    hidden_information: bool = False  # a seat does not see all that others know or do: who acts alike is exploited
    state: Leaf | None = None  # what `Game.state` shows of the whole game, to critics in training alone

    @property
    def has_rivals(self) -> bool:
        """Whether there is more than one team."""
        return len({seat.team for seat in self.seats}) > 1

    @property
    def kinds(self) -> tuple[tuple[int, ...], ...]:
        """The seats by kind: those of one kind see and do the same, so one network may play them. In order of the
        first seat of each."""
        found: dict[tuple[tuple[Leaf, ...], Leaf], list[int]] = {}
        for place, seat in enumerate(self.seats):
            found.setdefault((seat.observation, seat.action), []).append(place)
        return tuple(map(tuple, found.values()))

    @property
    def hash(self) -> str:
        """Of all that gives the numbers their meaning; neither the version nor what is hidden nor the state is in it,
        so a patch that keeps the spaces keeps its models."""
        seats = tuple(msgspec.structs.replace(seat, sees_others=True) for seat in self.seats)
        bare = msgspec.structs.replace(self, version="", seats=seats, hidden_information=False, state=None)
        return hashlib.sha256(canonical(bare)).hexdigest()


msgspec.json.Decoder(GameSpec)  # makes the type ready before threads use it; see docs/decisions/0330


def discrete(n: int, name: str = "action") -> Leaf:
    """A choice among n."""
    return Leaf(name=name, kind="discrete", dtype="int32", choices=(n,))


def vector(name: str, size: int, low: float | None = None, high: float | None = None) -> Leaf:
    """float32 [size]."""
    return Leaf(name=name, kind="vector", shape=(size,), low=low, high=high)


def parse(text: str, where: str = "game spec") -> GameSpec:
    """The spec in a TOML text, checked."""
    try:
        return checked(msgspec.convert(tomllib.loads(text), GameSpec), where)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(str(error), where=where, do="See docs/games.md for a whole example") from None


def read(path: Path) -> GameSpec:
    """The spec in a TOML file, checked."""
    return parse(path.read_text(), str(path))


def checked(spec: GameSpec, where: str) -> GameSpec:
    """The same spec, or a ConfigError that names the first thing that cannot be."""

    def wrong(text: str, do: str) -> ConfigError:
        return ConfigError(text, where=where, do=do)

    if not _ID.fullmatch(spec.id):
        raise wrong(f"id {spec.id!r}", "Use letters, digits and . _ - : / ( ) = , at most 100, a letter first")
    if not spec.seats or spec.max_ticks < 1 or spec.frame_stack < 1:
        raise wrong("a game has at least one seat, one tick and a frame_stack of one", "Fill them in")
    if spec.state is not None:
        _check_leaf(spec.state, wrong)
    for seat in spec.seats:
        if [other.name for other in spec.seats].count(seat.name) > 1:
            raise wrong(f"several seats are called {seat.name!r}", "Give each seat a name of its own")
        low, high = seat.reward_bounds
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise wrong(f"seat {seat.name!r} has reward_bounds {seat.reward_bounds}", "Give finite low and high")
        names = [leaf.name for leaf in (*seat.observation, seat.action)]
        if len(set(names)) != len(names) or seat.action.name != "action" or not seat.observation:
            raise wrong(f"seat {seat.name!r} has leaves {names}", 'Name each once; the action is called "action"')
        for leaf in (*seat.observation, seat.action):
            _check_leaf(leaf, wrong)
            if leaf.kind == "entities" and f"{leaf.name}/count" not in names:
                raise wrong(f"leaf {leaf.name!r} has no count", f'Add a leaf "{leaf.name}/count"')
    return spec


def _check_leaf(leaf: Leaf, wrong: Any) -> None:
    if leaf.name != "action" and not leaf.name.startswith("observation/"):
        raise wrong(f"leaf {leaf.name!r}", 'Begin its name with "observation/"')
    if leaf.dtype not in DTYPES:
        raise wrong(f"leaf {leaf.name!r} has dtype {leaf.dtype!r}", f"Use one of {', '.join(DTYPES)}")
    if len(leaf.shape) >= MAX_DIMENSIONS or any(size < 1 for size in leaf.shape):
        raise wrong(f"leaf {leaf.name!r} has shape {leaf.shape}", "Give each axis at least one entry")
    if leaf.low is not None and leaf.high is not None and not leaf.low <= leaf.high:
        raise wrong(f"leaf {leaf.name!r} has low {leaf.low} and high {leaf.high}", "Let low be the lower")
    if leaf.kind in DISCRETE:
        entries = math.prod(leaf.shape)
        if not leaf.choices or min(leaf.choices) < 1 or (leaf.kind == "discrete") != (leaf.shape == ()):
            raise wrong(f"leaf {leaf.name!r} has choices {leaf.choices}", "discrete: shape (), choices (n,)")
        if leaf.kind == "multi-discrete" and len(leaf.choices) != entries:
            raise wrong(f"leaf {leaf.name!r} has {entries} entries", f"Give {entries} choices")
        if not np.issubdtype(np.dtype(leaf.dtype), np.integer):
            raise wrong(f"leaf {leaf.name!r} has dtype {leaf.dtype!r}", "Use an integer dtype for choices")
        if max(leaf.choices) - 1 > np.iinfo(leaf.dtype).max:
            raise wrong(f"leaf {leaf.name!r} has {max(leaf.choices)} choices in {leaf.dtype}", "Use a wider dtype")
    elif leaf.choices:
        raise wrong(f"leaf {leaf.name!r} has choices", "Only discrete and multi-discrete leaves have them")
