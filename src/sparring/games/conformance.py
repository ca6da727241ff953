"""Does a game keep the promises of `protocol.py`? Plays random episodes and checks each promise.

`spar games check` runs this on your own game; the tests run it on every game of the package.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng

from sparring.errors import ChunkRefused, SparringError
from sparring.games.chunk_checks import check_chunk
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Game, View
from sparring.games.resimulation import resimulate
from sparring.games.scripts import Script, play, script_for
from sparring.games.spec import GameSpec, Leaf, checked
from sparring.wire.chunk import Array, decode, encode

Open = Callable[[int], Game]  # n → n games
ROWS = 3  # games at once: enough to tell rows apart
PEEK_TICKS = 64  # compared one by one between two runs of the same seed


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """What was tried, and every promise that was broken, each said once."""

    episodes: int
    steps: int
    broken: tuple[str, ...]


def check_conformance(open_game: Open, episodes: int = 20, seed: int = 0) -> ConformanceReport:
    """Play random episodes of the game and hold it against the protocol."""
    game = open_game(ROWS)
    checked(game.spec, f"game {game.spec.id!r}")
    broken: dict[str, None] = {}  # an ordered set
    for promise in (_views_are_well_formed, _games_are_repeatable, _states_are_restored):
        broken |= dict.fromkeys(promise(open_game, seed))
    scripts = [script_for(game.spec, "random")] * len(game.spec.seats)
    try:
        recorded = play(game, scripts, range(seed, seed + episodes), default_rng(seed))
    except ChunkRefused as error:
        broken[f"its recorded play is refused: {error}"] = None
        recorded = []
    for chunks in recorded:
        for chunk in chunks:
            try:
                check_chunk(decode(encode(chunk)), game.spec)
            except ChunkRefused as error:
                broken[f"its recorded play is refused: {error}"] = None
        if game.spec.resimulates and len({chunk.header.seat for chunk in chunks}) == len(scripts):
            wrong = resimulate(chunks, open_game(1)).mismatches
            broken |= {f"a recorded episode runs differently again: {wrong[0]}": None} if wrong else {}
    steps = sum(chunk.header.steps for chunks in recorded for chunk in chunks)
    return ConformanceReport(episodes, steps, tuple(broken))


def _views_are_well_formed(open_game: Open, seed: int) -> Iterator[str]:
    """Every view of one episode in each row, and one step more after the end."""
    game, walk = open_game(ROWS), _Walk(seed)
    view = walk.begin(game)
    while not view.over.all():
        yield from view_errors(game.spec, view)
        kept = _bytes(view)
        before, view = view, walk.step(game, view)
        if _bytes(before) != kept:
            yield "a view changed after it was given: arrays belong to the caller"
        if not (view.tick - before.tick == ~before.over).all():
            yield "tick does not rise by one with each step of a running game, or moves after its end"
        if walk.ticks > game.spec.max_ticks:
            yield f"a game runs on after max_ticks = {game.spec.max_ticks}"
            return
    yield from view_errors(game.spec, view)
    after = game.step(walk.choose(game.spec, view))
    if after.reward.any() or _bytes(after, rewards=False) != _bytes(view, rewards=False):
        yield "a finished game does not stand still"


def _games_are_repeatable(open_game: Open, seed: int) -> Iterator[str]:
    """The same seed gives the same game, in whatever row and however many are played beside it."""
    many, alone = open_game(ROWS), open_game(1)
    walk, single = _Walk(seed), _Walk(seed + 1)
    left, right = walk.begin(many), single.begin(alone)
    for _ in range(PEEK_TICKS):
        if _bytes(left, 1) != _bytes(right, 0):
            yield "the same seed and actions give another game: in another row, or beside others"
            return
        left, right = walk.step(many, left), single.step(alone, right)


def _states_are_restored(open_game: Open, seed: int) -> Iterator[str]:
    """save and restore give the same games again, or refuse where the spec says that they cannot."""
    game, walk = open_game(ROWS), _Walk(seed)
    view = walk.begin(game)
    if not game.spec.resimulates:
        try:
            game.save()
        except SparringError:
            return
        yield "resimulates is false and save() does not refuse"
        return
    view = walk.step(game, view)
    state, resumed = game.save(), open_game(ROWS)
    actions = walk.choose(game.spec, view)
    resumed.reset(np.zeros(ROWS, np.uint64), np.ones(ROWS, bool))
    resumed.restore(state)
    if resumed.save() != state:
        yield "save() after restore() gives other bytes"
    if _bytes(game.step(actions)) != _bytes(resumed.step(actions)):
        yield "a step after restore() gives another view"


class _Walk:
    """Random actions, each row with a generator of its own so that rows do not depend on each other."""

    def __init__(self, seed: int) -> None:
        self.seed, self.ticks = seed, 0
        self.rngs: list[Generator] = []

    def begin(self, game: Game) -> View:
        self.rngs = [default_rng(self.seed + i) for i in range(game.n)]
        return game.reset(np.arange(self.seed, self.seed + game.n, dtype=np.uint64), np.ones(game.n, bool))

    def choose(self, spec: GameSpec, view: View) -> list[Array]:
        script = script_for(spec, "random")
        return [
            np.concatenate([self._one(script, s, view, i) for i in range(len(self.rngs))])
            for s in range(len(spec.seats))
        ]

    def step(self, game: Game, view: View) -> View:
        self.ticks += 1
        return game.step(self.choose(game.spec, view))

    def _one(self, script: Script, s: int, view: View, i: int) -> Array:
        seen = {name: array[i : i + 1] for name, array in view.observation[s].items()}
        legal = view.legal[s]
        return script.act(s, seen, None if legal is None else legal[i : i + 1], self.rngs[i])


def view_errors(spec: GameSpec, view: View) -> Iterator[str]:
    """What is wrong with one view: shapes, dtypes, bounds, and whether its parts agree."""
    n, seats = view.to_act.shape[0], len(spec.seats)
    shapes = {"to_act": bool, "reward": np.float32, "ending": np.uint8, "outcome": np.float32}
    for name, dtype in shapes.items():
        array = getattr(view, name)
        if array.shape != (n, seats) or array.dtype != dtype:
            yield f"{name} is {array.dtype} {array.shape}, not {np.dtype(dtype)} {(n, seats)}"
    if view.tick.shape != (n,) or view.tick.dtype != np.int64:
        yield f"tick is {view.tick.dtype} {view.tick.shape}, not int64 {(n,)}"
    ended = view.ending != RUNNING
    if not np.isin(view.ending, (RUNNING, TERMINATED, TRUNCATED)).all():
        yield "an ending is not 0, 1 or 2"
    if (view.to_act & ended).any():
        yield "a seat that has ended is asked to act"
    if not (view.to_act.any(axis=1) | view.over).all():
        yield "a running game asks no seat to act"
    if spec.turns == "alternating" and (view.to_act.sum(axis=1) > 1).any():
        yield "turns are alternating and two seats are asked at once"
    if view.outcome[~view.over].any():
        yield "there is an outcome before the game is over"
    for s in range(seats):
        yield from _seat_errors(spec, view, s)


def _seat_errors(spec: GameSpec, view: View, s: int) -> Iterator[str]:
    seat, n = spec.seats[s], len(view.tick)
    low, high = seat.reward_bounds
    if not ((view.reward[:, s] >= low - 1e-6) & (view.reward[:, s] <= high + 1e-6)).all():
        yield f"seat {s} earns {view.reward[:, s]}, outside of its reward_bounds {seat.reward_bounds}"
    seen = view.observation[s]
    if list(seen) != [leaf.name for leaf in seat.observation]:
        yield f"seat {s} sees {list(seen)}, not the spec's leaves in their order"
        return
    for leaf in seat.observation:
        yield from _leaf_errors(leaf, seen[leaf.name], n)
    legal = view.legal[s]
    if legal is not None and (legal.shape != (n, seat.action.masks) or legal.dtype != bool):
        yield f"the legal mask of seat {s} is {legal.dtype} {legal.shape}, not bool {(n, seat.action.masks)}"
    elif legal is not None and not legal.any(axis=1).all():
        yield f"seat {s} has no legal action; where it is not asked every entry should be true"


def _leaf_errors(leaf: Leaf, array: Array, n: int) -> Iterator[str]:
    if array.shape != (n, *leaf.shape) or array.dtype != leaf.dtype:
        yield f"{leaf.name} is {array.dtype} {array.shape}, not {leaf.dtype} {(n, *leaf.shape)}"
    elif not np.isfinite(array).all():
        yield f"{leaf.name} holds NaN or infinity"


def _bytes(view: View, row: int | None = None, *, rewards: bool = True) -> bytes:
    """All arrays of the view, or of one of its rows."""
    arrays = [view.tick, view.to_act, view.ending, view.outcome, *([view.reward] if rewards else [])]
    arrays += [legal for legal in view.legal if legal is not None]
    arrays += [array for seen in view.observation for array in seen.values()]
    return b"".join(np.ascontiguousarray(array if row is None else array[row]).tobytes() for array in arrays)
