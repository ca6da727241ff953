"""Run a recorded episode again from its seed and actions, and compare: was each s' really f(s, a)?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sparring.errors import Refused
from sparring.games.protocol import ENDINGS, Columns, Game, View
from sparring.wire.chunk import Array, Chunk

FLOAT_SLACK = 1e-5  # float leaves: another machine's sin() may differ in its last bit


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first leaf or number of one step that the game itself does not give."""

    seat: int
    step: int  # counts the seat's decisions; one past the last is the end
    what: str  # a leaf, "tick", "legal", "action", "reward", "steps", "ending" or "outcome"
    recorded: str
    simulated: str


@dataclass(frozen=True, slots=True)
class Resimulation:
    """What running an episode again showed: how many steps were compared, over all seats, and which differ."""

    steps: int
    mismatches: tuple[Mismatch, ...]


@dataclass(slots=True)
class _Seat:
    """One seat's chunks joined, and how far the game has come in them."""

    seat: int
    columns: Columns
    final: Columns
    ending: str
    outcome: float | None
    earned: list[float] = field(default_factory=list)  # after each decision that was run again

    @property
    def at(self) -> int:
        """The next decision."""
        return len(self.earned)

    @property
    def steps(self) -> int:
        return len(self.columns["action"])


def resimulate(chunks: Sequence[Chunk], game: Game) -> Resimulation:
    """Run one episode again in row 0 of `game`: all its seats, each recorded from its first step without a gap."""
    seats = _joined(chunks, game)
    seed = chunks[0].header.seed
    if seed is None:
        raise _refused(chunks, "its seed was not recorded", "Record episodes with their seed")
    found: list[Mismatch] = []
    view = game.reset(np.full(game.n, seed, np.uint64), np.arange(game.n) == 0)
    while not view.over[0]:
        acting = [seat for seat in seats if view.to_act[0, seat.seat]]
        if any(seat.at >= seat.steps for seat in acting):
            break
        for seat in acting:
            found += _step_differs(seat, view)
        try:
            view = game.step([_action(game, seat) for seat in seats])
        except Refused as error:  # the recorded move cannot be made: nothing after it can be compared
            found.append(Mismatch(acting[0].seat, acting[0].at, "action", "made", error.wrong))
            return Resimulation(sum(seat.at for seat in seats), tuple(found))
        for seat in acting:
            seat.earned.append(0.0)
        for seat in seats:
            if seat.earned:
                seat.earned[-1] += float(view.reward[0, seat.seat])
    found += [mismatch for seat in seats for mismatch in _end_differs(seat, view)]
    return Resimulation(sum(seat.at for seat in seats), tuple(found))


def _joined(chunks: Sequence[Chunk], game: Game) -> list[_Seat]:
    if not chunks:
        raise Refused("there are no chunks", where="replay", do="Name an episode that was recorded")
    if not game.spec.resimulates:
        raise _refused(chunks, f"{game.spec.id} cannot be run again from a seed", "Replay a game that can")
    if {chunk.header.spec for chunk in chunks} != {game.spec.hash}:
        raise _refused(chunks, "it follows another spec than the game", "Open the version that recorded it")
    if len({(chunk.header.episode, chunk.header.seed) for chunk in chunks}) != 1:
        raise _refused(chunks, "there are chunks of several episodes or seeds", "Give those of one episode")
    seats = []
    for s in range(len(game.spec.seats)):
        parts = sorted((chunk for chunk in chunks if chunk.header.seat == s), key=lambda chunk: chunk.header.first_step)
        ends = [0, *(part.header.first_step + part.header.steps for part in parts)]
        if [part.header.first_step for part in parts] != ends[:-1] or not parts:
            raise _refused(chunks, f"seat {s} was not recorded from its first step without a gap", "Record every seat")
        last = parts[-1]
        shared = set.intersection(*(set(part.columns) for part in parts))  # a change of actor may drop an optional one
        names = [name for name in shared if not name.startswith(("final_", "state/"))]
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
        final = {name: last.columns[f"final_{name}"] for name in names if f"final_{name}" in last.columns}
        seats.append(_Seat(s, columns, final, last.header.ending, last.header.outcome))
    return seats


def _action(game: Game, seat: _Seat) -> Array:
    leaf = game.spec.seats[seat.seat].action
    actions = np.zeros((game.n, *leaf.shape), leaf.dtype)
    if seat.at < seat.steps:
        actions[0] = seat.columns["action"][seat.at]
    return actions


def _step_differs(seat: _Seat, view: View) -> list[Mismatch]:
    """At most one mismatch for the decision that the seat now meets."""
    seen = {name: array[0] for name, array in view.observation[seat.seat].items()}
    seen["tick"] = view.tick[0]
    legal = view.legal[seat.seat]
    if legal is not None and "legal" in seat.columns:
        seen["legal"] = legal[0]
    recorded = {name: seat.columns[name][seat.at] for name in seen}
    return _first_difference(seat, seat.at, recorded, seen)


def _end_differs(seat: _Seat, view: View) -> list[Mismatch]:
    """Rewards, then the end itself; one mismatch for each step of a kind."""
    over = bool(view.over[0])
    compared = seat.at if over else max(seat.at - 1, 0)  # the last reward may not be whole yet
    earned = np.array(seat.earned, np.float32)
    wrong = [
        mismatch
        for k in range(compared)
        for mismatch in _first_difference(seat, k, {"reward": seat.columns["reward"][k]}, {"reward": earned[k]})
    ]
    if seat.at < seat.steps:
        wrong.append(Mismatch(seat.seat, seat.at, "steps", str(seat.steps), str(seat.at)))
    ended = ENDINGS[int(view.ending[0, seat.seat])]
    if ended != seat.ending and not (seat.ending == "truncated" and not over):  # a player may leave before the end
        wrong.append(Mismatch(seat.seat, seat.at, "ending", seat.ending, ended))
    seen = {name: array[0] for name, array in view.observation[seat.seat].items() if name in seat.final}
    if over:
        wrong += _first_difference(seat, seat.at, seat.final, seen)
        if seat.outcome is not None:
            recorded = {"outcome": np.array(seat.outcome, np.float32)}
            wrong += _first_difference(seat, seat.at, recorded, {"outcome": view.outcome[0, seat.seat]})
    return wrong


def _first_difference(seat: _Seat, step: int, recorded: Columns, simulated: Columns) -> list[Mismatch]:
    for name, array in simulated.items():
        ours, theirs = np.asarray(array), np.asarray(recorded[name])
        close = np.isclose(ours, theirs, FLOAT_SLACK, FLOAT_SLACK) if ours.dtype.kind == "f" else ours == theirs
        if not close.all():
            place = np.unravel_index(int(np.argmin(close)), close.shape)
            return [Mismatch(seat.seat, step, name, str(theirs[place]), str(ours[place]))]
    return []


def _refused(chunks: Sequence[Chunk], wrong: str, do: str) -> Refused:
    return Refused(wrong, where=f"replay of episode {chunks[0].header.episode}", do=do)
