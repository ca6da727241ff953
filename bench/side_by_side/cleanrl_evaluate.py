"""Evaluate the model that the train task has kept; beside a copy of CleanRL's ppo.py."""

import gym
import numpy as np
import torch
from ppo import Agent, make_env

envs = gym.vector.SyncVectorEnv([make_env("CartPole-v1", 1, 0, False, "evaluation")])
agent = Agent(envs)
agent.load_state_dict(torch.load("cartpole.pt"))
returns, observation = [], envs.reset()
while len(returns) < 100:
    actions = agent.actor(torch.Tensor(observation)).argmax(1)
    observation, rewards, ended, infos = envs.step(actions.numpy())
    returns += [info["episode"]["r"] for info in infos if "episode" in info]
print(np.mean(returns), np.std(returns))
