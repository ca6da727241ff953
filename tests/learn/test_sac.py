"""SAC: its targets by hand, its temperature, and a game of numbers that it learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from reach_game import SPEC as REACH
from reach_game import reach

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.games.scripts import play, script
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.learner import value_of
from sparring.learn.algorithms.sac import soft_costs, target_entropy, td_errors
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Batch
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store
from sparring.wire.tree import pack, unpack

ALGORITHM = open_algorithm("sac")
ROWS = 9
QUICK = ("learning_rate=0.003", "batch_steps=64", "hidden_units=[32]", "target_rate=0.02", "temperature_first=0.1")
ENDINGS = np.array([RUNNING, TERMINATED, TRUNCATED] * 3, np.uint8)


def wired(config, seed=0):
    wish = TrainRequest("reach_game:reach", "sac", "sim", None, seed, 6_000, 8, QUICK)
    keys = {"min_steps": 200, "sampler": "prioritised"}
    config = replace(config, replay=replace(config.replay, **keys))
    return build(plan(wish, config.layered({"replay.samples_per_insert": 8.0}, "the test", above=True)), None)


def shaken(learner, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # fresh heads say nearly nothing
        for network in (learner.policy, *learner.critics.online, *learner.critics.slow):
            for value in network.parameters():
                value.add_(torch.randn(value.shape, generator=draw) * 0.2)
    return learner


def reaches():
    """Nine transitions of the game of numbers."""
    rng = np.random.default_rng(2)
    seen = rng.uniform(-1, 1, (2, ROWS, 2)).astype(np.float32)
    return Batch(
        observation={"observation/way": seen[0]},
        action=rng.uniform(-1, 3, (ROWS, 2)).astype(np.float32),
        reward=rng.normal(size=ROWS).astype(np.float32),
        ending=ENDINGS,
        next_observation={"observation/way": seen[1]},
        n_steps=np.ones(ROWS, np.int32),
    )


def test_it_learns_a_game_of_numbers_with_priorities(config):
    topology = wired(config)
    while topology.position < 6_000:
        topology.iterate()
    learner = topology.learner
    played = evaluate("reach_game:reach", NumpyForward(learner.network, learner.weights()), episodes=40, seed=1)
    assert played.mean > -0.15  # chance: about -1.4


def test_a_run_goes_on_as_if_nothing_had_happened(config):
    first, second = wired(config), wired(config)
    while first.position < 600:
        first.iterate()
    second.load(unpack(pack(first.save())))
    for _ in range(10):
        first.iterate()
        second.iterate()
    assert pack(first.save()) == pack(second.save())


def test_errors_over_a_box_take_one_drawn_action_of_the_policy():
    config = settings_of(ALGORITHM, {"hidden_units": [16], "temperature_first": 0.3})
    learner, batch = shaken(ALGORITHM.begin(REACH, config, 0)), reaches()
    kept = learner.rng.get_state()
    errors = [one.detach() for one in td_errors(learner, batch)]
    learner.rng.set_state(kept)
    then = {"observation/way": torch.from_numpy(batch.next_observation["observation/way"])}
    action, logp = learner.distribution.draw(learner.policy(then), learner.rng)
    value = torch.minimum(*(value_of(one, then, action) for one in learner.critics.slow)) - 0.3 * logp
    goal = torch.from_numpy(batch.reward) + 0.99 * value * torch.from_numpy(batch.ending != TERMINATED)
    now = {"observation/way": torch.from_numpy(batch.observation["observation/way"])}
    for critic, error in zip(learner.critics.online, errors, strict=True):
        q = critic(now | {"action": torch.from_numpy(batch.action)})["value"]
        assert torch.allclose(error, (goal - q).detach(), atol=1e-5)


def test_critics_of_a_box_see_its_numbers_between_minus_one_and_one():
    learner = ALGORITHM.begin(REACH, settings_of(ALGORITHM), 0)
    given = learner.critics.online[0].spec.inputs[-1]
    assert (given.name, given.shape, given.shift, given.scale) == ("action", (2,), 1.0, 0.5)
    assert [head.name for head in learner.network.heads] == ["mean", "log_std"]


def test_the_policys_gradient_goes_through_the_critics_and_not_into_them():
    learner, batch = shaken(ALGORITHM.begin(REACH, settings_of(ALGORITHM, {"hidden_units": [16]}), 0)), reaches()
    now = {"observation/way": torch.from_numpy(batch.observation["observation/way"])}
    state = learner.rng.get_state()

    def loss():
        learner.rng.set_state(state)
        return soft_costs(learner, learner.critics.online, now)[0].mean()

    bias = learner.policy.get_parameter("mean/bias")
    (found,) = torch.autograd.grad(loss(), bias)
    with torch.no_grad():
        for place in range(2):
            step = torch.zeros(2)
            step[place] = 1e-2
            bias.add_(step)
            above = loss()
            bias.sub_(2 * step)
            below = loss()
            bias.add_(step)
            assert found[place].item() == pytest.approx((above - below).item() / 2e-2, abs=2e-2)
    before = [one.weights() for one in learner.critics.online]
    ALGORITHM.update(learner, replace(batch, weight=np.zeros(ROWS, np.float32)))
    for one, weights in zip(learner.critics.online, before, strict=True):
        assert all((one.weights()[name] == value).all() for name, value in weights.items())
        assert all(value.requires_grad for value in one.parameters())


def test_the_temperature_falls_while_there_is_more_entropy_than_asked_for_and_rises_while_there_is_less():
    for asked, direction in ((-20.0, -1), (20.0, 1)):
        config = settings_of(ALGORITHM, {"hidden_units": [16], "entropy_per_number": asked})
        learner = ALGORITHM.begin(REACH, config, 0)
        before = learner.temperature.item()
        ALGORITHM.update(learner, reaches())
        assert (learner.temperature.item() - before) * direction > 0
    still = ALGORITHM.begin(REACH, settings_of(ALGORITHM, {"hidden_units": [16], "tune_temperature": False}), 0)
    ALGORITHM.update(still, reaches())
    assert still.temperature.item() == 1.0


def test_the_target_entropy_is_of_the_width_of_the_box():
    assert target_entropy(ALGORITHM.begin(REACH, settings_of(ALGORITHM), 0)) == pytest.approx(2 * (-1 + math.log(2)))


def test_discrete_actions_are_refused_with_the_algorithms_that_take_them():
    with pytest.raises(ConfigError) as refused:
        ALGORITHM.begin(spec_of("cartpole"), settings_of(ALGORITHM), 0)
    assert str(refused.value) == (
        "game cartpole: its actions are discrete, and sac chooses among box ones. "
        "Use ppo, mappo, dqn, impala, a3c, mmd or r2d2 (docs/algorithms), or train a game with box actions."
    )


def test_what_cannot_be_is_refused():
    for key, value in (("target_rate", 0.0), ("temperature_first", 0.0), ("n_steps", 0)):
        with pytest.raises(ConfigError, match=rf"\[sac\]: .*{key} = {value:g}"):
            settings_of(ALGORITHM, {key: value})


@pytest.mark.parametrize("source", ["store", "mix"])
def test_it_learns_from_records_of_numbers(source, config):
    store = open_store(config.store_url)
    try:
        random = script("reach_game:reach", "random")
        for chunks in play(reach(8), [random], list(range(300)), np.random.default_rng(1)):
            store.append(chunks)
        wish = TrainRequest("reach_game:reach", "sac", source, None, 0, 4_000, 8, QUICK)
        topology = build(plan(wish, replace(config, replay=replace(config.replay, min_steps=100))), store)
        while topology.learner.updates < 20:
            turn = topology.iterate()
        assert turn.batch.action.shape == (64, 2)
        assert topology.sources().steps["collect"] > 0
        assert (topology.env_steps == 0) == (source == "store")
    finally:
        store.close()
