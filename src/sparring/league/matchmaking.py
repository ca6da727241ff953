"""Who plays whom: prioritised fictitious self-play (PFSP), as AlphaStar's league has it (Vinyals et al. 2019).

A member meets opponents the more often, the more it can learn from them. `x` is its win rate against an opponent, 0.5
where the two have not met.
"""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator

from sparring.wire.chunk import Array

Weighting = Literal["variance", "linear", "capped", "squared"]
WEIGHTINGS: dict[Weighting, Callable[[Array], Array]] = {
    "variance": lambda x: x * (1.0 - x),  # those of its own strength
    "linear": lambda x: 1.0 - x,
    "capped": lambda x: np.minimum(0.5, 1.0 - x),  # stronger ones alike
    "squared": lambda x: (1.0 - x) ** 2,  # the strongest most of all
}
assert set(WEIGHTINGS) == set(get_args(Weighting))


def opponent_chances(win_rates: Array, weighting: Weighting) -> Array:
    """float64 [opponents]: how often each is met; all alike where no weight is left, as when every one is beaten."""
    weights = WEIGHTINGS[weighting](np.asarray(win_rates, np.float64))
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def draw_opponent(member: int, win_rates: Array, weighting: Weighting, rng: Generator) -> int:
    """The opponent of a member by its row of `win_rates` [n, n]; never itself."""
    others = np.delete(np.arange(len(win_rates)), member)
    return int(rng.choice(others, p=opponent_chances(win_rates[member, others], weighting)))
