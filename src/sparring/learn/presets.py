"""Settings that are known to work, for each game, or kind of game, and algorithm: one table. What a user sets takes
precedence.

None, and a key that is not there: the preset leaves it to the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparring.games.spec import GameSpec


@dataclass(frozen=True, slots=True)
class Preset:
    """What suits one algorithm on one game."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    steps: int | None = None  # that a run takes
    envs: int | None = None
    reward_clip: float | None = None
    replay: Mapping[str, Any] = field(default_factory=dict)


# fmt: off
_NATURE: dict[str, Any] = {"hidden_units": [512], "activation": "relu"}  # behind convolutions (Mnih et al. 2015)
_BOARD: dict[str, Any] = {"image_layers": ["64x4"], "hidden_units": [128]}  # four in a row fit one kernel

# What was tuned with other defaults, and has them here.
_RAW: dict[str, Any] = {"normalise_observations": False}
_RAW_RETURNS: dict[str, Any] = _RAW | {"normalise_rewards": False}
_DQN: dict[str, Any] = _RAW | {"repeat_exploration": False, "huber_threshold": 1.0}
_PPO: dict[str, Any] = _RAW_RETURNS | {"minibatch_steps": 512, "epochs": 4, "stop_at_kl": 0.0}

_SPREAD: dict[str, Any] = {"rollout_ticks": 25, "minibatch_steps": 400, "discount": 0.95}

# From records bc, cql and iql learn with the same network, updates and rates, so that they can be compared.
_POLE_RECORDS: dict[str, Any] = {"hidden_units": [64, 64], "learning_rate": 1e-3, "schedule": "linear"}
_BOARD_RECORDS: dict[str, Any] = {**_BOARD, "learning_rate": 1e-3, "schedule": "linear"}

PRESETS: Mapping[tuple[str, str], Preset] = {
    ("cartpole", "ppo"): Preset(steps=60_000, settings=_PPO | {
        "discount": 0.98, "trace_decay": 0.8, "rollout_ticks": 32, "minibatch_steps": 256, "epochs": 20,
        "entropy_coefficient": 0.0, "schedule": "linear", "schedule_steps": 100_000,
    }),
    ("cartpole", "impala"): Preset(steps=100_000, settings=_RAW_RETURNS | {
        "discount": 0.98, "rollout_ticks": 16, "entropy_coefficient": 0.001, "schedule": "linear",
        "reward_scale": 0.05,  # a return of γ = 0.98 is 50 at most
    }),
    ("cartpole", "a3c"): Preset(steps=100_000, settings={
        "learning_rate": 3e-3, "discount": 0.98, "reward_scale": 0.05, "rollout_ticks": 32, "normalise": True,
        "entropy_coefficient": 0.0, "schedule": "linear", "schedule_steps": 80_000,
    }),
    ("cartpole", "dqn"): Preset(steps=80_000, replay={"samples_per_insert": 24.0}, settings=_DQN | {
        "learning_rate": 1e-3, "schedule": "linear", "target_every_updates": 100, "dueling": False,
        "epsilon_last": 0.02, "epsilon_steps": 5_000, "hidden_units": [64, 64], "activation": "tanh",
        "n_steps": 10,  # the best of 1, 3, 5, 10 and 20 in single runs that differed in other settings too
        "huber_threshold": 20.0,  # returns are of the order of 100: at 1, a rare fall would hardly count
    }),
    ("cartpole", "apex"): Preset(
        steps=100_000,
        replay={"sampler": "prioritised", "samples_per_insert": 24.0},
        settings=_DQN | {
            "learning_rate": 1e-3, "schedule": "linear", "target_every_updates": 100, "dueling": False,
            "huber_threshold": 20.0, "hidden_units": [64, 64], "activation": "tanh",
            "discount": 0.99,  # at 0.98 it forgot in some runs that it drifts off the track
            "n_steps": 3,  # half of the actors have a large ε: longer returns are those of their exploration
        },
    ),
    ("gym:Pendulum-v1", "sac"): Preset(
        steps=10_000, envs=4, settings=_RAW | {"learning_rate": 1e-3, "hidden_units": [64, 64], "n_steps": 1},
        replay={"samples_per_insert": 256.0},  # one update for each step
    ),
    # For bench/solve.py: tuned on seeds 1000 to 1005 alone.
    ("gym:CartPole-v1", "ppo"): Preset(steps=100_000, envs=32, settings=_PPO | {
        "learning_rate": 3e-3, "discount": 0.98, "trace_decay": 0.9, "reward_scale": 0.1, "rollout_ticks": 32,
        "minibatch_steps": 256, "epochs": 6, "entropy_coefficient": 0.0, "hidden_units": [32, 32],
    }),
    ("gym:Acrobot-v1", "ppo"): Preset(steps=200_000, settings=_PPO | {
        "learning_rate": 3e-3, "reward_scale": 0.1, "rollout_ticks": 64, "minibatch_steps": 256, "epochs": 6,
    }),
    ("gym:LunarLander-v3", "ppo"): Preset(steps=1_000_000, envs=32, settings=_PPO | {
        "discount": 0.998,  # at 0.99 it learns to hover: landing comes too late to count
        "reward_scale": 0.02, "rollout_ticks": 64, "minibatch_steps": 256, "epochs": 6, "activation": "relu",
        "hidden_units": [128, 128],
    }),
    ("gym:LunarLander-v3", "a3c"): Preset(steps=4_000_000, settings={
        "learning_rate": 3e-3, "entropy_coefficient": 0.001,  # at 1e-3 and 0.01 it returned 116
        "schedule": "linear", "discount": 0.998, "reward_scale": 0.02, "rollout_ticks": 32, "normalise": True,
        "hidden_units": [128, 128], "activation": "relu",
    }),
    ("gym:Pendulum-v1", "ppo"): Preset(steps=100_000, settings=_PPO | {
        "learning_rate": 1e-3, "schedule": "linear", "reward_scale": 0.1, "rollout_ticks": 64,
        "minibatch_steps": 256, "epochs": 10, "entropy_coefficient": 0.0,
        "discount": 0.9,  # at 0.95 better in two runs of three (-157), and it fell back in the third (-316)
        "activation": "relu",  # tanh: -223 to -249
    }),
    ("cartpole", "bc"): Preset(steps=1_280_000, settings=_POLE_RECORDS),
    ("cartpole", "cql"): Preset(steps=1_280_000, settings=_POLE_RECORDS | {
        "reward_scale": 0.1,  # returns of 100 become 10
        "conservatism": 0.2,
        "n_steps": 5,  # the players' own next decisions: with 1 values came too slowly to exceed a clone
        "target_every_updates": 100,  # at 25 values chased their own errors, and play became worse with time
    }),
    ("cartpole", "iql"): Preset(steps=1_280_000, settings=_POLE_RECORDS | {
        "reward_scale": 0.1,
        "target_rate": 0.01,  # at 0.05 values chased their own errors, and play became worse with time
        "expectile": 0.8,
        "temperature": 10.0,  # falls are rare and spread advantages: ordinary steps would weigh all the same
    }),
    ("connect-four", "bc"): Preset(steps=384_000, settings=_BOARD_RECORDS),
    ("connect-four", "cql"): Preset(steps=384_000, settings=_BOARD_RECORDS | {
        "reward_scale": 4.0,  # so that values of ±1 can also say what is likely
        "conservatism": 0.5, "huber_threshold": 4.0, "target_every_updates": 50,
    }),
    ("connect-four", "iql"): Preset(steps=384_000, settings=_BOARD_RECORDS | {"temperature": 1.0, "target_rate": 0.05}),
    ("connect-four", "ppo"): Preset(steps=8_000_000, envs=128, settings=_PPO | {
        "discount": 1.0,  # a win is a win, however late; not shown to be better than 0.99
        "schedule": "linear", "rollout_ticks": 64, "minibatch_steps": 2048, "entropy_coefficient": 0.05,
        "image_layers": ["flat"],  # faster on a CPU; in single runs convolutions needed fewer games
        "hidden_units": [256, 256], "activation": "relu", "separate_value": False,
    }),
    ("connect-four", "alphazero"): Preset(steps=10_000_000, envs=256, settings={
        "image_layers": ["128x4", "64x1"], "hidden_units": [256],  # four in a row fit one kernel
        "simulations": 8, "samples_per_step": 4.0, "mirrored": True,
    }),
    ("duel", "ppo"): Preset(steps=5_000_000, envs=64, settings=_PPO | {"rollout_ticks": 128, "minibatch_steps": 2048}),
    # Games of 25 ticks, of which a discount of 0.99 would see little but the view at which they are cut.
    ("pz:simple_spread_v3", "ppo"): Preset(steps=400_000, settings=_SPREAD),
    ("pz:simple_spread_v3", "mappo"): Preset(steps=400_000, settings=_SPREAD),
    # Of all other games of rivals who take turns. Tic-tac-toe after 300,000 steps, against dqn's after 80,000: 0.54 of
    # the points, and 0.43 with an entropy of 0.01: what a policy no longer tries it forgets to answer.
    ("rivals", "ppo"): Preset(settings={"entropy_coefficient": 0.05}),
    # Of all other games with boxes. BipedalWalker after 250,000 steps: -31 by the rates of choices (1e-3, 0.01),
    ("box", "ppo"): Preset(settings={"learning_rate": 3e-4, "entropy_coefficient": 0.0}),  # 47 by these
    # What bench/league.py measures, within ten minutes on two cores. Leduc with a magnet of 0.08 fell apart; Kuhn
    # circled with an eighth of the games in an update and steps three times as long.
    ("spiel:kuhn_poker", "mmd"): Preset(steps=5_000_000, envs=256, settings={
        "average_updates": 100, "magnet_last": 0.02, "step_size": 3.0,
    }),
    ("spiel:leduc_poker", "mmd"): Preset(steps=6_000_000, envs=256, settings={
        "average_updates": 120, "step_size": 2.0, "magnet_first": 0.2, "magnet_last": 0.12,
    }),
    ("box", "mappo"): Preset(settings={"learning_rate": 3e-4, "entropy_coefficient": 0.0}),
    # Of a kind of game: PPO as CleanRL plays Atari with it (Huang et al. 2022), its 8 x 128 steps as 16 x 64, which
    # the network passes faster; IMPALA and DQN with what their papers say of Atari, as far as they have a setting for
    # it, and replay that fits a small machine's memory. None has been tuned here.
    ("atari:", "ppo"): Preset(steps=10_000_000, reward_clip=1.0, settings=_PPO | _NATURE | {
        "learning_rate": 2.5e-4, "schedule": "linear", "rollout_ticks": 64, "minibatch_steps": 256, "epochs": 4,
        "clip": 0.1, "value_clip": 0.1, "separate_value": False,
    }),
    ("atari:", "impala"): Preset(steps=10_000_000, reward_clip=1.0, settings=_RAW_RETURNS | _NATURE | {
        "learning_rate": 6e-4, "schedule": "linear", "rollout_ticks": 20, "normalise": False,
        "max_gradient_norm": 40.0, "separate_value": False,
    }),
    ("atari:", "dqn"): Preset(
        steps=10_000_000,
        reward_clip=1.0,
        replay={"capacity_steps": 200_000, "min_steps": 20_000, "samples_per_insert": 8.0},  # 1.4 GB of frames
        settings=_DQN | _NATURE | {
            "learning_rate": 1e-4, "batch_steps": 32, "target_every_updates": 2_000, "epsilon_last": 0.01,
            "epsilon_steps": 250_000,
        },
    ),
    # For an hour on two cores: the small network of Mnih et al. 2013, which costs a third of the larger one.
    ("atari:Pong", "apex"): Preset(
        steps=10_000_000,
        envs=4,
        reward_clip=1.0,
        replay={  # 0.7 GB of frames
            "sampler": "prioritised", "capacity_steps": 100_000, "min_steps": 5_000, "samples_per_insert": 8.0,
        },
        settings=_DQN | {
            "image_layers": ["16x8/4", "32x4/2"], "hidden_units": [256], "activation": "relu",
            "learning_rate": 2.5e-4, "batch_steps": 32, "target_every_updates": 1_000,
        },
    ),
    # RLlib's algorithms, by the names of RLlib's own settings.
    ("cartpole", "rllib:PPO"): Preset(steps=80_000, settings={
        "lr": 1e-3, "gamma": 0.98, "lambda_": 0.8, "train_batch_size_per_learner": 512, "minibatch_size": 256,
        "num_epochs": 20, "clip_param": 0.2, "use_kl_loss": False, "vf_loss_coeff": 0.5, "grad_clip": 0.5,
        "vf_clip_param": 1e6,  # returns are of the order of 50, and RLlib's 10 would stop the values from learning
    }),
    ("cartpole", "rllib:BC"): Preset(steps=400_000, settings={"lr": 1e-3, "train_batch_size_per_learner": 512}),
    ("cartpole", "rllib:MARWIL"): Preset(
        steps=400_000, settings={"lr": 1e-3, "train_batch_size_per_learner": 512, "vf_coeff": 0.1}
    ),
    ("cartpole", "rllib:DQN"): Preset(steps=40_000, settings={
        "lr": 1e-3, "gamma": 0.98, "n_step": 3, "dueling": False, "target_network_update_freq": 500,
        "epsilon_last": 0.02, "epsilon_steps": 5_000, "train_batch_size_per_learner": 64, "training_intensity": 16.0,
        "td_error_loss_fn": "mse",  # returns are of the order of 50: by RLlib's Huber of 1 a fall hardly counts
    }),
    ("atari:", "rllib:PPO"): Preset(
        steps=10_000_000, reward_clip=1.0, settings=_NATURE | {"lr": 2.5e-4, "separate_value": False}
    ),
    ("atari:", "rllib:DQN"): Preset(steps=10_000_000, reward_clip=1.0, settings=_NATURE | {"lr": 1e-4}),
}
# fmt: on


def preset_for(game: str, algorithm: str, spec: GameSpec) -> Preset:
    """The table's row for the game, or for its kind ("atari:", "rivals" who take turns, the kind of its actions).

    "apex" without a row has dqn's, with prioritised replay.
    """
    if algorithm == "apex" and (game, algorithm) not in PRESETS:
        dqn = preset_for(game, "dqn", spec)
        return replace(dqn, replay={**dqn.replay, "sampler": "prioritised"})
    kind = game[: game.index(":") + 1] if ":" in game else game
    rivals = "rivals" if spec.turns == "alternating" and spec.has_rivals else ""
    rows = (PRESETS.get((name, algorithm)) for name in (game, kind, rivals, spec.seats[0].action.kind))
    return next((row for row in rows if row is not None), Preset())
