"""Evaluate the model that the train task has kept."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

mean, sd = evaluate_policy(PPO.load("cartpole"), make_vec_env("CartPole-v1"), n_eval_episodes=100)
print(mean, sd)
