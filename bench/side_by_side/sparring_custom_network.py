"""Train CartPole with a network of one's own: a body of two layers that policy and value share."""

from torch import nn

import sparring


class Network(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs[0], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.policy, self.value = nn.Linear(64, outputs["logits"]), nn.Linear(64, outputs["value"])

    def forward(self, observation):
        features = self.body(observation)
        return self.policy(features), self.value(features)


sparring.train("gym:CartPole-v1", network=Network, steps=20_000, seed=1)
