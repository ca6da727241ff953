"""Connect Four with other rules, as a designer would write them: ids `four_variants:…`."""

import numpy as np
from msgspec.structs import replace

from sparring.games.connect_four import SPEC, ConnectFour
from sparring.games.protocol import View
from sparring.games.spec import discrete
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

MIDDLE = 3


class Plain(ConnectFour):
    spec = replace(SPEC, id=GameId("four_variants"))


class SecondBegins(ConnectFour):
    """The second seat has the first move."""

    spec = replace(SPEC, id=GameId("four_variants"), version="2")

    def reset(self, seeds: Array, which: Array) -> View:
        super().reset(seeds, which)
        self._tick[which] = 1
        return self._view(np.zeros(self.n, np.float32))


class MiddleLater(ConnectFour):
    """No game begins in the middle column."""

    spec = replace(SPEC, id=GameId("four_variants"), version="3")

    def _legal(self) -> Array:
        legal = super()._legal()
        legal[self._tick == 0, MIDDLE] = False
        return legal


class EightColumns(ConnectFour):
    """Another action space."""

    spec = replace(SPEC, seats=tuple(replace(seat, action=discrete(8)) for seat in SPEC.seats))


def plain(n: int) -> ConnectFour:
    return Plain(n)


def second_begins(n: int) -> ConnectFour:
    return SecondBegins(n)


def middle_later(n: int) -> ConnectFour:
    return MiddleLater(n)


def eight_columns(n: int) -> ConnectFour:
    return EightColumns(n)
