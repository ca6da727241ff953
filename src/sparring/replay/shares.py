"""No uploader has more than its share of a batch."""

from collections.abc import Callable

import numpy as np

from sparring.replay.sampler import Drawn
from sparring.wire.chunk import Array

REDRAWS = 4  # of what one uploader has too much of in a batch


def capped(drawn: Drawn, uploader: Array, share: float, draw: Callable[[], Drawn]) -> Drawn:
    """What is too much of one uploader (a column of the table) is drawn again, and in the end weighs nothing."""
    rows, most = drawn.rows, max(1, int(share * len(drawn.rows)))
    weight = np.ones(len(rows), np.float32) if drawn.weight is None else drawn.weight
    excess = beyond(uploader[rows], most)
    for _ in range(REDRAWS):
        if not len(excess):
            return Drawn(rows, drawn.weight)
        again = draw()
        rows[excess] = again.rows[: len(excess)]
        if again.weight is not None:
            weight[excess] = again.weight[: len(excess)]
        excess = beyond(uploader[rows], most)
    weight[excess] = 0.0
    return Drawn(rows, weight)


def beyond(owner: Array, most: int) -> Array:
    """Places of all but the first `most` of each owner; owner 0 may have any number."""
    order = np.argsort(owner, kind="stable")
    there = owner[order]
    rank = np.arange(len(owner)) - np.searchsorted(there, there)
    found: Array = order[(rank >= most) & (there > 0)]
    return found
