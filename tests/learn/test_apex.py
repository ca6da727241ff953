"""Replay with actors in processes of their own: it learns, keeps its ratio, and outlives its actors."""

import os
import signal
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.actors.actor_process import n_step_goals
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.learn.topologies.apex import actor_epsilon
from sparring.store import open_store
from sparring.wire.tree import pack, unpack

QUICK = ("learning_rate=0.002", "hidden_units=[32]", "batch_steps=64", "target_every_updates=100")


def planned(config, game="cartpole", algo="apex", settings=QUICK, envs=4, **keys):
    wish = TrainRequest(game, algo, "sim", "apex", 0, 100_000, envs, settings, 2)
    return plan(wish, replace(config, replay=replace(config.replay, min_steps=500, samples_per_insert=8.0, **keys)))


def turns_until(topology, there, timeout_s=120.0):
    """Turn by turn until it is there; the turns that learned."""
    until, learned = time.monotonic() + timeout_s, []
    while not there():
        assert time.monotonic() < until, topology.flow()
        turn = topology.iterate()
        if turn.update is not None:
            learned.append(turn)
    return learned


def naive_goal(reward, ending, best, tick, n_steps, discount):
    total, scale = 0.0, 1.0
    for k in range(n_steps):
        total += scale * reward[tick + k]
        if ending[tick + k] == TERMINATED:
            return total
        if ending[tick + k] == TRUNCATED:
            return total + scale * discount * best[tick + k]
        scale *= discount
        if tick + k + 1 == len(reward):
            break
    return total + scale * best[tick + k + 1]


@pytest.mark.parametrize("n_steps", [1, 3, 20])
def test_first_priorities_are_errors_over_n_steps_or_what_is_left(n_steps):
    rng = np.random.default_rng(n_steps)
    reward, best = rng.normal(size=(12, 5)), rng.normal(size=(13, 5))
    ending = rng.choice([RUNNING, TERMINATED, TRUNCATED], (12, 5), p=[0.8, 0.1, 0.1])
    found = n_step_goals(reward, ending, best, n_steps, 0.9)
    for stream in range(5):
        for tick in range(12):
            wanted = naive_goal(reward[:, stream], ending[:, stream], best[:, stream], tick, n_steps, 0.9)
            assert found[tick, stream] == pytest.approx(wanted)


def test_actors_differ_in_how_much_they_explore():
    assert [actor_epsilon(actor, 3) for actor in range(3)] == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert actor_epsilon(0, 1) == 0.4


@pytest.mark.slow
def test_cartpole_is_learned_and_the_ratio_of_samples_to_inserts_is_kept(config):
    topology, returns = build(planned(config), None), []
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (len(returns) > 50 and np.mean(returns[-20:]) > 60):
            turn = topology.iterate()
            returns.extend([] if turn.episodes is None else turn.episodes.returns.tolist())
            assert (
                topology.rate_limiter.inserted < 500 + 64
                or abs(topology.rate_limiter.owed()) <= topology.rate_limiter.slack_samples
            )
        assert np.mean(returns[-20:]) > 60
        assert turn.batch is None or turn.batch.weight is not None
        assert topology.replay.table.sampler._initial is not None  # its actors gave priorities
        assert topology.episodes == len(returns)
        assert sum(topology.sources().steps.values()) <= topology.env_steps
    finally:
        topology.close()


def test_an_actor_that_is_killed_is_replaced_and_nothing_is_joined_to_its_games(config):
    topology = build(planned(config), None)
    try:
        turns_until(topology, lambda: topology.learner.updates > 10)
        pid = topology.actors.pool.pid(1)
        os.kill(pid, signal.SIGKILL)
        turns_until(topology, lambda: topology.actors.restarts == 1 and topology.actors.pool.pid(1) not in (None, pid))
        before = topology.learner.updates
        learned = turns_until(topology, lambda: topology.learner.updates > before + 50)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in learned)
        assert learned[-1].metrics["staleness_updates"] >= 0
    finally:
        topology.close()


@pytest.mark.slow
def test_a_run_goes_on_with_its_learner_table_and_counters(config):
    chosen = planned(config)
    first = build(chosen, None)
    try:
        turns_until(first, lambda: first.learner.updates > 20)
        state = unpack(pack(first.save()))
    finally:
        first.close()
    second = build(chosen, None)
    try:
        second.load(state)
        assert (second.env_steps, second.episodes, second.learner.updates) == (
            first.env_steps,
            first.episodes,
            first.learner.updates,
        )
        assert second.rate_limiter.flow() == first.rate_limiter.flow()
        turns_until(second, lambda: second.learner.updates > first.learner.updates + 20)
    finally:
        second.close()


def test_sequences_come_with_the_memory_of_their_player(config):
    settings = ("batch_sequences=8", "hidden_units=[16]", "memory=gru:8", "burn_in_steps=4", "sequence_steps=8")
    topology = build(planned(config, algo="r2d2", settings=(*settings, "overlap_steps=4")), None)
    try:
        learned = turns_until(topology, lambda: topology.learner.updates > 5)
        assert learned[-1].batch.state.shape == (8, 8)
    finally:
        topology.close()


def test_where_there_is_room_for_one_block_at_a_time_actors_take_turns(config):
    """Room comes every so many updates: whoever counted turns instead would take from the same actor for ever."""
    topology = build(planned(config), None)
    try:
        turns_until(topology, lambda: topology.learner.updates >= 10)
        taken = Counter()
        insert = topology.replay.insert
        topology.replay.insert = lambda players, actor: taken.update([actor]) or insert(players, actor)
        turns_until(topology, lambda: sum(taken.values()) >= 20, 60.0)
        assert min(taken[0], taken[1]) >= 2, taken  # the processes are not equally fast on a busy machine
    finally:
        topology.close()


@pytest.mark.parametrize("topology", ["single", "apex"])
def test_sources_of_which_none_comes_are_refused_before_a_run_begins(config, topology):
    keys = {"sampler": "by-source", "source_shares": ("play=1", "node=2")}
    wish = replace(TrainRequest("cartpole", "dqn"), topology=topology)
    with pytest.raises(ConfigError, match=r"leaves out selfplay, and nothing else comes\. Give selfplay a share"):
        build(plan(wish, replace(config, replay=replace(config.replay, **keys))), None)


def test_a_learner_that_nothing_would_ever_reach_says_so_instead_of_waiting(config):
    planning = planned(config, sampler="by-source", source_shares=("node=1",))
    with open_store(config.store_url) as store:
        topology = build(planning, store)
        try:
            with pytest.raises(TrainingStopped, match="can be sampled, and the rate limiter lets no more in"):
                turns_until(topology, lambda: False)
        finally:
            topology.close()
