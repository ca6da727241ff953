"""How well a player plays: exactly so many episodes, each counted, each seat in turn.

Episode e is played in seat e mod seats, and the episodes of one round of seats share their seed, so that two
players meet in the same situations from both sides. Where both are deterministic each seat's first decision is
drawn by that seed: otherwise a thousand games of Connect Four would be the same two.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import Columns, Game, View
from sparring.games.scripts import script
from sparring.games.spec import GameSpec, Leaf
from sparring.nets import policies
from sparring.nets.forward import Forward, forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.nets.shapes import STATE
from sparring.wire.chunk import Array
from sparring.wire.model import Model

MAX_GAMES = 64  # at once

Player = Model | Forward | str  # a string names a script of the game


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one player earned. Wins, draws and losses compare its score with the best of the others'."""

    returns: Array  # float32 [episodes]
    wins: int | None = None  # None: a game of one seat
    draws: int | None = None
    losses: int | None = None

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def sd(self) -> float:
        return float(self.returns.std())

    @property
    def score(self) -> float | None:
        """Share of games won, a draw being half; None in a game of one seat."""
        if self.wins is None or self.draws is None:
            return None
        return (self.wins + self.draws / 2) / len(self.returns)


class _Acts(Protocol):
    def act(self, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array: ...


@dataclass(frozen=True, slots=True)
class _Network:
    """A network at its best, with what it remembers of each slot in each seat and the last frames that it saw."""

    forward: Forward
    spec: GameSpec
    stacks: dict[int, FrameStacks] = field(default_factory=dict)  # by seat
    held: dict[int, Array] = field(default_factory=dict)  # seat → [n, numbers]

    def act(self, seat: int, observation: Columns, legal: Array | None, rng: Generator) -> Array:
        return self._best(seat, self.forward(observation), legal, rng)

    def recall(self, seat: int, slots: "_Slots", observation: Columns, legal: Array | None, rng: Generator) -> Array:
        """Like `act`, in those slots: with an empty memory where an episode begins, and else with its own."""
        observation = self._stacked(seat, slots, observation)
        if self.forward.spec.memory is None:
            return self.act(seat, observation, legal, rng)
        held = self.held.setdefault(seat, self.forward.initial_state(slots.of))
        held[slots.rows[slots.begins]] = 0
        out = self.forward(observation, held[slots.rows])
        held[slots.rows] = out[STATE]
        return self._best(seat, out, legal, rng)

    def _best(self, seat: int, out: dict[str, Array], legal: Array | None, rng: Generator) -> Array:
        action = self.spec.seats[seat].action
        if action.choices:
            return policies.choose(action, out["logits"], legal, rng).action
        mean = policies.squashed(out["mean"], policies.bounds_of(action))
        return mean.reshape(len(mean), *action.shape)

    def _stacked(self, seat: int, slots: "_Slots", observation: Columns) -> Columns:
        if self.spec.frame_stack == 1:
            return observation
        if seat not in self.stacks:
            self.stacks[seat] = FrameStacks(self.spec.seats[seat], self.spec.frame_stack, slots.of)
        self.stacks[seat].begin(slots.rows[slots.begins])
        return self.stacks[seat].push(observation, slots.rows)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Which of `of` games are asked about, and in which of them the seat decides for the first time."""

    rows: Array
    begins: Array  # bool, one for each row
    of: int


def evaluate(game_id: str, player: Player, *, episodes: int, seed: int, against: Player | None = None) -> Evaluation:
    """Play `episodes` episodes. In games with several seats the others are `against`, or the script "random"."""
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes", where="evaluation", do="Play at least one")
    if seed < 0:
        raise ConfigError(f"--seed {seed}", where="evaluation", do="Count seeds from 0")
    game = open_game(game_id, min(episodes, MAX_GAMES))
    ours = _acting(game.spec, game_id, player)
    others = _acting(game.spec, game_id, "random" if against is None else against)
    return _Table(game, ours, others, episodes, seed).play()


@dataclass(slots=True)
class _Table:
    """The games of one evaluation; slot g plays episodes g, g + n, g + 2n …, so short ones are not preferred."""

    game: Game
    ours: _Acts
    others: _Acts
    episodes: int
    seed: int
    returns: Array = field(init=False)
    scores: Array = field(init=False)  # [episodes, 2]: ours, the best of the others'

    def play(self) -> Evaluation:
        n, seats = self.game.n, len(self.game.spec.seats)
        rng, start = (np.random.default_rng([self.seed, stream]) for stream in (1, 0))
        rounds = -(-self.episodes // seats)
        seeds = np.repeat(start.integers(0, 2**64, rounds, dtype=np.uint64), seats)
        opening = np.repeat(start.random((rounds, seats)), seats, axis=0)
        self.returns, self.scores = np.zeros(self.episodes, np.float32), np.zeros((self.episodes, 2), np.float32)
        episode, earned = np.arange(n), np.zeros(n, np.float32)
        fresh = np.ones((n, seats), bool)  # no decision yet
        view = self.game.reset(seeds[episode], np.ones(n, bool))
        while (episode < self.episodes).any():
            at = np.minimum(episode, self.episodes - 1)  # a slot with nothing left to play stands still
            actions = self._decide(view, at % seats, np.where(fresh, opening[at], -1.0), rng)
            fresh &= ~view.to_act
            view = self.game.step(actions)
            earned += view.reward[np.arange(n), at % seats]
            over = view.over & (episode < self.episodes)
            if over.any():
                self.returns[episode[over]], earned[over] = earned[over], 0.0
                self._note(view, episode, over)
                episode = np.where(over, episode + n, episode)
                again = over & (episode < self.episodes)
                fresh[again] = True
                if again.any():
                    view = self.game.reset(seeds[np.minimum(episode, self.episodes - 1)], again)
        return self._result(seats)

    def _decide(self, view: View, own_seat: Array, opening: Array, rng: Generator) -> list[Array]:
        actions = []
        drawn = isinstance(self.ours, _Network) and isinstance(self.others, _Network) and opening.shape[1] > 1
        for seat, spec in enumerate(self.game.spec.seats):
            action = np.zeros((self.game.n, *spec.action.shape), spec.action.dtype)
            for mine, who in ((True, self.ours), (False, self.others)):
                rows = np.flatnonzero(view.to_act[:, seat] & ((own_seat == seat) == mine))
                if len(rows):
                    seen = {leaf: column[rows] for leaf, column in view.observation[seat].items()}
                    mask = None if (legal := view.legal[seat]) is None else legal[rows]
                    if isinstance(who, _Network):
                        slots = _Slots(rows, opening[rows, seat] >= 0, self.game.n)
                        action[rows] = who.recall(seat, slots, seen, mask, rng)
                    else:
                        action[rows] = who.act(seat, seen, mask, rng)
            if drawn and spec.action.choices:
                first = np.flatnonzero((opening[:, seat] >= 0) & view.to_act[:, seat])
                action[first] = _drawn(opening[first, seat], view.legal[seat], first, spec.action)
            actions.append(action)
        return actions

    def _note(self, view: View, episode: Array, over: Array) -> None:
        rows = np.flatnonzero(over)
        seats = view.outcome.shape[1]
        own = episode[rows] % seats
        score = view.outcome[rows]
        mine = score[np.arange(len(rows)), own]
        rest = np.where(np.arange(seats) == own[:, None], -np.inf, score).max(axis=1) if seats > 1 else mine
        self.scores[episode[rows]] = np.stack((mine, rest), axis=1)

    def _result(self, seats: int) -> Evaluation:
        if seats == 1:
            return Evaluation(self.returns)
        ahead = np.sign(self.scores[:, 0] - self.scores[:, 1])
        return Evaluation(self.returns, int((ahead > 0).sum()), int((ahead == 0).sum()), int((ahead < 0).sum()))


def _acting(spec: GameSpec, game_id: str, player: Player) -> _Acts:
    if isinstance(player, str):
        return script(game_id, player)
    if not isinstance(player, Model):
        return _Network(player, spec)
    if player.card.spec != spec.hash:
        raise ConfigError(
            f"it was made for {player.card.game} with spec {player.card.spec[:12]}, not {spec.hash[:12]}",
            where=f"model {player.id[:12]}",
            do=f"Choose a model of {game_id}",
        )
    return _Network(forward_without_torch(player.card.network, read_weights(player)), spec)


def _drawn(chance: Array, legal: Array | None, rows: Array, action: Leaf) -> Array:
    """The legal action at the share `chance` of the way along them; of several entries the first counts most."""
    allowed = np.ones((len(rows), action.masks), bool) if legal is None else legal[rows].astype(bool)
    entries = []
    for mask in np.split(allowed, np.cumsum(action.choices)[:-1], axis=1):
        place = chance * mask.sum(axis=1)
        rank = np.floor(place)
        entries.append((np.cumsum(mask, axis=1) <= rank[:, None]).sum(axis=1))
        chance = place - rank  # what the next entry has left
    return np.stack(entries, axis=1).reshape(len(rows), *action.shape)
