"""Checks of one chunk: against its game's spec, and against what a deployment accepts (`ChunkRules`).

The gateway checks every chunk before it is stored, some thousand times a second on each core: what follows from the
spec is worked out once, and each column is reduced to its minimum and maximum, which also finds NaN and infinity.
The gateway asks `ChunkRules` about uploads, the sink about records in a stream. No I/O.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from sparring.errors import ChunkRefused
from sparring.games.game_state import did_you_mean
from sparring.games.spec import DISCRETE, GameSpec, Leaf, SeatSpec
from sparring.wire.chunk import (
    MAX_COLUMNS,
    MAX_ENCODED_BYTES,
    MAX_HEADER_BYTES,
    MAX_STEPS,
    Array,
    Chunk,
    Column,
    Header,
    buffer_bytes,
    decode,
    encode,
    layout,
)
from sparring.wire.ids import PlayerId, is_actor, is_episode, misdated

REWARD_SLACK = 1e-6  # a bound such as 0.1 has no exact float32
LOGP_SLACK = 1e-5  # log 1 = 0, give or take the rounding of a softmax
MAX_STATE_BYTES = 1 << 20  # of the recurrent state in a chunk, whichever model it is of
GROUP_BYTES = 16 << 20  # of chunks that are inflated at once and stored together

T = TypeVar("T")


def grouped(chunks: Iterable[T], inflated_bytes: Callable[[T], int], limit_bytes: int) -> Iterator[list[T]]:
    """Neighbours that take up to `limit_bytes` together when they are inflated, or a single chunk that takes more."""
    group: list[T] = []
    size = 0
    for one in chunks:
        more = inflated_bytes(one)
        if group and size + more > limit_bytes:
            yield group
            group, size = [], 0
        group.append(one)
        size += more
    if group:
        yield group


def check_chunk(chunk: Chunk, spec: GameSpec) -> None:
    """Return, or raise ChunkRefused with the first field that breaks the spec, its value and the limit."""
    check_layout(chunk.header, layout(chunk), spec)
    check_values(chunk, spec)


def check_layout(head: Header, columns: Sequence[Column], spec: GameSpec, state_bytes: int | None = None) -> None:
    """What a header says alone, before its body is inflated: its fields, the columns' names, dtypes and shapes, and
    that all columns of a recurrent state have at most `state_bytes` together. ChunkRefused otherwise."""
    spec_hash, seats = _plan(spec)
    _check_header(head, spec, spec_hash)
    seat, named = seats[head.seat], {column.name: column for column in columns}
    _check_names(head, named, seat)
    for expected in (*seat.each_step, *seat.optional):
        if expected.name in named:
            expected.check_layout(named[expected.name], (head.steps, *expected.shape))
    for expected in seat.final:
        if expected.name in named:
            expected.check_layout(named[expected.name], expected.shape)
    size = sum(buffer_bytes(named[name]) for name in named.keys() - seat.known)
    if state_bytes is not None and size > state_bytes:
        do = "Send the state of the model that acted, once for each chunk, or raise gateway.state_bytes"
        raise _refused("state/", size, state_bytes, "the recurrent state takes too many bytes", do)


def check_values(chunk: Chunk, spec: GameSpec) -> None:
    """The numbers of a chunk whose layout was checked; ChunkRefused otherwise."""
    head, columns, seat = chunk.header, chunk.columns, _plan(spec)[1][chunk.header.seat]
    for expected in (*seat.each_step, *seat.optional, *seat.final):
        if expected.name in columns:
            expected.check_values(columns[expected.name])
    _check_ticks(columns["tick"], head, spec.max_ticks)
    if "legal" in columns:
        _check_legal(columns["legal"], columns["action"], seat.choices)
    for leaf, count, most in seat.entities:
        if (largest := int(columns[count].max())) > most:
            raise _refused(count, largest, most, f"{leaf} holds at most {most}", "Send no more entities than fit")
    for name in columns.keys() - seat.known:
        if columns[name].dtype.kind == "f" and not np.isfinite(columns[name]).all():
            raise _refused(name, "NaN or inf", "finite numbers", "it is no number", "Send finite ones")


@dataclass(frozen=True, slots=True)
class _Expected:
    """One column as the spec wants it. Bounds are None where the dtype itself keeps them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    choices: Array | None = None  # of a multi-discrete leaf, one limit for each entry

    def check_layout(self, column: Column, shape: tuple[int, ...]) -> None:
        if column.dtype != self.dtype:
            raise _refused(self.name, column.dtype, self.dtype, "the dtype differs", "Send the spec's dtype")
        if column.shape != shape:
            raise _refused(self.name, list(column.shape), list(shape), "the shape differs", "Send the spec's shape")

    def check_values(self, array: Array) -> None:
        if self.choices is not None and (array >= self.choices).any():
            raise self._beyond(array[array >= self.choices][0], self.choices.tolist())
        if self.low is not None and self.high is not None:
            low, high = array.min(), array.max()  # NaN spreads into both, and fails the comparison
            if not (self.low <= low and high <= self.high):
                limit = [_plain(self.low), _plain(self.high)]
                raise self._beyond(low if not self.low <= low else high, limit)

    def _beyond(self, value: Any, limit: Any) -> ChunkRefused:
        if not math.isfinite(value):
            return _refused(self.name, str(value), "finite numbers", "it is no number", "Send finite ones")
        return _refused(self.name, value.item(), limit, "a value is out of bounds", "Send what the spec allows")


@dataclass(frozen=True, slots=True)
class _SeatPlan:
    each_step: tuple[_Expected, ...]
    optional: tuple[_Expected, ...]
    final: tuple[_Expected, ...]
    required: frozenset[str]
    known: frozenset[str]
    choices: tuple[int, ...]  # of the action
    entities: tuple[tuple[str, str, int], ...]  # leaf, its count, the most that it holds


@functools.lru_cache(maxsize=256)
def _plan(spec: GameSpec) -> tuple[str, tuple[_SeatPlan, ...]]:
    return spec.hash, tuple(_seat_plan(seat) for seat in spec.seats)


def _seat_plan(seat: SeatSpec) -> _SeatPlan:
    low, high = seat.reward_bounds
    each_step = (
        *(_expected(leaf) for leaf in (*seat.observation, seat.action)),
        _Expected("reward", "float32", (), low - REWARD_SLACK, high + REWARD_SLACK),
        _Expected("tick", "int64", (), None, None),
    )
    largest = float(np.finfo(np.float32).max)
    most_logp = LOGP_SLACK if seat.action.kind in DISCRETE else largest
    optional = [_Expected("behaviour_logp", "float32", (), -largest, most_logp)]
    if seat.action.masks:
        optional.append(_Expected("legal", "uint8", (seat.action.masks,), 0, 1))
    final = tuple(_expected(leaf, f"final_{leaf.name}") for leaf in seat.observation)
    required = frozenset(column.name for column in each_step)
    return _SeatPlan(
        each_step,
        tuple(optional),
        final,
        required,
        required | {column.name for column in (*optional, *final)},
        seat.action.choices,
        tuple((leaf.name, f"{leaf.name}/count", leaf.shape[0]) for leaf in seat.observation if leaf.kind == "entities"),
    )


def _expected(leaf: Leaf, name: str = "") -> _Expected:
    dtype = np.dtype(leaf.dtype)
    if leaf.kind in DISCRETE:
        choices = np.array(leaf.choices).reshape(leaf.shape) if leaf.shape else None
        return _Expected(name or leaf.name, leaf.dtype, leaf.shape, 0, max(leaf.choices) - 1, choices)
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    low, high = float(limits.min), float(limits.max)
    if dtype.kind in "iu" and (leaf.low is None or leaf.low <= low) and (leaf.high is None or leaf.high >= high):
        return _Expected(name or leaf.name, leaf.dtype, leaf.shape, None, None)
    # A bound such as 0.1 is judged as its own dtype rounds it, whichever way that goes.
    low = low if leaf.low is None else min(leaf.low, float(dtype.type(leaf.low)))
    high = high if leaf.high is None else max(leaf.high, float(dtype.type(leaf.high)))
    return _Expected(name or leaf.name, leaf.dtype, leaf.shape, low, high)


def _check_header(head: Header, spec: GameSpec, spec_hash: str) -> None:
    if head.game != spec.id:
        raise _refused("game", head.game, spec.id, "it is of another game", "Send it to its own game")
    if head.version != spec.version:
        raise _refused("version", head.version, spec.version, "it is of another version", "Send the spec's version")
    if head.spec != spec_hash:
        raise _refused("spec", head.spec, spec_hash, "it follows another spec", "Fetch the game's spec again")
    if not 0 <= head.seat < len(spec.seats):
        raise _refused("seat", head.seat, len(spec.seats) - 1, "there is no such seat", "Count seats from 0")
    if not 1 <= head.steps <= MAX_STEPS:
        raise _refused("steps", head.steps, MAX_STEPS, "a chunk has 1 to 512 steps", "Cut the episode into chunks")
    if not 0 <= head.first_step < 1 << 53:
        raise _refused("first_step", head.first_step, 0, "it is no count", "Count the seat's decisions from 0")
    if not is_episode(head.episode):
        raise _refused("episode", head.episode, "UUIDv7", "it is no episode's name", "Send a UUIDv7 in lower case")
    if not is_actor(head.actor):
        limit = "person, model:SHA-256 or script:NAME"
        raise _refused("actor", head.actor, limit, "nobody acts under that name", "Say who chose the actions")
    if not 0.0 < head.sample_rate <= 1.0:
        raise _refused("sample_rate", head.sample_rate, "(0, 1]", "it is no share", "Send the rate at the start")
    if head.seed is not None and not 0 <= head.seed < 1 << 64:
        raise _refused("seed", head.seed, "uint64", "a seed has 64 bits", "Send one from 0 to 2^64 - 1")
    if head.outcome is not None and (head.ending == "running" or not math.isfinite(head.outcome)):
        limit = "a finite number on the last chunk"
        raise _refused("outcome", str(head.outcome), limit, f"the episode is {head.ending}", "Send it with the end")


def _check_names(head: Header, columns: Mapping[str, Column], seat: _SeatPlan) -> None:
    names = columns.keys()
    if missing := seat.required - names:
        raise _refused(min(missing), None, sorted(seat.required), "the column is missing", "Send every column")
    for name in names - seat.known:
        if not name.startswith("state/"):
            do = did_you_mean(name, seat.known, "Send the spec's columns alone")
            raise _refused(name, None, sorted(seat.known), "there is no such column", do)
    if len(names) > MAX_COLUMNS:
        raise _refused("columns", len(names), MAX_COLUMNS, "there are too many", "Send the spec's columns alone")
    final = [expected.name for expected in seat.final if expected.name in names]
    if len(final) < len(seat.final) and (final or head.ending != "running"):
        absent = next(expected.name for expected in seat.final if expected.name not in names)
        wanted = [expected.name for expected in seat.final]
        do = "Send what the seat saw last, whole" if final else "Send what the seat saw at the end"
        raise _refused(absent, None, wanted, f"it is missing and the episode is {head.ending}", do)


def _check_ticks(tick: Array, head: Header, max_ticks: int) -> None:
    first, last = int(tick[0]), int(tick[-1])
    if not (tick[1:] > tick[:-1]).all():
        row = int((tick[1:] <= tick[:-1]).argmax()) + 1
        before = int(tick[row - 1])
        raise _refused("tick", int(tick[row]), before, f"step {row} does not come after the one before", "Let it rise")
    if first < head.first_step:
        do = "Send the game's clock, which rises by at least one with each decision"
        raise _refused("tick", first, head.first_step, f"step {head.first_step} cannot come so early", do)
    if last > max_ticks:
        raise _refused("tick", last, max_ticks, "the game ends before", "Raise max_ticks in the spec, or end the game")


def _check_legal(legal: Array, action: Array, choices: tuple[int, ...]) -> None:
    starts = np.cumsum((0, *choices[:-1]))
    chosen = action.reshape(len(action), len(choices)) + starts
    taken = np.take_along_axis(legal, chosen, axis=1)
    if not taken.all():
        row = int((taken == 0).any(axis=1).argmax())
        limit = np.flatnonzero(legal[row]).tolist()
        raise _refused("action", action[row].tolist(), limit, f"the action of step {row} is not legal", "Fix the mask")


def _plain(number: float) -> float | int:
    return int(number) if float(number).is_integer() and abs(number) < 1 << 53 else number


def _refused(field: str, value: Any, limit: Any, wrong: str, do: str) -> ChunkRefused:
    said = "" if value is None else f" ({value!r}, the limit is {limit!r})"
    return ChunkRefused(f"{wrong}{said}", where=f"chunk, {field}", do=do, field=field, value=value, limit=limit)


class ChunkRules:
    """The specs of the games that are served, and how long episodes are kept."""

    def __init__(
        self, specs: Iterable[GameSpec], keep_days: float = 0.0, *, state_bytes: int = MAX_STATE_BYTES
    ) -> None:
        """Episodes opened more than `keep_days` before they arrived are refused; 0 accepts all. `state_bytes`: of the
        recurrent state in a chunk, where the caller does not know its model's."""
        self._keep_days, self._state_bytes = keep_days, state_bytes
        self._specs = {(spec.id, spec.version): spec for spec in specs}

    def spec(self, head: Header) -> GameSpec:
        """The spec that a chunk with this header must follow; ChunkRefused where it is not served here."""
        spec = self._specs.get((head.game, head.version))
        if spec is not None:
            return spec
        versions = [version for game, version in self._specs if game == head.game]
        field, value = ("version", head.version[:40]) if versions else ("game", head.game[:80])
        known = f"Send one of {', '.join(versions)}, or add" if versions else "Add"
        wrong = f"{'version' if versions else 'the game'} {value!r} is not known here"
        do = f"{known} its spec to `games` in spar.toml"
        raise ChunkRefused(wrong, where=f"chunk, {field}", do=do, field=field, value=value, limit=versions or None)

    def accepted(self, chunk: Chunk, *, player: PlayerId | None, uploader: str, received_at_ms: int) -> Chunk:
        """The chunk as it is stored, with what the receiver sets in its header; ChunkRefused with the reason otherwise.

        The same chunk, receiver and time always give the same answer.
        """
        header = self.accepted_header(
            chunk.header, layout(chunk), player=player, uploader=uploader, received_at_ms=received_at_ms
        )
        return self.accepted_values(replace(chunk, header=header))

    def accepted_header(
        self,
        head: Header,
        columns: Sequence[Column],
        *,
        player: PlayerId | None,
        uploader: str,
        received_at_ms: int,
        state_bytes: int | None = None,
    ) -> Header:
        """The header as it is stored, of a chunk that is not inflated yet; see `check_layout`."""
        check_layout(head, columns, self.spec(head), self._state_bytes if state_bytes is None else state_bytes)
        # An episode's time decides where it is stored and for how long, so it must be plausible.
        if wrong := misdated(head.episode, received_at_ms, int(self._keep_days * 86_400_000)):
            do = "Set the sender's clock (by `time_ms` of the gateway's answer), and open a new episode"
            limit = f"a day ahead, or {self._keep_days:g} days old" if self._keep_days else "a day ahead"
            raise ChunkRefused(wrong, where="chunk, episode", do=do, field="episode", value=head.episode, limit=limit)
        return msgspec.structs.replace(head, player=player, uploader=uploader, received_at_ms=received_at_ms)

    def accepted_values(self, chunk: Chunk) -> Chunk:
        """The chunk as it is stored, if it can be read back; its header is an accepted one."""
        check_values(chunk, self.spec(chunk.header))
        return _readable(chunk)


def _readable(chunk: Chunk) -> Chunk:
    """The chunk, if it can be read back: one that came as JSON is not encoded yet, and the header has grown."""
    if chunk.body and len(chunk.body) <= MAX_ENCODED_BYTES - MAX_HEADER_BYTES:
        return chunk
    encoded = encode(chunk)
    if len(encoded) > MAX_ENCODED_BYTES:
        wrong = f"it takes {len(encoded)} bytes, the limit is {MAX_ENCODED_BYTES}"
        do = "Send shorter chunks"
        limit = f"{MAX_ENCODED_BYTES} bytes"
        raise ChunkRefused(wrong, where="chunk", do=do, field="steps", value=chunk.header.steps, limit=limit)
    return chunk if chunk.body else decode(encoded)
