"""A model that looks ahead in the games of an evaluation: each of its decisions searches for a fixed time."""

import time
from dataclasses import dataclass

import numpy as np

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.protocol import Game, SearchableGame
from sparring.nets.forward import Forward
from sparring.nets.tree_search import SearchModel, TreeSearch
from sparring.wire.chunk import Array
from sparring.wire.model import Model


@dataclass(frozen=True, slots=True)
class Searching:
    """A player: a model that searches for `search_ms` before each decision."""

    model: Model
    search_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.search_ms < float("inf"):
            raise ConfigError(f"a search of {self.search_ms:g} ms", where="evaluation", do="Search for more than 0 ms")


class Lookahead:
    """What such a player does in n games that are being played; one search after another, so that each has its time."""

    def __init__(self, game: Game, game_id: str, player: Searching, forward: Forward) -> None:
        """Refused where the game cannot be searched."""
        self._tree = TreeSearch(lambda n: open_game(game_id, n), game.spec)
        assert isinstance(game, SearchableGame)
        self._game, self._search_s = game, player.search_ms / 1000

        def run(columns: dict[str, Array]) -> dict[str, Array]:
            return forward({name: column for name, column in columns.items() if name != "legal"})

        self._model = SearchModel(player.model.card, game.spec, run)

    def act(self, seat: int, rows: Array) -> Array:
        """The seat's best moves in the games `rows`."""
        states, moves = self._game.save_rows(), []
        for row in rows.tolist():
            found = self._tree.search(states[row], seat, self._model, time.monotonic() + self._search_s)
            moves.append(int(found.scores.argmax()))
        return np.array(moves, np.int32)
