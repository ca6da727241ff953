"""Off-policy evaluation of a model by recorded episodes: what `spar evaluate --from store` does.

The estimates of a policy's discounted return from others' episodes are pure functions of arrays. With
ρ_t = π(a_t|s_t) / μ(a_t|s_t) and w_t = ρ_0 … ρ_t, each estimator is a sum over t of weighted means over episodes, so a
bootstrap is a product of two matrices. An episode that is over keeps its last weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from sparring.errors import ConfigError
from sparring.games.protocol import TRUNCATED
from sparring.games.spec import GameSpec
from sparring.learn.offline.fitted_values import FitConfig, FittedValues, behaviour_logp, fitted_q, greedy_policy
from sparring.learn.offline.line_board_world import LineBoardWorld, line_board_world
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.vector_world import VectorWorld, WorldConfig, vector_world
from sparring.nets.forward import Forward
from sparring.wire.chunk import Array

RESAMPLES = 400
MOST_RATIO = 1e6  # of one step; a behaviour policy that is estimated may say 0 of what was done
FEW = 10.0  # effective episodes below which an estimate by importance is little more than a guess
LEAST_LOGP = float(np.log(1e-6))  # of an action that was taken

# A game's dynamics learned from its records, in which a model can play without players or simulator: model-based
# off-policy evaluation (Paduraru 2013, §4). Its kind depends on what a seat sees: numbers, or a board.
World = VectorWorld | LineBoardWorld


@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimator's answer. `low` and `high` hold 95 % of what resampled episodes give."""

    name: str
    value: float
    low: float
    high: float
    effective_episodes: float  # (Σw)² / Σw² of what it weighs
    note: str = ""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """w_t of every episode, [episodes, longest], and how far any of them is still above 0."""

    cumulative: Array
    followed: int  # steps up to which at least one episode does what the policy could

    @property
    def effective(self) -> float:
        last = self.cumulative[:, -1]
        return 0.0 if last.max() <= 0 else float(last.sum() ** 2 / np.square(last).sum())


def importance_weights(records: RecordedEpisodes, target: Array, behaviour_logp: Array) -> ImportanceWeights:
    """Cumulative ratios; each step's column is scaled by its largest, which cancels in every estimator below."""
    chosen = np.take_along_axis(target, records.action[:, None], axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        log_ratio = np.minimum(np.log(chosen) - behaviour_logp, np.log(MOST_RATIO))
    logs = np.cumsum(records.padded(log_ratio), axis=1)
    top = logs.max(axis=0)
    alive = np.isfinite(top)
    cumulative = np.exp(logs - np.where(alive, top, 0.0))
    return ImportanceWeights(cumulative, int(alive.sum()))


def recorded_return(records: RecordedEpisodes, discount: float, rng: Generator) -> Estimate:
    """What the players themselves earned: for comparison, not an estimate of the policy."""
    earned = (records.padded(records.reward) * discount ** np.arange(int(np.diff(records.start).max()))).sum(axis=1)
    return _mean("recorded", earned, rng)


def weighted_importance(
    records: RecordedEpisodes, weights: ImportanceWeights, discount: float, rng: Generator
) -> Estimate:
    """Per-decision weighted importance sampling (Precup et al. 2000): Σ_t γᵗ Σ_i w_t r_t / Σ_i w_t."""
    w = weights.cumulative
    earned = w * records.padded(records.reward) * discount ** np.arange(w.shape[1])

    def value(counts: Array) -> Array:
        return np.asarray(_ratio(counts @ earned, counts @ w).sum(axis=1))

    return _bootstrapped("wis", value, records.episodes, weights.effective, rng)


def fitted_q_evaluation(start_values: Array, rng: Generator) -> Estimate:
    """Mean of V^π at the first observations; its spread is that of the observations, with the fit held fixed."""
    return _mean("fqe", start_values, rng)


def doubly_robust(
    records: RecordedEpisodes, weights: ImportanceWeights, values: FittedValues, discount: float, rng: Generator
) -> Estimate:
    """Weighted doubly robust (Thomas & Brunskill 2016): the fit, corrected by weighted importance where it errs.

    Σ_t γᵗ [w̄_t (r_t − Q(s_t, a_t)) + w̄_{t−1} V(s_t)], and γᵀ w̄_{T−1} V of where an episode of T steps was cut.
    """
    w = weights.cumulative
    before = np.concatenate([np.ones((len(w), 1)), w[:, :-1]], axis=1)
    gamma = discount ** np.arange(w.shape[1] + 1)
    correction = w * records.padded(records.reward - values.q) * gamma[:-1]
    baseline = before * records.padded(values.v) * gamma[:-1]
    lengths = np.diff(records.start)
    cut = np.zeros_like(w)
    rows = np.arange(records.episodes)
    cut[rows, lengths - 1] = w[rows, lengths - 1] * values.v_final * gamma[lengths]

    def value(counts: Array) -> Array:
        own, earlier = counts @ w, counts @ before
        return np.asarray((_ratio(counts @ (correction + cut), own) + _ratio(counts @ baseline, earlier)).sum(axis=1))

    return _bootstrapped("dr", value, records.episodes, weights.effective, rng)


def world_return(returns: Array, rng: Generator) -> Estimate:
    """Mean return in a learned world, [folds, games]. Games and folds are resampled, so that the spread shows the fits'
    own errors too, as far as the folds do not share them."""
    folds, games = returns.shape
    fits = rng.multinomial(folds, np.full(folds, 1 / folds), size=RESAMPLES)
    starts = rng.multinomial(games, np.full(games, 1 / games), size=RESAMPLES)
    low, high = np.quantile(((fits @ returns) * starts).sum(axis=1) / returns.size, (0.025, 0.975))
    return Estimate("world", float(returns.mean()), float(low), float(high), float(games))


def _mean(name: str, values: Array, rng: Generator) -> Estimate:
    return _bootstrapped(name, lambda counts: counts @ values / len(values), len(values), float(len(values)), rng)


def _bootstrapped(
    name: str, value: Callable[[Array], Array], episodes: int, effective: float, rng: Generator
) -> Estimate:
    """The estimate on the episodes as they are, and its spread over resampled ones."""
    once = float(value(np.ones((1, episodes)))[0])
    counts = rng.multinomial(episodes, np.full(episodes, 1 / episodes), size=RESAMPLES).astype(np.float64)
    low, high = np.quantile(value(counts), (0.025, 0.975))
    return Estimate(name, once, float(low), float(high), effective)


def _ratio(top: Array, bottom: Array) -> Array:
    """0 where no episode has any weight left."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


@dataclass(frozen=True, slots=True)
class OfflineEvaluation:
    """Every estimate of the model's discounted return, beside what the players earned, and what is missing."""

    episodes: int
    steps: int
    discount: float
    behaviour: str  # "recorded", "estimated by bc" or both with their shares
    estimates: tuple[Estimate, ...]
    advised: str  # the name of the one to rank models by: by a rule that does not depend on the estimates
    missing: tuple[str, ...]  # sentences

    def of(self, name: str) -> Estimate:
        """The estimate of that name."""
        return next(one for one in self.estimates if one.name == name)


def evaluate_offline(
    records: RecordedEpisodes,
    forward: Forward,
    game: GameSpec,
    *,
    discount: float,
    seed: int,
    fit: FitConfig | None = None,
    world: World | None = None,
) -> OfflineEvaluation:
    """Estimates of the greedy policy's return. The same seed gives the same answer.

    `world` is `world_of` the same records, for callers that evaluate several models; by default it is fitted here.
    """
    if not 0 < discount <= 1:
        raise ConfigError(f"--discount {discount:g}", where="spar evaluate", do="Give more than 0 and at most 1")
    if game.frame_stack != 1:
        wrong = f"frame_stack = {game.frame_stack}, and records are evaluated by single frames"
        raise ConfigError(wrong, where=f"game {game.id}", do="Let the model play: leave out --from store")
    config = fit or FitConfig()
    policy = greedy_policy(forward, records)
    known = ~np.isnan(records.logp)
    players = np.maximum(behaviour_logp(records, game, seed, config), LEAST_LOGP)
    weights = importance_weights(records, policy.steps, players)
    values = fitted_q(records, policy, game, discount, seed, config)
    rng = np.random.default_rng([seed, 0xB0])
    fixed = "spread of the first observations; the fit is fixed"
    share = f"{weights.followed} of {weights.cumulative.shape[1]} steps followed"
    found = [
        recorded_return(records, discount, rng),
        replace(weighted_importance(records, weights, discount, rng), note=share),
        replace(fitted_q_evaluation(values.v[records.first], rng), note=fixed),
        replace(doubly_robust(records, weights, values, discount, rng), note=share),
    ]
    lacking = _missing(records, known, weights.effective, weights.followed)
    advised = "dr"
    world = world or world_of(records, game, seed, config.world)
    if world is not None:
        returns = world.returns(records, forward, game, discount, rng)
        found.append(replace(world_return(returns, rng), note=world.note))
        advised = "world" if world.trusted else advised
    behaviour = _behaviour(known)
    return OfflineEvaluation(records.episodes, records.steps, discount, behaviour, tuple(found), advised, lacking)


def world_of(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig) -> World | None:
    """A world fitted to the records; None where the game is of neither kind, or too few episodes are recorded."""
    if records.episodes < 2 * config.folds:
        return None
    return vector_world(records, game, seed, config) or line_board_world(records, game, seed, config)


def _behaviour(known: Array) -> str:
    share = float(known.mean())
    if share == 1.0:
        return "recorded"
    return "estimated by bc" if share == 0.0 else f"recorded for {share:.0%} of the steps, the rest estimated by bc"


def _missing(records: RecordedEpisodes, known: Array, effective: float, followed: int) -> tuple[str, ...]:
    said = [f"{count} episodes are left out: {why}" for why, count in records.left_out.items() if count]
    if not known.all():
        said.append(
            f"behaviour_logp is missing from {1 - known.mean():.0%} of the steps; "
            "a clone of the players (bc) stands in for it"
        )
    if effective < FEW:
        said.append(f"wis rests on {effective:.1f} effective episodes: the players seldom did what the model would")
    if followed < int(np.diff(records.start).max()):
        said.append(
            f"no recorded episode does as the model beyond its step {followed}; wis counts nothing after it, dr the fit"
        )
    if cut := int((records.ending == TRUNCATED).sum()):
        said.append(f"{cut} episodes were cut short: recorded and wis count nothing after the cut, fqe and dr go on")
    return tuple(said)
