"""The clock of the race to solve a task: it stands still while a policy's best actions play 100 episodes.

Imported by each peer in its own environment and by ours, so that all are looked at in the same way and as often:
every `every` steps. A mean that reaches the threshold is confirmed on 100 fresh episodes; unless that too reaches it,
learning goes on. Looking ends as soon as the threshold can no longer be reached.

    python bench/peers/solve_NAME.py '{"env": "CartPole-v1", "threshold": 475, "seed": 1, "every": 2048, "limit_s": 60}'
"""

import json
import sys
import time

import gymnasium
import numpy as np

EPISODES = 100
CEILINGS = {  # the most that an episode can still come to when it stands at tick t with what it has earned
    "CartPole-v1": lambda earned, tick: 500.0,
    "Acrobot-v1": lambda earned, tick: earned,
    "LunarLander-v3": lambda earned, tick: 340.0,
}


class Race:
    """One run of one peer."""

    def __init__(self, env, threshold, seed, every, limit_s, rollout=None):
        self.env, self.threshold, self.seed, self.every, self.limit_s = env, threshold, seed, every, limit_s
        self.rollout = rollout  # {"steps", "minibatch", "epochs"}: instead of a peer's own, where speed is measured
        self.returns, self.seconds, self.solved = [], 0.0, False
        self._looked, self._begun, self.elapsed = 0, None, 0.0
        self._envs = [gymnasium.make(env, disable_env_checker=True) for _ in range(EPISODES)]

    def begin(self):
        """The first step of the environment is next."""
        self._begun = time.perf_counter()

    def look(self, act, env_steps):
        """Whether to stop. `act` takes observations [n, …] and gives the best actions [n]."""
        if env_steps // self.every <= self._looked:
            self.elapsed = self.seconds + time.perf_counter() - self._begun
            return self.elapsed >= self.limit_s
        self._looked = env_steps // self.every
        self.seconds += time.perf_counter() - self._begun
        self._judge(act, env_steps)
        self.elapsed, self._begun = self.seconds, time.perf_counter()
        return self.solved or self.seconds >= self.limit_s

    def judge_later(self, act, seconds, env_steps):
        """For a peer that cannot be halted: a policy as it was `seconds` after the first step."""
        self.seconds = seconds
        self._judge(act, env_steps)
        return self.solved or seconds >= self.limit_s

    def done(self, env_steps):
        """Say how it went, as the last line."""
        told = {
            "solved": self.solved,
            "seconds": max(self.seconds, self.elapsed),
            "env_steps": env_steps,
            "returns": self.returns,
        }
        print(json.dumps(told), flush=True)

    def _judge(self, act, env_steps):
        first = 1_000_000 + 1_000 * self.seed + 2 * EPISODES * len(self.returns)
        mean = self.mean(act, first)
        if mean is not None and mean >= self.threshold:
            mean = self.mean(act, first + EPISODES)
            self.solved = mean is not None and mean >= self.threshold
        self.returns.append([env_steps, round(self.seconds, 3), mean])

    def mean(self, act, first_seed):
        """Of 100 episodes at once; None where the threshold is out of reach."""
        ceiling, earned, tick = CEILINGS[self.env], np.zeros(EPISODES), 0
        seen = [env.reset(seed=(first_seed + i) % 2**31)[0] for i, env in enumerate(self._envs)]
        running = list(range(EPISODES))
        while running:
            actions = act(np.stack([seen[i] for i in running]))
            still = []
            for i, action in zip(running, actions, strict=True):
                seen[i], reward, terminated, truncated, _ = self._envs[i].step(int(action))
                earned[i] += reward
                if not (terminated or truncated):
                    still.append(i)
            tick, running = tick + 1, still
            most = earned.sum() - earned[running].sum() + sum(ceiling(earned[i], tick) for i in running)
            if most < self.threshold * EPISODES:
                return None
        return float(earned.mean())


def from_command_line():
    """The race that the first argument describes."""
    return Race(**json.loads(sys.argv[1]))
