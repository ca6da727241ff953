"""A world model of a board game: where stones fall, how others answer and which lines win is learned from records."""

from dataclasses import replace

import numpy as np
import pytest

from sparring.acting.evaluate import evaluate
from sparring.games.catalogue import open_game, spec_of
from sparring.games.scripts import play, script
from sparring.learn.offline.evaluation import evaluate_offline, world_of
from sparring.learn.offline.fitted_values import FitConfig
from sparring.learn.offline.line_board_world import REACH, BoardEvents, BoardKind, FlipRules, line_cells
from sparring.learn.offline.records import of_episodes
from sparring.learn.offline.vector_world import WorldConfig
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.network import Head, Input, NetworkSpec

GAME = "connect-four"
SPEC = spec_of(GAME)
BOARD = SPEC.seats[0].observation[0]
SHORT = WorldConfig(folds=2, board_updates=1000, board_batch_steps=128)
FIT = FitConfig(updates=100, behaviour_updates=50, hidden_units=(16,), world=SHORT)


def of_random(episodes):
    """Both seats of games that two players play by chance, each an episode of its own."""
    anybody = script(GAME, "random")
    games = play(open_game(GAME, 16), [anybody, anybody], range(episodes), np.random.default_rng(1))
    return of_episodes(
        [chunk for chunk in chunks if chunk.header.seat == seat] for chunks in games for seat in range(2)
    )


def linear(weight, bias):
    """A model whose logits are a matrix times the board, and more."""
    spec = NetworkSpec((Input(BOARD.name, BOARD.shape, dtype="uint8"),), (Head("logits", 7),))
    return NumpyForward(
        spec, {"logits/weight": np.asarray(weight, np.float32), "logits/bias": np.asarray(bias, np.float32)}
    )


def stacking():
    """Always the middle column, then the next: four of its own lie there soon."""
    return linear(np.zeros((7, 84)), [0, 1, 2, 3, 2.5, 1.5, 0.5])


def evading():
    """Never beside its own stones, if that can be helped."""
    near = np.abs(np.arange(7)[:, None] - np.tile(np.arange(7), 12)) <= 1
    return linear(-(near & (np.arange(84) < 42)).astype(float), np.arange(7) / 10)


@pytest.fixture(scope="module")
def records():
    return of_random(700)


@pytest.fixture(scope="module")
def world(records):
    return world_of(records, SPEC, 3, SHORT)


@pytest.mark.slow
def test_models_win_as_often_in_the_world_of_random_games_as_in_the_real_one(records, world):
    assert world.trusted, world.note
    rng = np.random.default_rng(2)
    for model in (stacking(), evading()):
        real = evaluate(GAME, model, episodes=400, seed=5, against="random").mean
        assert world.returns(records, model, SPEC, 1.0, rng).mean() == pytest.approx(real, abs=0.15)


@pytest.mark.slow
def test_stones_fall_on_stones_and_only_where_they_may(records, world):
    model, rng = world.models[0], np.random.default_rng(4)
    rows = rng.choice(records.steps, 300, replace=False)
    before = records.observation[BOARD.name][rows]
    assert (model.legal(before) == records.legal[rows]).mean() > 0.999
    after, reward, over = model.step(before, records.action[rows], rng)
    stones = after.reshape(-1, 2, 6, 7)
    assert (stones.sum(axis=1) <= 1).all()
    filled = stones.any(axis=1)
    assert (filled[:, 1:] >= filled[:, :-1]).all()
    own = (after != before)[:, 0].any(axis=1).argmax(axis=1)
    assert (own == records.action[rows]).mean() > 0.99
    assert set(reward[~over].tolist()) == {0.0}


@pytest.mark.slow
def test_the_evaluation_advises_a_world_that_predicts_and_says_how_well(records, world):
    said = evaluate_offline(records, stacking(), SPEC, discount=1.0, seed=4, fit=FIT, world=world)
    assert said.advised == "world"
    assert "of unseen outcomes" in said.of("world").note
    assert said == evaluate_offline(records, stacking(), SPEC, discount=1.0, seed=4, fit=FIT, world=world)


def test_a_world_that_has_hardly_learned_is_not_trusted_and_the_seed_decides_all(records):
    hardly, again = (world_of(records, SPEC, 3, replace(SHORT, board_updates=5)) for _ in range(2))
    assert not hardly.trusted
    assert (hardly.outcomes, hardly.entropy_ratio) == (again.outcomes, again.entropy_ratio)
    trusted = replace(hardly, outcomes=0.95, legal=1.0, entropy_ratio=1.0)
    assert trusted.trusted
    assert not replace(trusted, entropy_ratio=1.2).trusted  # overfitted
    assert not replace(trusted, legal=0.9).trusted
    assert not replace(trusted, outcomes=0.8).trusted
    returns = hardly.returns(records, stacking(), SPEC, 1.0, np.random.default_rng(2))
    assert returns.shape[0] == SHORT.folds
    assert np.abs(returns).max() <= 1


def test_a_handful_of_episodes_or_a_board_that_changes_everywhere_makes_no_world(records):
    assert world_of(of_random(1), SPEC, 3, SHORT) is None
    noise = np.random.default_rng(0).integers(0, 2, records.observation[BOARD.name].shape).astype(np.uint8)
    assert world_of(replace(records, observation={BOARD.name: noise}), SPEC, 3, SHORT) is None


def test_a_cell_of_several_values_is_a_bit_for_each_but_the_first():
    image = np.array([[[[0, 1], [2, 0]]], [[[2, 2], [1, 0]]]], np.uint8)
    leaf = BOARD.__class__(name="observation/cells", kind="image", shape=(1, 2, 2), dtype="uint8")
    kind = BoardKind(leaf, np.array([0, 1, 2]), np.zeros((1, 2)), 4)
    assert kind.bits(image).shape == (2, 2, 2, 2)
    assert (kind.image(kind.bits(image)) == image).all()


def test_a_bit_is_thought_to_flip_where_its_neighbours_looked_as_they_did():
    middle = line_cells(2, 3)[1]
    assert middle[0].tolist() == [6, 6, 0, 1, 2, 6, 6]
    assert (middle[:, REACH] == 1).all()
    floor = np.array([[[[0, 0], [0, 0]]]], np.uint8)
    stone = np.array([[[[0, 0], [1, 0]]]], np.uint8)
    flips = FlipRules.of(
        BoardEvents(
            np.concatenate([floor, floor, stone]), np.full(3, -1), np.zeros(3), np.array([2, 3, 0]), np.zeros(3)
        )
    )
    assert flips.possible(floor)[0, 0].tolist() == [False, False, True, True]
    assert flips.possible(stone)[0, 0].tolist() == [True, False, False, False]
