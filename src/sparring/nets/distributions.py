"""Probability distributions over actions in torch: the same as nets/policies.py, with gradients.

Where actions are discrete: p = softmax of the legal logits. Where they are multi-discrete: the product of such a p for
each entry. Where they are a box: u ~ N(mean, exp(log_std)²), and the action is u, or low + (high − low)(tanh u + 1)/2
where the game sets bounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparring.games.spec import Leaf
from sparring.nets.policies import LOG_STD, bounds_of

ILLEGAL = -1e9
EDGE = 1e-6  # how near to a bound an action may lie, as a share of the way: its raw number stays finite
# Places and weights for the mean of a function of a standard normal number.
_NODES, _SHARES = (torch.from_numpy(x.astype(np.float32)) for x in np.polynomial.hermite_e.hermegauss(9))
_SHARES = _SHARES / _SHARES.sum()
Outputs = Mapping[str, Tensor]  # of a network: heads by name, [n, units]


@dataclass(frozen=True, slots=True)
class Categorical:
    """Heads: "logits", those of the entries side by side. Actions are [n, *shape], each entry drawn for itself.
    Leading axes are free: [n] or [time, n]."""

    choices: tuple[int, ...]  # of each entry; a discrete action is one
    shape: tuple[int, ...]

    def logps(self, out: Outputs, legal: Tensor | None) -> list[Tensor]:
        """log π(a|s) for every a of each entry, [n, choices]; impossible where a is not legal."""
        logits = out["logits"] if legal is None else out["logits"].masked_fill(~legal, ILLEGAL)
        return [torch.log_softmax(entry, -1) for entry in torch.split(logits, list(self.choices), -1)]

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        """log-probability of each action, [n]."""
        return self._of(self.logps(out, legal), action)

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """[n]"""
        return _sum([-(logps.exp() * logps).sum(-1) for logps in self.logps(out, legal)])

    def evaluate(self, out: Outputs, action: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        """log-probability and entropy at once, which costs less."""
        entries = self.logps(out, legal)
        return self._of(entries, action), _sum([-(logps.exp() * logps).sum(-1) for logps in entries])

    def best(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The likeliest action of each row, [n, *shape]."""
        found = torch.stack([logps.argmax(-1) for logps in self.logps(out, legal)], -1)
        return found.reshape(*found.shape[:-1], *self.shape)

    def mean_logp(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The mean of log π(a|s) over the legal a, [n]: that of each entry, added up."""
        entries = self.logps(out, legal)
        allowed = torch.ones_like(out["logits"]) if legal is None else legal.float()
        masks = torch.split(allowed, list(self.choices), -1)
        return _sum([(logps * mask).sum(-1) / mask.sum(-1) for logps, mask in zip(entries, masks, strict=True)])

    def _of(self, entries: list[Tensor], action: Tensor) -> Tensor:
        chosen = action.flatten(-len(self.shape)) if self.shape else action.unsqueeze(-1)
        places = torch.split(chosen.long(), 1, -1)
        return _sum([logps.gather(-1, at).squeeze(-1) for logps, at in zip(entries, places, strict=True)])


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Heads: "mean", "log_std". Actions are float32 [n, *shape]. Its entropy is that of the action, at most the log of
    the bounds' distance for each number."""

    bounds: tuple[float, float] | None
    shape: tuple[int, ...]

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        return self._density(self.raw(action), out)

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        spread = out["log_std"].clamp(*LOG_STD)
        each = spread + 0.5 * math.log(2 * math.pi * math.e)
        if self.bounds is not None:  # H(a) = H(u) + E[log da/du], by Gauss-Hermite quadrature
            raw = out["mean"].unsqueeze(-1) + spread.exp().unsqueeze(-1) * _NODES
            slope = 2 * (math.log(2.0) - raw - functional.softplus(-2 * raw))
            each = each + math.log(0.5 * (self.bounds[1] - self.bounds[0])) + (slope * _SHARES).sum(-1)
        return each.sum(-1)

    def evaluate(self, out: Outputs, action: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.logp(out, action, legal), self.entropy(out, legal)

    def draw(self, out: Outputs, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """An action of each row and its log density, both with a gradient to the outputs."""
        mean = out["mean"]
        raw = mean + out["log_std"].clamp(*LOG_STD).exp() * torch.randn(mean.shape, generator=draw)
        return self.squashed(raw), self._density(raw, out)

    def squashed(self, raw: Tensor) -> Tensor:
        """The action of a raw number, [n, *shape]."""
        if self.bounds is not None:
            low, high = self.bounds
            raw = low + (high - low) * 0.5 * (torch.tanh(raw) + 1)
        return raw.reshape(*raw.shape[:-1], *self.shape)

    def raw(self, action: Tensor) -> Tensor:
        """The number [n, numbers] that was squashed into `action`."""
        flat = action.flatten(-len(self.shape)) if self.shape else action.unsqueeze(-1)
        if self.bounds is None:
            return flat
        low, high = self.bounds
        return torch.atanh((2 * (flat - low) / (high - low) - 1).clamp(-1 + EDGE, 1 - EDGE))

    def _density(self, raw: Tensor, out: Outputs) -> Tensor:
        spread = out["log_std"].clamp(*LOG_STD)
        each = -0.5 * ((raw - out["mean"]) * torch.exp(-spread)).square() - spread - 0.5 * math.log(2 * math.pi)
        if self.bounds is not None:
            low, high = self.bounds
            each = each - math.log(0.5 * (high - low)) - 2 * (math.log(2.0) - raw - functional.softplus(-2 * raw))
        return each.sum(-1)


Distribution = Categorical | Gaussian


def distribution(action: Leaf) -> Distribution:
    """The one that suits a seat's actions."""
    if action.choices:
        return Categorical(action.choices, action.shape)
    return Gaussian(bounds_of(action), action.shape)


def _sum(entries: list[Tensor]) -> Tensor:
    return entries[0] if len(entries) == 1 else torch.stack(entries).sum(0)
