"""Styles: members of a league that do alike, named for what they do.

Members meet the same opponents from the same openings, and choose in the same positions (`watch`). What they did gives
features (`features_of`), less what their strength explains (`without_strength`); average linkage joins members that are
alike, and the silhouette says into how many styles (`clusters`). A style is named for the feature in which it differs
most from all others; the numbers that say so come from fresh games, since those that chose the name flatter it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.acting.evaluate import evaluate_watched, opening_decisions
from sparring.acting.players import NetworkPlayer, forward_of
from sparring.games.protocol import View
from sparring.games.spec import GameSpec, Leaf
from sparring.wire.chunk import Array
from sparring.wire.model import Model

MEMBERS, FEWEST = 32, 4  # that are watched at most, evenly by rank; with fewer there are no styles
PANEL, PAIR_GAMES = 4, 64  # opponents that all meet, evenly by rank, and games against each
POSITIONS = 1_024  # in which all choose,
POSITION_GAMES, POSITIONS_PER_GAME = 6, 48  # of so many games of each pair
PHASES = ("early", "midway", "late")  # thirds of a game
MOST_STYLES = 4
LEAST_OF_STYLE = 2  # members: what one does alone is no style
SEPARATE = 0.25  # the least silhouette; below it there is "no substantial structure" (Kaufman & Rousseeuw 1990)
ADJUSTED = 6  # members at least, from which a line through their ratings says something
MOST_CHOICES = 64  # of an action, whose shares by phase are features


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that members do more or less of, and the names of styles that do."""

    more: str
    less: str  # "": less of it is no name
    means: str  # with {0}, the style's value, and {1}, that of all others
    least: float  # a smaller difference is none
    weight: float = 1.0  # in the distance between two members
    # The value of even choices. A style that has more than all others and yet less than this has the first name of
    # `milder`, one that has less and yet more than this the second.
    even: float | None = None
    milder: tuple[str, str] = ("", "")
    plain: bool = True  # its names say something to a player; others are used only where no plain one holds


@dataclass(frozen=True, slots=True)
class Watched:
    """What members did: in common positions, and in games against common opponents."""

    actions: Array  # int32 [members, positions, entries of an action]
    phase: Array  # int64 [positions]: of PHASES
    shares: Array  # float64 [members, choices of all entries side by side]: of its actions in those games
    ticks: Array  # float64 [members]: of a game
    drawn: Array  # float64 [members]: share of games
    repeated: Array  # float64 [members]: share of decisions that are what the seat did the decision before


@dataclass(frozen=True, slots=True)
class FoundStyle:
    """A style, and which members have it."""

    name: str
    means: str
    members: tuple[int, ...]


def features_of(spec: GameSpec, seen: Watched) -> tuple[list[Feature], Array]:
    """The features of members of this game, and their values [members, features]."""
    action = spec.seats[0].action
    hot = _one_hot(seen.actions, action)  # [members, positions, choices]
    found: list[tuple[Feature, Array]] = []

    def add(more: str, less: str, means: str, least: float, values: Array) -> None:
        found.append((Feature(more, less, means, least), values))

    about = "games of {0:.1f} ticks, {1:.1f} of the others"
    add("long games", "quick games", about, max(0.05 * float(seen.ticks.mean()), 1e-9), seen.ticks)
    add("more draws", "fewer draws", "{0:.0%} of games drawn, {1:.0%} of the others'", 0.05, seen.drawn)
    alike = "chooses what another member does in {0:.0%} of common positions, the others in {1:.0%}"
    # No plain name: those of the largest cluster agree with most members, whatever they do.
    found.append((Feature("usual moves", "unusual moves", alike, 0.05, plain=False), _agreement(seen.actions)))
    repeats = "repeats its last move in {0:.0%} of decisions, the others in {1:.0%}"
    add("repeats more", "repeats less", repeats, 0.05, seen.repeated)
    variety = "its moves have {0:.0%} of the entropy of even ones, the others' {1:.0%}"
    add("varied moves", "narrow moves", variety, 0.05, _variety(seen.shares, action))
    if (away := _from_centre(spec)) is not None:
        far = "moves {0:.0%} of the way from the centre to the edge, the others {1:.0%}"
        milder = ("wide", "inner")
        board = Feature("edges", "centre", far, 0.05, even=float(away.mean()), milder=milder)
        found.append((board, seen.shares @ away))
    if action.masks <= MOST_CHOICES:
        for phase, word in enumerate(PHASES):
            there = seen.phase == phase
            for choice, values in enumerate((hot[:, there].sum(axis=1) / max(1, there.sum())).T):
                means = f"action {choice} in {{0:.0%}} of {word} positions, the others in {{1:.0%}}"
                weight = action.masks**-0.5  # all choices of a phase together count as one feature
                found.append((Feature(f"action {choice} {word}", "", means, 0.05, weight, plain=False), values))
    return [feature for feature, _ in found], np.array([values for _, values in found]).T


def without_strength(values: Array, elos: Sequence[float]) -> Array:
    """The values [members, features] less what a straight line through the members' ratings explains: that stronger
    members play longer games is no style. Of few members only the mean is taken out."""
    values, elo = values - values.mean(axis=0), np.asarray(elos, float) - np.mean(elos)
    if len(values) < ADJUSTED or not (size := float(elo @ elo)):
        return values
    return np.asarray(values - np.outer(elo, elo @ values / size))


def clusters(points: Array) -> tuple[list[int], float]:
    """The cluster of each point, numbered as their first points come, and the mean silhouette; all 0 where none of the
    divisions into 2 to MOST_STYLES separates at least two clusters of LEAST_OF_STYLE points."""
    apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2))
    groups, best, labels = [[at] for at in range(len(points))], -1.0, [0] * len(points)
    while len(groups) > 1:
        if len(groups) <= MOST_STYLES and sum(len(one) >= LEAST_OF_STYLE for one in groups) > 1:
            now = [next(k for k, one in enumerate(sorted(groups)) if at in one) for at in range(len(points))]
            if (found := silhouette(apart, now)) > best:
                best, labels = found, now
        pairs = [(a, b) for a in range(len(groups)) for b in range(a + 1, len(groups))]
        a, b = min(pairs, key=lambda pair: float(apart[np.ix_(groups[pair[0]], groups[pair[1]])].mean()))
        groups = [*(one for k, one in enumerate(groups) if k not in (a, b)), sorted(groups[a] + groups[b])]
    return (labels, best) if best >= SEPARATE else ([0] * len(points), best)


def silhouette(apart: Array, labels: Sequence[int]) -> float:
    """How much nearer points are to their own cluster than to the next one, from -1 to 1, by distances [n, n]; a point
    alone counts 0."""
    label, widths = np.array(labels), []
    for at, own in enumerate(labels):
        mine = (label == own) & (np.arange(len(label)) != at)
        if not mine.any():
            widths.append(0.0)
            continue
        inside = apart[at, mine].mean()
        outside = min(apart[at, label == other].mean() for other in set(labels) - {own})
        widths.append(float((outside - inside) / max(inside, outside, 1e-12)))
    return float(np.mean(widths))


def find_styles(
    features: Sequence[Feature], values: Array, fresh: Array, elos: Sequence[float]
) -> tuple[list[FoundStyle], float]:
    """The styles by `values` [members, features], in words that hold in `fresh` ones too, and the silhouette. A member
    that does not do what its style's name says is left out. None at all where there are fewer than two."""
    if len(values) < FEWEST:
        return [], 0.0
    rest = without_strength(values, elos)
    scaled = rest / np.maximum(rest.std(axis=0), [one.least for one in features])
    labels, separate = clusters(scaled * [one.weight for one in features])
    label, named = np.array(labels), list[tuple[bool, float, int, FoundStyle]]()
    sizes = {own: labels.count(own) for own in set(labels)}
    for own in (own for own, size in sizes.items() if LEAST_OF_STYLE <= size < len(labels)):
        mine = label == own
        for at, feature in enumerate(features):
            differs = float(scaled[mine, at].mean() - scaled[~mine, at].mean())
            style = _named(feature, values[:, at], fresh[:, at], mine, more=differs > 0)
            if style is not None and abs(differs) >= 1.0:
                named.append((not feature.plain, -abs(differs), own, style))
    found: dict[int, FoundStyle] = {}
    for _, _, own, style in sorted(named, key=lambda one: (*one[:3], one[3].name)):
        if own not in found and style.name not in {one.name for one in found.values()}:
            found[own] = style
    return ([found[own] for own in sorted(found)] if len(found) > 1 else []), separate


def _named(feature: Feature, values: Array, fresh: Array, mine: Array, *, more: bool) -> FoundStyle | None:
    """The style of the members `mine`, named for one feature of which they do more, or less; None where the feature has
    no such name, too few of them do so, or the fresh games do not show it."""
    sign = 1 if more else -1
    middle = (values[mine].mean() + values[~mine].mean()) / 2
    do = mine & (sign * (values - middle) > 0)  # one that is near in all else need not do this
    if do.sum() < LEAST_OF_STYLE:
        return None
    here, there = float(fresh[do].mean()), float(fresh[~mine].mean())
    name = feature.more if more else feature.less
    if feature.even is not None and sign * (here - feature.even) < 0:
        name = feature.milder[0 if more else 1]
    if not name or sign * (here - there) < feature.least:  # in what was measured, strength included
        return None
    return FoundStyle(name, feature.means.format(here, there), tuple(np.flatnonzero(do).tolist()))


def evenly(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


def watch(spec: GameSpec, models: Sequence[Model], seed: int) -> Watched:
    """What the models, the weakest first, do against PANEL of them, and in positions of those games."""
    rng, panel = np.random.default_rng([seed, 5]), [models[at] for at in evenly(len(models), PANEL)]
    pool, games = _Positions(spec), np.zeros((len(models), len(panel), 3))
    shares = np.zeros((len(models), spec.seats[0].action.masks))
    for at, model in enumerate(models):
        for meets, other in enumerate(panel):
            noted = _Decisions(spec, pool)
            played = evaluate_watched(
                spec.id, model, other, episodes=PAIR_GAMES, seed=100 * seed + meets, watch=noted.see
            )
            repeated = noted.repeated / max(noted.decided, 1)
            games[at, meets] = played.ticks / PAIR_GAMES, (played.draws or 0) / PAIR_GAMES, repeated
            shares[at] += noted.shares / max(noted.shares.sum(), 1.0) * len(spec.seats[0].action.choices) / len(panel)
            pool.end()
    columns, legal, phase = pool.drawn(rng)
    rows, first = np.arange(len(phase)), np.ones(len(phase), bool)
    chosen = []
    for model in models:
        samples = model.card.samples
        player = NetworkPlayer(forward_of(model), spec, len(phase), samples=samples)
        action = player.act(0, rows, first, columns, legal, rng if samples else None)
        chosen.append(action.reshape(len(phase), -1))
    return Watched(np.array(chosen), phase, shares, *games.mean(axis=1).T)


class _Positions:
    """Positions of games, with the part of the game that they are from."""

    def __init__(self, spec: GameSpec) -> None:
        first = spec.seats[0]
        alike = [(seat.observation, seat.action) == (first.observation, first.action) for seat in spec.seats]
        self.seats = np.flatnonzero(alike).tolist()
        self.every_ticks = max(1, spec.max_ticks // POSITIONS_PER_GAME)
        self._now: list[tuple[int, int, dict[str, Array], Array | None]] = []  # game, tick; of the games being played
        self._kept: list[tuple[int, dict[str, Array], Array | None]] = []  # phase

    def add(self, games: Array, view: View, seat: int) -> None:
        """Those of some games in which the seat is to choose."""
        for game in games[view.to_act[games, seat]].tolist():
            legal = view.legal[seat]
            mask = None if legal is None else legal[game]
            if mask is None or mask.sum() > 1:
                seen = {name: column[game] for name, column in view.observation[seat].items()}
                self._now.append((game, int(view.tick[game]), seen, mask))

    def end(self) -> None:
        """The games are over."""
        last = {game: tick + 1 for game, tick, _, _ in self._now}
        self._kept += [(len(PHASES) * tick // last[game], seen, mask) for game, tick, seen, mask in self._now]
        self._now = []

    def drawn(self, rng: Generator) -> tuple[dict[str, Array], Array | None, Array]:
        """POSITIONS of them at most: columns, legal choices and phases."""
        which = np.sort(rng.permutation(len(self._kept))[:POSITIONS])
        phases, seen, masks = zip(*(self._kept[at] for at in which.tolist()), strict=True)
        legal = None if masks[0] is None else np.stack(masks)
        return {name: np.stack([one[name] for one in seen]) for name in seen[0]}, legal, np.array(phases)


class _Decisions:
    """What a player decides in games, and how often it repeats its decision before. What the opening draws is left
    out."""

    def __init__(self, spec: GameSpec, positions: _Positions) -> None:
        self._action, self.shares = spec.seats[0].action, np.zeros(spec.seats[0].action.masks)
        self._positions, self._drawn = positions, opening_decisions(spec)
        self._count = np.zeros((PAIR_GAMES, len(spec.seats)), int)
        self._last: list[Array] | None = None
        self.decided = self.repeated = 0

    def see(self, view: View, actions: list[Array], own: Array) -> None:
        """One decision of all games; the watched player has the seats `own` [n, seats]."""
        some = np.arange(min(POSITION_GAMES, len(own)))
        for seat, action in enumerate(actions):
            asked = view.to_act[:, seat]
            if seat in self._positions.seats:
                own_rows = action[asked & own[:, seat] & (self._count[:, seat] >= self._drawn)]
                self.shares += _one_hot(
                    own_rows.reshape(1, len(own_rows), len(self._action.choices)), self._action
                ).sum(axis=(0, 1))
                due = some[view.tick[some] % self._positions.every_ticks < len(actions)]
                self._positions.add(due, view, seat)
            if self._last is not None:
                # Neither this decision nor the one before may be drawn by the opening.
                both = asked & own[:, seat] & (self._count[:, seat] > self._drawn)
                same = (action == self._last[seat]).reshape(len(action), -1).all(axis=1)
                self.decided += int(both.sum())
                self.repeated += int((both & same).sum())
            self._count[:, seat] += asked
        before = actions if self._last is None else self._last
        self._last = [
            np.where(view.to_act[:, seat].reshape(-1, *[1] * (action.ndim - 1)), action, before[seat])
            for seat, action in enumerate(actions)
        ]


def _one_hot(actions: Array, action: Leaf) -> Array:
    """float64 [members, positions, choices of all entries side by side]."""
    parts = [np.eye(choices)[actions[:, :, entry]] for entry, choices in enumerate(action.choices)]
    return np.concatenate(parts, axis=2)


def _agreement(actions: Array) -> Array:
    """[members]: the mean share of positions in which another member chooses the same."""
    same = (actions[:, None] == actions[None]).all(axis=3).mean(axis=2)
    return np.asarray((same.sum(axis=1) - 1) / max(1, len(same) - 1))


def _variety(shares: Array, action: Leaf) -> Array:
    """[members]: entropy of all its choices, of the entropy of even ones."""
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)
    return np.asarray(entropy / max(float(np.log(action.choices).sum()), 1e-9))


def _from_centre(spec: GameSpec) -> Array | None:
    """[choices]: 0 in the middle, 1 at the edge, where an action names a column or a cell of a board that is seen; None
    elsewhere."""
    seat = spec.seats[0]
    for leaf in seat.observation:
        if leaf.kind != "image" or seat.action.kind != "discrete" or len(leaf.shape) < 2:
            continue
        high, wide = leaf.shape[-2:]
        down, across = (np.abs(np.linspace(-1, 1, size)) if size > 1 else np.zeros(1) for size in (high, wide))
        if seat.action.masks == wide:
            return across
        if seat.action.masks == high * wide:
            return np.maximum(down[:, None], across[None]).ravel()
    return None
