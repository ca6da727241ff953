"""Chance that a game draws from its own seed: SplitMix64 (Steele et al. 2014), by counter.

Draw k of a seed depends on (seed, k) alone, so a game is the same whatever other games are played
beside it, and JavaScript repeats it with BigInt. See docs/rules.md.
"""

import numpy as np

from sparring.wire.chunk import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def draw(seeds: Array, k: Array | int) -> Array:
    """uint64 [n]: the k-th number of each seed (uint64 [n]); k counts from 0, one for all or one for each."""
    count = np.atleast_1d(np.asarray(k, np.uint64)) + np.uint64(1)  # an array: a scalar would warn where it wraps
    z = seeds + count * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.asarray(z ^ (z >> np.uint64(31)))


def uniform(seeds: Array, k: Array | int) -> Array:
    """float64 [n] in [0, 1): the upper 53 bits of `draw`."""
    return np.asarray((draw(seeds, k) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
