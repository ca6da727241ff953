"""Settings that are known to work, for each game and algorithm: one table. What a user sets goes before it.

`steps` is how long a run takes unless --steps says otherwise; `envs` and `replay` replace only what spar.toml
leaves at its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Preset:
    """What suits one algorithm on one game."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    steps: int = 1_000_000
    envs: int = 16
    reward_clip: float = 0.0
    replay: Mapping[str, Any] = field(default_factory=dict)


PRESETS: Mapping[tuple[str, str], Preset] = {
    ("cartpole", "ppo"): Preset(
        steps=60_000,
        settings={
            "discount": 0.98,
            "trace_decay": 0.8,
            "rollout_ticks": 32,
            "minibatch_steps": 256,
            "epochs": 20,
            "entropy_coefficient": 0.0,
            "anneal_steps": 100_000,
        },
    ),
    ("cartpole", "dqn"): Preset(
        steps=80_000,
        settings={
            "learning_rate": 1e-3,
            "anneal_updates": 15_000,
            "n_steps": 10,  # the best of 1, 3, 5, 10 and 20 in single runs that differed in other settings too
            "target_every_updates": 100,
            "dueling": False,
            "huber_threshold": 20.0,  # returns are of the order of 100: at 1, a rare fall would hardly count
            "epsilon_last": 0.02,
            "epsilon_steps": 5_000,
            "hidden_units": [64, 64],
            "activation": "tanh",
        },
        replay={"samples_per_insert": 24.0},
    ),
    ("cartpole", "bc"): Preset(steps=800_000),
    ("cartpole", "cql"): Preset(steps=2_000_000),
    ("cartpole", "iql"): Preset(steps=2_000_000, settings={"target_rate": 0.02}),
    ("connect-four", "bc"): Preset(
        steps=400_000, settings={"image_layers": ["64x4"], "hidden_units": [128], "anneal_updates": 1500}
    ),
    ("connect-four", "cql"): Preset(
        steps=800_000,
        settings={"image_layers": ["64x4"], "hidden_units": [128], "n_steps": 3, "conservatism": 0.1},
    ),
    ("connect-four", "iql"): Preset(
        steps=800_000,
        settings={"image_layers": ["64x4"], "hidden_units": [128], "n_steps": 3, "target_rate": 0.02},
    ),
    ("connect-four", "ppo"): Preset(
        steps=8_000_000,
        envs=128,
        settings={
            "discount": 1.0,  # a win is a win, however late; not shown to be better than 0.99
            "anneal_steps": 8_000_000,
            "rollout_ticks": 64,
            "minibatch_steps": 2048,
            "entropy_coefficient": 0.05,
            "image_layers": ["flat"],  # faster on a CPU; in single runs convolutions needed fewer games
            "hidden_units": [256, 256],
            "activation": "relu",
            "separate_value": False,
        },
    ),
    ("duel", "ppo"): Preset(
        steps=5_000_000,
        envs=64,
        settings={"rollout_ticks": 128, "minibatch_steps": 2048},
    ),
}


def preset_for(game: str, algorithm: str) -> Preset:
    """The table's row, or the defaults. "apex" is what suits dqn, with the priorities of its paper."""
    if algorithm == "apex" and (game, algorithm) not in PRESETS:
        dqn = preset_for(game, "dqn")
        return replace(dqn, replay={**dqn.replay, "sampler": "prioritised"})
    return PRESETS.get((game, algorithm), Preset())
