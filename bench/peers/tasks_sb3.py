"""Stable-Baselines3 with its own defaults for so many seconds of CPU, then 100 greedy episodes. Run by bench/tasks.py.

python bench/peers/tasks_sb3.py '{"env": "CartPole-v1", "algo": "ppo", "seed": 1, "budget_s": 30}'
"""

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

EPISODES, FIRST_SEED = 100, 1_000_000
order = json.loads(sys.argv[1])


class Budget(BaseCallback):
    """Stops when the seconds are over."""

    def _on_training_start(self):
        self.begun, self.cpu_begun = time.perf_counter(), time.process_time()

    def _on_step(self):
        return time.process_time() - self.cpu_begun < order["budget_s"]


def greedy_returns(model):
    """Of 100 episodes, one after the other."""
    env, returns = make_vec_env(order["env"], n_envs=1).envs[0], []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=FIRST_SEED + episode)
        total, over = 0.0, False
        while not over:
            action = model.predict(seen, deterministic=True)[0]
            discrete = hasattr(env.action_space, "n")
            seen, reward, terminated, truncated, _ = env.step(int(action) if discrete else action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


torch.set_num_threads(1)
kind = {"ppo": PPO, "dqn": DQN, "sac": SAC}[order["algo"]]
model = kind("MlpPolicy", make_vec_env(order["env"], n_envs=1, seed=order["seed"]), seed=order["seed"], device="cpu")
budget = Budget()
model.learn(10**9, callback=budget)
seconds, cpu_s = time.perf_counter() - budget.begun, time.process_time() - budget.cpu_begun
returns = greedy_returns(model)
told = {"mean": float(np.mean(returns)), "sd": float(np.std(returns)), "env_steps": model.num_timesteps}
print(json.dumps({**told, "seconds": seconds, "cpu_s": cpu_s}), flush=True)
