"""Off-policy evaluation of a model by recorded episodes: what `spar evaluate --from store` does."""

from dataclasses import dataclass, replace

import numpy as np

from sparring.errors import ConfigError
from sparring.games.protocol import TRUNCATED
from sparring.games.spec import GameSpec
from sparring.learn.offline.estimators import (
    Estimate,
    doubly_robust,
    fitted_q_evaluation,
    importance_weights,
    recorded_return,
    weighted_importance,
    world_return,
)
from sparring.learn.offline.fitted_values import FitConfig, behaviour_logp, fitted_q, greedy_policy
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.worlds import World, world_of
from sparring.nets.forward import Forward
from sparring.wire.chunk import Array

FEW = 10.0  # effective episodes below which an estimate by importance is little more than a guess
LEAST_LOGP = float(np.log(1e-6))  # of an action that was taken


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
