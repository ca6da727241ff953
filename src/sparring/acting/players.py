"""Who plays: a model, one that searches, a script or a bare network, for all seats or one for each; opened for n games
(`acting`), and found by its name (`named`): a model's id or the beginning of one, champion:GAME, script:GAME/NAME, or
models of different kinds of seats as ID,ID."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from sparring.acting.lookahead import Lookahead, Searching
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import spec_of
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import Columns, Game
from sparring.games.scripts import Script, script, scripts_for
from sparring.games.spec import GameSpec
from sparring.nets import policies
from sparring.nets.forward import Forward, forward_for_matches
from sparring.nets.model_files import read_weights
from sparring.nets.shapes import STATE, initial_state
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId
from sparring.wire.model import Model

LEAST = 6  # digits of a model's id


@dataclass(frozen=True, slots=True)
class Sampling:
    """A bare network that draws its actions from its probabilities."""

    forward: Forward


@dataclass(frozen=True, slots=True)
class Lineup:
    """A player for each seat of a game. Where it is evaluated it plays `own` in turn."""

    game: GameId
    seats: tuple[Model | Forward | Sampling | str, ...]  # a string names a script
    own: tuple[int, ...]

    @classmethod
    def of(
        cls, spec: GameSpec, models: Sequence[Model], others: "Lineup | Model | Forward | Sampling | str" = "random"
    ) -> "Lineup":
        """These models in the seats of their kinds, and `others` in those that are left."""
        seated: list[Model | Forward | Sampling | str] = []
        for place in range(len(spec.seats)):
            mine = [model for model in models if place in seats_of(model, spec)]
            if len(mine) > 1:
                wrong = f"models {mine[0].id[:12]} and {mine[1].id[:12]} both play seat {spec.seats[place].name!r}"
                raise ConfigError(wrong, where=f"game {spec.id}", do="Name one model for each kind of seats")
            rest = others.seats[place] if isinstance(others, Lineup) else others
            if isinstance(rest, Model) and place not in seats_of(rest, spec):
                rest = "random"
            seated.append(mine[0] if mine else rest)
        own = sorted(place for model in models for place in seats_of(model, spec))
        return cls(spec.id, tuple(seated), tuple(own))


def seats_of(model: Model, spec: GameSpec) -> tuple[int, ...]:
    """The seats that a model plays."""
    return model.card.kind or tuple(range(len(spec.seats)))


Player = Model | Searching | Forward | Sampling | Lineup | str  # a string names a script of the game


class NetworkPlayer:
    """A network in n games, with what it remembers of each game in each seat and the last frames of it. It takes its
    best action, with `samples` one drawn from its probabilities, with `ahead` what it finds by looking ahead."""

    def __init__(
        self, forward: Forward, spec: GameSpec, games: int, ahead: Lookahead | None = None, *, samples: bool = False
    ) -> None:
        self._forward, self._spec, self._ahead, self.samples = forward, spec, ahead, samples
        self._stacks = [FrameStacks(seat, spec.frame_stack, games) for seat in spec.seats]
        self._states = [None if forward.spec.memory is None else initial_state(forward.spec, games) for _ in spec.seats]

    @property
    def remembers(self) -> bool:
        """Whether what it does depends on more than what it sees now."""
        return self._spec.frame_stack > 1 or self._forward.spec.memory is not None

    def act(
        self, seat: int, rows: Array, begins: Array, seen: Columns, legal: Array | None, rng: Generator | None
    ) -> Array:
        """What it does in the games `rows`; in those that `begins` (bool) the seat decides for the first time. One
        that does not sample draws numbers of a given `rng`, too, which change only what a script draws next."""
        if self._ahead is not None:
            return self._ahead.act(seat, rows)
        self._stacks[seat].begin(rows[begins])
        seen, state = self._stacks[seat].push(seen, rows), self._states[seat]
        if state is None:
            out = self._forward(seen)
        else:
            state[rows[begins]] = 0
            out = self._forward(seen, state[rows])
            state[rows] = out[STATE]
        action = self._spec.seats[seat].action
        if action.choices:
            return policies.choose(action, out["logits"], legal, rng, samples=self.samples).action
        mean = policies.squashed(out["mean"], policies.bounds_of(action))
        return mean.reshape(len(mean), *action.shape)


class LineupPlayer(NetworkPlayer):
    """A player for each seat, asked as one."""

    def __init__(self, seats: Sequence[NetworkPlayer | Script]) -> None:
        self._seats = seats
        self.samples = any(isinstance(one, Script) or one.samples for one in seats)  # it draws random numbers

    @property
    def remembers(self) -> bool:
        return any(isinstance(one, NetworkPlayer) and one.remembers for one in self._seats)

    def act(
        self, seat: int, rows: Array, begins: Array, seen: Columns, legal: Array | None, rng: Generator | None
    ) -> Array:
        return decide(self._seats[seat], seat, rows, begins, seen, legal, rng)


def decide(
    who: NetworkPlayer | Script,
    seat: int,
    rows: Array,
    begins: Array,
    seen: Columns,
    legal: Array | None,
    rng: Generator | None,
) -> Array:
    """What the player does in the games `rows`; a script needs not know which, nor what was before, and needs `rng`."""
    if isinstance(who, NetworkPlayer):
        return who.act(seat, rows, begins, seen, legal, rng)
    assert rng is not None
    return who.act(seat, seen, legal, rng)


def check_has_others(game: str, option: str) -> None:
    """Nothing, or ConfigError where a game has one seat, and `option` names who plays the others."""
    if len(spec_of(game).seats) == 1:
        raise ConfigError("the game has one seat, so there is no opponent", where=game, do=f"Leave out {option}")


def acting(game: Game, game_id: str, player: Player) -> NetworkPlayer | Script:
    """The player, opened for these games; ConfigError where it was made for others."""
    spec = game.spec
    if isinstance(player, str):
        return script(game_id, player)
    if isinstance(player, Model) and player.card.kind:
        player = Lineup.of(spec, [player])
    if isinstance(player, Lineup):
        known = {id(one): _opened(game, game_id, one) for one in player.seats}  # a model has one memory of all seats
        return LineupPlayer([known[id(one)] for one in player.seats])
    return _opened(game, game_id, player)


def _opened(game: Game, game_id: str, player: Model | Searching | Forward | Sampling | str) -> NetworkPlayer | Script:
    """One player, whichever seats it is for."""
    spec = game.spec
    if isinstance(player, str):
        return script(game_id, player)
    if isinstance(player, Sampling):
        return NetworkPlayer(player.forward, spec, game.n, samples=True)
    model = player.model if isinstance(player, Searching) else player
    if not isinstance(model, Model):
        return NetworkPlayer(model, spec, game.n)
    if model.card.spec != spec.hash:
        raise ConfigError(
            f"it was made for {model.card.game} with spec {model.card.spec[:12]}, not {spec.hash[:12]}",
            where=f"model {model.id[:12]}",
            do=f"Choose a model of {game_id}",
        )
    forward = forward_of(model)
    ahead = Lookahead(game, game_id, player, forward) if isinstance(player, Searching) else None
    return NetworkPlayer(forward, spec, game.n, ahead, samples=model.card.samples)


def draws(player: Player) -> bool:
    """Whether what it does is drawn."""
    if isinstance(player, Lineup):
        return any(map(draws, player.seats))
    return isinstance(player, str | Sampling) or (isinstance(player, Model) and player.card.samples)


def forward_of(model: Model) -> Forward:
    """The model's network, ready to act."""
    return forward_for_matches(model.card.network, read_weights(model))


def champions_of(registry: Registry, spec: GameSpec, version: str) -> Lineup:
    """The champion of each kind of seats; random play where there is none, or none of this spec."""
    found = [champion_model(registry, spec.id, version, seats[0]) for seats in spec.kinds]
    return Lineup.of(spec, [model for model in found if model is not None and model.card.spec == spec.hash])


def strongest(game: str) -> str | None:
    """The script that a game's models are measured against, since against chance all soon look alike; None: alone."""
    return scripts_for(game)[-1] if spec_of(game).has_rivals else None


@dataclass(frozen=True, slots=True)
class Named:
    """A player, the game that it plays, and its full name."""

    game: str
    name: str
    player: Model | Lineup | str


def named(text: str, registry: Registry, game: str | None = None) -> Named:
    """The model or script of that name, or Missing. With `game`, NAME and script:NAME are that game's scripts."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "champion":
        return _champion(rest, registry)
    if "," in text:
        return _together([named(one.strip(), registry, game) for one in text.split(",")])
    if colon and kind == "script":
        place, slash, name = rest.rpartition("/")
        place = place if slash else game or ""
        if not place:
            raise ConfigError(f"{text!r} names no game", where="player", do="Write script:GAME/NAME")
        script(place, name)
        return Named(place, f"script:{place}/{name}", name)
    if len(text) >= LEAST and all(char in "0123456789abcdef" for char in text):
        model = registry.fetch(registry.find(text))
        return Named(model.card.game, model.id, model)
    if game is not None:
        script(game, text)
        return Named(game, f"script:{game}/{text}", text)
    raise ConfigError(
        f"{text!r} is no player",
        where="player",
        do="Write champion:GAME, script:GAME/NAME, or a model's id (at least 6 digits of it)",
    )


def _champion(game: str, registry: Registry) -> Named:
    spec = spec_of(game)
    places: list[int | None] = [seats[0] for seats in spec.kinds] if len(spec.kinds) > 1 else [None]
    found = [champion_model(registry, spec.id, spec.version, place) for place in places]
    models = [model for model in found if model is not None]
    if not models:
        raise Missing(
            f"{game} has no champion yet", where="registry", do=f"Train one: `spar train {shlex.quote(game)}`"
        )
    if len(spec.kinds) == 1:
        return Named(game, models[0].id, models[0])
    return Named(game, ",".join(model.id for model in models), Lineup.of(spec, models))


def champion_model(registry: Registry, game: GameId, version: str, seat: int | None) -> Model | None:
    """The champion of that seat, or of all; None where there is none."""
    signed = registry.champion(game, version, seat)
    return None if signed is None else registry.fetch(verify(signed, signed.key).model)  # the registry is our own


def _together(players: Sequence[Named]) -> Named:
    """Models of different kinds of seats as one player."""
    models = [one.player for one in players if isinstance(one.player, Model)]
    if len(models) < len(players) or len({one.game for one in players}) > 1:
        do = "Write the ids of models of one game, ID,ID, one for each kind of its seats"
        raise ConfigError("players that play together are models of one game", where="player", do=do)
    spec = spec_of(players[0].game)
    return Named(players[0].game, ",".join(one.name for one in players), Lineup.of(spec, models))
