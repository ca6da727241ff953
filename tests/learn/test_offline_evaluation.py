"""What records say of a policy that never played: exact on a game small enough to be solved."""

import json
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from chain_game import SPEC as CHAIN
from chain_game import chain

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game, spec_of
from sparring.games.protocol import TERMINATED
from sparring.games.scripts import play, script
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.offline.evaluation import (
    doubly_robust,
    evaluate_offline,
    fitted_q_evaluation,
    importance_weights,
    recorded_return,
    weighted_importance,
)
from sparring.learn.offline.fitted_values import (
    FitConfig,
    RecordedPolicy,
    behaviour_logp,
    fitted_q,
    greedy_policy,
    value_bounds,
)
from sparring.learn.offline.records import RecordedEpisodes, of_episodes, read_records
from sparring.learn.offline.vector_world import WorldConfig
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store

HORIZON, STATES, ACTIONS, DISCOUNT = 3, 2, 2, 0.9
SEAT = SeatSpec(
    name="a",
    observation=(vector("observation/x", HORIZON * STATES, 0.0, 1.0),),
    action=discrete(ACTIONS),
    reward_bounds=(-1.0, 3.0),
)
SMALL = GameSpec(id="small", turns="simultaneous", seats=(SEAT,), max_ticks=HORIZON)
REWARD = np.array([[[0.0, 1.0], [0.5, -0.5]], [[1.0, 0.0], [0.2, 2.0]], [[-1.0, 1.0], [3.0, 0.0]]])  # [t, s, a]
MOVES = np.array([[0.8, 0.3], [0.6, 0.1]])  # P(next state is 0 | s, a)
PLAYERS = np.array([[0.6, 0.4], [0.3, 0.7]])  # μ(a | s)
TARGET = np.array([[0.2, 0.8], [0.7, 0.3]])  # π(a | s)
FIT = FitConfig(
    updates=1500, behaviour_updates=600, hidden_units=(32,), target_every_updates=10, world=WorldConfig(2, 200)
)


def exact(policy):
    """The policy's discounted return from state 0, backwards."""
    after = np.zeros(STATES)
    for t in range(HORIZON - 1, -1, -1):
        q = REWARD[t] + DISCOUNT * (MOVES * after[0] + (1 - MOVES) * after[1])
        after = (policy * q).sum(axis=1)
    return after[0]


def small_records(episodes, seed=0, known=True):
    rng = np.random.default_rng(seed)
    state = np.zeros(episodes, int)
    seen, action, reward, logp = (np.zeros((episodes, HORIZON), kind) for kind in (int, np.int64, np.float32, float))
    for t in range(HORIZON):
        act = (rng.random(episodes) >= PLAYERS[state, 0]).astype(int)
        seen[:, t], action[:, t], reward[:, t] = t * STATES + state, act, REWARD[t, state, act]
        logp[:, t] = np.log(PLAYERS[state, act]) if known else np.nan
        state = (rng.random(episodes) >= MOVES[state, act]).astype(int)
    return RecordedEpisodes(
        observation={"observation/x": np.eye(HORIZON * STATES, dtype=np.float32)[seen.ravel()]},
        action=action.ravel(),
        reward=reward.ravel(),
        legal=None,
        logp=logp.ravel().astype(np.float32),
        start=np.arange(episodes + 1) * HORIZON,
        ending=np.full(episodes, TERMINATED, np.uint8),
        final={"observation/x": np.zeros((episodes, HORIZON * STATES), np.float32)},
    )


def target_of(records):
    state = records.observation["observation/x"].argmax(axis=1) % STATES
    return RecordedPolicy(TARGET[state], np.full((records.episodes, ACTIONS), 0.5))


def test_every_estimator_finds_the_exact_value_of_a_small_game():
    records, rng = small_records(6000), np.random.default_rng(1)
    policy = target_of(records)
    weights = importance_weights(records, policy.steps, records.logp)
    judged = fitted_q(records, policy, SMALL, DISCOUNT, 0, FIT)
    truth = exact(TARGET)
    players = recorded_return(records, DISCOUNT, rng)
    assert players.value == pytest.approx(exact(PLAYERS), abs=0.06)
    assert abs(players.value - truth) > 0.3
    for estimate in (
        weighted_importance(records, weights, DISCOUNT, rng),
        fitted_q_evaluation(judged.v[records.first], rng),
        doubly_robust(records, weights, judged, DISCOUNT, rng),
    ):
        assert estimate.value == pytest.approx(truth, abs=0.08), estimate
        assert estimate.low <= estimate.value <= estimate.high
    assert 100 < weights.effective < 6000


@pytest.mark.slow
def test_doubly_robust_forgives_a_wrong_fit_and_wrong_weights_but_not_both():
    records, rng = small_records(6000), np.random.default_rng(1)
    policy = target_of(records)
    right = importance_weights(records, policy.steps, records.logp)
    wrong = importance_weights(records, policy.steps, np.full(records.steps, np.log(0.5), np.float32))
    judged = fitted_q(records, policy, SMALL, DISCOUNT, 0, FIT)
    error = np.array([2.0, -2.0])
    off = replace(judged, q=judged.q + error[records.action], v=judged.v + policy.steps @ error)
    errors = {
        name: abs(doubly_robust(records, w, fit, DISCOUNT, rng).value - exact(TARGET))
        for name, (w, fit) in {"weights": (wrong, judged), "fit": (right, off), "both": (wrong, off)}.items()
    }
    assert errors["weights"] < 0.1
    assert errors["fit"] < 0.1
    assert errors["both"] > 0.2


def test_no_value_lies_beyond_what_the_game_can_pay():
    assert value_bounds(spec_of("cartpole"), 0.99) == pytest.approx((0.0, (1 - 0.99**500) / 0.01))
    assert value_bounds(spec_of("cartpole"), 1.0) == (0.0, 500.0)
    assert value_bounds(SMALL, DISCOUNT) == pytest.approx((-2.71, 8.13))
    assert value_bounds(spec_of("connect-four"), 1.0, pays_once=True) == (-1.0, 1.0)
    records = small_records(20)
    assert not records.pays_once
    late = np.where(np.arange(records.steps) % HORIZON == HORIZON - 1, records.reward, 0)
    assert replace(records, reward=late).pays_once


def test_an_importance_weight_of_the_players_themselves_is_one():
    records, rng = small_records(500), np.random.default_rng(1)
    weights = importance_weights(records, np.exp(np.stack([records.logp, records.logp], axis=1)), records.logp)
    assert weights.effective == pytest.approx(500)
    same = weighted_importance(records, weights, DISCOUNT, rng).value
    assert same == pytest.approx(recorded_return(records, DISCOUNT, rng).value)


def test_players_that_recorded_no_chances_are_estimated_by_a_clone():
    records = small_records(4000, known=False)
    state = records.observation["observation/x"].argmax(axis=1) % STATES
    said = behaviour_logp(records, SMALL, 0, FIT)
    assert np.exp(said) == pytest.approx(PLAYERS[state, records.action], abs=0.08)
    half = replace(records, logp=np.where(np.arange(records.steps) < 100, -0.5, np.nan).astype(np.float32))
    assert (behaviour_logp(half, SMALL, 0, FIT)[:100] == -0.5).all()


def untrained(game):
    algorithm = open_algorithm("bc")
    learner = algorithm.begin(game, settings_of(algorithm, {"hidden_units": [8], "image_layers": ["flat"]}), 3)
    return NumpyForward(learner.network, learner.weights())


def test_a_policy_at_its_best_never_does_what_is_illegal():
    game, rng = spec_of("connect-four"), np.random.default_rng(0)
    tactical = script("connect-four", "tactical")
    records = of_episodes([one[:1] for one in play(open_game("connect-four", 4), [tactical] * 2, range(20), rng)])
    policy = greedy_policy(untrained(game), records)
    assert policy.steps.sum(axis=1) == pytest.approx(np.ones(records.steps))
    assert (policy.steps[~records.legal] == 0).all()
    assert (policy.steps.max(axis=1) == 1).all()


def test_a_judgement_says_what_is_missing_and_a_seed_says_all(config):
    with open_store(config.store_url) as store:
        for chunks in play(chain(8), [script(CHAIN.id, "random")], range(30), np.random.default_rng(1)):
            store.append(chunks)
        lost = play(chain(1), [script(CHAIN.id, "random")], [99], np.random.default_rng(5))[0][0]
        store.append([replace(lost, header=type(lost.header)(**header(lost, ending="running", outcome=None)))])
        records = read_records(store, CHAIN)
    assert (records.episodes, records.left_out["incomplete"]) == (30, 1)
    first, second = (
        evaluate_offline(records, untrained(CHAIN), CHAIN, discount=0.9, seed=4, fit=FIT) for _ in range(2)
    )
    assert first == second
    assert first.behaviour == "estimated by bc"
    assert "1 episodes are left out: incomplete" in first.missing
    assert any("behaviour_logp is missing from 100% of the steps" in line for line in first.missing)
    with pytest.raises(ConfigError, match=r"--discount 1\.5"):
        evaluate_offline(records, untrained(CHAIN), CHAIN, discount=1.5, seed=4, fit=FIT)
    stacked = msgspec.structs.replace(CHAIN, frame_stack=4)
    with pytest.raises(ConfigError, match="frame_stack = 4, and records are evaluated by single frames"):
        evaluate_offline(records, untrained(CHAIN), stacked, discount=0.9, seed=4, fit=FIT)


def header(chunk, **changed):
    return {name: getattr(chunk.header, name) for name in chunk.header.__struct_fields__} | changed


def test_an_empty_store_is_answered_with_a_sentence(config):
    with open_store(config.store_url) as store, pytest.raises(Missing) as error:
        read_records(store, CHAIN)
    assert str(error.value) == (
        "--from store: no whole episode of chain_game:chain fits (it holds none at all). "
        "Collect some: `spar collect chain_game:chain`."
    )


def spar(config, *words):
    argv = [sys.executable, "-m", "sparring", *words, "--set", f"data={config.data}", "--json"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_the_command_prints_every_estimate_and_refuses_scripts(config):
    with open_store(config.store_url) as store:
        for chunks in play(
            open_game("cartpole", 8), [script("cartpole", "random")], range(20), np.random.default_rng(1)
        ):
            store.append(chunks)
    request = TrainRequest("cartpole", "bc", "store", steps=2000, settings=("hidden_units=[8]",))
    model = train(request, TrainOptions(), config, lambda progress: None).published.model
    done = spar(config, "evaluate", model, "--from", "store")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert [one["name"] for one in said["estimates"]] == ["recorded", "wis", "fqe", "dr", "world"]
    assert (said["model"], said["episodes"], said["behaviour"]) == (model, 20, "estimated by bc")
    assert all(one["low"] <= one["high"] for one in said["estimates"])
    assert "missing: behaviour_logp" in done.stderr
    assert said["trial"]["episodes"] == 10
    assert "trial: " in done.stderr
    refused = spar(config, "evaluate", "script:cartpole/balance", "--from", "store")
    assert refused.returncode != 0
    assert "--from store: it is a script" in refused.stderr
