"""CleanRL's ppo.py: its agent, its settings (500,000 steps) and its loop, without its log; on Gymnasium's environments.

Its script speaks to gym 0.23, where these environments are older; the loop below is its own, line for line otherwise.
"""

import sys

import gymnasium
import numpy as np
import torch
from greedy import from_command_line
from torch import nn

sys.argv, given = sys.argv[:1], sys.argv
from cleanrl.ppo import Agent, parse_args  # noqa: E402

args = parse_args()
sys.argv = given
race = from_command_line()
torch.set_num_threads(1)
torch.manual_seed(race.seed)
np.random.seed(race.seed)
same_step = gymnasium.vector.AutoresetMode.SAME_STEP
envs = gymnasium.vector.SyncVectorEnv(
    [lambda: gymnasium.make(race.env, disable_env_checker=True) for _ in range(args.num_envs)], autoreset_mode=same_step
)
agent = Agent(envs)
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
shape = (args.num_steps, args.num_envs)
obs = torch.zeros(shape + envs.single_observation_space.shape)
actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))


def best(seen):
    with torch.no_grad():
        return agent.actor(torch.as_tensor(seen, dtype=torch.float32)).argmax(1).numpy()


def advantages_of(next_obs, next_done):
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages, lastgaelam = torch.zeros_like(rewards), 0
        for t in reversed(range(args.num_steps)):
            last = t == args.num_steps - 1
            nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
            nextvalues = next_value if last else values[t + 1]
            delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
            advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
    return advantages


def learn(advantages):
    b_obs = obs.reshape((-1,) + envs.single_observation_space.shape)
    b_logprobs, b_actions = logprobs.reshape(-1), actions.reshape(-1).long()
    b_advantages, b_values = advantages.reshape(-1), values.reshape(-1)
    b_returns, b_inds = (advantages + values).reshape(-1), np.arange(args.batch_size)
    for _ in range(args.update_epochs):
        np.random.shuffle(b_inds)
        for start in range(0, args.batch_size, args.minibatch_size):
            rows = b_inds[start : start + args.minibatch_size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[rows], b_actions[rows])
            ratio = (newlogprob - b_logprobs[rows]).exp()
            advantage = b_advantages[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
            pg_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
            newvalue = newvalue.view(-1)
            near = b_values[rows] + torch.clamp(newvalue - b_values[rows], -args.clip_coef, args.clip_coef)
            v_loss = 0.5 * torch.max((newvalue - b_returns[rows]) ** 2, (near - b_returns[rows]) ** 2).mean()
            loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


race.begin()
next_obs, next_done, steps = torch.Tensor(envs.reset(seed=race.seed)[0]), torch.zeros(args.num_envs), 0
updates = args.total_timesteps // args.batch_size
for update in range(updates):
    optimizer.param_groups[0]["lr"] = (1.0 - update / updates) * args.learning_rate
    for step in range(args.num_steps):
        steps += args.num_envs
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        seen, reward, terminated, truncated, _ = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward).view(-1)
        next_obs, next_done = torch.Tensor(seen), torch.Tensor(np.logical_or(terminated, truncated))
    learn(advantages_of(next_obs, next_done))
    if race.look(best, steps):
        break
race.done(steps)
