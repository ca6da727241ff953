"""Train CartPole with a network of one's own: a body of two layers that policy and value share."""

from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class Body(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=64):
        super().__init__(observation_space, features_dim)
        inputs = observation_space.shape[0]
        self.body = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, features_dim), nn.ReLU())

    def forward(self, observation):
        return self.body(observation)


policy = {"features_extractor_class": Body, "net_arch": []}
model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs=policy, seed=1)
model.learn(20_000)
model.save("custom")
