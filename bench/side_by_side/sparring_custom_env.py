"""Train an environment of one's own, and ask for the action in the middle of the corridor: 1, to the right."""

import gymnasium
import numpy as np

import sparring


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-5, 5, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += 1 if action else -1
        return np.array([self.place], np.float32), float(self.place == 5), abs(self.place) == 5, False, {}


run = sparring.train(Corridor, steps=8_000, seed=1)
print(run.model.predict(np.array([0.0])))
