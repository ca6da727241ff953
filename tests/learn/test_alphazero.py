"""AlphaZero: what it learns from, what it refuses, and that it learns to play."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from sparring.acting.evaluate import evaluate
from sparring.config import Config
from sparring.errors import ConfigError
from sparring.league.league_file import parse_league
from sparring.learn.algorithms.alphazero import Positions, Window, chances, positions
from sparring.learn.league.launch import with_algorithms
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.torch_state import tensor

SMALL = ("hidden_units=[64]", "simulations=8", "rollout_ticks=8", "minibatch_steps=128")


def topology(game="connect-four", kind="single", seed=0, steps=100_000, envs=16, settings=SMALL, config=None):
    wish = TrainRequest(game, "alphazero", topology=kind, seed=seed, steps=steps, envs=envs, settings=settings)
    return build(plan(wish, config or Config()), None)


def test_what_is_handed_on_is_what_the_search_found():
    running = topology(
        settings=(*SMALL, "random_moves=0.0", "trace_decay=1.0", "discount=1.0", "rollout_ticks=64", "mirrored=false")
    )
    played = running.actors.take_all().batch
    assert played.policy_target.shape == (*played.reward.shape, 7)
    true = played.policy_target[played.mask]
    np.testing.assert_allclose(true.sum(-1), 1.0, rtol=1e-5)
    assert (true[~played.legal[played.mask]] == 0).all()
    chosen = np.take_along_axis(played.policy_target, played.action[..., None].astype(np.int64), -1)[..., 0]
    np.testing.assert_allclose(np.log(chosen[played.mask]), played.behaviour_logp[played.mask], atol=1e-4)
    goal = positions(running.learner, played).goal.numpy()
    finished = np.zeros(played.reward.shape, bool)  # with λ = 1 the value of a whole game is how it ended
    for t in reversed(range(len(finished))):
        finished[t] = (played.ending[t] != 0) | (finished[t + 1] if t + 1 < len(finished) else False)
    assert finished[played.mask].mean() > 0.5
    assert set(np.round(goal[finished[played.mask]], 4)) <= {-1.0, 0.0, 1.0}


def test_moves_by_chance_are_played_and_not_learned():
    running = topology(settings=(*SMALL, "random_moves=1.0"))
    played = running.actors.take_all().batch
    legal = played.legal[played.mask].sum(-1)
    np.testing.assert_allclose(played.behaviour_logp[played.mask], -np.log(legal), atol=1e-5)
    assert np.ptp(played.policy_target[played.mask], axis=1).max() > 0.01


def test_a_mirrored_game_teaches_the_mirror_image_of_every_position():
    running = topology(settings=(*SMALL, "mirrored=true"))
    played = running.actors.take_all().batch
    found, steps = positions(running.learner, played), int(played.mask.sum())
    boards = found.seen["observation/board"].numpy()
    np.testing.assert_array_equal(boards[:steps], played.observation["observation/board"][played.mask])
    np.testing.assert_array_equal(boards[steps:], boards[:steps, :, :, ::-1])
    for column in (found.legal, found.policy):
        np.testing.assert_array_equal(column[steps:], column[:steps].flip(-1))
    np.testing.assert_array_equal(found.goal[steps:], found.goal[:steps])


def test_the_window_holds_the_newest_rollouts():
    def rollout(value, steps):
        column = tensor(np.full(steps, value, np.float32))
        return Positions({"seen": column}, column > 0, column, column, column)

    window = Window(10)
    assert len(window.add(rollout(1, 6)).goal) == 6
    assert len(window.add(rollout(2, 6)).goal) == 12
    joined = window.add(rollout(3, 6))
    assert Counter(joined.goal.tolist()) == {2.0: 6, 3.0: 6}
    copy = Window(10)
    copy.load(window.save())
    assert copy.add(rollout(4, 6)).seen["seen"].tolist() == [3.0] * 6 + [4.0] * 6


def test_what_surprised_the_policy_is_drawn_more_often():
    column = torch.zeros(4)
    found = Positions({}, column, column, column, torch.tensor([0.0, 1.0, 3.0, 0.0]))
    assert np.diff(chances(found, 0.5), prepend=0) == pytest.approx([0.125, 0.25, 0.5, 0.125])
    assert np.diff(chances(found, 0.0), prepend=0) == pytest.approx([0.25] * 4)
    nothing = Positions({}, column, column, column, column)
    assert np.diff(chances(nothing, 1.0), prepend=0) == pytest.approx([0.25] * 4)


def test_surprise_is_how_far_the_search_moved_the_policy():
    running = topology(settings=(*SMALL, "mirrored=false"))
    found = positions(running.learner, running.actors.take_all().batch)
    logits = running.learner.net.at(found.seen, torch.arange(len(found.goal)))["logits"].detach()
    own = Categorical(logits=logits.masked_fill(~found.legal, -1e9))
    expected = kl_divergence(Categorical(probs=found.policy), own)
    np.testing.assert_allclose(found.surprise, expected.clamp(min=0), atol=1e-5)


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("duel", "game duel: it cannot be searched: its seats move at the same time"),
        ("spiel:kuhn_poker", "game spiel:kuhn_poker: it cannot be searched: it hides information or draws chance"),
    ],
)
def test_a_game_that_cannot_be_searched_is_refused_before_anything_starts(game, why):
    with pytest.raises(ConfigError, match=why):
        topology(game, kind="async")


@pytest.mark.parametrize(
    "wrong",
    [
        "simulations=0",
        "random_moves=1.5",
        "surprise_share=-0.1",
        "window_steps=0",
        "root_noise=1.0",
        "samples_per_step=0.0",
        "value_coefficient=-1.0",
        "value_scale=-1.0",
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(wrong):
    name, _, value = wrong.partition("=")
    with pytest.raises(ConfigError, match=rf"^\[alphazero\]: .*{name} = {float(value):g}[,.]"):
        topology(settings=(wrong,))


def test_it_is_refused_where_others_step_the_games_of_its_actors():
    with pytest.raises(ConfigError, match="alphazero searches where its games are played, and central"):
        topology(kind="central")


def test_two_actor_processes_play_for_it():
    running = topology(kind="async", envs=8)
    try:
        while running.learner.updates < 4:
            running.iterate()
        assert running.env_steps >= 4 * 8 * 8
    finally:
        running.close()


def test_in_a_league_main_agents_of_a_searchable_game_learn_by_search():
    file = with_algorithms(parse_league({}), "connect-four", Config())
    assert (file.main.algo, file.main_exploiter.algo) == ("alphazero", "ppo")
    plans = [
        plan(TrainRequest("connect-four", rules.algo, settings=rules.algo_settings()), Config())
        for rules in (file.main, file.main_exploiter)
    ]
    networks = [one.algorithm.begin(one.spec, one.settings, 0).network for one in plans]
    assert networks[0] == networks[1]  # the exploiter begins with the main agent's weights
    assert with_algorithms(parse_league({}), "duel", Config()).main.algo == "ppo"
    mixed = with_algorithms(parse_league({"main": {"source": "mix"}}), "connect-four", Config())
    assert mixed.main.algo == "ppo"
    said = with_algorithms(parse_league({"main": {"algo": "dqn"}}), "connect-four", Config())
    assert said.main.algo == "dqn"


@pytest.mark.slow
def test_it_learns_not_to_lose_at_tic_tac_toe():
    settings = ("simulations=16", "hidden_units=[64,64]", "rollout_ticks=16", "samples_per_step=8")
    running = topology("spiel:tic_tac_toe", envs=64, settings=settings)
    while running.env_steps < 60_000:
        running.iterate()
    player = NumpyForward(running.learner.network, running.learner.weights())
    played = evaluate("spiel:tic_tac_toe", player, episodes=200, seed=1, against="random")
    assert played.losses <= 6
    assert played.score > 0.85


def test_the_same_seed_with_opponents_of_its_past_plays_the_same():
    config = replace(Config(), train=replace(Config().train, opponents=2))

    def weights(seed):
        running = topology(seed=seed, config=config, settings=(*SMALL, "simulations=4"))
        for _ in range(3):
            running.iterate()
        return b"".join(value.tobytes() for value in running.learner.weights().values())

    assert weights(1) == weights(1) != weights(2)
