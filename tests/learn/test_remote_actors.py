"""The same topology files with actors as services of a host: they learn, outlive their actors, and replay in shards."""

import hashlib
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hosted_runs import is_shard, learn, planned, services, turn_until, wired, workers
from scipy import stats

from sparring.acting.actor import Episodes
from sparring.errors import ConfigError, TrainingStopped
from sparring.hosts.protocol import Resources, open_host
from sparring.learn import actors as opening
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.replay.local import memory_numbers
from sparring.learn.replay.shard_service import ReplayShard
from sparring.learn.replay.sharded import ShardSampler, rows_of_a_shard, weights_of
from sparring.learn.topologies import apex, build
from sparring.replay.rows import row_layout
from sparring.replay.steps import Steps


@pytest.fixture
def as_services(monkeypatch):
    """Actors of this machine as services too, as they are where no memory is shared."""
    for module in (opening, apex):
        monkeypatch.setattr(module, "is_local", lambda url: False)


def digest(topology):
    return hashlib.sha256(b"".join(one.tobytes() for one in topology.learner.weights().values())).hexdigest()


@pytest.mark.parametrize(("topology", "shards"), [("async", 0), ("apex", 0), ("apex", 2)])
def test_what_services_play_is_learned_and_a_killed_one_is_replaced(topology, shards, config, as_services):
    with wired(config, topology, shards=shards) as topology:
        learn(topology, 30)
        victim = next(one for one in workers() if not is_shard(one))
        victim.kill()
        turn_until(topology, lambda: topology.actors.restarts)
        assert topology.actors.restarts == 1
        turns = learn(topology, 30)
        assert all(np.isfinite(turn.update.metrics["loss"]) for turn in turns)
        assert topology.env_steps > 0
        assert topology.episodes > 0


def test_in_step_a_seed_says_all_and_it_is_what_shared_memory_says(config, monkeypatch):
    with wired(config, "sync", seed=3) as topology:
        learn(topology, 4)
        beside = digest(topology)
    monkeypatch.setattr(opening, "is_local", lambda url: False)
    with wired(config, "sync", seed=3) as topology:
        learn(topology, 4)
        assert digest(topology) == beside
        state = topology.save()
        learn(topology, 3)
        unbroken = digest(topology)
    with wired(config, "sync", seed=3) as again:
        again.load(state)
        learn(again, 3)
        assert digest(again) == unbroken


@pytest.mark.slow
def test_in_step_a_frozen_service_is_replaced(config, monkeypatch):
    monkeypatch.setattr(opening, "is_local", lambda url: False)
    monkeypatch.setattr("sparring.learn.topologies.sync.FROZEN_TIMES", 2.0)  # the first rollout waits for a start
    with wired(config, "sync") as topology:
        learn(topology, 2)
        monkeypatch.setattr("sparring.learn.topologies.sync.FROZEN_S", 1.0)
        frozen = services()["actor"][1]
        frozen.suspend()
        turns = learn(topology, 3)
        assert not frozen.is_running()
        assert topology.actors.restarts == 1
        assert turns[-1].batch.reward.shape[1] == 2 * 4


@pytest.mark.slow
def test_a_killed_shard_begins_empty_and_the_run_goes_on(config):
    with wired(config, "apex", shards=1) as topology:
        learn(topology, 20)
        (shard,) = workers()
        shard.kill()
        turn_until(topology, lambda: topology.replay.flow()["shard_restarts"])
        assert topology.replay.flow()["shard_restarts"] == 1
        learn(topology, 20)


@pytest.mark.slow
def test_the_learner_draws_from_the_other_shard_while_a_killed_one_is_replaced(config):
    with wired(config, "apex", shards=2) as topology:
        turn_until(topology, lambda: topology.flow()["replay_steps"] > 2_000)
        services()["replay"][0].kill()
        before = topology.learner.updates
        learn(topology, 30)
        assert not topology.flow()["shard_restarts"], "its successor is not waited for"
        kept = topology.save()["replay"]
        assert [state is None for state in kept["shards"]] == [True, False], "nor is it for a checkpoint"
        turn_until(topology, lambda: topology.flow()["shard_restarts"] == 1)
        assert topology.learner.updates > before + 30
    with wired(config, "apex", shards=2) as again:
        again.replay.load(kept)
        assert again.flow()["replay_steps"] > 500


@pytest.mark.slow
def test_a_shard_that_keeps_ending_ends_the_run_with_what_it_said(config):
    with wired(config, "apex", shards=1) as topology:
        learn(topology, 5)
        ended = set()

        def ends_again():
            for one in workers():
                if one.pid not in ended:
                    ended.add(one.pid)
                    one.terminate()

        with pytest.raises(TrainingStopped, match="replay 0: it keeps ending"):
            turn_until(topology, ends_again)


@pytest.mark.slow
def test_a_run_with_shards_goes_on_from_its_checkpoint(config):
    with wired(config, "apex", shards=2) as first:
        learn(first, 20)
        state, held = first.save(), first.replay.flow()["replay_steps"]
    with wired(config, "apex", shards=2) as again:
        again.load(state)
        assert again.learner.updates == first.learner.updates
        assert abs(again.replay.flow()["replay_steps"] - held) <= 64 * 2 * 16
        learn(again, 10)


@pytest.mark.slow
def test_a_checkpoint_of_a_shard_that_had_just_begun_anew_is_gone_on_from(config):
    with wired(config, "apex", shards=1) as first:
        learn(first, 20)
        (shard,) = workers()
        shard.kill()
        state = first.save()  # nobody has noticed: the rate limiter says full, and the table is empty
    assert state["rate_limiter"][0] >= 500
    with wired(config, "apex", shards=1) as again:
        again.load(state)
        assert again.replay.flow()["replay_steps"] == 0
        learn(again, 20)


@pytest.mark.slow
def test_a_run_goes_on_whoever_is_killed_and_however_often(config, as_services):
    state = None
    for _ in range(2):
        with wired(config, "apex", shards=1) as topology:
            if state is not None:
                topology.load(state)
            learn(topology, 20)
            for victim in (False, True, False):
                random.choice([one for one in workers() if is_shard(one) == victim]).kill()
                learn(topology, 150)
            state = topology.save()
    assert state["env_steps"] > 0


def test_more_shards_than_actors_are_refused(config):
    with pytest.raises(ConfigError, match="3 shards for 2 actors"):
        build(planned(config, "apex", shards=3), None)


def made_block(agreed, actor, number, priority):
    """Steps of one stream whose reward says which they are."""
    network, seat = agreed.algorithm.begin(agreed.spec, agreed.settings, 0).network, agreed.spec.seats[0]
    one_game = replace(agreed, envs=1)
    blocks = actor_spec(one_game, network, feeds="steps", ticks=len(priority), slots=1).open_ring()
    first = 1000 * actor + number * len(priority)
    ticks = [
        Steps(
            stream=np.zeros(1, np.int64),
            observation={leaf.name: np.zeros((1, *leaf.shape), leaf.dtype) for leaf in seat.observation},
            action=np.zeros(1, seat.action.dtype),
            reward=np.array([first + place], np.float32),
            ending=np.zeros(1, np.uint8),
            legal=None,
            behaviour_logp=None,
            value=None,
            final=np.zeros(0, np.int64),
            final_observation={leaf.name: np.zeros((0, *leaf.shape), leaf.dtype) for leaf in seat.observation},
            priority=np.array([one], np.float32),
        )
        for place, one in enumerate(priority)
    ]
    blocks.write(ticks, Episodes(np.zeros(0, np.float32), np.zeros(0, bool)), version=0, env_steps=1, games=0)
    columns = blocks.take_columns()
    blocks.close()
    return {"actor": actor, "generation": 0, "number": number + 1, "columns": columns}


def given_to_shards(agreed):
    """Two small tables of single steps, drawn from by priority."""
    draw = dict.fromkeys(("sequence_steps", "burn_in_steps", "overlap_steps"), 0)
    return {
        "spec": msgspec.json.encode(agreed.spec),
        "replay": {"sampler": "prioritised", "capacity_steps": 200, "min_steps": 1},
        "draw": draw | {"n_steps": 1, "discount": 1.0, "actors": 2},
        "streams": 1,
        "state_numbers": 0,
        "seed": 0,
    }


def test_batches_come_several_to_a_call_and_each_row_gets_what_was_said_of_it(config):
    agreed = planned(config, "apex", shards=2)
    rng = np.random.default_rng(5)
    with open_host("local://") as host:
        shards = host.start(ReplayShard, "replay", 2, Resources(), given_to_shards(agreed))
        drawing, mass, taken = ShardSampler(shards, 64, windows=False), np.ones(2), 0
        for actor, shard in enumerate(shards):
            shard.ask("insert", made_block(agreed, actor, 0, np.ones(40))).result(60)
        calls = 0
        while taken < 200:
            drawing.ask_ahead(mass, rng)
            host.wait(drawing.waits_for(), 30.0)
            calls += bool(drawing.answered())
            while drawing.here:
                batch, which = drawing.here.popleft()
                assert len(batch.reward) == sum(count for *_, count in which) == 64
                assert batch.weight.max() == 1.0
                drawing.learned(which, batch.reward % 1000)  # as surprising as they are far down
                taken += 1
        drawing.tell(now=True)
        assert taken / calls > 6
        for shard in shards:
            (draw,) = shard.ask("sample", [4000]).result(30)["draws"]
            counts = np.bincount((draw["batch"]["reward"] % 1000).astype(int), minlength=39)
            wanted = (np.arange(39) + 1e-6) ** 0.6
            assert stats.chisquare(counts[1:], wanted[1:] / wanted[1:].sum() * counts[1:].sum()).pvalue > 0.001


def test_shards_together_draw_as_one_table_does(config):
    """Each step as often as its priority says, and with the weights that one table gives."""
    agreed = planned(config, "apex", shards=2)
    rng = np.random.default_rng(5)
    priorities = [rng.random(40) ** 2, 3 * rng.random(40)]  # one shard has far more to teach
    given = given_to_shards(agreed)
    with open_host("local://") as host:
        shards = host.start(ReplayShard, "replay", 2, Resources(), given)
        said = [one.ask("insert", made_block(agreed, i, 0, priorities[i])).result(60) for i, one in enumerate(shards)]
        mass = np.array([one["mass"] for one in said])
        shares, found, chances = mass / mass.sum(), [], {}
        counts = rng.multinomial(256, shares, size=60)
        for shard in range(2):
            for drawn in shards[shard].ask("sample", counts[:, shard].tolist()).result(30)["draws"]:
                found.append(drawn["batch"]["reward"])
                chances |= dict(zip(drawn["batch"]["reward"], shares[shard] * drawn["chance"], strict=True))
    drawn = np.concatenate(found).astype(int)
    wanted = np.concatenate([(one[:-1] + 1e-6) ** 0.6 for one in priorities])  # the last waits for its successor
    names = np.concatenate([np.arange(39), 1000 + np.arange(39)])
    counts = np.array([(drawn == name).sum() for name in names])
    assert counts.sum() == len(drawn)
    expected = wanted / wanted.sum() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > 0.001
    alone = wanted / wanted.sum()
    told = np.array([chances.get(float(name), np.nan) for name in names])
    assert np.allclose(told[~np.isnan(told)], alone[~np.isnan(told)], rtol=1e-3)
    assert np.allclose(weights_of(alone, 0.4), (alone / alone.min()) ** -0.4)


def test_bytes_bound_all_shards_together_and_what_a_memory_held_counts(config):
    replay = replace(config.replay, shards=2, capacity_bytes=1_000_000)
    agreed = plan(TrainRequest("cartpole", "r2d2", topology="apex"), replace(config, replay=replay))
    part = apex.block_spec(agreed, agreed.algorithm.begin(agreed.spec, agreed.settings, 0))
    numbers, seat = memory_numbers(agreed, part.network), agreed.spec.seats[0]
    assert numbers > 0
    size = row_layout(seat, masks=seat.action.masks > 0, state_numbers=numbers).itemsize
    assert rows_of_a_shard(agreed, part) == 1_000_000 // size // 2
