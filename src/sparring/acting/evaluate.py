"""Evaluation: `evaluate` plays exactly so many episodes, each seat in turn; `named` finds a player by its name (a
model's id or the beginning of one, champion:GAME, script:GAME/NAME; models of different kinds of seats as ID,ID).

Episode e is played in seat e mod seats, and the episodes of one round of seats share their seed, so that two
players meet in the same situations from both sides. A player has all seats of its team; where there are no others,
every episode has its own seed. Where both players are deterministic each seat's first decisions are drawn by that
seed: otherwise a thousand games of Connect Four would be the same two.
A model whose card says that it samples its actions does so here.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.acting.lookahead import Lookahead, Searching
from sparring.acting.video import VideoFile, check_video
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game, spec_of
from sparring.games.frame_stack import FrameStacks
from sparring.games.pictures import open_rendered
from sparring.games.protocol import Columns, Game, View
from sparring.games.scripts import Script, script, scripts_for
from sparring.games.spec import GameSpec, Leaf
from sparring.nets import policies
from sparring.nets.forward import Forward, forward_for_matches
from sparring.nets.model_files import read_weights
from sparring.nets.shapes import STATE, initial_state
from sparring.registry.registry import Registry
from sparring.wire.champion import verify
from sparring.wire.chunk import Array
from sparring.wire.ids import GameId
from sparring.wire.model import Model

MAX_GAMES = 64  # at once,
MAX_SHORT_GAMES, SHORT_TICKS = 4096, 200_000  # or so many of two networks, if together they last so many ticks at most

Note = Callable[[Array, Array, list[Array], Array], None]  # episodes [n], their seeds, actions by seat, who was asked
OPENINGS = 100_000  # that two deterministic players may meet in, if the game is long enough
FEWEST_DECISIONS = 4  # of a seat in games whose first ones are drawn
OPENING_SHARE = 6  # of a game's ticks at most one in so many is drawn
LEAST = 6  # digits of a model's id
_PRIME = np.uint64(0x100000001B3)  # of the hash FNV-1a


@dataclass(frozen=True, slots=True)
class Lineup:
    """A player for each seat of a game. Where it is evaluated it plays `own` in turn."""

    game: GameId
    seats: tuple[Model | Forward | str, ...]  # a string names a script
    own: tuple[int, ...]

    @classmethod
    def of(
        cls, spec: GameSpec, models: Sequence[Model], others: "Lineup | Model | Forward | str" = "random"
    ) -> "Lineup":
        """These models in the seats of their kinds, and `others` in those that are left."""
        seated: list[Model | Forward | str] = []
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


Player = Model | Searching | Forward | Lineup | str  # a string names a script of the game


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one player earned. Wins, draws and losses compare its outcome with the best of the opponents'."""

    returns: Array  # float32 [episodes]
    wins: int | None = None  # None: a game without opponents
    draws: int | None = None
    losses: int | None = None
    beaten: Array | None = None  # float64 [episodes]: the share of opponents that did worse, an equal one being half
    digests: Array | None = None  # uint64 [episodes] of what was done in each
    ticks: int = 0  # that were played, those of unfinished episodes too

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def sd(self) -> float:
        return float(self.returns.std())

    @property
    def score(self) -> float | None:
        """Share of games won, a draw being half; None in a game without opponents."""
        if self.wins is None or self.draws is None:
            return None
        return (self.wins + self.draws / 2) / len(self.returns)


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


def evaluate(
    game_id: str,
    player: Player,
    *,
    episodes: int,
    seed: int,
    against: Player | None = None,
    video: Path | None = None,
    deadline: float = math.inf,
) -> Evaluation:
    """Play `episodes` episodes. The opponents are `against`, or the script "random". With `video` the episodes are
    played one after another, and written into an .mp4 or .gif.

    At the `deadline` (of time.monotonic) it stops: only the episodes before the first unfinished one count, so that
    short ones are not preferred.
    """
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes", where="evaluation", do="Play at least one")
    if seed < 0:
        raise ConfigError(f"--seed {seed}", where="evaluation", do="Count seeds from 0")
    if video is None:
        game = open_game(game_id, min(episodes, games_at_once(game_id, player, against)))
        return _table(game, game_id, player, against, episodes, seed, deadline).play()
    check_video(video)
    game, draw, frames_per_s = open_rendered(game_id)
    table = _table(game, game_id, player, against, episodes, seed, deadline)
    with VideoFile(video, frames_per_s) as file:
        return table.play(lambda view: file.add(draw(view)))


@dataclass(frozen=True, slots=True)
class GameMoves:
    """One episode, move by move: its seed, the seats of the evaluated player, and what each seat did at each tick;
    None where it was not asked."""

    seed: int
    seats: tuple[int, ...]
    ticks: list[list[Any]]


def evaluate_with_moves(
    game_id: str, player: Player, against: Player, *, episodes: int, seed: int
) -> tuple[Evaluation, list[GameMoves]]:
    """As `evaluate`, with the moves of every episode."""
    table = _table(open_game(game_id, min(episodes, MAX_GAMES)), game_id, player, against, episodes, seed, math.inf)
    own = table._own_seats()
    places = table.places()
    seats = [tuple(np.flatnonzero(own[places[e % len(places)]]).tolist()) for e in range(episodes)]
    found = [GameMoves(0, mine, []) for mine in seats]

    def note(episode: Array, seeds: Array, actions: list[Array], to_act: Array) -> None:
        for slot in np.flatnonzero(episode < episodes):
            at = int(episode[slot])
            done = [one[slot].tolist() if to_act[slot, seat] else None for seat, one in enumerate(actions)]
            found[at].ticks.append(done)
            if not found[at].seed:
                found[at] = replace(found[at], seed=int(seeds[slot]))

    played = table.play(note=note)
    return played, found


def evaluate_watched(
    game_id: str,
    player: Player,
    against: Player,
    *,
    episodes: int,
    seed: int,
    watch: Callable[[View, list[Array], Array], None],
) -> Evaluation:
    """As `evaluate`, all episodes at once. `watch` gets each view with what the seats do next, and the seats of the
    evaluated player, bool [n, seats]."""
    table = _table(open_game(game_id, episodes), game_id, player, against, episodes, seed, math.inf)
    own, views = table._own_seats(), list[View]()

    def note(episode: Array, seeds: Array, actions: list[Array], to_act: Array) -> None:
        watch(views[-1], actions, own[episode % episodes % len(own)])

    return table.play(lambda view: views.__setitem__(slice(None), [view]), note)


def evaluate_beside(
    game_id: str, player: Player, partner: Player, *, episodes: int, seed: int, deadline: float = math.inf
) -> Evaluation:
    """As `evaluate`, with the player in one seat and `partner` in all others, those of its own team too."""
    game = open_game(game_id, min(episodes, MAX_GAMES))
    return replace(_table(game, game_id, player, partner, episodes, seed, deadline), whole_team=False).play()


def games_at_once(game_id: str, player: Player, against: Player | None) -> int:
    """How many games are played side by side. Two networks play the same moves whatever their number is: they choose
    their best action, and openings are drawn by episode. Scripts and models that sample draw from one generator, so
    theirs stays fixed."""
    if any(who is None or _draws(who) for who in (player, against)):
        return MAX_GAMES
    spec = spec_of(game_id)
    short = min(MAX_SHORT_GAMES, SHORT_TICKS // spec.max_ticks) if spec.has_rivals else 0
    return max(MAX_GAMES, short)


def _table(  # the seven words of `evaluate`, with an opened game
    game: Game, game_id: str, player: Player, against: Player | None, episodes: int, seed: int, deadline: float
) -> "_Table":
    rest = "random" if against is None else against
    if isinstance(player, Model) and player.card.kind:
        player = Lineup.of(game.spec, [player], "random" if isinstance(rest, Searching) else rest)
    own = player.own if isinstance(player, Lineup) else ()
    others = acting(game, game_id, rest)
    return _Table(game, acting(game, game_id, player), others, episodes, seed, deadline, own)


@dataclass(frozen=True, slots=True)
class _Table:
    """The games of one evaluation; slot g plays episodes g, g + n, g + 2n …, so short ones are not preferred."""

    game: Game
    ours: NetworkPlayer | Script
    others: NetworkPlayer | Script
    episodes: int
    seed: int
    deadline: float
    own: tuple[int, ...] = ()  # the seats that our player plays in turn; (): all
    whole_team: bool = True

    def play(self, watch: Callable[[View], None] = lambda view: None, note: Note | None = None) -> Evaluation:
        """Play to the end; `watch` gets the view of every start and every step, `note` every decision."""
        n, seats = self.game.n, len(self.game.spec.seats)
        start = np.random.default_rng([self.seed, 0])
        fixed = all(isinstance(who, NetworkPlayer) and not who.samples for who in (self.ours, self.others))
        rng = None if fixed else np.random.default_rng([self.seed, 1])
        ours, places = self._own_seats(), np.array(self.places())
        alike = 1 if ours.all() else len(places)  # a team alone would play one game again in each of its seats
        rounds = -(-self.episodes // alike)
        seeds = np.repeat(start.integers(0, 2**64, rounds, dtype=np.uint64), alike)
        openings = start.random((rounds, seats, opening_decisions(self.game.spec)))  # how first decisions are drawn
        openings = openings if fixed and seats > 1 else openings[:, :, :0]
        returns, results = np.zeros(self.episodes, np.float32), np.full((self.episodes, 2), 0.5)
        digests, digest = np.zeros(self.episodes, np.uint64), np.zeros(n, np.uint64)
        episode, earned, slots = np.arange(n), np.zeros(n, np.float32), np.arange(n)
        decisions, ticks, playing = np.zeros((n, seats), np.int64), 0, np.ones(n, bool)
        view = self.game.reset(seeds[episode], playing)
        digest = self._dealt(view, digest, playing)
        watch(view)
        while playing.any() and time.monotonic() < self.deadline:
            at = np.minimum(episode, self.episodes - 1)  # a slot with nothing left to play stands still
            seat = places[at % len(places)]
            actions = self._decide(view, ours[seat], decisions, openings[at // alike], rng)
            if note is not None:
                note(episode, seeds[at], actions, view.to_act)
            digest = _with_actions(digest, actions, view.to_act)
            decisions += view.to_act
            view = self.game.step(actions)
            watch(view)
            ticks += int(playing.sum())
            earned += view.reward[slots, seat]
            if len(over := np.flatnonzero(view.over & playing)):
                done = episode[over]
                returns[done], earned[over] = earned[over], 0.0
                digests[done], digest[over] = digest[over], 0
                results[done] = _results(view.outcome[over], ours[seat[over]])
                episode[over] += n
                playing[over] = episode[over] < self.episodes
                again = np.zeros(n, bool)
                again[over] = playing[over]
                decisions[again] = 0
                if again.any():
                    view = self.game.reset(seeds[np.minimum(episode, self.episodes - 1)], again)
                    digest = self._dealt(view, digest, again)
                    watch(view)
        ended = min(self.episodes, int(episode.min()))
        returns, digests = returns[:ended], digests[:ended]
        if ours.all():
            return Evaluation(returns, digests=digests, ticks=ticks)
        won, beaten = results[:ended].T
        wins, draws, losses = (int((won == result).sum()) for result in (1.0, 0.5, 0.0))
        return Evaluation(returns, wins, draws, losses, beaten, digests, ticks)

    def _dealt(self, view: View, digest: Array, which: Array) -> Array:
        """The digests of games that begin: what seats see first is part of a game that hides it from others, such as
        the cards that were dealt; elsewhere the moves say all."""
        if not self.game.spec.hidden_information:
            return digest
        for column in (column for seen in view.observation for column in seen.values()):
            raw = np.ascontiguousarray(column).reshape(len(column), -1).view(np.uint8).astype(np.uint64)
            places = np.arange(1, raw.shape[1] + 1, dtype=np.uint64) * _PRIME
            digest = np.where(which, (digest ^ (raw * places).sum(axis=1, dtype=np.uint64)) * _PRIME, digest)
        return digest

    def places(self) -> tuple[int, ...]:
        """The seats in turn."""
        return self.own or tuple(range(len(self.game.spec.seats)))

    def _own_seats(self) -> Array:
        """bool [seats, seats]: the seats of a player that is in each of them."""
        teams = np.array([seat.team for seat in self.game.spec.seats])
        alone = np.eye(len(teams), dtype=bool)
        return (teams == teams[:, None]) | alone if self.whole_team else alone

    def _decide(self, view: View, own: Array, decisions: Array, opening: Array, rng: Generator | None) -> list[Array]:
        """Actions by seat. `decisions` [n, seats] were made before; the first ones are drawn by `opening` [n, seats,
        decisions that are drawn]."""
        actions = []
        for seat, spec in enumerate(self.game.spec.seats):
            action, asked = np.zeros((self.game.n, *spec.action.shape), spec.action.dtype), view.to_act[:, seat]
            random = asked & (decisions[:, seat] < (opening.shape[2] if spec.action.choices else 0))
            for mine, who in ((True, self.ours), (False, self.others)):
                theirs = asked & (own[:, seat] == mine)
                if isinstance(who, NetworkPlayer) and not who.remembers:
                    theirs &= ~random  # it need not think about what is drawn
                if len(rows := np.flatnonzero(theirs)):
                    seen = {leaf: column[rows] for leaf, column in view.observation[seat].items()}
                    mask = None if (legal := view.legal[seat]) is None else legal[rows]
                    action[rows] = decide(who, seat, rows, decisions[rows, seat] == 0, seen, mask, rng)
            if len(rows := np.flatnonzero(random)):
                chance = opening[rows, seat, decisions[rows, seat]]
                action[rows] = drawn_actions(chance, view.legal[seat], rows, spec.action)
            actions.append(action)
        return actions


def _results(outcome: Array, own: Array) -> Array:
    """float64 [n, 2] of the player with the seats `own` [n, seats]: 1, 0.5 or 0 where it won, drew or lost against the
    best of its opponents; and the share of them that it beat."""
    if own.all():
        return np.full((len(outcome), 2), 0.5)
    own, outcome = np.ascontiguousarray(own.T), outcome.T  # NumPy goes along the longer axis so
    best = np.where(own, outcome, -np.inf).max(axis=0)
    ahead = np.where(own, 0.0, np.sign(best - outcome) / 2 + 0.5)
    return np.stack([np.where(own, 1.0, ahead).min(axis=0), ahead.sum(axis=0) / (~own).sum(axis=0)], axis=1)


def _with_actions(digest: Array, actions: list[Array], to_act: Array) -> Array:
    """The digests [n] of games after these actions."""
    for seat, action in enumerate(actions):
        words = action.view(np.uint32) if action.dtype == np.float32 else action
        for column in words.reshape(len(action), -1).astype(np.uint64).T:
            digest = np.where(to_act[:, seat], (digest ^ (column + np.uint64(1 + seat))) * _PRIME, digest)
    return digest


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


def _opened(game: Game, game_id: str, player: Model | Searching | Forward | str) -> NetworkPlayer | Script:
    """One player, whichever seats it is for."""
    spec = game.spec
    if isinstance(player, str):
        return script(game_id, player)
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


def _draws(player: Player) -> bool:
    """Whether what it does is drawn."""
    if isinstance(player, Lineup):
        return any(map(_draws, player.seats))
    return isinstance(player, str) or (isinstance(player, Model) and player.card.samples)


def forward_of(model: Model) -> Forward:
    """The model's network, ready to act."""
    return forward_for_matches(model.card.network, read_weights(model))


def drawn_actions(chance: Array, legal: Array | None, rows: Array, action: Leaf) -> Array:
    """The legal action at the share `chance` of the way along them; of several entries the first counts most."""
    allowed = np.ones((len(rows), action.masks), bool) if legal is None else legal[rows].astype(bool)
    entries = []
    for first, choices in zip(np.cumsum((0, *action.choices)), action.choices, strict=False):
        mask = allowed[:, first : first + choices]
        before = np.cumsum(mask.T, axis=0, dtype=np.int32)  # along the shorter axis NumPy would go row by row
        place = chance * before[-1]
        rank = np.floor(place)
        entries.append((before <= rank).sum(axis=0))
        chance = place - rank  # what the next entry has left
    return np.stack(entries, axis=1).reshape(len(rows), *action.shape)


def opening_decisions(spec: GameSpec) -> int:
    """How many first decisions of each seat are drawn, so that thousands of games between two deterministic players
    seldom begin alike; at least one, and only a small part of a short game. None where a seat decides less than
    FEWEST_DECISIONS times: the game would be the draw."""
    choices = min((math.prod(seat.action.choices) for seat in spec.seats if seat.action.choices), default=1)
    wanted = math.ceil(math.log(OPENINGS) / (len(spec.seats) * math.log(max(choices, 2))))
    if spec.max_ticks < FEWEST_DECISIONS * (len(spec.seats) if spec.turns == "alternating" else 1):
        return 0
    return max(1, min(wanted, spec.max_ticks // (OPENING_SHARE * len(spec.seats))))


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
        raise Missing(f"{game} has no champion yet", where="registry", do=f"Train one: `spar train {game}`")
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
