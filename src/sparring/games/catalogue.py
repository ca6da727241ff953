"""Which games there are: the built-in ones, those of other libraries by id, and specs in TOML."""

import importlib
from collections.abc import Callable
from pathlib import Path

from sparring.config import Config
from sparring.errors import ConfigError, Missing
from sparring.games import cartpole, connect_four, duel
from sparring.games.game_state import did_you_mean
from sparring.games.protocol import Game
from sparring.games.spec import GameSpec, checked, read
from sparring.user_code import load_code
from sparring.wire.ids import GameId

_BUILT_IN: dict[str, tuple[GameSpec, Callable[[int], Game]]] = {
    "cartpole": (cartpole.SPEC, cartpole.CartPole),
    "connect-four": (connect_four.SPEC, connect_four.ConnectFour),
    "duel": (duel.SPEC, duel.Duel),
}
_ADAPTERS = {  # imported only when an id names them
    "atari": "sparring.games.atari",
    "gym": "sparring.games.gymnasium",
    "pz": "sparring.games.pettingzoo",
    "spiel": "sparring.games.openspiel",
}
BUILT_IN = tuple(_BUILT_IN)
_REGISTERED: dict[str, Callable[[int], Game]] = {}  # games of this process alone, made from a user's environment


def spec_of(game_id: str) -> GameSpec:
    """The spec of the game of that id, or Missing. Built-in games answer at once; others are opened for it."""
    if game_id in _BUILT_IN:
        return _BUILT_IN[game_id][0]
    return open_game(game_id).spec


def register_game(game_id: str, make: Callable[[int], Game]) -> None:
    """From now on `make(n)` opens the game of that id, in this process alone."""
    _REGISTERED[game_id] = make


def is_registered(game_id: str) -> bool:
    """Whether the game exists in this process alone: no other process could open it."""
    return game_id in _REGISTERED


def open_game(game_id: str, n: int = 1, *, rendered: bool = False) -> Game:
    """n games of that id, none of them started, or Missing; `rendered`: for pictures.py, where a library draws them.

    An id may name any function: take it from a command line or spar.toml, never from a request, for which
    there is the Catalogue.
    """
    if n < 1:
        raise ConfigError(f"n = {n}", where=f"game {game_id!r}", do="Open at least one game")
    if game_id in _BUILT_IN:
        return _BUILT_IN[game_id][1](n)
    if game_id in _REGISTERED:
        return _REGISTERED[game_id](n)
    scheme, colon, rest = game_id.partition(":")
    if colon and rest and scheme in _ADAPTERS:
        given = {"rendered": True} if rendered and scheme in ("gym", "pz") else {}
        opened: Game = importlib.import_module(_ADAPTERS[scheme]).open_game(rest, n, **given)
        return opened
    try:
        make = load_code(game_id, "game")
    except ConfigError:
        do = "Use one of " + ", ".join(BUILT_IN) + ", atari:GAME, gym:ID, pz:MODULE, spiel:NAME or module:function"
        do = did_you_mean(game_id, BUILT_IN, do)
        raise Missing("there is no such game", where=f"game {game_id!r}", do=do) from None
    if not callable(make):
        raise Missing("it is no function", where=f"game {game_id!r}", do="Name one that takes n, and gives n games")
    made: Game = make(n)
    checked(made.spec, game_id)  # since a person wrote it
    return made


class Catalogue:
    """The games that one gateway, run or command knows, each in one or several versions."""

    def __init__(self, entries: tuple[str, ...], folder: Path) -> None:
        """`entries` are ids, or paths of TOML specs relative to `folder`; a later spec of one id is a newer version."""
        self._specs: dict[GameId, dict[str, GameSpec]] = {}
        self._playable = {*BUILT_IN, *(entry for entry in entries if not entry.endswith(".toml"))}
        for spec, _ in _BUILT_IN.values():
            self._add(spec, spec.id)
        for entry in entries:
            self._add(_entry(entry, folder), entry)

    @classmethod
    def from_config(cls, config: Config) -> "Catalogue":
        """The catalogue of `config.games`, whose paths `config.load` has made absolute."""
        return cls(config.games, Path())

    def spec(self, game: str, version: str) -> GameSpec | None:
        """That version of that game, where it is known."""
        return self._specs.get(GameId(game), {}).get(version)

    def newest(self, game: str) -> GameSpec | None:
        """The version named last."""
        versions = self._specs.get(GameId(game))
        return next(reversed(versions.values())) if versions else None

    def games(self) -> list[GameSpec]:
        """Every version of every game, built-in ones first."""
        return [spec for versions in self._specs.values() for spec in versions.values()]

    def open_game(self, spec: GameSpec, n: int) -> Game:
        """n games of a version that is known here; Missing where only its spec is."""
        if spec.id not in self._playable:
            do = "Write the game in Python and name that in `games` of spar.toml"
            raise Missing("there is a spec alone, and no game to step", where=f"game {spec.id!r}", do=do)
        return open_game(spec.id, n)

    def views(self, game: str) -> dict[str, tuple[bool, ...]]:
        """Of each version: whether a seat's records show what other seats do, which an erasure must know."""
        versions = self._specs.get(GameId(game), {})
        return {version: tuple(seat.sees_others for seat in spec.seats) for version, spec in versions.items()}

    def _add(self, spec: GameSpec, entry: str) -> None:
        versions = self._specs.setdefault(spec.id, {})
        known = versions.get(spec.version)
        if known is not None and known != spec:
            raise ConfigError(
                f"{spec.id} has version {spec.version!r} already, and it differs",
                where=f"game {entry!r}",
                do="Give the newer spec another version",
            )
        versions[spec.version] = spec


def _entry(entry: str, folder: Path) -> GameSpec:
    if not entry.endswith(".toml"):
        return spec_of(entry)
    path = folder / entry
    if not path.is_file():
        raise Missing("there is no such spec", where=str(path), do="Correct the path in `games` of spar.toml")
    return read(path)
