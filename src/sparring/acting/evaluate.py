"""Evaluation: `evaluate` plays exactly so many episodes, each seat in turn.

Episode e is played in seat e mod seats, and the episodes of one round of seats share their seed, so that two
players meet in the same situations from both sides. A player has all seats of its team; where there are no others,
every episode has its own seed. Where both players are deterministic each seat's first decisions are drawn by that
seed: otherwise a thousand games of Connect Four would be the same two.
A model whose card says that it samples its actions does so here.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from sparring.acting.lookahead import Searching
from sparring.acting.players import Lineup, NetworkPlayer, Player, acting, decide, draws
from sparring.acting.video import VideoFile, check_video
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game, spec_of
from sparring.games.pictures import open_rendered
from sparring.games.protocol import Game, View
from sparring.games.scripts import Script
from sparring.games.spec import GameSpec, Leaf
from sparring.wire.chunk import Array
from sparring.wire.model import Model

MAX_GAMES = 64  # at once,
MAX_SHORT_GAMES, SHORT_TICKS = 4096, 200_000  # or so many of two networks, if together they last so many ticks at most

Note = Callable[[Array, Array, list[Array], View], None]  # episodes [n], their seeds, actions by seat, what was seen
OPENINGS = 100_000  # that two deterministic players may meet in, if the game is long enough
FEWEST_DECISIONS = 4  # of a seat in games whose first ones are drawn
OPENING_SHARE = 6  # of a game's ticks at most one in so many is drawn
_PRIME = np.uint64(0x100000001B3)  # of the hash FNV-1a


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
    found = [GameMoves(0, tuple(np.flatnonzero(own).tolist()), []) for own in table.own_by_episode()]

    def note(episode: Array, seeds: Array, actions: list[Array], view: View) -> None:
        for slot in np.flatnonzero(episode < episodes):
            at = int(episode[slot])
            done = [one[slot].tolist() if view.to_act[slot, seat] else None for seat, one in enumerate(actions)]
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
    own = table.own_by_episode()  # as many as there are games at once
    return table.play(note=lambda episode, seeds, actions, view: watch(view, actions, own))


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
    if any(who is None or draws(who) for who in (player, against)):
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
                note(episode, seeds[at], actions, view)
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

    def own_by_episode(self) -> Array:
        """bool [episodes, seats]: the seats of our player in each episode."""
        return np.asarray(self._own_seats()[np.resize(self.places(), self.episodes)])

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
