"""What a change of the rules does to a game's balance: the same members play two versions of it.

In a round every pair of members (and each member against itself) plays one opening from every seat, in both versions:
with the same seed and the same first moves, which are drawn. What a seat, an opening or a member scored in the second
version less what it scored in the first is one result of that round; `sequential_test` judges each row of results after
32, 64, 128 … rounds. All rows share one error rate: each claims a change, up or down, at `ALPHA` / (2 x rows).
Without opponents returns take the place of scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from sparring.acting.evaluate import drawn_actions, opening_decisions
from sparring.acting.players import NetworkPlayer, decide, forward_of
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import BUILT_IN, open_game, spec_of
from sparring.games.protocol import View
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.league.gate import ALPHA, BATCH, LEAST_DEVIATION, SCALE
from sparring.league.sequential_test import EVEN, Counts, ErrorRates, Verdict, interval, judge
from sparring.registry.registry import Registry
from sparring.wire.chunk import Array
from sparring.wire.model import Model

ROUNDS_AT_ONCE = 128
GAIN = 0.05  # a change of five points in a hundred games is worth finding
MOST_MODELS = 3
MOST_OPENINGS = 64  # more first moves than these are not told apart
WHERE = "spar league diff"


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two versions: the id that opens it, and its spec."""

    id: str
    spec: GameSpec

    @property
    def label(self) -> str:
        return f"{self.id} {self.spec.version}"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one seat, opening or member. `change` lies between `low` and `high`, for all rows at once with
    95 % confidence; they are shares of the points, or returns where the game has no opponents."""

    kind: str  # "seat", "opening", "member"
    name: str
    before: float | None  # None: it does not occur in that version
    after: float | None
    low: float
    high: float
    verdict: str  # a Verdict of the second version against the first; "" where one is missing
    rounds: int


@dataclass(frozen=True, slots=True)
class Report:
    versions: tuple[str, str]
    members: tuple[str, ...]
    changes: list[Change]
    games: int  # in each version
    alpha: float  # of each claim
    opponents: bool  # False: figures are returns
    decided: bool  # False: the games ended before every row had an answer


def two_versions(words: Sequence[str], entries: Sequence[str]) -> tuple[Version, Version]:
    """The versions that `GAME V1 V2` (of the ids `entries`, in which `games` of spar.toml lists them) or `ID ID`
    names; ConfigError where their seats or actions differ, so that no one can play both."""
    if len(words) == 3:
        opened = [Version(one, spec_of(one)) for one in (*BUILT_IN, *entries) if not one.endswith(".toml")]
        found = {one.spec.version: one for one in opened if one.spec.id == words[0]}
        if missing := [one for one in words[1:] if one not in found]:
            known = ", ".join(found) or "none"
            do = f"Known here with code: {known}. List both under `games` in spar.toml, or write their ids"
            raise Missing(f"there is no version {missing[0]!r} of {words[0]} to play", where=WHERE, do=do)
        first, second = (found[one] for one in words[1:])
    elif len(words) == 2:
        first, second = (Version(one, spec_of(one)) for one in words)
    else:
        raise ConfigError(" ".join(words), where=WHERE, do="Write: spar league diff GAME V1 V2, or diff ID ID")
    seats = [[(seat.name, seat.team) for seat in one.spec.seats] for one in (first, second)]
    if seats[0] != seats[1]:
        names = [", ".join(f"{name} (team {team})" for name, team in one) for one in seats]
        raise ConfigError(f"their seats differ: {names[0]}; {names[1]}", where=WHERE, do="Compare games of like seats")
    for one, other in zip(first.spec.seats, second.spec.seats, strict=True):
        if one.action != other.action:
            wrong = f"seat {one.name} has other actions in {second.id} than in {first.id}"
            raise ConfigError(wrong, where=WHERE, do="Compare versions whose actions are the same")
    return first, second


def members_of_both(versions: tuple[Version, Version], registry: Registry, models: int) -> dict[str, Model | str]:
    """Who can play both: "random"; and, where observations are the same, the scripts of either, champions and newest
    models of either."""
    members: dict[str, Model | str] = {"script:random": "random"}
    first, second = (one.spec for one in versions)
    seen = [[seat.observation for seat in spec.seats] for spec in (first, second)]
    if seen[0] != seen[1] or first.frame_stack != second.frame_stack:
        return members
    members |= {f"script:{name}": name for spec in (first, second) for name in scripts_for(spec.id)}
    champions, newest = [], []
    for spec in dict.fromkeys((first, second)):
        champions += [entry.champion.model for entry in reversed(registry.history(spec.id, spec.version))]
        newest += [one.card.id for one in reversed(registry.models(spec.id)) if one.card.spec == spec.hash]
    wanted = [one for one in dict.fromkeys([*champions, *newest]) if one in newest]
    return members | {one: registry.fetch(one) for one in wanted[: min(models, MOST_MODELS)]}


@dataclass(frozen=True, slots=True)
class _Deal:
    """What a table plays at once: who against whom, in which rounds, with which first moves."""

    players: tuple[NetworkPlayer | Script, NetworkPlayer | Script]
    round: Array  # int [n]: of each game; those too many play the last one again
    own: Array  # bool [n, seats]: the first player's seats
    chances: Array  # float64 [rounds, seats, decisions]
    rng: Generator

    def drawn(self, spec: GameSpec) -> int:
        """How many first decisions of each seat are drawn: one, or enough to tell games of two networks apart."""
        fixed = all(isinstance(one, NetworkPlayer) and not one.samples for one in self.players)
        return opening_decisions(spec) if fixed else 1


class Table:
    """One version, opened, with all members at it."""

    def __init__(self, version: Version, other: Version, members: dict[str, Model | str]) -> None:
        self.spec = version.spec
        self._game = open_game(version.id, ROUNDS_AT_ONCE * len(self.spec.seats))
        teams = np.array([seat.team for seat in self.spec.seats])
        self._rivals = teams != teams[:, None]
        self._players = [self._opened(player, other.spec) for player in members.values()]

    def _opened(self, player: Model | str, other: GameSpec) -> NetworkPlayer | Script:
        if isinstance(player, Model):
            return NetworkPlayer(forward_of(player), self.spec, self._game.n, samples=player.card.samples)
        whose = self.spec if player in scripts_for(self.spec.id) else other
        return script_for(replace(self.spec, id=whose.id), player)

    def play(self, pair: tuple[int, int], seeds: Array, chances: Array, rng: Generator) -> tuple[Array, Array]:
        """One round for each seed: what every seat scored, [rounds, seat of the pair's first, seats], and the first
        action of each round with the seat that took it, [rounds, 2]; -1 where it is no discrete one."""
        n, seats = self._game.n, len(self.spec.seats)
        games = np.minimum(np.arange(n) // seats, len(seeds) - 1)
        one, other = (self._players[place] for place in pair)
        deal = _Deal((one, other), games, ~self._rivals[np.arange(n) % seats], chances, rng)
        decisions, first, returns = np.zeros((n, seats), np.int64), np.full((n, 2), -1), np.zeros((n, seats))
        view = self._game.reset(np.asarray(seeds, np.uint64)[games], np.ones(n, bool))
        while not view.over.all():
            actions = [self._actions(seat, view, decisions[:, seat], deal) for seat in range(seats)]
            for seat in range(seats) if not decisions.all() else ():
                begins = view.to_act[:, seat] & (decisions.sum(axis=1) == 0) & (first[:, 0] < 0)
                if self.spec.seats[seat].action.kind == "discrete":
                    first[begins] = np.stack([actions[seat][begins], np.full(begins.sum(), seat)], axis=1)
            decisions += view.to_act
            view = self._game.step(actions)
            returns += view.reward
        scores = self._scores(view.outcome) if self.spec.has_rivals else returns
        counted = len(seeds) * seats
        return scores[:counted].reshape(-1, seats, seats), first[:counted:seats]

    def _actions(self, seat: int, view: View, decisions: Array, deal: _Deal) -> Array:
        leaf, to_act, legal = self.spec.seats[seat].action, view.to_act[:, seat], view.legal[seat]
        action = np.zeros((self._game.n, *leaf.shape), leaf.dtype)
        for mine, player in zip((True, False), deal.players, strict=True):
            if len(rows := np.flatnonzero(to_act & (deal.own[:, seat] == mine))):
                seen = {name: column[rows] for name, column in view.observation[seat].items()}
                mask = None if legal is None else legal[rows]
                action[rows] = decide(player, seat, rows, decisions[rows] == 0, seen, mask, deal.rng)
        rows = np.flatnonzero(to_act & (decisions < deal.drawn(self.spec)))
        if len(rows) and leaf.choices:
            chance = deal.chances[deal.round[rows], seat, decisions[rows]]
            action[rows] = drawn_actions(chance, legal, rows, leaf)
        return action

    def _scores(self, outcome: Array) -> Array:
        """[n, seats]: the share of its rivals that each seat beat, an equal one being half."""
        beat = np.sign(outcome[:, :, None] - outcome[:, None, :]) / 2 + EVEN
        scores: Array = (beat * self._rivals).sum(axis=2) / self._rivals.sum(axis=1)
        return scores


@dataclass(frozen=True, slots=True)
class _Played:
    """What was scored in the rounds so far, in one version."""

    scores: Array  # float64 [rounds, pairs, seat of the pair's first, seats]
    first: Array  # int [rounds, 2]: the first action, and who took it


Row = Callable[[_Played], Array]  # float64 [rounds]: what it scored; NaN where it did not occur


class Comparison:
    """The rounds of two versions, and what they say."""

    def __init__(self, versions: tuple[Version, Version], members: dict[str, Model | str], seed: int) -> None:
        first, second = versions
        self.versions, self.members = versions, members
        self._tables = (Table(first, second, members), Table(second, first, members))
        self.opponents, places = first.spec.has_rivals, range(len(members))
        self._pairs = [(a, b) for a in places for b in places if a <= b and (self.opponents or a == b)]
        self._seed, self._batches = seed, 0
        self._decisions = max(opening_decisions(one.spec) for one in versions)
        self._played: tuple[list[_Played], list[_Played]] = ([], [])
        self.rows = self._rows()
        self.alpha = ALPHA / (2 * max(1, len(self.rows)))
        self._limit = 1.0 if self.opponents else self._spread()
        self.rates = ErrorRates(self.alpha, gain=GAIN / 2) if self.opponents else ErrorRates(self.alpha)

    @property
    def games_per_round(self) -> int:
        """In each version."""
        return len(self._pairs) * len(self.versions[0].spec.seats)

    def play(self, rounds: int) -> None:
        """So many more rounds of both versions."""
        for begun in range(0, rounds, ROUNDS_AT_ONCE):
            for version, played in enumerate(self._batch(min(ROUNDS_AT_ONCE, rounds - begun))):
                self._played[version].append(played)

    def _batch(self, rounds: int) -> list[_Played]:
        self._batches += 1
        start = np.random.default_rng([self._seed, self._batches])
        seeds = start.integers(0, 2**64, rounds, dtype=np.uint64)
        chances = start.random((rounds, len(self.versions[0].spec.seats), self._decisions))
        found = []
        for table in self._tables:
            told = [
                table.play(pair, seeds, chances, np.random.default_rng([self._seed, self._batches, number]))
                for number, pair in enumerate(self._pairs)
            ]
            found.append(_Played(np.stack([scores for scores, _ in told], axis=1), told[0][1]))
        return found

    def _spread(self) -> float:
        """The difference of returns that counts as a game won, from games that are not judged."""
        returns = self._batch(BATCH)[0].scores
        return float(SCALE * max(returns.std(), LEAST_DEVIATION * abs(returns.mean()))) or 1.0

    def _rows(self) -> list[tuple[str, str, Row]]:
        seats = self.versions[0].spec.seats
        rows: list[tuple[str, str, Row]] = []
        if self.opponents:
            for number, seat in enumerate(seats):
                rows.append(("seat", seat.name, partial(_of_seat, number)))
        choices = max((seat.action.choices[0] for seat in seats if seat.action.kind == "discrete"), default=0)
        if choices <= MOST_OPENINGS:
            rows += [("opening", str(action), partial(_of_opening, action)) for action in range(choices)]
        if len(self.members) > 1 or not self.opponents:
            own = np.array([seat.team for seat in seats])
            for number, name in enumerate(self.members):
                rows.append(("member", name, partial(_of_member, number, self._pairs, own == own[:, None])))
        return rows

    def changes(self) -> tuple[list[Change], bool]:
        """Every row so far, and whether more rounds would hardly change a verdict."""
        before, after = (
            _Played(np.concatenate([one.scores for one in parts]), np.concatenate([one.first for one in parts]))
            for parts in self._played
        )
        told, all_final = [], True
        for kind, name, row in self.rows:
            old, new = (values[~np.isnan(values)] for values in (row(before), row(after)))
            if not len(old) and not len(new):
                continue
            rounds = min(len(old), len(new))
            results = np.clip((new[:rounds] - old[:rounds]) / self._limit, -1.0, 1.0) / 2 + EVEN
            verdict, final = self._judged(results)
            low, high = ((end - EVEN) * 2 * self._limit for end in interval(results, 2 * self.alpha))
            was, is_now = (float(values.mean()) if len(values) else None for values in (old, new))
            told.append(Change(kind, name, was, is_now, low, high, verdict if rounds else "", rounds))
            all_final &= final or not rounds
        return told, all_final

    def _judged(self, results: Array) -> tuple[Verdict, bool]:
        """The verdict, and whether it is final: a change, or shown to be less than what is worth finding."""
        (verdict, _), counts, rates = judge(results, self.rates), Counts.of(results), self.rates
        same = counts.above(EVEN - rates.gain, rates.alpha) & counts.below(EVEN + rates.gain, rates.alpha)
        verdict = Verdict.UNDECIDED if verdict is Verdict.NOT_BETTER else verdict  # at a rate that lines do not share
        return verdict, bool(verdict in (Verdict.BETTER, Verdict.WORSE) or same)


def _of_seat(seat: int, played: _Played) -> Array:
    scores: Array = played.scores[:, :, :, seat].mean(axis=(1, 2))
    return scores


def _of_opening(action: int, played: _Played) -> Array:
    """What who moved first scored, in the rounds that began with this action."""
    taken = np.flatnonzero(played.first[:, 0] == action)
    values = np.full(len(played.first), np.nan)
    values[taken] = played.scores[taken, :, :, played.first[taken, 1]].mean(axis=(1, 2))
    return values


def _of_member(member: int, pairs: Sequence[tuple[int, int]], own: Array, played: _Played) -> Array:
    """Its mean score against the others; without opponents its mean return."""
    told = []
    for number, pair in enumerate(pairs):
        if member in pair and (pair[0] != pair[1] or own.all()):
            mine = own if pair[0] == member else ~own  # [seat of the pair's first, seats]
            told.append((played.scores[:, number] * mine).sum(axis=(1, 2)) / mine.sum())
    scores: Array = np.mean(told, axis=0)
    return scores


def compare(
    versions: tuple[Version, Version],
    members: dict[str, Model | str],
    *,
    most_games: int,
    seed: int,
    going: Callable[[int], bool] = lambda games: True,
) -> Report:
    """Play rounds until every row has an answer, `most_games` were played in each version, or `going`, which is told
    how many were, is False."""
    comparison = Comparison(versions, members, seed)
    most, rounds, look = max(1, most_games // comparison.games_per_round), 0, BATCH
    while True:
        look = min(look, most)
        comparison.play(look - rounds)
        changes, decided = comparison.changes()
        rounds, look = look, 2 * look
        games = rounds * comparison.games_per_round
        if decided or rounds == most or not going(games):
            labels = (versions[0].label, versions[1].label)
            return Report(labels, tuple(members), changes, games, comparison.alpha, comparison.opponents, decided)
