"""Tianshou's PPO with the settings of its example for discrete actions (test_ppo_discrete.py)."""

import contextlib

import gymnasium
import numpy as np
import torch
from greedy import from_command_line
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

ENVS, ROLLOUT, REPETITIONS, BATCH = 20, 2000, 10, 64

race = from_command_line()
torch.set_num_threads(1)
np.random.seed(race.seed)
torch.manual_seed(race.seed)
env = gymnasium.make(race.env)
envs = DummyVectorEnv([lambda: gymnasium.make(race.env, disable_env_checker=True) for _ in range(ENVS)])
envs.seed(race.seed)
net = Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64])
actor = DiscreteActor(preprocess_net=net, action_shape=env.action_space.n, softmax_output=True)
critic = DiscreteCritic(preprocess_net=net)
for layer in ActorCritic(actor, critic).modules():
    if isinstance(layer, nn.Linear):
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
policy = ProbabilisticActorPolicy(
    actor=actor,
    dist_fn=torch.distributions.Categorical,
    action_scaling=False,
    action_space=env.action_space,
    deterministic_eval=True,
)
algorithm = PPO(
    policy=policy,
    critic=critic,
    optim=AdamOptimizerFactory(lr=3e-4),
    gamma=0.99,
    gae_lambda=0.95,
    max_grad_norm=0.5,
    eps_clip=0.2,
    vf_coef=0.5,
    ent_coef=0.0,
    advantage_normalization=False,
)
collector = Collector(algorithm, envs, VectorReplayBuffer(20_000, ENVS))


def best(seen):
    with torch.no_grad():
        return actor(torch.as_tensor(seen, dtype=torch.float32))[0].argmax(1).numpy()


class Enough(Exception):
    """The race is over."""


def after_steps(epoch, env_steps):
    if race.look(best, env_steps):
        race.done(env_steps)
        raise Enough


collector.reset()
race.begin()
with contextlib.suppress(Enough):
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=100,
            epoch_num_steps=50_000,
            collection_step_num_env_steps=ROLLOUT,
            update_step_num_repetitions=REPETITIONS,
            batch_size=BATCH,
            test_collector=None,
            training_fn=after_steps,  # called before each collection
            show_progress=False,
            verbose=False,
        )
    )
