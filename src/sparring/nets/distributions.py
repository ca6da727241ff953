"""Probability distributions over actions in torch: the same as nets/policies.py, with gradients.

Where actions are discrete: p = softmax of the legal logits. Where they are multi-discrete: the product of such a p for
each entry. Where they are a box: u ~ N(mean, exp(log_std)²), and the action is u, or low + (high − low)(tanh u + 1)/2
where the game sets bounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from sparring.games.spec import Leaf
from sparring.nets.policies import LOG_STD, bounds_of

ILLEGAL = -1e9
EDGE = 1e-6  # how near to a bound an action may lie, as a share of the way: its raw number stays finite
Outputs = Mapping[str, Tensor]  # of a network: heads by name, [n, units]


class Distribution(Protocol):
    """Of one action leaf. Leading axes are free: [n] or [time, n]."""

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        """log-probability, or log-density, of each action, [n]."""
        ...

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """[n]; of a squashed Gaussian that of the Gaussian before it is squashed."""
        ...

    def evaluate(self, out: Outputs, action: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        """log-probability and entropy at once, which costs less."""
        ...


@dataclass(frozen=True, slots=True)
class Categorical:
    """Heads: "logits"."""

    def logps(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """log π(a|s) for every a, [n, choices]; impossible where a is not legal."""
        logits = out["logits"]
        return torch.log_softmax(logits if legal is None else logits.masked_fill(~legal, ILLEGAL), -1)

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        return self.logps(out, legal).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        logps = self.logps(out, legal)
        return -(logps.exp() * logps).sum(-1)

    def evaluate(self, out: Outputs, action: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        logps = self.logps(out, legal)
        return logps.gather(-1, action.long().unsqueeze(-1)).squeeze(-1), -(logps.exp() * logps).sum(-1)

    def best(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The likeliest action of each row, [n]."""
        return self.logps(out, legal).argmax(-1)

    def mean_logp(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The mean of log π(a|s) over the legal a, [n]."""
        logps = self.logps(out, legal)
        allowed = torch.ones_like(logps) if legal is None else legal.float()
        return (logps * allowed).sum(-1) / allowed.sum(-1)


@dataclass(frozen=True, slots=True)
class MultiCategorical:
    """Heads: "logits", the entries side by side. Actions are [n, *shape], each entry drawn for itself."""

    choices: tuple[int, ...]  # of each entry
    shape: tuple[int, ...]

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        return self.evaluate(out, action, legal)[0]

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        return torch.stack([_ENTRY.entropy(part, mask) for part, mask in self._entries(out, legal)]).sum(0)

    def evaluate(self, out: Outputs, action: Tensor, legal: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen = action.flatten(-len(self.shape)).unbind(-1)
        entries = zip(self._entries(out, legal), chosen, strict=True)
        each = [_ENTRY.evaluate(part, entry, mask) for (part, mask), entry in entries]
        return torch.stack([logp for logp, _ in each]).sum(0), torch.stack([entropy for _, entropy in each]).sum(0)

    def best(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The likeliest action of each row, [n, *shape]."""
        found = torch.stack([_ENTRY.best(part, mask) for part, mask in self._entries(out, legal)], -1)
        return found.reshape(*found.shape[:-1], *self.shape)

    def mean_logp(self, out: Outputs, legal: Tensor | None) -> Tensor:
        """The mean of log π(a|s) over the legal a, [n]: that of each entry, added up."""
        return torch.stack([_ENTRY.mean_logp(part, mask) for part, mask in self._entries(out, legal)]).sum(0)

    def _entries(self, out: Outputs, legal: Tensor | None) -> list[tuple[Outputs, Tensor | None]]:
        logits = torch.split(out["logits"], list(self.choices), -1)
        masks = [None] * len(logits) if legal is None else torch.split(legal, list(self.choices), -1)
        return [({"logits": part}, mask) for part, mask in zip(logits, masks, strict=True)]


_ENTRY = Categorical()


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Heads: "mean", "log_std". Actions are float32 [n, *shape]."""

    bounds: tuple[float, float] | None
    shape: tuple[int, ...]

    def logp(self, out: Outputs, action: Tensor, legal: Tensor | None) -> Tensor:
        return self._density(self.raw(action), out)

    def entropy(self, out: Outputs, legal: Tensor | None) -> Tensor:
        return (out["log_std"].clamp(*LOG_STD) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

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


def distribution(action: Leaf) -> Categorical | MultiCategorical | Gaussian:
    """The one that suits a seat's actions."""
    if action.kind == "multi-discrete":
        return MultiCategorical(action.choices, action.shape)
    return Categorical() if action.choices else Gaussian(bounds_of(action), action.shape)
