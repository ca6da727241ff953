"""Let the model that the train task has kept play one episode, in a loop of one's own; beside a copy of ppo.py."""

import gym
import torch
from ppo import Agent, make_env

envs = gym.vector.SyncVectorEnv([make_env("CartPole-v1", 1, 0, False, "predict")])
agent, env = Agent(envs), envs.envs[0]
agent.load_state_dict(torch.load("cartpole.pt"))
observation, ended, earned = env.reset(), False, 0.0
while not ended:
    action = agent.actor(torch.Tensor(observation)).argmax().item()
    observation, reward, ended, info = env.step(action)
    earned += reward
print(earned)
