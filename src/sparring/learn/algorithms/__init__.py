"""One file per algorithm, chosen by name or as `module:name` of your own."""

import difflib
import math
from typing import Any

from sparring.config import read
from sparring.errors import ConfigError, Missing
from sparring.learn.protocol import Algorithm
from sparring.user_code import load_code

ALGORITHMS = {
    "dqn": "sparring.learn.algorithms.dqn:Dqn",
    "r2d2": "sparring.learn.algorithms.r2d2:R2d2",
    "sac": "sparring.learn.algorithms.sac:Sac",
    "ppo": "sparring.learn.algorithms.ppo:Ppo",
    "mappo": "sparring.learn.algorithms.mappo:Mappo",
    "impala": "sparring.learn.algorithms.impala:Impala",
    "a3c": "sparring.learn.algorithms.a3c:A3c",
    "alphazero": "sparring.learn.algorithms.alphazero:AlphaZero",
    "mmd": "sparring.learn.algorithms.mmd:Mmd",
    "bc": "sparring.learn.algorithms.bc:Bc",
    "cql": "sparring.learn.algorithms.cql:Cql",
    "iql": "sparring.learn.algorithms.iql:Iql",
}
ALIASES = {"apex": "dqn"}  # an algorithm with another topology and preset
# What the same names mean in every algorithm; what one of them means alone is checked in its own file.
COUNTS = (
    "n_steps",
    "batch_steps",
    "batch_sequences",
    "rollout_ticks",
    "target_every_updates",
    "average_updates",
    "sampled_actions",
    "simulations",
    "window_steps",
    "epochs",
    "critic_epochs",
    "policy_epochs",
)
NEVER_NEGATIVE = (
    "learning_rate",
    "max_gradient_norm",
    "reward_scale",
    "value_coefficient",
    "value_scale",
    "minibatch_steps",
    "schedule_steps",
    "warmup_steps",
)
SHARES = (
    "discount",
    "epsilon_first",
    "epsilon_last",
    "trace_decay",
    "target_rate",
    "priority_mix",
    "schedule_last",
    "random_moves",
    "root_noise",
    "surprise_share",
)
VERBS = ("begin", "update", "exploration", "settings", "feeds", "policy", "name")


def open_algorithm(name: str) -> Algorithm:
    """The algorithm of that name, of RLlib (`rllib:NAME`) or at `module:name`; Missing with a suggestion otherwise."""
    if name.startswith("rllib:"):
        from sparring.learn.rllib.algorithm import open_rllib

        return open_rllib(name)
    name = ALIASES.get(name, name)
    if name not in ALGORITHMS and ":" not in name:
        near = difflib.get_close_matches(name.lower(), ALGORITHMS, n=1)
        others = f"{', '.join(ALGORITHMS)}, rllib:NAME"
        do = f"Did you mean {near[0]!r}" if near else f"Choose one of {others}, or give module:name"
        raise Missing(f"there is no algorithm {name!r}", where="--algo", do=do)
    found = load_code(ALGORITHMS.get(name, name), "algorithm")
    algorithm: Algorithm = found() if isinstance(found, type) else found
    if lacking := [verb for verb in VERBS if not hasattr(algorithm, verb)]:
        raise ConfigError(
            f"{name!r} has no {', '.join(lacking)}", where="--algo", do="Offer what learn/protocol.py lists"
        )
    return algorithm


def settings_of(algorithm: Algorithm, *tables: dict[str, Any]) -> Any:
    """The algorithm's settings: its defaults, then each table in turn; ConfigError names a key that it has not, or a
    value that cannot be meant."""
    merged: dict[str, Any] = {}
    for table in tables:
        merged |= table
    settings = read(algorithm.settings, merged, f"[{algorithm.name}]")
    limits = (
        (COUNTS, 1, math.inf, "Count from 1"),
        (NEVER_NEGATIVE, 0, math.inf, "Let it be 0 or more"),
        (SHARES, 0, 1, "Let it be between 0 and 1"),
    )
    for names, least, most, do in limits:
        for name in names:
            if hasattr(settings, name) and not least <= getattr(settings, name) <= most:
                raise ConfigError(f"{name} = {getattr(settings, name):g}", where=f"[{algorithm.name}]", do=do)
    if hasattr(settings, "optimiser_options"):
        from sparring.learn.optim import check_settings  # imports torch, as the algorithm itself has

        check_settings(settings, f"[{algorithm.name}]")
    return settings
