"""central as a whole, on both hosts: it learns, and outlives whatever of it is killed."""

import time
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from test_central import REPLAYED, SMALL, planned, with_replay

from sparring.errors import ConfigError, SparringError
from sparring.hosts.opening import open_host
from sparring.learn.topologies import wire


@contextmanager
def wired(*args, **keys):
    wiring = wire(planned(*args, **keys), None)
    try:
        yield wiring
    finally:
        wiring.close()


def learn(wiring, updates, deadline_s=60.0):
    """So many updates more; the turns of them."""
    goal, until, turns = wiring.learner.updates + updates, time.monotonic() + deadline_s, []
    while wiring.learner.updates < goal:
        assert time.monotonic() < until, (wiring.learner.updates, wiring.flow())
        turn = wiring.turn()
        if turn.update is not None:
            turns.append(turn)
    return turns


def services():
    """Processes of this one's host by the name of their service."""
    found = defaultdict(list)
    for one in psutil.Process().children():
        if "sparring.hosts.worker" in one.cmdline():
            (name,) = {part.split(".")[0] for part in map(str, open_logs(one))} or {"?"}
            found[name].append(one)
    return found


def open_logs(process):
    return [file.path.rpartition("/")[2] for file in process.open_files() if file.path.endswith(".log")]


def test_it_learns_and_outlives_its_environments_and_its_inference(config):
    settings = ("rollout_ticks=32", "hidden_units=[32]", "minibatch_steps=128", "epochs=4", "learning_rate=0.003")
    with wired(config, settings=settings, envs=8) as wiring:
        learn(wiring, 5)
        pids = {name: [one.pid for one in of] for name, of in services().items()}
        assert sorted(map(len, pids.values())) == [1, 2], pids
        services()["environments"][0].kill()
        restarted(wiring, "actor_restarts")
        learn(wiring, 5)
        services()["inference"][0].kill()
        restarted(wiring, "inference_restarts")
        turns = learn(wiring, 60)
        assert wiring.env_steps > 60 * 16 * 32 * 0.5
        returns = np.concatenate([turn.episodes.returns for turn in turns[-15:]])
        assert returns.mean() > 60
        assert max(turn.metrics["staleness_updates"] for turn in turns) <= 6
        state = wiring.save()
    with wired(config, settings=settings, envs=8) as again:
        again.load(state)
        assert again.learner.updates == wiring.learner.updates
        learn(again, 2)


def restarted(wiring, what):
    until = time.monotonic() + 60
    while wiring.flow()[what] < 1:
        assert time.monotonic() < until, wiring.flow()
        wiring.turn()


def says(what):
    return pytest.raises(SparringError, match=what)


def test_a_game_that_breaks_ends_the_run_with_what_it_said(config):
    with wired(config, game="breaking_game:chain", settings=SMALL) as wiring, says("the chain broke"):
        learn(wiring, 1)


def test_who_replays_learns_from_blocks(config):
    settings = with_replay(config, min_steps=500, samples_per_insert=8.0)
    with wired(settings, algo="dqn", settings=REPLAYED) as wiring:
        learn(wiring, 30)
        services()["inference"][0].kill()
        until = time.monotonic() + 60
        while not wiring.players.inference_restarts:
            assert time.monotonic() < until
            wiring.turn()
        turns = learn(wiring, 100)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert wiring.env_steps > 500
        assert wiring.episodes > 0


def test_a_table_in_shards_is_refused_with_the_topology_that_has_them(config):
    with pytest.raises(ConfigError, match="--topology apex"):
        wire(planned(with_replay(config, shards=1), algo="dqn", settings=REPLAYED), None)


@pytest.fixture(scope="module")
def ray_here():
    """One cluster of this machine: its start is what takes time."""
    pytest.importorskip("ray")
    with open_host("ray://local"):
        yield


@pytest.mark.slow
def test_on_ray_the_same_file_learns_and_outlives_its_services(config, ray_here):
    with wired(config, on="ray://local") as wiring:
        turns = learn(wiring, 10)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert wiring.env_steps > 0
        for done, victim in enumerate(ray_actors()):
            victim.kill()
            until = time.monotonic() + 60
            while wiring.flow()["actor_restarts"] + wiring.flow()["inference_restarts"] <= done:
                assert time.monotonic() < until, wiring.flow()
                wiring.turn()
            learn(wiring, 3)
        assert wiring.flow()["actor_restarts"] == 2
        assert wiring.flow()["inference_restarts"] == 1


def ray_actors():
    """The processes that hold a service on a cluster that this one started."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if one.is_running() and " ".join(one.cmdline()).startswith("ray::Actor")]
