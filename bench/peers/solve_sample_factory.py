"""Sample Factory's APPO with the command line that its example for CartPole gives, on two workers.

It learns in processes of their own that cannot be halted for a look. So its learner copies its weights between two
batches, as often as the race looks at everyone, together with the time and with the steps that these weights have
learned from; the copies are judged when it has ended. Its clock begins with its first training step, which leaves out
its first rollout.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import torch
from greedy import from_command_line
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict

EVERY = json.loads(os.environ.setdefault("RACE", sys.argv[-1]))["every"]  # its processes import this file too


class FreezingLearner:
    """What its learner does beside learning: it keeps (seconds, steps, weights) for each look, and writes them last."""

    train, save = Learner.train, Learner.save  # its own
    begun, frozen = None, []

    def train_and_freeze(self, batch):
        FreezingLearner.begun = FreezingLearner.begun or time.perf_counter()
        before = self.env_steps // EVERY
        said = FreezingLearner.train(self, batch)
        if self.env_steps // EVERY > before:
            weights = {name: value.clone() for name, value in self.actor_critic.state_dict().items()}
            FreezingLearner.frozen.append((time.perf_counter() - FreezingLearner.begun, self.env_steps, weights))
        return said

    def save_with_frozen(self):
        torch.save(FreezingLearner.frozen, Path(self.cfg.train_dir) / "frozen.pth")
        return FreezingLearner.save(self)


Learner.train, Learner.save = FreezingLearner.train_and_freeze, FreezingLearner.save_with_frozen


class Watch(AlgoObserver):
    """When training began, how many steps it has seen, and its end."""

    def __init__(self, limit_s):
        self.limit_s, self.begun, self.steps = limit_s, None, []

    def on_training_step(self, runner, count):
        now = time.time()
        self.begun = self.begun or now
        self.steps.append((now - self.begun, sum(runner.env_steps.values())))
        if now - self.begun >= self.limit_s:
            runner.should_stop = True
            runner._should_end_training = lambda: True


def settings(race, folder):
    words = f"""--algo=APPO --use_rnn=False --num_envs_per_worker=20 --num_workers=2 --policy_workers_per_policy=1
        --recurrence=1 --with_vtrace=False --batch_size=512 --reward_scale=0.1 --save_every_sec=100000
        --experiment_summaries_interval=10 --experiment=race --env={race.env} --train_dir={folder} --device=cpu
        --seed={race.seed} --train_for_env_steps=1000000000 --save_milestones_sec=-1
        --log_to_file=False --wandb_job_type=none""".split()
    if race.rollout:
        words += ["--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh", f"--num_epochs={race.rollout['epochs']}"]
        words += [f"--batch_size={race.rollout['minibatch']}"]
        words += [f"--num_batches_per_epoch={race.rollout['steps'] // race.rollout['minibatch']}"]
    parser, _ = parse_sf_args(argv=words)
    return parse_full_cfg(parser, words)


def made(name, cfg=None, env_config=None, render_mode=None):
    return gymnasium.make(name, disable_env_checker=True)


def actor_of(cfg):
    env = make_env_func_batched(cfg, env_config=AttrDict(worker_index=0, vector_index=0, env_id=0))
    net = create_actor_critic(cfg, env.observation_space, env.action_space)
    env.close()
    return net.eval()


def judge(race, watch, cfg, folder):
    """The steps of the first copy that solves the task, else all."""
    net = actor_of(cfg)

    def best(seen):
        with torch.no_grad():
            rows = net.normalize_obs({"obs": torch.as_tensor(seen, dtype=torch.float32)})
            out = net.forward(rows, torch.zeros(len(seen), 1))
            return out["action_logits"].argmax(1).numpy()

    for seconds, steps, weights in torch.load(Path(folder) / "frozen.pth", weights_only=True):
        net.load_state_dict(weights)
        if race.judge_later(best, seconds, steps):
            return steps
    return watch.steps[-1][1]


if __name__ == "__main__":
    race = from_command_line()
    sys.argv = sys.argv[:1]
    register_env(race.env, made)
    with tempfile.TemporaryDirectory() as folder:
        cfg, runner = make_runner(settings(race, folder))
        watch = Watch(race.limit_s)
        runner.register_observer(watch)
        runner.init()
        runner.run()
        seconds, steps = watch.steps[-1]
        steps = steps - watch.steps[0][1] if race.rollout else judge(race, watch, cfg, folder)
        race.seconds = race.seconds if race.solved else seconds
        race.done(steps)
