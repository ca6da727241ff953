"""`spiel:<name>`: a game of OpenSpiel, such as spiel:kuhn_poker or spiel:goofspiel(num_cards=4).

Chance is drawn from the game's seed. Where information is hidden a seat sees its information state (all
it knows), else the observation.
"""

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


def open_game(name: str, n: int) -> Game:
    """n games of that name, or Missing."""
    pyspiel, game = _load(name)
    spec = _spec(pyspiel, game, name)
    return VectorGame(lambda: _OpenSpielGame(pyspiel, game, spec), n)


class _OpenSpielGame(SingleGame):
    """One game."""

    def __init__(self, pyspiel: Any, game: Any, spec: GameSpec) -> None:
        self.spec = spec
        self._game = game
        self._information = _sees_information(pyspiel, game)
        self._state = game.new_initial_state()
        self._seed = np.zeros(1, np.uint64)
        self._draws = 0
        self._returns = np.zeros(len(spec.seats))

    def reset(self, seed: int) -> SingleView:
        self._state = self._game.new_initial_state()
        self._seed[0], self._draws = seed, 0
        self._returns[:] = 0
        return self._show()

    def step(self, actions: Sequence[Array]) -> SingleView:
        if self._state.is_simultaneous_node():
            self._state.apply_actions([int(action) for action in actions])  # 0 for a player without a choice
        else:
            self._state.apply_action(int(actions[self._state.current_player()]))
        return self._show()

    def save(self) -> bytes:
        saved = (self._state.serialize(), int(self._seed[0]), self._draws, self._returns.tolist())
        return msgspec.msgpack.encode(saved)

    def restore(self, state: bytes) -> None:
        text, seed, self._draws, returns = msgspec.msgpack.decode(state, type=tuple[str, int, int, list[float]])
        self._state = self._game.deserialize_state(text)
        self._seed[0], self._returns[:] = seed, returns

    def _show(self) -> SingleView:
        while self._state.is_chance_node():
            self._state.apply_action(self._drawn())
        seats = range(len(self.spec.seats))
        over = self._state.is_terminal()
        returns = np.array(self._state.returns())
        earned, self._returns = returns - self._returns, returns
        # A player without a legal action is not asked: neither the idle one nor anyone at the end.
        masks = [np.array(self._state.legal_actions_mask(p), bool) for p in seats]
        to_act = tuple(bool(mask.any()) and not over for mask in masks)
        return SingleView(
            observation=tuple(self._seen(p) for p in seats),
            to_act=to_act,
            reward=tuple(earned.tolist()),
            ending=(TERMINATED if over else RUNNING,) * len(seats),
            outcome=tuple(returns.tolist()),
            legal=tuple(masks),
        )

    def _seen(self, player: int) -> Columns:
        read = self._state.information_state_tensor if self._information else self._state.observation_tensor
        return {_LEAF: np.array(read(player), np.float32)}

    def _drawn(self) -> int:
        """One outcome of a chance node, by the seed's next number."""
        outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
        drawn = uniform(self._seed, self._draws)[0]
        self._draws += 1
        place = int(np.searchsorted(np.cumsum(probabilities), drawn, side="right"))
        return int(outcomes[min(place, len(outcomes) - 1)])


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
