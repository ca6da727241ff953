"""Train CartPole with a network of one's own: the class that a user puts in the place of a copy's Agent."""

# ruff: noqa: F821


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        inputs = envs.single_observation_space.shape[0]
        self.body = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.actor, self.critic = nn.Linear(64, envs.single_action_space.n), nn.Linear(64, 1)

    def get_value(self, x):
        return self.critic(self.body(x))

    def get_action_and_value(self, x, action=None):
        features = self.body(x)
        probs = Categorical(logits=self.actor(features))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(features)
