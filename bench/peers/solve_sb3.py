"""Stable-Baselines3 with the settings of rl-zoo3, PPO; with DQN where a second argument says dqn."""

import sys

import numpy as np
import torch
from greedy import from_command_line
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

torch.set_num_threads(1)
race = from_command_line()
algo = (sys.argv[2:] or ["ppo"])[0]


def linear(first):
    return lambda left: left * first


ZOO = {  # environments, normalised or not, steps of the schedule, settings
    ("ppo", "CartPole-v1"): (
        8,
        False,
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": linear(0.001),
            "clip_range": linear(0.2),
        },
    ),
    ("ppo", "Acrobot-v1"): (
        16,
        True,
        1_000_000,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    ("ppo", "LunarLander-v3"): (
        16,
        False,
        1_000_000,
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    ),
    **{
        ("dqn", name): (
            1,
            False,
            100_000,
            {
                "learning_rate": 6.3e-4,
                "batch_size": 128,
                "buffer_size": 50_000,
                "learning_starts": 0,
                "gamma": 0.99,
                "target_update_interval": 250,
                "train_freq": 4,
                "gradient_steps": -1,
                "exploration_fraction": 0.12,
                "exploration_final_eps": 0.1,
                "policy_kwargs": {"net_arch": [256, 256]},
            },
        )
        for name in ("Acrobot-v1", "LunarLander-v3")
    },
}


class Look(BaseCallback):
    """Begins the clock, and asks as often as the race says."""

    def _on_training_start(self):
        race.begin()

    def _on_step(self):
        if self.num_timesteps // race.every > self.looked:
            self.looked = self.num_timesteps // race.every
            return not race.look(best, self.num_timesteps)
        return True

    looked = 0


def best(seen):
    seen = envs.normalize_obs(seen) if isinstance(envs, VecNormalize) else seen
    return model.predict(np.asarray(seen, np.float32), deterministic=True)[0]


count, normalised, total, settings = ZOO[algo, race.env]
envs = make_vec_env(race.env, n_envs=count, seed=race.seed)
envs = VecNormalize(envs) if normalised else envs
model = {"ppo": PPO, "dqn": DQN}[algo]("MlpPolicy", envs, seed=race.seed, device="cpu", **settings)
model.learn(total, callback=Look())
race.done(model.num_timesteps)
