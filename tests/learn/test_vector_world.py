"""A world model of a game of numbers: a model earns in it what it would earn in the game, or it is not trusted."""

from dataclasses import replace

import numpy as np
import pytest
from chain_game import PLACES, chain
from chain_game import SPEC as CHAIN
from test_offline_evaluation import SMALL, small_records

from sparring.acting.evaluate import evaluate
from sparring.games.catalogue import open_game, spec_of
from sparring.games.scripts import play, script
from sparring.learn.offline.evaluation import evaluate_offline, world_of, world_return
from sparring.learn.offline.fitted_values import FitConfig
from sparring.learn.offline.records import of_episodes
from sparring.learn.offline.vector_world import WorldConfig
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.network import Head, Input, NetworkSpec

SHORT = WorldConfig(folds=2, updates=800, batch_steps=128, hidden_units=(32, 32))
FIT = FitConfig(updates=200, behaviour_updates=50, hidden_units=(16,), world=SHORT)


def linear(game, weights):
    """A model whose logits are a matrix times what it sees."""
    leaf = game.seats[0].observation[0]
    spec = NetworkSpec((Input(leaf.name, leaf.shape),), (Head("logits", len(weights)),))
    return NumpyForward(
        spec, {"logits/weight": np.asarray(weights, np.float32), "logits/bias": np.zeros(len(weights), np.float32)}
    )


def of_random(game, opened, episodes):
    rng = np.random.default_rng(1)
    return of_episodes(play(opened, [script(game, "random")], range(episodes), rng))


@pytest.fixture(scope="module")
def falls():
    """600 games of CartPole by chance: 22 ticks each."""
    return of_random("cartpole", open_game("cartpole", 16), 600)


@pytest.mark.slow
def test_models_earn_in_a_world_of_random_games_what_they_earn_in_the_real_one(falls):
    game, rng = spec_of("cartpole"), np.random.default_rng(2)
    world = world_of(falls, game, 3, SHORT)
    assert world.trusted
    leaning = linear(game, [[0, 0, 0, 0], [0, 0, 1, 0]])
    damped = linear(game, [[0, 0, 0, 0], [0, 0, 1, 0.3]])
    always = linear(game, [[0, 0, 0, 0], [0, 0, 0, 0]])
    for model in (always, leaning):
        real = evaluate("cartpole", model, episodes=200, seed=5).mean
        assert world.returns(falls, model, game, 1.0, rng).mean() == pytest.approx(real, rel=0.25)
    ranked = [world.returns(falls, model, game, 1.0, rng).mean() for model in (always, leaning, damped)]
    assert ranked == sorted(ranked)
    assert ranked[2] > 3 * falls.steps / falls.episodes  # nobody played as well as that


def test_a_world_of_a_chain_knows_both_its_ends():
    records, rng = of_random(CHAIN.id, chain(8), 200), np.random.default_rng(2)
    world = world_of(records, CHAIN, 3, SHORT)
    right = linear(CHAIN, [[0.0] * PLACES, [1.0] * PLACES])
    left = linear(CHAIN, [[1.0] * PLACES, [0.0] * PLACES])
    assert world.returns(records, right, CHAIN, 1.0, rng).mean() == pytest.approx(0.7, abs=0.1)
    assert world.returns(records, left, CHAIN, 1.0, rng).mean() == pytest.approx(-2.0, abs=0.1)
    said = evaluate_offline(records, right, CHAIN, discount=1.0, seed=4, fit=FIT, world=world)
    assert said.advised == "world"
    assert said.of("world").value == pytest.approx(0.7, abs=0.1)
    assert said == evaluate_offline(records, right, CHAIN, discount=1.0, seed=4, fit=FIT, world=world)


def test_where_no_number_was_ever_as_large_the_game_pays_the_least_it_can(falls):
    game = spec_of("cartpole")
    world = world_of(falls, game, 3, WorldConfig(folds=2, updates=10))
    never = replace(world.linear, low=np.full(4, 1.0), high=np.full(4, 2.0))
    model, rng = linear(game, [[0, 0, 0, 0], [0, 0, 1, 0]]), np.random.default_rng(2)
    returns = replace(world, linear=never).returns(falls, model, game, 1.0, rng)
    assert returns == pytest.approx(np.ones_like(returns), abs=0.01)  # the first tick, and nothing after it


def test_a_game_of_chance_is_left_to_the_doubly_robust_estimate():
    records = small_records(400)
    world = world_of(records, SMALL, 3, replace(SHORT, updates=300))
    assert not world.trusted
    said = evaluate_offline(records, linear(SMALL, np.eye(2, 6)), SMALL, discount=0.9, seed=4, fit=FIT, world=world)
    assert said.advised == "dr"


def test_numbers_with_legal_moves_and_a_handful_of_episodes_make_no_world(falls):
    few = of_random("cartpole", open_game("cartpole", 2), 3)
    assert world_of(few, spec_of("cartpole"), 3, SHORT) is None
    masks = replace(falls, legal=np.ones((falls.steps, 2), bool))
    assert world_of(masks, spec_of("cartpole"), 3, SHORT) is None


@pytest.mark.slow
def test_a_final_view_that_was_not_recorded_is_not_learned_as_a_standstill(falls):
    last = falls.start[1:] - 1
    lost = replace(falls, final={leaf: column[last] for leaf, column in falls.observation.items()})
    assert world_of(lost, spec_of("cartpole"), 3, SHORT).trusted


def test_the_spread_of_a_world_shows_learners_that_disagree():
    rng = np.random.default_rng(0)
    agree, disagree = np.full((3, 50), 2.0), np.repeat([[1.0], [2.0], [3.0]], 50, axis=1)
    assert (world_return(agree, rng).low, world_return(agree, rng).high) == pytest.approx((2.0, 2.0))
    assert world_return(disagree, rng).value == pytest.approx(2.0)
    assert world_return(disagree, rng).high - world_return(disagree, rng).low > 0.5
