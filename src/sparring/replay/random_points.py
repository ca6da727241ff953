"""Random numbers made in compiled code, from one that a generator gives.

A generator lets go of the interpreter while it fills an array, and whoever waits takes it: then a sample of 30 µs waits
for one thread to fall asleep and for itself to wake, which costs more than the sample.
"""

import numpy as np
from numpy.random import Generator

from sparring.jit import compiled
from sparring.wire.chunk import Array

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def points(count: int, rng: Generator) -> Array:
    """`count` numbers of [0, 1), float64."""
    found: Array = _split(rng.bit_generator.random_raw() >> 1, count)
    return found


@compiled
def _split(seed: int, count: int) -> Array:
    """SplitMix64 (Steele, Lea and Flood 2014), the upper 53 bits of each."""
    out, state = np.empty(count, np.float64), np.uint64(seed)
    for i in range(count):
        state += _STEP
        mixed = (state ^ (state >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
        out[i] = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
    return out
