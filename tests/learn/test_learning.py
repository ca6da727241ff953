"""That it really learns: from play, from what others played, and from both."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from sparring.acting.evaluate import evaluate
from sparring.games.catalogue import open_game, spec_of
from sparring.games.scripts import play, script
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets.model_files import read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.registry import open_registry
from sparring.store import open_store


def trained(config, wish, **orders):
    return train(wish, TrainOptions(**orders), config, lambda progress: None)


def scored(config, model, game, episodes=100, against=None):
    with open_registry(config.registry_url) as registry:
        return evaluate(game, registry.fetch(model), episodes=episodes, seed=77, against=against)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_cartpole_is_learned(algo, config):
    result = trained(config, TrainRequest("cartpole", algo, seed=1), until=490.0)
    assert scored(config, result.published.model, "cartpole").mean >= 475


@pytest.mark.slow
def test_a_minute_of_connect_four_beats_chance(config):
    result = trained(config, TrainRequest("connect-four", steps=160_000))
    played = scored(config, result.published.model, "connect-four", 200)
    assert played.score > 0.75
    beginner = build(plan(TrainRequest("connect-four"), config), None).learner
    forward = NumpyForward(beginner.network, beginner.weights())
    with open_registry(config.registry_url) as registry:
        met = evaluate("connect-four", registry.fetch(result.published.model), episodes=100, seed=5, against=forward)
    assert met.score > 0.55


def record(config, players, episodes_each, rate=0.35):
    """CartPole episodes of mixed players in the store; their mean return."""
    game, returns = open_game("cartpole", 16), []
    with open_store(config.store_url) as store:
        for number, name in enumerate(players):
            rng = np.random.default_rng(number)
            seeds = rng.integers(0, 2**63, episodes_each).tolist()
            played = play(game, [Tired(script("cartpole", name), rate)], seeds, rng, "play")
            for chunks in played:
                assert all(kept.verdict == "new" for kept in store.append(chunks))
                returns.append(sum(float(chunk.columns["reward"].sum()) for chunk in chunks))
    return float(np.mean(returns))


class Tired:
    """A player that does something else now and then."""

    def __init__(self, player, rate):
        self.name, self._player, self._rate = "tired", player, rate

    def act(self, seat, observation, legal, rng):
        action = self._player.act(seat, observation, legal, rng)
        return np.where(rng.random(len(action)) < self._rate, 1 - action, action).astype(np.int32)


@pytest.mark.slow
def test_records_alone_make_a_better_player_than_those_who_were_recorded(config):
    mean = record(config, ["random", "balance", "balance"], 60)
    assert 20 < mean < 250
    result = trained(config, TrainRequest("cartpole", "dqn", source="store", steps=400_000))
    played = scored(config, result.published.model, "cartpole")
    assert played.mean > 1.3 * mean
    assert result.env_steps == 0
    with open_registry(config.registry_url) as registry:
        lineage = registry.fetch(result.published.model).card.lineage
    assert set(lineage.steps) == {"play"}
    assert lineage.store_until_ms is not None


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_records_are_mixed_with_play_and_counted(algo, config):
    record(config, ["balance"], 30)
    quick = replace(config, replay=replace(config.replay, min_steps=200))
    result = trained(quick, TrainRequest("cartpole", algo, source="mix", steps=3000, envs=8))
    with open_registry(config.registry_url) as registry:
        lineage = registry.fetch(result.published.model).card.lineage
    assert lineage.steps["selfplay"] >= 2900
    assert lineage.steps["play"] >= 900
    assert lineage.store_until_ms is not None


@pytest.mark.slow
def test_what_people_did_well_is_taken_over_by_ppo(config):
    record(config, ["balance"], 40, rate=0.1)
    settings = ("records_coefficient=1.0", "rollout_ticks=8", "max_gradient_norm=5.0")
    agreed = plan(TrainRequest("cartpole", "ppo", source="mix", steps=2000, envs=2, settings=settings), config)
    with open_store(config.store_url) as store:
        mixed, alone = build(agreed, store), build(replace(agreed, source="sim"), None)
        for topology in (alone, mixed):
            while topology.position < 600:
                records = topology.iterate().batch.records
    mixed_agrees, alone_agrees = (agreement(topology.learner, records) for topology in (mixed, alone))
    assert (mixed_agrees > 0.75, mixed_agrees > alone_agrees + 0.1) == (True, True), (mixed_agrees, alone_agrees)


def agreement(learner, records):
    """How often a learner would do what was done in the records."""
    chosen = NumpyForward(learner.network, learner.weights())(dict(records.observation))["logits"].argmax(1)
    return float((chosen == records.action).mean())


def test_an_empty_store_is_said_and_leaves_a_failed_run(config):
    from pathlib import Path

    from sparring.errors import Missing

    with pytest.raises(Missing) as error:
        trained(config, TrainRequest("cartpole", "dqn", source="store"))
    assert str(error.value) == (
        "--from store: the store holds no records of cartpole that fit. Collect some: `spar collect cartpole`."
    )
    (status,) = (Path(config.data) / "runs").glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "failed"


def test_the_command_ends_with_the_object_that_the_design_promises(config):
    words = ["train", "cartpole", "--steps", "1000", "--json", "--data", config.data, "--seed", "3", "--no-promote"]
    words += ["--algo-set", "rollout_ticks=16", "--algo-set", "epochs=2", "--set", "registry.gate_episodes=5"]
    done = subprocess.run([sys.executable, "-m", "sparring", *words], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    wanted = [
        "run",
        "game",
        "algo",
        "seed",
        "env_steps",
        "updates",
        "seconds",
        "steps_per_s",
        "return_mean",
        "return_sd",
    ]
    assert list(said)[:11] == [*wanted, "model"]
    assert (said["game"], said["algo"], said["seed"], said["promoted"]) == ("cartpole", "ppo", 3, False)
    assert said["env_steps"] == 1024
    assert "steps/s" in done.stderr
    wrong = subprocess.run(
        [
            sys.executable,
            "-m",
            "sparring",
            "train",
            "cartpole",
            "--algo-set",
            "clap=1",
            "--json",
            "--data",
            config.data,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["do"] == "Did you mean 'clip'"
    assert spec_of("cartpole").hash == read_spec(config, said["model"])


def read_spec(config, model):
    with open_registry(config.registry_url) as registry:
        fetched = registry.fetch(model)
    assert read_weights(fetched)
    return fetched.card.spec
