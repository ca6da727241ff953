"""What the games here share: checked actions, state as bytes, the bookkeeping of one seat, and chance from a seed."""

import difflib
import importlib
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing, Refused, UserCodeError, WireError
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array

REWARD_BOUND = 1e6  # where a library does not say what a step may earn
SEEDS = 1 << 31  # some environments keep a seed in 32 bits, with a sign
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class _State(msgspec.Struct, forbid_unknown_fields=True):
    game: str
    spec: str
    arrays: dict[str, bytes]


class BaseGame:
    """n games with a clock and an ending each. `save` and `restore` write and read the arrays of `_arrays`."""

    spec: GameSpec
    searchable = False  # see SearchableGame

    def __init__(self, n: int) -> None:
        self.n = n
        self._tick = np.zeros(n, np.int64)
        self._ending = np.full(n, TERMINATED, np.uint8)  # no game runs before its first reset

    def save(self) -> bytes:
        """All n games, exactly; Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        arrays = {name: array.tobytes() for name, array in self._arrays().items()}
        return msgspec.msgpack.encode(_State(self.spec.id, self.spec.hash, arrays))

    def restore(self, state: bytes) -> None:
        """Back to what `save` gave; Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        do = "Restore what save() of the same game with the same n gave"
        arrays = self._arrays()
        try:
            found = msgspec.msgpack.decode(state, type=_State)
        except msgspec.DecodeError as error:
            raise WireError(f"the bytes do not read: {error}", where=f"state of {self.spec.id}", do=do) from None
        sizes = {name: len(raw) for name, raw in found.arrays.items()}
        if found.spec != self.spec.hash or sizes != {name: array.nbytes for name, array in arrays.items()}:
            raise WireError(
                f"it is one of {found.game}, or of another number of games", where=f"state of {self.spec.id}", do=do
            )
        for name, array in arrays.items():
            array[...] = np.frombuffer(found.arrays[name], array.dtype).reshape(array.shape)

    def save_rows(self) -> list[bytes]:
        """Each game by itself; Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        columns = [np.ascontiguousarray(a).reshape(self.n, -1).view(np.uint8) for a in self._arrays().values()]
        return [row.tobytes() for row in np.concatenate(columns, axis=1)]

    def restore_rows(self, rows: Sequence[bytes]) -> None:
        """Game i becomes rows[i]; those beyond the last row stand still. Refused where `spec.resimulates` is false."""
        self._require_resimulation()
        arrays, count = self._arrays(), len(rows)
        widths = [array.nbytes // self.n for array in arrays.values()]
        if not 0 < count <= self.n or {len(row) for row in rows} != {sum(widths)}:
            do = "Restore at most n rows that save_rows() of the same game gave"
            raise WireError("these rows are of another game", where=f"state of {self.spec.id}", do=do)
        raw = np.frombuffer(b"".join(rows), np.uint8).reshape(count, -1)
        for array, columns in zip(arrays.values(), np.split(raw, np.cumsum(widths)[:-1], axis=1), strict=True):
            array[:count] = np.ascontiguousarray(columns).view(array.dtype).reshape(count, *array.shape[1:])
        self._ending[count:] = TERMINATED

    def _arrays(self) -> dict[str, Array]:
        """Everything that the next step depends on."""
        return {"tick": self._tick, "ending": self._ending}

    def _require_resimulation(self) -> None:
        if not self.spec.resimulates:
            do = "Use a game whose spec says resimulates = true"
            raise Refused("its state cannot be saved and restored", where=f"game {self.spec.id}", do=do)

    def _checked_actions(self, seat: int, action: Array, acting: Array, legal: Array | None = None) -> Array:
        """[n, *shape]: the actions, 0 where a discrete one is not `acting`; Refused before the game changes."""

        def refused(wrong: str, do: str) -> Refused:
            return Refused(wrong, where=f"{self.spec.id}, seat {seat}", do=do, field="action")

        leaf, action = self.spec.seats[seat].action, np.asarray(action)
        if action.shape != (self.n, *leaf.shape):
            raise refused(f"actions of shape {action.shape}", f"Give {(self.n, *leaf.shape)}")
        if leaf.kind != "discrete":
            return action
        moves = np.where(acting, action, 0).astype(np.int64)
        wrong = (moves < 0) | (moves >= leaf.choices[0])
        if wrong.any():
            row = int(wrong.argmax())
            if legal is not None and not legal[row].any():
                raise no_legal_action(self.spec)
            raise refused(f"action {moves[row]} in game {row}", f"Choose from 0 to {leaf.choices[0] - 1}")
        if legal is not None and not (allowed := legal[np.arange(self.n), moves] | ~acting).all():
            row = int((~allowed).argmax())
            if not legal[row].any():
                raise no_legal_action(self.spec)
            choices = ", ".join(map(str, np.flatnonzero(legal[row])))
            raise refused(f"action {moves[row]} in game {row} is not legal", f"Choose from {choices}")
        return moves


def no_legal_action(spec: GameSpec) -> UserCodeError:
    """A game's mask allows nothing to a seat that is to act."""
    do = "Let its action mask allow at least one action until the episode ends"
    return UserCodeError("it offers no legal action to a seat that is to act", where=f"game {spec.id}", do=do)


class OneSeatGame(BaseGame):
    """n games of one seat, whose outcome is the sum of their rewards. A finished one stands still until its reset."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._score = np.zeros(n)

    def _arrays(self) -> dict[str, Array]:
        return {"tick": self._tick, "ending": self._ending, "score": self._score}

    def _start(self, which: Array) -> None:
        self._tick[which], self._score[which], self._ending[which] = 0, 0.0, RUNNING

    def _advance(self, running: Array, reward: Array, terminated: Array, truncated: Array | bool = False) -> Array:
        """Count one step of the `running` games; their rewards, float32 [n], 0 for the others."""
        earned = np.where(running, reward, 0)
        self._score += earned
        self._tick += running
        late = truncated | (self._tick >= self.spec.max_ticks)
        ending = np.where(terminated, TERMINATED, np.where(late, TRUNCATED, RUNNING))
        self._ending = np.where(running, ending, self._ending).astype(np.uint8)
        return earned.astype(np.float32)

    def _view(self, observation: Columns, reward: Array | None = None, legal: Array | None = None) -> View:
        """`observation`, `reward` and `legal` now belong to the caller."""
        over = self._ending != RUNNING
        return View(
            to_act=~over[:, None],
            observation=(observation,),
            legal=(legal,),
            reward=np.zeros((self.n, 1), np.float32) if reward is None else reward[:, None],
            ending=self._ending[:, None].copy(),
            outcome=np.where(over, self._score, 0).astype(np.float32)[:, None],
            tick=self._tick.copy(),
        )


def library(module: str, package: str, where: str) -> Any:
    """The module of a library of games; Missing where it is not installed."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would end up in --json
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        do = 'Install it with: pip install "sparring[games]"'
        raise Missing(f"{package} is not installed", where=where, do=do) from None


def name_and_options(text: str, where: str) -> tuple[str, dict[str, Any]]:
    """The two parts of NAME(key=value,…). Values are true, false, whole numbers, numbers, or else text."""
    found = re.fullmatch(r"([^()]+)(?:\(([^()]*)\))?", text)
    options: dict[str, Any] = {}
    for part in (found[2] or "").split(",") if found and found[2] else ():
        key, sign, value = part.strip().partition("=")
        if not sign or not key.isidentifier():
            raise ConfigError(f"option {part!r}", where=where, do="Write NAME(key=value,key=value)")
        if key in options:
            raise ConfigError(f"option {key!r} is given twice", where=where, do="Give it once")
        try:
            options[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[key] = value
    return (found[1] if found else text), options


def check_option(options: dict[str, Any], key: str, allowed: tuple[Any, ...], where: str) -> None:
    """An option of ours has one of the `allowed` values, where it is given; an environment checks its own."""
    if key in options and repr(options[key]) not in map(repr, allowed):  # 1 is not true
        texts = " or ".join(f"{key}={str(value).lower()}" for value in allowed)
        raise ConfigError(f"{key}={options[key]}", where=where, do=f"Write {texts}, or leave it out")


def id_with_options(name: str, options: dict[str, Any]) -> str:
    """The id in one form, options in the order of their names: what `name_and_options` reads."""
    texts = (f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in sorted(options.items()))
    return f"{name}({','.join(texts)})" if options else name


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """What to do about a name that is not among the `known` ones."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {prefix + near[0]!r}" if near else otherwise


def draw(seeds: Array, k: Array | int) -> Array:
    """uint64 [n]: the k-th number of each seed (uint64 [n]); k counts from 0, one for all or one for each.

    SplitMix64 (Steele et al. 2014), by counter: draw k of a seed depends on (seed, k) alone, so a game is the same
    whatever other games are played beside it, and JavaScript repeats it with BigInt. See docs/rules.md.
    """
    count = np.atleast_1d(np.asarray(k, np.uint64)) + np.uint64(1)  # an array: a scalar would warn where it wraps
    z = seeds + count * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniform(seeds: Array, k: Array | int) -> Array:
    """float64 [n] in [0, 1): the upper 53 bits of `draw`."""
    return np.asarray((draw(seeds, k) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
