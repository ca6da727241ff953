"""The topologies that have actors or learners elsewhere, on a real Ray cluster: the same files learn there."""

from dataclasses import replace

import numpy as np
import pytest
from hosted_runs import learn, ray_actors, turn_until, wired
from test_allreduce import digests, wished

from sparring.hosts.protocol import open_host
from sparring.learn.topologies import build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One of this machine for all: its start is what takes time."""
    pytest.importorskip("ray")
    with open_host("ray://local"):
        yield


@pytest.mark.parametrize(("topology", "shards"), [("sync", 0), ("async", 0), ("apex", 1)])
def test_the_same_files_learn(topology, shards, config):
    with wired(config, topology, on="ray://local", shards=shards) as topology:
        turns = learn(topology, 20)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert topology.env_steps > 0


def test_actors_that_others_ask_for_join_in_and_those_who_leave_are_not_waited_for(config):
    with wired(config, "sync", on="ray://local") as topology:
        learn(topology, 3)
        topology.actors.host.scale("actor", 3)
        turn_until(topology, lambda: topology.flow()["actors"] == 3)
        rows = [turn.batch.reward.shape[1] for turn in learn(topology, 3)]
        assert rows[-1] == 3 * 4
        topology.actors.host.scale("actor", 1)
        rows = [turn.batch.reward.shape[1] for turn in learn(topology, 3)]
        assert rows[-1] == 4


def test_central_outlives_its_services(config):
    with wired(config, "central", on="ray://local") as topology:
        turns = learn(topology, 10)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert topology.env_steps > 0
        for done, victim in enumerate(ray_actors()):
            victim.kill()
            turn_until(topology, lambda done=done: _restarts(topology) > done)
            learn(topology, 3)
        assert topology.flow()["actor_restarts"] == 2
        assert topology.flow()["inference_restarts"] == 1


def _restarts(topology):
    return topology.flow()["actor_restarts"] + topology.flow()["inference_restarts"]


def test_learners_in_a_ring_have_the_same_weights_and_go_on_when_one_is_killed():
    topology = build(replace(wished(3), on="ray://local"), None)
    try:
        learners = [topology.iterate().metrics["learners"]]
        assert len(digests(topology)) == 1
        ray_actors()[0].kill()
        learners += [topology.iterate().metrics["learners"] for _ in range(3)]
        assert len(digests(topology)) == 1
        assert (learners[0], learners[-1]) == (3, 2)
        assert topology.learner.updates >= 3, "one turn at most is lost"
    finally:
        topology.close()
