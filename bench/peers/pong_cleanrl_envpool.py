"""PPO on envpool's Pong as CleanRL's ppo_atari_envpool.py does it, written anew: agent steps per second while learning.

    python pong_cleanrl_envpool.py UPDATES THREADS

8 games, 128 steps of each, 4 epochs of 4 minibatches of 256, the network of Mnih et al. 2015. The first update is not
counted. The last line of the output is JSON.
"""

import json
import os
import sys
import time

import envpool
import numpy as np
import torch
from torch import nn, optim
from torch.distributions.categorical import Categorical

GAMES, STEPS, EPOCHS, MINIBATCH = 8, 128, 4, 256
DISCOUNT, TRACE, CLIP, ENTROPY, VALUE, NORM = 0.99, 0.95, 0.1, 0.01, 0.5, 0.5


def layer(module, gain=2**0.5):
    nn.init.orthogonal_(module.weight, gain)
    nn.init.constant_(module.bias, 0.0)
    return module


class Agent(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.network = nn.Sequential(
            layer(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def value(self, x):
        return self.critic(self.network(x / 255.0))

    def act(self, x, action=None):
        hidden = self.network(x / 255.0)
        chances = Categorical(logits=self.actor(hidden))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(hidden)


def main(updates, threads):
    torch.set_num_threads(threads)
    games = envpool.make(
        "Pong-v5", env_type="gym", num_envs=GAMES, num_threads=threads, episodic_life=True, reward_clip=True, seed=1
    )
    agent = Agent(games.action_space.n)
    optimizer = optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((STEPS, GAMES, *games.observation_space.shape))
    actions, logprobs, rewards, dones, values = (torch.zeros((STEPS, GAMES)) for _ in range(5))
    first = games.reset()
    next_obs = torch.Tensor(first[0] if isinstance(first, tuple) else first)
    next_done = torch.zeros(GAMES)
    for update in range(updates + 1):
        if update == 1:
            begun = time.perf_counter()
        for step in range(STEPS):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.act(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            seen, reward, terminated, *rest = games.step(action.numpy())
            done = np.logical_or(terminated, rest[0]) if len(rest) == 2 else terminated
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.Tensor(seen), torch.Tensor(done)
        learn(agent, optimizer, (obs, actions, logprobs, rewards, dones, values), next_obs, next_done)
    steps, seconds = updates * STEPS * GAMES, time.perf_counter() - begun
    print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)
    os._exit(0)  # envpool's threads do not end by themselves


def learn(agent, optimizer, rollout, next_obs, next_done):
    obs, actions, logprobs, rewards, dones, values = rollout
    with torch.no_grad():
        next_value, tail = agent.value(next_obs).reshape(-1), 0
        advantages = torch.zeros_like(rewards)
        for t in reversed(range(STEPS)):
            going = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
            after = next_value if t == STEPS - 1 else values[t + 1]
            delta = rewards[t] + DISCOUNT * after * going - values[t]
            advantages[t] = tail = delta + DISCOUNT * TRACE * going * tail
        returns = advantages + values
    flat = [x.reshape(-1, *x.shape[2:]) for x in (obs, actions, logprobs, advantages, returns, values)]
    places = np.arange(STEPS * GAMES)
    for _ in range(EPOCHS):
        np.random.shuffle(places)
        for start in range(0, len(places), MINIBATCH):
            x, action, old, advantage, goal, value = (column[places[start : start + MINIBATCH]] for column in flat)
            _, logprob, entropy, new = agent.act(x, action.long())
            ratio = (logprob - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
            new = new.view(-1)
            near = value + torch.clamp(new - value, -CLIP, CLIP)
            error = 0.5 * torch.max((new - goal) ** 2, (near - goal) ** 2).mean()
            loss = policy - ENTROPY * entropy.mean() + VALUE * error
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), NORM)
            optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
