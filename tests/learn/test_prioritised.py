"""DQN learns from every table that spar.toml can name."""

from dataclasses import replace

import pytest

from sparring.acting.evaluate import evaluate
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.tree import pack, unpack

STEPS = 6_000
QUICK = ("learning_rate=0.002", "epsilon_steps=1000", "batch_steps=64", "hidden_units=[32]")
TABLES = {
    "prioritised": {"sampler": "prioritised"},
    "prioritised, lowest priority first": {
        "sampler": "prioritised",
        "remover": "lowest-priority",
        "capacity_steps": 2_000,
    },
    "by-episode": {"sampler": "by-episode"},
    "in few bytes": {"capacity_bytes": 200_000},
}


def wired(config, keys):
    wish = TrainRequest("chain_game:chain", "dqn", "sim", None, 0, STEPS, 8, QUICK)
    return build(plan(wish, replace(config, replay=replace(config.replay, min_steps=200, **keys))), None)


@pytest.mark.parametrize("name", TABLES)
def test_dqn_learns_the_smallest_game(name, config):
    topology = wired(config, TABLES[name])
    while topology.position < STEPS:
        turn = topology.iterate()
    assert (turn.batch.weight is None) == ("prioritised" not in name)
    learner = topology.learner
    played = evaluate("chain_game:chain", NumpyForward(learner.network, learner.weights()), episodes=10, seed=1)
    assert played.mean == pytest.approx(0.7)


@pytest.mark.parametrize("name", TABLES)
def test_a_run_goes_on_as_if_nothing_had_happened(name, config):
    first, second = wired(config, TABLES[name]), wired(config, TABLES[name])
    while first.position < 3_000:
        first.iterate()
    second.load(unpack(pack(first.save())))
    for _ in range(20):
        first.iterate()
        second.iterate()
    assert pack(first.save()) == pack(second.save())
