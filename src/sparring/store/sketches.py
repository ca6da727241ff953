"""Sums over a stream that need the same memory however long it is."""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array


@dataclass(slots=True)
class HeavyHitters:
    """Counts by name, exact up to `most` names; above it the rarest share their counts (Misra & Gries 1982)."""

    most: int = 10_000
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, count: int) -> None:
        """`count` more of `name`."""
        self.total += count
        self.counts[name] += count
        if len(self.counts) > 2 * self.most:
            floor = sorted(self.counts.values())[-self.most]
            self.counts = Counter({key: n - floor for key, n in self.counts.items() if n > floor})

    def shares(self) -> dict[str, float]:
        """Each name's share, the largest first."""
        return {name: count / self.total for name, count in self.counts.most_common()} if self.total else {}


@dataclass(slots=True)
class RunningStats:
    """Mean, deviation, extremes and quantiles of numbers that pass by; quantiles from a fair draw of `kept`."""

    rng: Generator
    most: int = 4_096
    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    kept: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """One more number."""
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.squares += delta * (value - self.mean)
        self.low, self.high = min(self.low, value), max(self.high, value)
        if len(self.kept) < self.most:
            self.kept.append(value)
        elif (place := int(self.rng.integers(self.n))) < self.most:
            self.kept[place] = value

    def summary(self) -> dict[str, float]:
        """What is known, rounded for reading; empty before the first number."""
        if not self.n:
            return {}
        names = ("p10", "median", "p90")
        quantiles = dict(zip(names, np.quantile(self.kept, (0.1, 0.5, 0.9)).tolist(), strict=True))
        return {
            "mean": self.mean,
            "sd": math.sqrt(self.squares / self.n),
            "min": self.low,
            **quantiles,
            "max": self.high,
        }


@dataclass(slots=True)
class Moments:
    """Mean and deviation of each entry of an array leaf over all steps."""

    n: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))

    def add(self, rows: Array, most_entries: int = 1_024) -> None:
        """More steps, [steps, *shape]; a leaf with more entries than `most_entries` counts as one."""
        flat = rows.reshape(len(rows), -1).astype(np.float64)
        if flat.shape[1] > most_entries:
            flat = flat.mean(axis=1, keepdims=True)
        if not self.n:
            self.sums, self.squares = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
        self.n += len(flat)
        self.sums += flat.sum(axis=0)
        self.squares += (flat * flat).sum(axis=0)

    def shift(self, other: "Moments") -> float:
        """The largest difference of two means, in standard deviations of both together."""
        if not self.n or not other.n or self.sums.shape != other.sums.shape:
            return math.inf if self.n and other.n else 0.0
        means = self.sums / self.n, other.sums / other.n
        spreads = [m.squares / m.n - mean**2 for m, mean in zip((self, other), means, strict=True)]
        deviation = np.sqrt(np.maximum((spreads[0] + spreads[1]) / 2, 0))
        apart = np.abs(means[0] - means[1])
        # An entry that never moves has no scale of its own: any difference there is a large one.
        return float(np.where(apart > 1e-9, apart / np.maximum(deviation, 1e-6), 0.0).max())
