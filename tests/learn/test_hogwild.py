"""Workers that share parameters: they learn together, one may die, and a run of theirs is kept like any other."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.folder import RunFolder
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.tree import unpack

QUICK = ("learning_rate=0.01", "rollout_ticks=8", "hidden_units=[32]")
PATIENCE_S = 240.0  # of a busy machine


def wish(game="chain_game:chain", algo="a3c", steps=20_000, settings=QUICK, workers=1):
    return TrainRequest(game, algo, "sim", "hogwild", 0, steps, 8, settings, workers)


def turns(topology, until):
    """Turn after turn until that holds."""
    end = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < end, "it takes too long"
        topology.iterate()


@pytest.mark.slow
def test_workers_learn_together_and_one_that_is_killed_comes_back(config):
    topology = build(plan(wish(workers=2), config), None)
    try:
        turns(topology, lambda: (topology._rows[:, 2] > 5).all())
        killed, updates = topology.pool.pid(0), topology._rows[0, 2]
        os.kill(killed, signal.SIGKILL)
        before = topology.position
        turns(topology, lambda: topology.position > before + 2000)  # the other went on
        turns(topology, lambda: topology._rows[0, 2] > updates + 5)  # and this place learns again
        assert topology.pool.restarts == 1
        assert topology.pool.pid(0) != killed
        turns(topology, lambda: topology.position >= 20_000)
        topology.save()  # nobody is in the middle of anything
        learner = topology.learner
        learner.optimiser.pull()
        assert learner.updates == topology._rows[:, 2].sum()
        assert topology.env_steps == topology.sources().steps["selfplay"] >= 20_000
        played = evaluate("chain_game:chain", NumpyForward(learner.network, learner.weights()), episodes=10, seed=1)
        assert played.mean == pytest.approx(0.7)
    finally:
        topology.close()


@pytest.mark.slow
def test_a_run_is_kept_and_goes_on_where_it_was(config):
    first = train(wish(steps=2_000), TrainOptions(promote=False), config, lambda progress: None)
    more = TrainRequest("chain_game:chain", "a3c", steps=first.env_steps + 2_000)
    again = train(more, TrainOptions(resume=first.run, promote=False), config, lambda progress: None)
    assert again.run == first.run
    assert again.plan.topology == "hogwild"
    assert again.env_steps >= first.env_steps + 2_000
    assert again.updates > first.updates


def test_nobody_plays_between_two_turns(config):
    topology = build(plan(wish(), config), None)
    try:
        turns(topology, lambda: topology.position > 0)
        seen = topology.learner.weights()
        saved = topology.save()
        assert all((seen[name] == value).all() for name, value in topology.learner.weights().items())
        topology.learner.optimiser.pull()
        weights, played = topology.learner.weights(), topology.position
        time.sleep(0.2)
        topology.learner.optimiser.pull()
        assert all((weights[name] == value).all() for name, value in topology.learner.weights().items())
        assert topology.position == played
        other = build(plan(wish(), config), None)
        other.load(saved)
        assert all((weights[name] == value).all() for name, value in other.learner.weights().items())
        assert (other.position, other.learner.updates) == (played, topology.learner.updates)
        other.close()
    finally:
        topology.close()


def test_a_number_that_is_none_stops_the_run_and_keeps_the_batch(config):
    far = (*QUICK, "learning_rate=1e30", "max_gradient_norm=1e30")
    with pytest.raises(TrainingStopped, match="is no finite number after update"):
        train(wish(steps=10**6, settings=far), TrainOptions(promote=False), config, lambda progress: None)
    run = RunFolder.find(Path(config.data) / "runs", "chain_game:chain", "a3c")
    assert json.loads((run.folder / "status.json").read_text())["state"] == "failed"
    batch = unpack((run.folder / "broken_batch").read_bytes())
    assert batch["reward"].shape == (8, 8)


def test_what_is_wrong_with_a_game_is_said_as_it_was_to_the_worker(config):
    topology = build(plan(wish("small_games:broken"), config), None)
    try:
        with pytest.raises(TrainingStopped, match="game small_games:broken: it gave seat 'player' the reward nan"):
            turns(topology, lambda: False)
    finally:
        topology.close()


def test_a_gradient_that_is_no_number_changes_nothing():
    import torch

    from sparring.learn.optim import Rmsprop

    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = Rmsprop([parameter], 0.1, 0.9, 1e-5)
    before = optimiser.save()
    norm = optimiser.descend((parameter * float("nan")).sum(), 1.0)
    assert not torch.isfinite(norm)
    assert (optimiser.save() == before).all()


def test_rmsprop_takes_the_steps_of_its_equation():
    import torch

    from sparring.learn.optim import Rmsprop

    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimiser = Rmsprop([parameter], 0.1, 0.9, 1e-5)
    value, square = np.array([1.0, -2.0]), np.zeros(2)
    for _ in range(5):
        optimiser.descend((parameter**2).sum(), 1e9)
        optimiser.pull()
        square = 0.9 * square + 0.1 * (2 * value) ** 2
        value = value - 0.1 * (2 * value) / np.sqrt(square + 1e-5)
        assert parameter.detach().numpy() == pytest.approx(value, rel=1e-5)


def test_an_algorithm_that_cannot_share_is_refused_with_a_sentence(config):
    with pytest.raises(ConfigError, match="ppo with adam does not learn in memory that several workers change"):
        build(plan(wish(algo="ppo"), config), None)


def test_learners_that_share_see_what_each_other_learned():
    from chain_game import SPEC

    algorithm = open_algorithm("a3c")
    one, two = (algorithm.begin(SPEC, settings_of(algorithm, {"hidden_units": [4]}), seed) for seed in (1, 2))
    shared = one.optimiser.numbers.copy()
    one.optimiser.share(shared)
    two.optimiser.share(shared)
    shared[0] += 1.0
    one.optimiser.pull()
    two.optimiser.pull()
    assert all((one.weights()[name] == value).all() for name, value in two.weights().items())
