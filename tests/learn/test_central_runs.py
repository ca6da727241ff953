"""central as a whole: it learns, and outlives whatever of it is killed."""

import numpy as np
import pytest
from hosted_runs import learn, planned, services, turn_until, wired

from sparring.errors import ConfigError, SparringError
from sparring.learn.topologies import build


@pytest.mark.slow
def test_it_learns_and_outlives_its_environments_and_its_inference(config):
    settings = ("rollout_ticks=32", "hidden_units=[32]", "minibatch_steps=128", "epochs=4", "learning_rate=0.003")
    with wired(config, "central", settings=settings, envs=8) as topology:
        learn(topology, 5)
        pids = {name: [one.pid for one in of] for name, of in services().items()}
        assert sorted(map(len, pids.values())) == [1, 2], pids
        services()["environments"][0].kill()
        turn_until(topology, lambda: topology.flow()["actor_restarts"])
        learn(topology, 5)
        services()["inference"][0].kill()
        turn_until(topology, lambda: topology.flow()["inference_restarts"])
        turns = learn(topology, 60)
        assert topology.env_steps > 60 * 16 * 32 * 0.5
        returns = np.concatenate([turn.episodes.returns for turn in turns[-15:]])
        assert returns.mean() > 60
        assert max(turn.metrics["staleness_updates"] for turn in turns) <= 6
        state = topology.save()
    with wired(config, "central", settings=settings, envs=8) as again:
        again.load(state)
        assert again.learner.updates == topology.learner.updates
        learn(again, 2)


@pytest.mark.parametrize("name", ["inference", "environments"])
@pytest.mark.slow
def test_one_that_worked_and_that_others_keep_ending_is_begun_anew(name, config):
    """Each is ended before it can do anything, until its host gives it up."""
    with wired(config, "central") as topology:
        learn(topology, 3)
        served, ended = topology.actors, set()

        def whom():
            return served._inference if name == "inference" else served._workers[0]

        first = whom()

        def is_another():
            for one in services().get(name, [])[:1]:
                if one.pid not in ended and whom() is first:
                    ended.add(one.pid)
                    one.terminate()
            return whom() is not first

        turn_until(topology, is_another)
        learn(topology, 3)


def says(what):
    return pytest.raises(SparringError, match=what)


@pytest.mark.slow
def test_a_game_that_breaks_ends_the_run_with_what_it_said(config):
    with wired(config, "central", game="breaking_game:chain") as topology, says("the chain broke"):
        learn(topology, 1)


def test_who_replays_learns_from_blocks(config):
    with wired(config, "central", algo="dqn") as topology:
        learn(topology, 30)
        services()["inference"][0].kill()
        turn_until(topology, lambda: topology.actors.inference_restarts)
        turns = learn(topology, 100)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert topology.env_steps > 500
        assert topology.episodes > 0


def test_a_table_in_shards_is_refused_with_the_topology_that_has_them(config):
    with pytest.raises(ConfigError, match="--topology apex"):
        build(planned(config, "central", algo="dqn", shards=1), None)
