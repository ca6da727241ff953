"""That defaults learn: small games that no test tunes for, each within a minute of one core, on fixed seeds."""

import numpy as np
import pytest

from sparring.acting.evaluate import evaluate
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward

ALONE = [  # game, algorithm, steps, the least mean return of 50 greedy episodes, which random play is far below
    ("gym:CartPole-v1", "dqn", 20_000, 100.0),
    ("gym:FrozenLake-v1(map_name=4x4,is_slippery=false)", "ppo", 16_000, 0.9),
    ("gym:FrozenLake-v1(map_name=4x4)", "ppo", 60_000, 0.5),
    ("gym:Pendulum-v1", "sac", 5_000, -300.0),
    ("gym:MountainCarContinuous-v0", "sac", 5_000, 80.0),
]


def learned(game, algo, steps, config):
    """The network after so many steps, with nothing but the preset or the defaults."""
    topology = build(plan(TrainRequest(game, algo, topology="single", seed=1, steps=steps), config), None)
    try:
        while topology.position < steps:
            topology.iterate()
        return NumpyForward(topology.learner.network, topology.learner.weights())
    finally:
        topology.close()


@pytest.mark.slow
@pytest.mark.parametrize(("game", "algo", "steps", "least"), ALONE, ids=[f"{game}-{algo}" for game, algo, *_ in ALONE])
def test_a_game_of_one_seat_is_learned(game, algo, steps, least, config):
    assert evaluate(game, learned(game, algo, steps, config), episodes=50, seed=77).mean >= least


@pytest.mark.slow
def test_tic_tac_toe_by_self_play_hardly_loses_to_random_play(config):
    game = "spiel:tic_tac_toe"
    played = evaluate(game, learned(game, "ppo", 80_000, config), episodes=400, seed=77)
    assert np.sum([played.wins, played.draws, played.losses]) == 400
    assert played.losses <= 20
    assert played.wins >= 280
