"""What a table keeps of a step beside what was seen and done: memory, probability, version, first priority."""

from dataclasses import replace

import numpy as np
import pytest
from test_table import SEAT, Episodes, steps_of

from sparring.config import ReplayConfig
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.replay.gather import Window
from sparring.replay.sampler import Prioritised
from sparring.replay.table import Table, open_table
from sparring.wire.tree import pack, unpack


def with_memory(played):
    """Its memory holds what it sees and twice that; its probability is of the step, its version of the episode."""
    seen = played.observation["observation/x"]
    memory = np.concatenate([seen, 2 * seen], axis=1)
    return replace(played, state=memory, behaviour_logp=-seen[:, 1], version=int(seen[0, 1]))


def test_memory_probability_and_version_come_with_transitions():
    table, episodes = Table(SEAT, 200, streams=1, masks=False, state_numbers=6), Episodes(0, 1)
    for _ in range(150):
        if len(played := episodes.play()):
            table.insert(with_memory(played))
    copy = Table(SEAT, 200, streams=1, masks=False, state_numbers=6)
    copy.load(unpack(pack(table.save())))
    for which in (table, copy):
        batch, _ = which.sample(64, np.random.default_rng(0), n_steps=3, discount=0.9)
        seen = batch.observation["observation/x"]
        assert (batch.state == np.concatenate([seen, 2 * seen], axis=1)).all()
        assert (batch.behaviour_logp == -seen[:, 1]).all()
        assert (batch.version == seen[:, 1]).all()
        assert batch.version.dtype == np.int64


def joined(ticks):
    """Steps of several ticks as one."""
    first = np.cumsum([0, *(len(one) for one in ticks)])
    columns = {
        name: np.concatenate([getattr(one, name) for one in ticks]) for name in ("stream", "action", "reward", "ending")
    }
    return replace(
        ticks[0],
        **columns,
        observation={"observation/x": np.concatenate([one.observation["observation/x"] for one in ticks])},
        final=np.concatenate([one.final + start for one, start in zip(ticks, first, strict=False)]),
        final_observation={"observation/x": np.concatenate([one.final_observation["observation/x"] for one in ticks])},
    )


@pytest.mark.parametrize("seed", range(5))
def test_many_ticks_may_come_at_once_and_are_joined_as_if_each_came_alone(seed):
    rng, episodes, table = np.random.default_rng(seed), Episodes(seed, 6), Table(SEAT, 400, streams=6, masks=False)
    for _ in range(60):
        table.insert(joined([episodes.play() for _ in range(7)]))
        if table.ready:
            batch, _ = table.sample(64, rng, n_steps=3, discount=0.9)
            episodes.check(batch, 3, 0.9)
    assert table._episodes == episodes.count - sum(step == 0 for _, step in episodes.at)


def test_what_nobody_knows_of_a_step_is_no_number_and_a_table_without_memory_gives_none():
    table = Table(SEAT, 20, streams=1, masks=False)
    table.insert(steps_of([0], [(0, 0, 0)], [1.0], [TERMINATED], [(0, 1, 0)]))
    batch, _ = table.sample(4, np.random.default_rng(0), n_steps=1, discount=1.0)
    assert np.isnan(batch.behaviour_logp).all()
    assert batch.state is None


@pytest.mark.parametrize("seed", range(6))
def test_a_window_says_what_the_memory_held_at_its_first_step(seed):
    rng, window = np.random.default_rng(seed), Window(length=6, burn_in=4, overlap=2)
    table, episodes = Table(SEAT, 120, streams=3, masks=False, state_numbers=6), Episodes(seed, 3)
    for turn in range(250):
        if len(played := episodes.play()):
            table.insert(with_memory(played))
        if not table.ready or turn % 10:
            continue
        batch, rows = table.sample_windows(32, rng, window)
        seen = batch.observation["observation/x"]
        first = batch.mask.argmax(0)
        at_first = seen[first, np.arange(32)]
        assert (batch.state == np.concatenate([at_first, 2 * at_first], axis=1)).all()
        assert (first <= window.burn_in).all()
        empties = (at_first[:, 1] == 0) & (first > 0)
        assert (batch.ending[first - 1, np.arange(32)] == TRUNCATED)[empties].all()
        assert rows.shape == (6, 32)
        assert ((rows >= 0) == batch.mask[4:]).all()


def test_all_steps_learned_in_a_window_get_its_priority():
    sampler = Prioritised(50, 1.0, 0.0)
    table = Table(SEAT, 50, streams=1, masks=False, sampler=sampler)
    for step in range(9):
        end = TERMINATED if step == 8 else RUNNING
        table.insert(steps_of([0], [(0, step, 0)], [1.0], [end], [(0, step + 1, 0)]))
    _, rows = table.sample_windows(64, np.random.default_rng(0), Window(length=5, burn_in=3))
    table.update_priorities(rows, np.where(rows[0] == 0, 7.0, 3.0))
    assert sampler.priorities()[:9] == pytest.approx([7.0] * 5 + [3.0] * 4, abs=1e-4)


def test_a_step_that_was_overwritten_since_it_was_sampled_leaves_the_new_one_its_priority():
    sampler = Prioritised(4, 1.0, 0.0)
    table = Table(SEAT, 4, streams=1, masks=False, sampler=sampler)

    def insert(episode):
        table.insert(steps_of([0], [(episode, 0, 0)], [1.0], [TERMINATED], [(episode, 1, 0)]))

    for episode in range(4):
        insert(episode)
    batch, ids = table.sample(64, np.random.default_rng(0), n_steps=1, discount=1.0)
    insert(4)
    insert(5)
    table.update_priorities(ids, np.full(64, 9.0, np.float32))
    assert set(batch.observation["observation/x"][:, 0].astype(int)) == {0, 1, 2, 3}
    assert sampler.priorities() == pytest.approx([1.0, 1.0, 9.0, 9.0], abs=1e-4)
    batch, ids = table.sample(64, np.random.default_rng(0), n_steps=1, discount=1.0)
    table.update_priorities(ids, batch.observation["observation/x"][:, 0])
    assert sampler.priorities() == pytest.approx([4.0, 5.0, 2.0, 3.0], abs=1e-4)


def test_a_step_begins_with_the_priority_that_its_player_gave_it():
    config = ReplayConfig(sampler="prioritised", priority_exponent=0.5, capacity_steps=40)
    table = open_table(SEAT, config, streams=2, masks=False)
    one = steps_of([0, 1], [(0, 0, 0), (1, 0, 0)], [1.0] * 2, [RUNNING] * 2, [(0, 1, 0), (1, 1, 0)])
    table.insert(replace(one, priority=np.array([4.0, 9.0], np.float32)))
    two = steps_of([0, 1], [(0, 1, 0), (1, 1, 0)], [1.0] * 2, [TERMINATED] * 2, [(0, 2, 0), (1, 2, 0)])
    copy = open_table(SEAT, config, streams=2, masks=False)
    copy.load(unpack(pack(table.save())))
    for which in (table, copy):
        which.insert(two)
        assert which.sampler.priorities()[:4] == pytest.approx([2.0, 3.0, 3.0, 3.0], abs=1e-4)


def test_the_importance_exponent_rises_to_one_with_what_is_drawn():
    sampler, rng = Prioritised(10, 1.0, 0.4, importance_samples=1000), np.random.default_rng(0)
    sampler.add(np.arange(4))
    found = []
    for _ in range(6):
        found.append(sampler.importance_exponent)
        sampler.draw(250, rng)
    assert found == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])
    copy = Prioritised(10, 1.0, 0.4, importance_samples=1000)
    copy.load(unpack(pack(sampler.save())))
    assert copy.importance_exponent == 1.0
