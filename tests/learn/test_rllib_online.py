"""RLlib plays and learns, and what it learned is a model like any other."""

import json
import os
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import boto3
import numpy as np
import pytest
import torch

from sparring.acting.evaluate import evaluate
from sparring.config import load
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.folder import RunFolder
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.registry import open_registry

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # RLlib warns of itself; Ray starts slowly


@pytest.fixture(scope="module", autouse=True)
def ray_of_our_own():
    """One for all tests here: starting it takes longer than they do."""
    from sparring.hosts.ray.cluster import Cluster

    cluster = Cluster("ray://local")
    yield
    cluster.close()


def silent(progress):
    pass


def test_ppo_gets_better_is_published_promoted_and_goes_on(config):
    seen, config = [], replace(config, registry=replace(config.registry, gate_episodes=100))
    request = TrainRequest("cartpole", "rllib:PPO", steps=8_192)
    first = train(request, TrainOptions(), config, seen.append)
    assert first.state == "done"
    assert first.env_steps >= 8_192
    assert first.published.evaluation.mean > 60  # chance earns 22
    assert first.published.promoted
    assert any(progress.return_mean is not None and progress.steps_per_s > 0 for progress in seen)
    with open_registry(config.registry_url) as registry:
        model = registry.fetch(first.published.model)
    assert set(model.files) == {"weights.safetensors", "model.onnx"}
    lineage = model.card.lineage
    assert (model.card.policy, lineage.algorithm, lineage.run) == ("categorical", "rllib:PPO", first.run)
    assert lineage.steps == {"selfplay": first.env_steps}
    again = evaluate("cartpole", model, episodes=100, seed=0)
    assert again.mean == pytest.approx(first.published.evaluation.mean)

    more = train(
        TrainRequest("cartpole", "rllib:PPO", steps=first.env_steps + 1_000),
        TrainOptions(resume=first.run),
        config,
        silent,
    )
    assert more.run == first.run
    assert first.env_steps + 1_000 <= more.env_steps < first.env_steps + 2_000
    assert more.updates > first.updates
    with open_registry(config.registry_url) as registry:
        assert registry.fetch(more.published.model).card.lineage.parents == (first.published.model,)
    lines = [json.loads(line) for line in (Path(config.data) / "runs" / first.run / "metrics.jsonl").open()]
    assert lines[-1]["env_steps"] == more.env_steps
    assert RunFolder.find(Path(config.data) / "runs", "cartpole", "rllib:PPO").name == first.run


@pytest.mark.parametrize("algo", ["rllib:PPO", "rllib:DQN", "rllib:SAC"])
def test_a_checkpoint_gives_back_everything_that_was_learned(config, algo):
    settings = {
        "rllib:PPO": ("train_batch_size_per_learner=256", "minibatch_size=128", "num_epochs=2"),
        "rllib:DQN": ("num_steps_sampled_before_learning_starts=200",),
        "rllib:SAC": ("num_steps_sampled_before_learning_starts=200", "hidden_units=[32]"),
    }[algo]
    agreed = plan(TrainRequest("cartpole", algo, settings=settings, envs=4), config)
    ours, other = build(agreed, None), build(agreed, None)
    try:
        while ours.iterate().update is None or ours.learner.updates < 2:
            pass
        state = ours.save()
        other.load(state)
        for name, value in ours.learner.weights().items():
            np.testing.assert_array_equal(other.learner.weights()[name], value)
        assert (other.position, other.learner.updates) == (ours.position, ours.learner.updates)
        slow = [dict(one.learner.module.state_dict()) for one in (ours, other)]
        assert slow[0].keys() == slow[1].keys()
        assert all(torch.equal(slow[0][name], slow[1][name]) for name in slow[0])
        assert other.save()["learner"] == state["learner"]
        before = other.position
        assert other.iterate() is not None
        assert other.position > before
    finally:
        ours.close()
        other.close()


@pytest.mark.parametrize("algo", ["rllib:PPO", "rllib:DQN", "rllib:APPO", "rllib:IMPALA"])
def test_two_actors_in_processes_of_their_own_play_for_one_learner(config, algo):
    words = {"rllib:DQN": ("num_steps_sampled_before_learning_starts=200", "training_intensity=0.0")}
    small = words.get(algo, ("train_batch_size_per_learner=256",))
    result = train(
        TrainRequest("cartpole", algo, settings=small, steps=1_500, envs=4, actors=2), TrainOptions(), config, silent
    )
    assert result.updates > 0
    assert result.env_steps >= 1_500
    assert result.published.evaluation.mean > 8


@pytest.mark.parametrize("game", ["connect-four", "duel"])
def test_one_seat_is_learned_among_scripts_past_selves_and_itself(config, game):
    words = ("train_batch_size_per_learner=256", "minibatch_size=128", "num_epochs=1", "hidden_units=[32]")
    result = train(TrainRequest(game, "rllib:PPO", settings=words, steps=300, envs=4), TrainOptions(), config, silent)
    played = result.published.evaluation
    assert played.wins + played.draws + played.losses == 10  # against the game's script, by what is legal


def test_a_box_of_numbers_is_learned_by_a_squashed_gaussian(config):
    words = ("train_batch_size_per_learner=512", "minibatch_size=256", "num_epochs=10", "lr=0.002", "grad_clip=0.5")
    result = train(
        TrainRequest("reach_game:reach", "rllib:PPO", settings=words, steps=5_000), TrainOptions(), config, silent
    )
    chance = evaluate("reach_game:reach", "random", episodes=50, seed=0).mean
    assert result.published.evaluation.mean > chance / 2  # what is missed is less than half of it


def test_nothing_is_left_in_the_home_folder(config):
    before = set(os.listdir(Path.home()))
    topology = build(plan(TrainRequest("cartpole", "rllib:DQN", envs=2), config), None)
    topology.iterate()
    topology.close()
    assert "ray_results" in before or "ray_results" not in os.listdir(Path.home())


@pytest.mark.servers
def test_what_was_learned_goes_to_a_bucket_and_is_played_from_there(s3_server, local_credentials, tmp_path):
    client = boto3.session.Session().client("s3", endpoint_url=s3_server.endpoint)
    with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket="rllib")
    client.close()
    url = s3_server.url("rllib", f"test/{uuid.uuid4().hex}")
    config = load(None, (f"data={tmp_path}", f"registry.url={url}", "registry.gate_episodes=10"))
    words = ("train_batch_size_per_learner=512", "minibatch_size=256", "num_epochs=2")
    result = train(TrainRequest("cartpole", "rllib:PPO", steps=512, settings=words), TrainOptions(), config, silent)
    with open_registry(config.registry_url) as registry:
        model = registry.fetch(result.published.model)
        assert [listed.card.id for listed in registry.models(model.card.game)] == [result.published.model]
    assert set(model.files) == {"weights.safetensors", "model.onnx"}
    played = evaluate("cartpole", model, episodes=10, seed=0)
    assert played.mean == pytest.approx(result.published.evaluation.mean)
