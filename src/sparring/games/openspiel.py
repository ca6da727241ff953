"""`spiel:<name>`: a game of OpenSpiel, such as spiel:kuhn_poker or spiel:goofspiel(num_cards=4).

Chance is drawn from the game's seed. Where information is hidden a seat sees its information state (all
it knows), else the observation.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from sparring.errors import ConfigError, Missing
from sparring.games.game_state import did_you_mean, library, uniform
from sparring.games.protocol import RUNNING, TERMINATED, Columns, Game
from sparring.games.spec import GameSpec, SeatSpec, checked, discrete, vector
from sparring.games.vectorize import SingleGame, SingleView, VectorGame
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId

_LEAF = "observation/state"
TREE_BYTES = 64 << 20  # of positions that are remembered
POSITION_BYTES = 4096  # of one, beside what players see of it


def open_game(name: str, n: int) -> Game:
    """n games of that name, or Missing."""
    pyspiel, game = _load(name)
    spec = _spec(pyspiel, game, name)
    tree = _Tree(pyspiel, game, spec)
    return VectorGame(lambda: _OpenSpielGame(tree), n)


class _Position:
    """A position of a game, what it shows, and the positions after it that were met."""

    __slots__ = ("after", "chance", "kept", "returns", "state", "view")

    def __init__(self, state: Any, returns: Array) -> None:
        self.state, self.returns = state, returns  # what each player had earned until then
        self.after: dict[int | tuple[int, ...], _Position] = {}
        self.chance: tuple[list[int], list[float]] | None = None  # outcomes and their cumulative probabilities
        self.view: SingleView | None = None  # None: chance moves
        self.kept = False  # the tree remembers it, and so what follows


class _Tree:
    """The positions that were met, so that OpenSpiel is asked once for what is met often.

    Games of one adapter share it. It holds at most TREE_BYTES, by estimate; further positions are forgotten when the
    game leaves them.
    """

    def __init__(self, pyspiel: Any, game: Any, spec: GameSpec) -> None:
        self.game, self.spec = game, spec
        self._information = _sees_information(pyspiel, game)
        kind, types = game.get_type(), pyspiel.GameType
        self.searchable = (
            kind.information == types.Information.PERFECT_INFORMATION
            and kind.chance_mode == types.ChanceMode.DETERMINISTIC
            and kind.dynamics == types.Dynamics.SEQUENTIAL
        )
        seen = sum(np.prod(leaf.shape, dtype=int) * 4 for seat in spec.seats for leaf in seat.observation)
        # What OpenSpiel draws inside of a step would be the same each time.
        self._room = TREE_BYTES // (int(seen) + POSITION_BYTES) if spec.resimulates else 0
        self.root = self.position(game.new_initial_state(), np.zeros(len(spec.seats)))
        self.root.kept = True

    def position(self, state: Any, earned: Array) -> _Position:
        """That state, as it is shown to players who had `earned` before."""
        found = _Position(state, np.array(state.returns()))
        if state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            found.chance, found.returns = (list(outcomes), np.cumsum(probabilities).tolist()), earned
        else:
            found.view = self._shown(state, found.returns - earned)
        return found

    def after(self, at: _Position, action: int | tuple[int, ...]) -> _Position:
        """The position that an action (of all players, where they act at once) or an outcome of chance leads to."""
        if (known := at.after.get(action)) is not None:
            return known
        state = at.state.clone()
        if isinstance(action, tuple):
            state.apply_actions(list(action))
        else:
            state.apply_action(action)
        found = self.position(state, at.returns)
        if at.kept and self._room:
            self._room -= 1
            at.after[action], found.kept = found, True
        return found

    def _shown(self, state: Any, earned: Array) -> SingleView:
        seats = range(len(self.spec.seats))
        over = state.is_terminal()
        # A player without a legal action is not asked: neither the idle one nor anyone at the end.
        masks = [np.array(state.legal_actions_mask(p), bool) for p in seats]
        return SingleView(
            observation=tuple(self._seen(state, p) for p in seats),
            to_act=tuple(bool(mask.any()) and not over for mask in masks),
            reward=tuple(earned.tolist()),
            ending=(TERMINATED if over else RUNNING,) * len(seats),
            outcome=tuple(state.returns()),
            legal=tuple(masks),
        )

    def _seen(self, state: Any, player: int) -> Columns:
        read = state.information_state_tensor if self._information else state.observation_tensor
        return {_LEAF: np.array(read(player), np.float32)}


class _OpenSpielGame(SingleGame):
    """One game."""

    def __init__(self, tree: _Tree) -> None:
        self.spec, self._tree, self._at, self.searchable = tree.spec, tree, tree.root, tree.searchable
        self._seed, self._draws = 0, 0
        self._drawn: list[float] = []  # the seed's first numbers

    def reset(self, seed: int) -> SingleView:
        self._seed, self._draws, self._drawn = seed, 0, []
        return self._show(self._tree.root)

    def step(self, actions: Sequence[Array]) -> SingleView:
        state = self._at.state
        if state.is_simultaneous_node():  # 0 for a player without a choice
            return self._show(self._tree.after(self._at, tuple(int(action) for action in actions)))
        return self._show(self._tree.after(self._at, int(actions[state.current_player()])))

    def save(self) -> bytes:
        at = self._at
        return msgspec.msgpack.encode((at.state.serialize(), self._seed, self._draws, at.returns.tolist()))

    def restore(self, state: bytes) -> None:
        text, seed, draws, returns = msgspec.msgpack.decode(state, type=tuple[str, int, int, list[float]])
        self._at = self._tree.position(self._tree.game.deserialize_state(text), np.array(returns))
        self._seed, self._draws, self._drawn = seed, draws, []

    def _show(self, at: _Position) -> SingleView:
        while at.chance is not None:
            outcomes, cumulative = at.chance
            at = self._tree.after(at, outcomes[min(bisect_right(cumulative, self._number()), len(outcomes) - 1)])
        assert at.view is not None
        self._at = at
        return at.view

    def _number(self) -> float:
        """The seed's next number."""
        if self._draws >= len(self._drawn):
            some = np.arange(2 * max(4, self._draws))
            self._drawn = uniform(np.full(len(some), self._seed, np.uint64), some).tolist()
        self._draws += 1
        return self._drawn[self._draws - 1]


def _spec(pyspiel: Any, game: Any, name: str) -> GameSpec:
    kind = game.get_type()
    where = f"game 'spiel:{name}'"
    if kind.dynamics not in (pyspiel.GameType.Dynamics.SEQUENTIAL, pyspiel.GameType.Dynamics.SIMULTANEOUS):
        raise ConfigError(
            f"its dynamics are {kind.dynamics.name}", where=where, do="Use a game of finitely many players"
        )
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise ConfigError("it shows no tensor", where=where, do="Use a game that a network can see")
    information = _sees_information(pyspiel, game)
    shape = game.information_state_tensor_shape() if information else game.observation_tensor_shape()
    low, high = game.min_utility(), game.max_utility()
    if kind.reward_model != pyspiel.GameType.RewardModel.TERMINAL:
        low, high = low - high, high - low  # the bounds are of the sum; one step may undo others
    seats = tuple(
        SeatSpec(
            name=f"player {p}",
            team=0 if kind.utility == pyspiel.GameType.Utility.IDENTICAL else p,
            observation=(vector(_LEAF, int(np.prod(shape))),),
            action=discrete(game.num_distinct_actions()),
            reward_bounds=(low, high),
        )
        for p in range(game.num_players())
    )
    alternating = kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
    return checked(
        GameSpec(
            id=GameId(f"spiel:{name}"),
            turns="alternating" if alternating else "simultaneous",
            seats=seats,
            max_ticks=game.max_game_length(),
            # A game that draws its own chance does not take our seed.
            resimulates=kind.chance_mode != pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC,
            hidden_information=kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
        ),
        where,
    )


def _sees_information(pyspiel: Any, game: Any) -> bool:
    kind = game.get_type()
    perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    return bool(kind.provides_information_state_tensor and not (perfect and kind.provides_observation_tensor))


def _load(name: str) -> tuple[Any, Any]:
    where = f"game 'spiel:{name}'"
    pyspiel = library("pyspiel", "open_spiel", where)
    known = pyspiel.registered_names()
    short = name.partition("(")[0]
    if short not in known:  # asked first, since OpenSpiel prints the whole list as it fails
        do = did_you_mean(short, known, "pyspiel.registered_names() lists them", "spiel:")
        raise Missing("OpenSpiel has no such game", where=where, do=do)
    try:
        return pyspiel, pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        first = str(error).partition("\n")[0]
        raise Missing(f"OpenSpiel does not load it: {first}", where=where, do="Correct its parameters") from None
