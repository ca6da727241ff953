"""GAE, V-trace, n-step returns and the losses that several algorithms share: pure functions, each with its equation
here and a slow version in its test.

Shapes are [time, batch]. A true end (TERMINATED) is worth nothing afterwards; a cut one (TRUNCATED) is worth the
value of the view at which it was cut: that difference is what most wrong implementations have in common.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparring.games.protocol import RUNNING, TERMINATED
from sparring.wire.chunk import Array


def next_values(
    value: Array, ending: Array, bootstrap: Array, truncation_value: Array | None, mask: Array | None
) -> Array:
    """v'_t: what follows step t. 0 after a true end, V(cut view) after a cut one, else V(s_{t+1}).

    `bootstrap` [batch] values the view after each sequence's last step; steps where `mask` is false are
    padding at the end of a sequence, so the last true one is followed by the bootstrap.
    """
    following = np.concatenate([value[1:], bootstrap[None]]).astype(np.float32)
    if mask is not None:
        following = np.where(_last(mask), bootstrap[None], following * mask)
    cut = np.zeros_like(value) if truncation_value is None else truncation_value
    return np.where(ending == RUNNING, following, np.where(ending == TERMINATED, 0.0, cut)).astype(np.float32)


def gae(reward: Array, value: Array, following: Array, ending: Array, discount: float, trace_decay: float) -> Array:
    """Generalised advantages (Schulman et al. 2016): A_t = δ_t + γλ A_{t+1} within an episode.

    δ_t = r_t + γ v'_t − v_t. `following` is v' from `next_values`. Padding never reaches a true step, as long as
    its reward, value and following are 0.
    """
    delta = reward + discount * following - value
    carry = np.where(ending == RUNNING, np.float32(discount * trace_decay), np.float32(0.0))
    return _backwards(delta.astype(np.float32), carry)


def discounted_returns(
    reward: Array, following: Array, ending: Array, discount: float, mask: Array | None = None
) -> Array:
    """G_t = r_t + γ G_{t+1} within an episode; a sequence's last step and a cut one go on with γ v'_t.

    The n-step return of A3C, n being what is left of the sequence.
    """
    stops = (ending != RUNNING) | _last(np.ones(reward.shape, bool) if mask is None else mask)
    first = reward + discount * following * stops
    return _backwards(first.astype(np.float32), np.where(stops, np.float32(0.0), np.float32(discount)))


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where V-trace cuts the ratio ρ = π(a|s) / μ(a|s) of the policy that learns to the one that acted."""

    correction: float = 1.0  # ρ̄: which policy's value is learned; infinity: π's own, 0: μ's
    trace: float = 1.0  # c̄: how far a surprise travels back
    decay: float = 1.0  # λ: each c is multiplied by it (Espeholt et al. 2018, remark 2)


def vtrace(
    reward: Array, value: Array, following: Array, ending: Array, ratio: Array, discount: float, cut: Truncation
) -> tuple[Array, Array]:
    """V-trace (Espeholt et al. 2018): the values v that V should have had, and the advantages of what was done.

    v_t = V_t + δ_t + γ c_t (v_{t+1} − V_{t+1}) within an episode, where δ_t = ρ_t (r_t + γ v'_t − V_t),
    ρ_t = min(ρ̄, ratio_t), c_t = λ min(c̄, ratio_t). A_t = ρ_t (r_t + γ v_{t+1} − V_t), v_{t+1} being v'_t where nothing
    follows. `following` is v' from `next_values`. With ratio 1 everywhere v is the n-step return. Padding never
    reaches a true step, as long as its reward, value and following are 0.
    """
    correction = np.minimum(ratio, np.float32(cut.correction))
    delta = correction * (reward + discount * following - value)
    trace = np.float32(discount * cut.decay) * np.minimum(ratio, np.float32(cut.trace))
    excess = _backwards(delta.astype(np.float32), np.where(ending == RUNNING, trace, np.float32(0.0)))
    later = np.where(ending == RUNNING, np.concatenate([excess[1:], np.zeros_like(excess[:1])]), np.float32(0.0))
    advantage = correction * (reward + discount * (following + later) - value)
    return value + excess, advantage.astype(np.float32)


def _last(mask: Array) -> Array:
    """True at the last true step of each sequence."""
    return np.asarray(mask & ~np.concatenate([mask[1:], np.zeros_like(mask[:1])]))


def _backwards(start: Array, carry: Array) -> Array:
    """x_t = start_t + carry_t x_{t+1}, from the last row to the first."""
    result = np.empty_like(start)
    tail = np.zeros_like(start[0])
    for t in range(len(start) - 1, -1, -1):
        tail = start[t] + carry[t] * tail
        result[t] = tail
    return result


def huber(error: Tensor, threshold: float = 1.0) -> Tensor:
    """½e² where |e| ≤ threshold, threshold·(|e| − ½ threshold) beyond: its gradient is clipped at ±threshold."""
    size = error.abs()
    return torch.where(size <= threshold, 0.5 * error * error, threshold * (size - 0.5 * threshold))


def quantile_huber(predicted: Tensor, target: Tensor, threshold: float = 1.0) -> Tensor:
    """Σ_i E_j |τ_i − 1(u_ij < 0)| huber(u_ij) / threshold, u_ij = target_j − predicted_i (Dabney et al. 2018).

    [n] of predicted [n, N], quantiles at τ_i = (i + ½)/N, and target [n, M], any samples of what they are of.
    """
    count = predicted.shape[1]
    shares = (torch.arange(count, dtype=predicted.dtype) + 0.5) / count
    error = target.unsqueeze(1) - predicted.unsqueeze(2)
    lean = (shares.unsqueeze(1) - (error.detach() < 0).to(error.dtype)).abs()
    return (lean * huber(error, threshold)).mean(2).sum(1) / threshold


def rescaled(x: Tensor, slope: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(√(|x| + 1) − 1) + εx (Pohlen et al. 2018): large values shrink, and none is cut."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + slope * x


def unscaled(y: Tensor, slope: float = 1e-3) -> Tensor:
    """h⁻¹(y): with u = √(|x| + 1) it solves εu² + u − (1 + ε + |y|) = 0, written so that no digits cancel."""
    c = y.abs() + 1 + slope
    u = 2 * c / (1 + (1 + 4 * slope * c).sqrt())
    return y.sign() * (u * u - 1)


def explained_variance(predicted: Array, target: Array) -> float:
    """1 − Var(target − predicted) / Var(target): 1 is perfect, 0 no better than a constant."""
    variance = float(np.var(target))
    return 0.0 if variance == 0.0 else 1.0 - float(np.var(target - predicted)) / variance


def normalised(advantage: Tensor) -> Tensor:
    """(A − mean) / deviation: the scale of a game's rewards no longer sets the step."""
    return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
