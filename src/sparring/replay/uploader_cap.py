"""No uploader has more than its share of a batch."""

import numpy as np
from numpy.random import Generator

from sparring.replay.sampler import Drawn, Sampler
from sparring.wire.chunk import Array

REDRAWS = 4  # of what one uploader has too much of in a batch


def capped(sampler: Sampler, drawn: Drawn, uploader: Array, share: float, rng: Generator) -> Drawn:
    """What is too much of one uploader (a column of the table) is drawn again, and in the end weighs nothing."""
    rows, most = drawn.rows, max(1, int(share * len(drawn.rows)))
    excess = beyond(uploader[rows], most)
    if not len(excess):
        return drawn
    for _ in range(REDRAWS):
        rows[excess] = sampler.draw(len(excess), rng).rows  # no part of a larger draw: its rows may be in order
        excess = beyond(uploader[rows], most)
        if not len(excess):
            break
    weight = sampler.weigh(rows)
    if len(excess):
        weight = np.ones(len(rows), np.float32) if weight is None else weight
        weight[excess] = 0.0
    return Drawn(rows, weight)


def beyond(owner: Array, most: int) -> Array:
    """Places of all but the first `most` of each owner; owner 0 may have any number."""
    order = np.argsort(owner, kind="stable")
    there = owner[order]
    rank = np.arange(len(owner)) - np.searchsorted(there, there)
    found: Array = order[(rank >= most) & (there > 0)]
    return found
