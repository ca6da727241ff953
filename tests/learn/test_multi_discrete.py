"""Several choices at once: one softmax for each entry of an action, from playing to the model that a game runs."""

import numpy as np
import pytest
import torch
from small_games import BUTTONS, buttons

from sparring.acting.evaluate import drawn_actions, evaluate
from sparring.games.scripts import play
from sparring.games.spec import Leaf, discrete
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets import policies
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.distributions import distribution
from sparring.nets.numpy_forward import NumpyForward
from sparring.registry import open_registry
from sparring.store import open_store

GAME = "small_games:buttons"
ACTION = BUTTONS.seats[0].action
SQUARE = Leaf(name="action", kind="multi-discrete", shape=(2, 2), dtype="int16", choices=(2, 3, 4, 2))
QUICK = {
    "ppo": ("learning_rate=0.005", "rollout_ticks=16", "minibatch_steps=128", "hidden_units=[16]"),
    "impala": ("learning_rate=0.01", "rollout_ticks=8", "hidden_units=[16]"),
    "a3c": ("learning_rate=0.01", "rollout_ticks=4", "hidden_units=[16]"),
    "bc": ("learning_rate=0.005", "batch_steps=64", "hidden_units=[16]", "label_smoothing=0.05"),
}


def learned(config, algo, steps, store=None, seed=0):
    source, topology = ("sim", "single") if store is None else ("store", "offline")
    topology = build(plan(TrainRequest(GAME, algo, source, topology, seed, steps, 16, QUICK[algo]), config), store)
    while topology.position < steps:
        topology.iterate()
    return topology.learner


def mean_return(learner):
    return evaluate(GAME, NumpyForward(learner.network, learner.weights()), episodes=40, seed=1).mean


@pytest.mark.parametrize(("algo", "steps"), [("ppo", 12_000), ("impala", 20_000), ("a3c", 30_000)])
def test_each_entry_learns_what_it_should_do_and_never_what_is_not_legal(algo, steps, config):
    assert mean_return(learned(config, algo, steps)) == pytest.approx(4.0)  # chance earns about 1.2


def test_actors_in_processes_play_it_and_a_game_runs_the_model(config):
    wish = TrainRequest(GAME, "ppo", topology="sync", steps=16_000, envs=8, settings=QUICK["ppo"])
    trained = train(wish, TrainOptions(), config, lambda progress: None)
    assert trained.published.evaluation.mean == pytest.approx(4.0)
    with open_registry(config.registry_url) as registry:
        chooser = Chooser(registry.fetch(trained.published.model))
    seat, rng = BUTTONS.seats[0], np.random.default_rng(0)
    chooser.check(seat)
    for cue, place, legal in ((1.0, [2, 3], [True] * 3 + [False] + [True] * 3), (-1.0, [1, 0], None)):
        decided = chooser.decide(seat, ActRequest({"observation/cue": np.array([cue, 0.0], np.float32)}, legal), rng)
        assert decided.action.tolist() == place
        assert decided.logp == 0.0


class Knowing:
    """Does what the cue wants, three times in four for each lever."""

    name = "knowing"

    def act(self, seat, observation, legal, rng):
        cue = observation["observation/cue"][:, :1] > 0
        slips = rng.random((len(cue), 2)) < 0.25
        return np.where(slips, [[0, 1]], np.where(cue, [[2, 3]], [[1, 0]])).astype(np.int32)


def test_records_of_several_choices_are_cloned_without_their_slips(config):
    with open_store(config.store_url) as store:
        for chunks in play(buttons(8), [Knowing()], list(range(200)), np.random.default_rng(1)):
            store.append(chunks)
        assert mean_return(learned(config, "bc", 40_000, store)) == pytest.approx(4.0)


def test_numpy_and_torch_give_an_action_the_same_probability():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(50, SQUARE.masks)).astype(np.float32)
    legal = rng.random(logits.shape) < 0.6
    legal[:, [0, 2, 5, 9]] = True  # every entry has something to choose
    choice = policies.CategoricalPolicy(SQUARE).explore({"logits": logits}, legal, rng, 0.0)
    assert choice.action.shape == (50, 2, 2)
    assert choice.action.dtype == np.int16
    chosen = distribution(SQUARE)
    out, action, mask = {"logits": torch.from_numpy(logits)}, torch.from_numpy(choice.action), torch.from_numpy(legal)
    logp, entropy = chosen.evaluate(out, action, mask)
    np.testing.assert_allclose(logp.numpy(), choice.logp, rtol=1e-5)
    torch.testing.assert_close(chosen.entropy(out, mask), entropy)
    best = policies.choose(SQUARE, logits, legal, rng)
    np.testing.assert_array_equal(chosen.best(out, mask).numpy(), best.action)


def test_probabilities_entropy_and_means_are_those_of_all_combinations():
    pair = Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(2, 3))
    chosen, out = distribution(pair), {"logits": torch.tensor([[0.3, -1.0, 0.5, 0.2, -0.7]])}
    legal = torch.tensor([[True, True, True, False, True]])
    every = [chosen.logp(out, torch.tensor([[i, j]]), legal) for i in range(2) for j in (0, 2)]
    whole = torch.cat(every)
    torch.testing.assert_close(whole.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(chosen.entropy(out, legal)[0], -(whole.exp() * whole).sum())
    torch.testing.assert_close(chosen.mean_logp(out, legal)[0], whole.mean())
    assert chosen.logp(out, torch.tensor([[0, 1]]), legal)[0] < -1e8


def test_entries_are_drawn_as_often_as_they_are_likely_and_apart_from_each_other():
    pair = Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(2, 2))
    likely = np.log(np.array([[0.2, 0.8, 0.6, 0.4]], np.float32)).repeat(40_000, axis=0)
    drawn = policies.CategoricalPolicy(pair).explore({"logits": likely}, None, np.random.default_rng(5), 0.0).action
    counts = np.bincount(drawn[:, 0] * 2 + drawn[:, 1], minlength=4) / len(drawn)
    np.testing.assert_allclose(counts, [0.12, 0.08, 0.48, 0.32], atol=0.01)


def test_a_first_decision_is_any_of_the_legal_combinations():
    legal = np.array([[True, False, True, True, False]]).repeat(1000, axis=0)
    pair = Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int32", choices=(2, 3))
    shares = (np.arange(1000) + 0.5) / 1000
    drawn = drawn_actions(shares, legal, np.arange(1000), pair)
    assert np.unique(drawn, axis=0).tolist() == [[0, 0], [0, 1]]
    assert (drawn[:, 1] == 0).sum() == 500
    one = drawn_actions(shares, None, np.arange(1000), discrete(4))
    assert np.bincount(one).tolist() == [250] * 4
