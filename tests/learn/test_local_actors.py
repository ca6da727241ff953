"""Actors in processes of their own, with real kills and real freezes: training goes on, and nothing stays behind."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from test_runs import weights_of

from sparring.errors import ConfigError, Missing, TrainingStopped
from sparring.learn.actors.process_pool import ProcessPool
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.store import open_store

SMALL = ("rollout_ticks=16", "hidden_units=[16]", "minibatch_steps=128", 'image_layers=["flat"]', "epochs=2")

LEARNER = """
from sparring.config import load
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
import torch
torch.set_num_threads(1)
wish = TrainRequest("cartpole", topology="async", actors=2, envs=8, settings=("rollout_ticks=16",))
topology = build(plan(wish, load()), None)
while True:
    if topology.iterate().update is not None:
        print(*(topology.actors.pool.pid(actor) for actor in range(2)), flush=True)
"""


def planned(config, topology, game="cartpole", actors=2, algo="ppo", settings=SMALL, **wish):
    return plan(TrainRequest(game, algo, topology=topology, actors=actors, envs=8, settings=settings, **wish), config)


@contextmanager
def wired(*args, **kwargs):
    topology = build(planned(*args, **kwargs), None)
    try:
        yield topology
    finally:
        topology.close()


def learn(topology, updates, deadline_s=180.0):
    """So many updates more; what each turn measured."""
    goal, until, measured = topology.learner.updates + updates, time.monotonic() + deadline_s, []
    while topology.learner.updates < goal:
        assert time.monotonic() < until, f"{topology.learner.updates} updates, not {goal}"
        measured.append(topology.iterate())
    return measured


def digest(topology):
    return hashlib.sha256(b"".join(one.tobytes() for one in topology.learner.weights().values())).hexdigest()


def shared_files():
    """What a temporary file would be called there; other programs leave other things."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("tmp*")} if folder.is_dir() else set()


def test_an_actors_process_never_imports_torch(config):
    said = "import sparring.learn.actors.actor_process, sys; print('torch' in sys.modules or 'numba' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "False"
    with wired(config, "async", "connect-four", actors=1) as topology:
        learn(topology, 1)
        maps = Path(f"/proc/{topology.actors.pool.pid(0)}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()


def test_a_killed_actor_is_replaced_and_what_it_had_not_handed_over_is_not_counted(config):
    with wired(config, "async") as topology:
        learn(topology, 6)
        first = [topology.actors.pool.pid(actor) for actor in range(2)]
        os.kill(first[0], signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first[0])], timeout=30)
        learn(topology, 3)
        until = time.monotonic() + 120
        while topology.actors.pool.pid(0) in (first[0], None) and time.monotonic() < until:
            topology.iterate()
        assert topology.actors.pool.pid(0) != first[0]
        assert topology.actors.pool.pid(1) == first[1]
        assert topology.actors.restarts == 1
        turns = learn(topology, 40)
        refused = int(turns[-1].metrics["rollouts_refused"])
        assert topology.env_steps == (topology.learner.updates + refused) * 16 * 8
        assert topology.sources().steps == {"selfplay": topology.learner.updates * 16 * 8}


@pytest.mark.slow
def test_a_killed_actor_of_a_crew_in_step_is_replaced_too(config):
    with wired(config, "sync") as topology:
        learn(topology, 3)
        os.kill(topology.actors.pool.pid(1), signal.SIGKILL)
        turns = learn(topology, 3)
        assert topology.actors.restarts == 1
        assert topology.env_steps == topology.learner.updates * 2 * 16 * 8
        assert {turn.metrics["staleness_updates"] for turn in turns if turn.update} == {0}


@pytest.mark.slow
def test_in_step_a_frozen_actor_is_replaced(config, monkeypatch):
    monkeypatch.setattr("sparring.learn.topologies.sync.FROZEN_TIMES", 2.0)  # the first rollout waits for a start
    with wired(config, "sync", actors=1) as topology:
        learn(topology, 2)
        frozen = topology.actors.pool.pid(0)
        monkeypatch.setattr("sparring.learn.topologies.sync.FROZEN_S", 1.0)
        os.kill(frozen, signal.SIGSTOP)
        learn(topology, 3)
        assert topology.actors.restarts >= 1
        assert topology.env_steps == topology.learner.updates * 16 * 8


@pytest.mark.slow
def test_a_frozen_actor_stops_nobody_and_is_gone_when_the_run_ends(config):
    with wired(config, "async") as topology:
        learn(topology, 4)
        frozen = topology.actors.pool.pid(0)
        os.kill(frozen, signal.SIGSTOP)
        turns = learn(topology, 12)
        assert (
            max(turn.metrics.get("staleness_updates", 0) for turn in turns) <= topology.stalest * topology.actors.actors
        )
        assert topology.actors.pool.pid(0) == frozen
        begun = time.monotonic()
    assert time.monotonic() - begun < 6.0  # 2 on an idle machine
    assert not psutil.pid_exists(frozen)


def test_what_is_too_old_is_counted_and_not_learned(config):
    with wired(config, "async") as topology:
        learn(topology, 2)
        stood = digest(topology)
        topology.stalest = -1
        refused = [topology.iterate() for _ in range(3)]
        assert all(turn.update is None for turn in refused)
        assert digest(topology) == stood
        assert 1 <= refused[-1].metrics["rollouts_refused"] <= 3
        assert topology.env_steps == (2 + refused[-1].metrics["rollouts_refused"]) * 16 * 8
        topology.stalest = 100
        learn(topology, 2)


def test_when_the_learner_is_killed_its_actors_and_their_memory_are_gone():
    before = shared_files()
    learner = subprocess.Popen([sys.executable, "-c", LEARNER], stdout=subprocess.PIPE, text=True)
    with learner:
        actors = [psutil.Process(int(pid)) for pid in learner.stdout.readline().split()]
        assert len(actors) == 2
        assert all(actor.is_running() for actor in actors)
        learner.kill()
        _, alive = psutil.wait_procs(actors, timeout=60)
    assert not alive
    assert shared_files() <= before


@pytest.mark.slow
def test_actors_that_keep_dying_end_the_run_with_what_they_said(config):
    with (
        wired(config, "async", "breaking_game:chain", actors=1) as topology,
        pytest.raises(TrainingStopped) as caught,
    ):
        learn(topology, 1, deadline_s=120)
    said = str(caught.value)
    assert said.startswith("actor 0: it ended 5 times within 60 s, last with code 1: ")
    assert "ZeroDivisionError: the chain broke" in said
    assert "--topology single" in said


@pytest.mark.parametrize(("game", "actors"), [("cartpole", 1), ("cartpole", 3), ("connect-four", 2)])
def test_in_step_a_seed_says_all(game, actors, config, monkeypatch):
    monkeypatch.setattr("sparring.acting.opponents.PAST_EVERY_STEPS", 300)
    digests = Counter()
    for _ in range(2):
        with wired(config, "sync", game, actors=actors) as topology:
            learn(topology, 5)
            digests[digest(topology)] += 1
            assert topology.env_steps == 5 * actors * 16 * 8
    assert list(digests.values()) == [2]


@pytest.mark.parametrize("game", ["cartpole", "connect-four"])
def test_in_step_a_resumed_run_learns_what_an_unbroken_one_does_bit_for_bit(game, config, tmp_path, monkeypatch):
    monkeypatch.setattr("sparring.acting.opponents.PAST_EVERY_STEPS", 300)
    config = replace(config, registry=replace(config.registry, gate_episodes=2))
    broken = replace(config, data=str(tmp_path / "broken"))

    def trained(where, steps, **orders):
        settings, envs = ((), None) if orders else ((*SMALL, "schedule_steps=2000"), 8)  # not each run's own steps
        wish = TrainRequest(game, topology="sync", steps=steps, envs=envs, settings=settings)
        return train(wish, TrainOptions(**orders), where, lambda progress: None)

    unbroken = trained(config, 2000)
    first = trained(broken, 800)
    with pytest.raises(ConfigError, match="the run has actors 2, and a resumed run keeps its own"):
        train(TrainRequest(game, actors=3), TrainOptions(resume=first.run), broken, lambda progress: None)
    second = trained(broken, 2000, resume=first.run)
    assert (second.env_steps, second.updates) == (unbroken.env_steps, unbroken.updates)
    assert weights_of(broken, second.published.model) == weights_of(config, unbroken.published.model)


@pytest.mark.slow
def test_without_steps_a_resumed_run_goes_on_where_it_stood(config):
    with wired(config, "async", algo="impala", settings=("rollout_ticks=16", "hidden_units=[16]")) as topology:
        learn(topology, 5)
        state, stood = (
            topology.save(),
            (topology.env_steps, topology.episodes, topology.learner.updates, digest(topology)),
        )
    with wired(config, "async", algo="impala", settings=("rollout_ticks=16", "hidden_units=[16]")) as again:
        again.load(state)
        assert (again.env_steps, again.episodes, again.learner.updates, digest(again)) == stood
        turns = learn(again, 3)
        assert again.env_steps == stood[0] + 3 * 16 * 8
        stalest = again.stalest * again.actors.actors
        assert all(turn.metrics["staleness_updates"] <= stalest for turn in turns if turn.update)
        assert again.actors.generation > 1  # their chance is not that of those before them


def test_a_topology_that_cannot_feed_an_algorithm_is_refused_with_one_that_can(config):
    with pytest.raises(ConfigError) as caught:
        planned(config, "async", algo="dqn", settings=())
    assert str(caught.value) == (
        "--topology: async carries trajectories, and dqn is fed with transitions. Leave it out: single suits."
    )
    with pytest.raises(ConfigError, match="Count them from 1"):
        planned(config, "sync", actors=0)
    with pytest.raises(Missing, match="Did you mean 'sync'"):
        planned(config, "sinc")
    assert planned(config, None, algo="impala", settings=()).topology == "async"
    assert planned(config, None).topology == "single"


def test_where_no_process_inherits_memory_the_way_out_is_said(monkeypatch):
    monkeypatch.setattr("sparring.learn.actors.process_pool.os.name", "nt")
    with pytest.raises(ConfigError, match="Use `--topology single` on this system"):
        ProcessPool(lambda *call: None)
    monkeypatch.undo()


def test_exploration_reaches_the_actors_of_a_greedy_policy(config):
    """By the board: the learner says ε, an actor in a process of its own plays it."""
    from sparring.learn.actors.actor_spec import ActorSpec
    from sparring.learn.actors.experience import joined
    from sparring.nets.numpy_forward import NumpyForward

    agreed = planned(config, None, algo="dqn", settings=("hidden_units=[16]",))
    learner = agreed.algorithm.begin(agreed.spec, agreed.settings, 0)
    part = ActorSpec(
        game="cartpole",
        spec=agreed.spec,
        network=learner.network,
        policy="greedy",
        envs=8,
        seed=0,
        feeds="steps",
        ticks=64,
        slots=2,
    )
    board, ring = part.open_weights(), part.open_ring()
    board.publish(learner.weights(), 0, 1.0)

    def launch(actor, generation, bell):
        import msgspec

        told = msgspec.structs.replace(
            part,
            weights_descriptor=board.block.descriptor,
            ring_descriptor=ring.block.descriptor,
            wakeup_descriptor=bell,
        )
        return told.encode(), (board.block.descriptor, ring.block.descriptor)

    crew = ProcessPool(launch)
    crew.resize(1)
    explored = {}
    for epsilon in (1.0, 0.0):
        board.publish(learner.weights(), board.version + 1, epsilon)
        version = board.version
        while True:
            while not ring.ready():
                crew.wait(120)
            block = joined(ring.to_read(), agreed.spec.seats[0])
            if block.version == version:
                break
            ring.release()
            crew.ring(0)
        forward = NumpyForward(learner.network, learner.weights())
        steps = block.steps
        best = forward(dict(steps.observation))["logits"].argmax(axis=1) == steps.action
        explored[epsilon] = 1.0 - float(best[8:].mean())
        ring.release()
        crew.ring(0)
    crew.close()
    board.close()
    ring.close()
    assert explored[0.0] == 0.0
    assert 0.3 < explored[1.0] < 0.7


@pytest.mark.parametrize("topology", ["async", "sync"])
def test_records_of_the_store_are_learned_beside_what_a_crew_plays(topology, config):
    from test_learning import record

    record(config, ["balance"], 5)
    quick = replace(config, replay=replace(config.replay, min_steps=100))
    with open_store(config.store_url) as store:
        topology = build(planned(quick, topology, source="mix", settings=(*SMALL, "records_steps=64")), store)
        try:
            turns = [turn for turn in learn(topology, 4) if turn.update]
            state = topology.save()
        finally:
            topology.close()
    assert all(turn.batch.records is not None for turn in turns[1:])
    assert turns[-1].update.metrics["imitation_loss"] > 0
    sources = topology.sources()
    assert sources.steps["selfplay"] == topology.env_steps
    assert sources.steps["play"] >= 3 * 64
    assert sources.store_until_ms is not None
    assert state["records"]["feeder"]["steps"] == {"play": sources.steps["play"]}


def test_apex_is_dqn_with_a_topology_and_priorities(config):
    agreed = planned(config, None, algo="apex", settings=())
    assert (agreed.algorithm.name, agreed.algo, agreed.topology) == ("dqn", "apex", "apex")
    assert agreed.replay.sampler == "prioritised"
    assert planned(config, None, algo="dqn", settings=()).replay.sampler == "uniform"


CHILD = "import os; from sparring.learn.actors.actor_process import yield_cpu; yield_cpu(); "


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no such schedule")
def test_an_actor_that_yields_the_cpu_is_scheduled_as_a_batch_process():
    asked = CHILD + "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout == b"True\n"


def test_where_the_system_has_no_batch_schedule_nothing_happens():
    asked = "import os; vars(os).pop('SCHED_BATCH', None); " + CHILD + "print('goes on')"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout == b"goes on\n"
