"""Estimates of a policy's discounted return from others' episodes, as pure functions of arrays.

With ρ_t = π(a_t|s_t) / μ(a_t|s_t) and w_t = ρ_0 … ρ_t, each estimator is a sum over t of weighted means over
episodes, so a bootstrap is a product of two matrices. An episode that is over keeps its last weight.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.learn.offline.records import RecordedEpisodes
from sparring.wire.chunk import Array

RESAMPLES = 400
MOST_RATIO = 1e6  # of one step; a behaviour policy that is estimated may say 0 of what was done


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


@dataclass(frozen=True, slots=True)
class FittedValues:
    """A fitted Q^π on the records: Q of the actions taken, V of the observations, V of the final observations."""

    q: Array  # [steps]
    v: Array  # [steps]
    v_final: Array  # [episodes]; 0 after a true end


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
