"""Games whose seats are of several kinds (GameSpec.kinds), apart: for each kind a game that has its seats alone.

The parts are of the same n games. Whoever plays them steps the whole and shows each part its seats; the part of the
first kind starts, saves and restores the whole, so it comes first.
"""

import re

from msgspec.structs import replace

from sparring.games.protocol import Actions, Game, View
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array


def of_seats(spec: GameSpec, seats: tuple[int, ...]) -> GameSpec:
    """The spec with those seats alone. Its hash is another: data and models have that of the whole game."""
    return replace(spec, seats=tuple(spec.seats[seat] for seat in seats))


def kind_names(spec: GameSpec) -> tuple[str, ...]:
    """A name for each kind: that of its first seat, without its number where no other kind is called so."""
    first = [spec.seats[seats[0]].name for seats in spec.kinds]
    short = [re.sub(r"[_-]?\d+$", "", name) or name for name in first]
    return tuple(name if short.count(name) == 1 else whole for name, whole in zip(short, first, strict=True))


def sides(spec: GameSpec) -> tuple[tuple[int, ...], ...]:
    """The seats by side: seats of one kind are on one side, and seats of one team. What is learned for a side is judged
    together, since it was learned together."""
    found: list[set[int]] = [set(seats) for seats in spec.kinds]
    for team in {seat.team for seat in spec.seats}:
        mates = {place for place, seat in enumerate(spec.seats) if seat.team == team}
        joined = set().union(*(one for one in found if one & mates))
        found = [*(one for one in found if not one & mates), joined]
    return tuple(sorted(tuple(sorted(one)) for one in found))


class SharedGames:
    """n games in parts, one for each kind of seats."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.view: View | None = None  # after the last reset
        self.parts = tuple(KindGames(self, seats) for seats in game.spec.kinds)

    def step(self, actions: list[Array]) -> View:
        """`actions` of each part, [its seats · n, …]; what all seats are shown."""
        n = self.game.n
        by_seat: dict[int, Array] = {}
        for part, chosen in zip(self.parts, actions, strict=True):
            by_seat |= {seat: chosen[place * n : (place + 1) * n] for place, seat in enumerate(part.seats)}
        return self.game.step([by_seat[seat] for seat in sorted(by_seat)])


class KindGames:
    """The seats of one kind in shared games, as a game for an Actor."""

    def __init__(self, shared: SharedGames, seats: tuple[int, ...]) -> None:
        self.spec, self.n, self.seats = of_seats(shared.game.spec, seats), shared.game.n, seats
        self._shared, self._first = shared, seats[0] == 0

    def shown(self, view: View) -> View:
        """What these seats see of it."""
        seats = list(self.seats)
        return View(
            to_act=view.to_act[:, seats],
            observation=tuple(view.observation[seat] for seat in seats),
            legal=tuple(view.legal[seat] for seat in seats),
            reward=view.reward[:, seats],
            ending=view.ending[:, seats],
            outcome=view.outcome[:, seats],
            tick=view.tick,
        )

    def reset(self, seeds: Array, which: Array) -> View:
        """Start the games, where this is the first part; what the others have been started with."""
        if self._first:
            self._shared.view = self._shared.game.reset(seeds, which)
        assert self._shared.view is not None  # the first part began
        return self.shown(self._shared.view)

    def step(self, actions: Actions) -> View:
        raise NotImplementedError("seats of other kinds act, too: SharedGames.step")

    def save(self) -> bytes:
        return self._shared.game.save() if self._first else b""

    def restore(self, state: bytes) -> None:
        if self._first:
            self._shared.game.restore(state)
