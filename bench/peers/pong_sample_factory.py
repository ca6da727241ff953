"""Sample Factory's APPO on Pong: agent steps learned from per second.

    python pong_sample_factory.py UPDATES THREADS

Its own Atari settings (sf_examples/atari: 1024 steps an update, 4 epochs of 4 batches of 256), asynchronous, on two
workers of four games each, with the wrappers of today's Gymnasium. Steps are those the learner has trained on; the
first two updates are not counted. The last line of the output is JSON.
"""

import json
import sys
import tempfile
import time

import ale_py
import gymnasium as gym
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults

STEPS = 1024  # of one update


def pong(name, cfg, env_config, render_mode=None):
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    game = gym.make("PongNoFrameskip-v4", render_mode=render_mode)
    game = gym.wrappers.AtariPreprocessing(game, noop_max=30, frame_skip=4, terminal_on_life_loss=True)
    game = gym.wrappers.TransformReward(game, np.sign)
    return gym.wrappers.FrameStackObservation(game, 4)


class Stopwatch(AlgoObserver):
    """Notes when the learner has trained on how many steps, and ends the run."""

    def __init__(self, updates):
        self.wanted, self.begun, self.first, self.said = updates * STEPS, None, 0, None

    def on_training_step(self, runner, training_iteration_since_resume):
        steps, now = sum(runner.env_steps.values()), time.perf_counter()
        if self.begun is None:
            if steps >= 2 * STEPS:
                self.begun, self.first = now, steps
        elif steps - self.first >= self.wanted and self.said is None:
            self.said = {"steps": steps - self.first, "seconds": now - self.begun}
            runner.cfg.train_for_env_steps = 1


def main(updates, threads):
    register_env("pong", pong)
    words = ["--env=pong", "--algo=APPO", f"--train_dir={tempfile.mkdtemp()}", "--experiment=pong", "--device=cpu"]
    words += ["--async_rl=True", "--num_workers=2", "--num_envs_per_worker=4", "--worker_num_splits=2"]
    words += ["--summaries_use_frameskip=False", "--use_record_episode_statistics=False", "--save_every_sec=100000"]
    parser, partial = parse_sf_args(words)
    atari_override_defaults(partial.env, parser)
    cfg = parse_full_cfg(parser, words)
    cfg, runner = make_runner(cfg)
    watch = Stopwatch(updates)
    runner.register_observer(watch)
    runner.init()
    runner.run()
    print(json.dumps(watch.said))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
