"""Optimisers by name, their options and schedules, and what is saved of them."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from sparring.config import Config
from sparring.errors import ConfigError
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.optim import BY_LAYER, ELEMENTWISE, Adam, OptimiserSettings, open_optimiser, scheduled_rate
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.wire.tree import pack, unpack

CONFIG = Config()
OPTIONS = {"sgd": {"momentum": 0.9}, "rmsprop": {"momentum": 0.5, "centered": True}, "adam": {"amsgrad": True}}


def parameters() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((4, 3), (4,), (2, 3, 2, 2))]


def steps(optimiser, values, count):
    return [
        optimiser.descend(sum(((value - 3) ** 2).sum() for value in values), max_norm=5.0).item() for _ in range(count)
    ]


@pytest.mark.parametrize("name", [*ELEMENTWISE, *BY_LAYER, "torch.optim:SGD"])
def test_each_descends_and_goes_on_from_its_bytes_as_if_nothing_had_happened(name):
    settings = OptimiserSettings(learning_rate=0.05, optimiser=name, optimiser_options=OPTIONS.get(name, {}))
    values = parameters()
    optimiser = open_optimiser(values, settings)
    norms = steps(optimiser, values, 6)
    assert norms[-1] < norms[0]
    saved, kept = unpack(pack(optimiser.save())), [value.detach().clone() for value in values]
    assert steps(optimiser, values, 4)[-1] < norms[-1]
    again = parameters()
    resumed = open_optimiser(again, settings)
    with torch.no_grad():
        for value, old in zip(again, kept, strict=True):
            value.copy_(old)
    resumed.load(saved)
    steps(resumed, again, 4)
    assert all(torch.equal(mine, other) for mine, other in zip(again, values, strict=True))
    assert all(torch.equal(*pair) for pair in zip(resumed.everything(), optimiser.everything(), strict=True))


@pytest.mark.parametrize("name", ["adamw", "sgd", "radam"])
def test_the_flat_buffer_takes_the_steps_that_torch_takes_layer_by_layer(name):
    options = {"weight_decay": 0.1}
    settings = OptimiserSettings(learning_rate=0.05, optimiser=name, optimiser_options=options)
    ours, theirs = parameters(), parameters()
    optimiser = open_optimiser(ours, settings)
    made = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "radam": torch.optim.RAdam}[name]
    reference = made(theirs, lr=0.05, **options)
    for _ in range(8):
        steps(optimiser, ours, 1)
        reference.zero_grad()
        sum(((value - 3) ** 2).sum() for value in theirs).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 5.0)
        reference.step()
    assert all(torch.allclose(mine, other, atol=1e-5) for mine, other in zip(ours, theirs, strict=True))


def test_adam_with_its_own_options_is_ours_and_keeps_them():
    settings = OptimiserSettings(optimiser_options={"betas": [0.5, 0.9], "eps": 1e-3})
    ours, theirs = parameters(), parameters()
    optimiser, reference = open_optimiser(ours, settings), torch.optim.Adam(theirs, lr=1e-3, betas=(0.5, 0.9), eps=1e-3)
    assert isinstance(optimiser, Adam)
    for _ in range(5):
        steps(optimiser, ours, 1)
        reference.zero_grad()
        sum(((value - 3) ** 2).sum() for value in theirs).backward()
        torch.nn.utils.clip_grad_norm_(theirs, 5.0)
        reference.step()
    assert all(torch.allclose(mine, other, atol=1e-6) for mine, other in zip(ours, theirs, strict=True))


def test_frozen_parameters_stay_as_they_are():
    values = parameters()
    values[1].requires_grad_(False)
    before = values[1].clone()
    steps(open_optimiser(values, OptimiserSettings(optimiser="adamw")), values, 3)
    assert torch.equal(values[1], before)


def test_schedules_fall_over_their_steps_and_stay():
    def rates(schedule, **more):
        settings = OptimiserSettings(1.0, schedule, schedule_steps=100, **more)
        return [scheduled_rate(settings, at) for at in (0, 50, 100, 1000)]

    assert rates("constant") == [1, 1, 1, 1]
    assert rates("linear") == pytest.approx([1, 0.55, 0.1, 0.1])
    assert rates("linear", schedule_last=0.0) == pytest.approx([1, 0.5, 0, 0])
    assert rates("cosine") == pytest.approx([1, 0.55, 0.1, 0.1])
    assert rates("exponential", schedule_last=0.01) == pytest.approx([1, 0.1, 0.01, 0.01])
    assert rates("constant", warmup_steps=200) == pytest.approx([0, 0.25, 0.5, 1])
    assert rates("cosine", warmup_steps=200)[1] == pytest.approx(0.55 / 4)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"optimiser": "adamww"}, "there is no optimiser 'adamww'. Did you mean 'adamw'"),
        ({"optimiser": "lbfgs"}, "there is no optimiser 'lbfgs'"),
        (
            {"optimiser": "sgd", "optimiser_options": {"momentm": 0.9}},
            "sgd has no such option. Did you mean 'momentum'",
        ),
        ({"optimiser_options": {"lr": 0.9}}, "adam has no such option"),
        ({"optimiser": "sgd", "optimiser_options": {"momentum": -1.0}}, "Invalid momentum value: -1.0"),
        ({"optimiser_options": "fast"}, "should be dict, not str"),
        ({"schedule": "step"}, "Use one of 'constant', 'linear'"),
        ({"schedule": "exponential", "schedule_last": 0.0}, "Set schedule_last above 0"),
        ({"warmup_steps": -1}, "warmup_steps = -1"),
    ],
)
def test_settings_that_no_optimiser_has_are_refused_in_one_sentence(said, answer):
    with pytest.raises(ConfigError) as caught:
        settings_of(open_algorithm("ppo"), said)
    assert answer in str(caught.value)


def asked(algo, *settings, **more):
    small, game = "hidden_units=[8]", "reach_game:reach" if algo == "sac" else "cartpole"
    return plan(TrainRequest(game, algo, envs=4, settings=(small, *settings), **more), CONFIG)


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac", "r2d2", "impala", "a3c"])
def test_every_algorithm_learns_with_an_optimiser_by_name_and_resumes_bit_for_bit(algo):
    memory = ("memory=gru:8",) if algo == "r2d2" else ()
    words = ("optimiser=adamw", "optimiser_options={weight_decay = 0.1}", "schedule=cosine", *memory)
    request = asked(algo, *words, steps=3000, topology="single")
    request = dataclasses.replace(request, replay=dataclasses.replace(request.replay, min_steps=64))
    unbroken, resumed = build(request, None), build(request, None)
    for _ in range(3):
        unbroken.iterate()
    resumed.load(unpack(pack(unbroken.save())))
    for _ in range(3):
        assert unbroken.iterate().update is not None
        resumed.iterate()
    for name, weights in unbroken.learner.weights().items():
        np.testing.assert_array_equal(weights, resumed.learner.weights()[name])


def test_a_schedule_goes_by_the_steps_of_the_run_where_none_are_given():
    request = asked("ppo", "schedule=linear", "schedule_steps=0", "rollout_ticks=16", "learning_rate=0.01", steps=640)
    assert request.settings.schedule_steps == 640
    topology = build(request, None)
    rates = []
    while topology.position < request.steps:
        rates.append(topology.iterate().update.metrics["learning_rate"])
    assert rates == pytest.approx([0.01 * (1 - 0.9 * done / 10) for done in range(1, 11)])


def test_workers_of_hogwild_share_the_statistics_of_rmsprop_alone():
    with pytest.raises(ConfigError, match="a3c with adamw does not learn in memory that several workers change"):
        build(asked("a3c", "optimiser=adamw", topology="hogwild"), None)
    assert math.isfinite(build(asked("a3c", "optimiser=sgd", topology="single"), None).iterate().update.metrics["loss"])
