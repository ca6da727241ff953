"""RLlib's PPO with the settings of its example cartpole_ppo.py; elsewhere the same with a network of 64-64 tanh."""

import numpy as np
import ray
import torch
from greedy import from_command_line
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

race = from_command_line()
small = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
large = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
config = (
    PPOConfig()
    .environment(race.env)
    .env_runners(num_env_runners=1, num_envs_per_env_runner=8)
    .training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01)
    .rl_module(model_config=small if race.env == "CartPole-v1" else large)
    .debugging(seed=race.seed, log_level="ERROR")
)
if race.rollout:
    config = config.rl_module(model_config=large).training(
        train_batch_size_per_learner=race.rollout["steps"],
        minibatch_size=race.rollout["minibatch"],
        num_epochs=race.rollout["epochs"],
    )
algorithm = config.build_algo()


def best(seen):
    module = algorithm.learner_group._learner.module["default_policy"]
    with torch.no_grad():
        out = module.forward_inference({Columns.OBS: torch.as_tensor(seen, dtype=torch.float32)})
    return np.asarray(out[Columns.ACTION_DIST_INPUTS]).argmax(1)


race.begin()
while True:
    result = algorithm.train()
    steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
    if race.look(best, steps):
        break
race.done(steps)
algorithm.stop()
ray.shutdown()
