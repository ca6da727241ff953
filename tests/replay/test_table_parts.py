"""What a table makes of its rows: stacks, windows, shares, removal; each against what was played."""

from dataclasses import replace

import numpy as np
import pytest
from test_table import SEAT, Episodes, steps_of

from sparring.config import ReplayConfig
from sparring.errors import ConfigError
from sparring.games.protocol import RUNNING, TERMINATED
from sparring.replay.gather import Window
from sparring.replay.rows import ROW_BITS, LowestPriority, row_layout
from sparring.replay.sampler import Prioritised, excess_rows
from sparring.replay.steps import machine_bytes
from sparring.replay.table import Table, capacity, check_sources, open_table, source_shares

PRIORITISED = ReplayConfig(sampler="prioritised", remover="lowest-priority", capacity_steps=200)


def seen(column):
    """(episode, step) of each row of observations."""
    return column[..., 0].astype(int), column[..., 1].astype(int)


@pytest.mark.parametrize("remover", ["fifo", "lowest-priority"])
@pytest.mark.parametrize("seed", range(8))
def test_a_stack_holds_the_frames_before_and_never_those_of_another_episode(seed, remover):
    rng = np.random.default_rng(seed)
    config = replace(PRIORITISED, remover=remover)
    table = open_table(SEAT, config, streams=4, masks=False, frame_stack=4)
    episodes = Episodes(seed, 4)
    for turn in range(300):
        table.insert(episodes.play())
        if not table.ready or turn % 4:
            continue
        batch, rows = table.sample(64, rng, n_steps=2, discount=0.9)
        table.update_priorities(rows, rng.random(64))
        views = [(batch.observation, np.ones(64, bool)), (batch.next_observation, batch.ending != TERMINATED)]
        for view, counts in views:
            stack = view["observation/x"][counts]
            assert stack.shape[1:] == (4, 3)
            episode, step = seen(stack)
            assert (episode == episode[:, -1:]).all()
            assert (step == np.maximum(step[:, -1:] - np.arange(3, -1, -1), 0)).all()
        assert (seen(batch.observation["observation/x"])[1][:, -1] % 4 == batch.action).all()


@pytest.mark.parametrize("seed", range(8))
def test_windows_never_cross_an_end_and_begin_where_they_should(seed):
    rng = np.random.default_rng(seed)
    window = Window(length=6, burn_in=3, overlap=2)
    table, episodes = Table(SEAT, 300, streams=3, masks=False), Episodes(seed, 3)
    for turn in range(250):
        table.insert(episodes.play())
        if not table.ready or turn % 10:
            continue
        batch, rows = table.sample_windows(32, rng, window)
        assert batch.mask.shape == batch.reward.shape == (9, 32)
        episode, step = seen(batch.observation["observation/x"])
        ends = batch.ending != RUNNING
        for column in range(rows.shape[1]):
            there = np.flatnonzero(batch.mask[:, column])
            assert (np.diff(there) == 1).all()
            assert 3 in there
            assert len(set(episode[there, column].tolist())) == 1
            assert (np.diff(step[there, column]) == 1).all()
            assert not ends[there[:-1], column].any()
            whole = table.written <= table.capacity
            assert not whole or step[3, column] % 4 == 0
            last = there[-1]
            if batch.ending[last, column] != TERMINATED:
                follows = seen(batch.next_observation["observation/x"][column])
                assert follows == (episode[last, column], step[last, column] + 1)


@pytest.mark.parametrize("seed", range(15))
def test_what_is_worth_least_goes_first_and_transitions_stay_right(seed):
    rng = np.random.default_rng(seed)
    table, episodes = open_table(SEAT, PRIORITISED, streams=5, masks=False), Episodes(seed, 5)
    for _ in range(400):
        table.insert(episodes.play())
        if table.ready:
            batch, rows = table.sample(48, rng, n_steps=3, discount=0.9)
            table.update_priorities(rows, rng.random(48) * 10)
            for row in range(48):
                episode, step = map(int, batch.observation["observation/x"][row, :2])
                span = int(batch.n_steps[row])
                ends = [episodes.endings[episode, step + k] for k in range(span)]
                assert all(end == RUNNING for end in ends[:-1])
                assert ends[-1] == batch.ending[row]
                wanted = sum(0.9**k * episodes.rewards[episode, step + k] for k in range(span))
                assert batch.reward[row] == pytest.approx(wanted, abs=1e-4)
                if ends[-1] != TERMINATED:
                    follows = batch.next_observation["observation/x"][row].tolist()
                    assert follows == [episode, step + span, 0]


def test_high_priorities_outlive_low_ones():
    sampler = Prioritised(100, 1.0, 0.0)
    table = Table(SEAT, 100, streams=1, masks=False, sampler=sampler, remover=LowestPriority(100))
    for step in range(1000):
        table.insert(steps_of([0], [(step, 0, 0)], [1.0], [TERMINATED], [(step, 1, 0)]))
        rows = np.flatnonzero(sampler.priorities())
        ids = rows | (table._columns["overwrites"][rows].astype(np.int64) << ROW_BITS)
        number = table._columns["observation/x"][rows, 0]
        table.update_priorities(ids, np.where(number % 20 == 0, 5.0, 0.1))
    rows = np.flatnonzero(sampler.priorities())
    assert set(range(0, 1000, 20)) <= set(table._columns["observation/x"][rows, 0].astype(int).tolist())


@pytest.mark.parametrize("sampler", ["uniform", "prioritised", "by-episode"])
def test_no_uploader_has_more_than_its_share_of_a_batch(sampler):
    config = ReplayConfig(sampler=sampler, uploader_share=0.25, capacity_steps=4000)
    table, rng = open_table(SEAT, config, streams=1, masks=False), np.random.default_rng(0)
    for uploader, count in ((0, 60), (1, 900), (2, 30), (3, 10)):
        for step in range(count):
            one = steps_of([0], [(uploader, step, 0)], [0.0], [TERMINATED], [(0, 0, 0)])
            table.insert(replace(one, uploader=uploader))
    for _ in range(20):
        batch, _ = table.sample(64, rng, n_steps=1, discount=1.0)
        counted = np.ones(64, bool) if batch.weight is None else batch.weight > 0
        owners = np.bincount(batch.observation["observation/x"][counted, 0].astype(int), minlength=4)
        assert owners[1:].max() <= 16
        assert owners.sum() >= 20


def test_what_is_drawn_in_place_of_too_much_is_as_likely_as_ever_and_weighs_as_it_should():
    sampler = Prioritised(4000, 1.0, 1.0)
    table = Table(SEAT, 4000, streams=1, masks=False, sampler=sampler, uploader_share=0.1)
    for number, uploader in enumerate([0] * 2800 + [1] * 700):
        one = steps_of([0], [(number, 0, 0)], [0.0], [TERMINATED], [(0, 0, 0)])
        table.insert(replace(one, uploader=uploader))
    rows, rng = np.arange(3500), np.random.default_rng(0)
    table.update_priorities(rows, np.where(rows % 2, 3.0, 1.0))
    drawn = []
    for _ in range(60):
        batch, rows = table.sample(256, rng, n_steps=1, discount=1.0)
        live = batch.weight > 0
        assert np.allclose(batch.weight[live], np.where(rows[live] % 2, 1 / 3, 1.0), atol=1e-3)
        drawn.append(rows[rows < 2800])
    quarters = np.bincount(np.concatenate(drawn) // 700, minlength=4)
    assert quarters / quarters.sum() == pytest.approx([0.25] * 4, abs=0.03)  # not those that lie first in the table


def test_too_much_of_one_owner_is_found_and_number_0_may_have_any():
    assert sorted(excess_rows(np.array([0, 5, 0, 5, 5, 2, 0, 5]), 2).tolist()) == [4, 7]


def test_bytes_bound_a_table_and_frames_are_stored_once():
    size = row_layout(SEAT, masks=False).itemsize
    assert capacity(SEAT, ReplayConfig(capacity_bytes=size * 50 + 1), masks=False) == 50
    table = open_table(SEAT, ReplayConfig(capacity_bytes=size * 50), streams=1, masks=False, frame_stack=8)
    assert sum(column.nbytes for column in table._columns.values()) <= size * 50
    with pytest.raises(ConfigError, match=f"capacity_bytes = 10, and one step takes {size}"):
        capacity(SEAT, ReplayConfig(capacity_bytes=10), masks=False)


def test_a_table_takes_at_most_half_of_the_machine_and_says_so(caplog):
    size = row_layout(SEAT, masks=False).itemsize
    fits = machine_bytes() // 2 // size
    assert capacity(SEAT, ReplayConfig(capacity_steps=10 * fits), masks=False) == fits
    assert f"holds {fits} steps instead of {10 * fits}" in caplog.text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"remover": "lowest-priority"}, "which has no priorities"),
        ({"uploader_share": 0.0}, "uploader_share = 0"),
        ({"capacity_steps": 0}, "capacity_steps = 0, importance_samples = 0"),
        ({"sampler": "prioritised", "importance_samples": -1}, "importance_samples = -1"),
        ({"sampler": "prioritised", "priority_exponent": -0.5}, "priority_exponent = -0.5"),
        ({"sampler": "prioritised", "importance_exponent": float("nan")}, "importance_exponent = nan"),
        ({"sampler": "by-source", "source_shares": ("pley=1",)}, "source_shares holds 'pley=1'"),
        ({"sampler": "by-source", "source_shares": ("play=-1",)}, "source_shares holds 'play=-1'"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(keys, said):
    with pytest.raises(ConfigError, match=said):
        open_table(SEAT, ReplayConfig(**keys), streams=1, masks=False)


def test_sources_of_which_none_can_come_are_refused():
    config = ReplayConfig(sampler="by-source", source_shares=("play=1",))
    with pytest.raises(ConfigError, match="leaves out selfplay"):
        check_sources(config, records=False)
    check_sources(config, records=True)
    check_sources(replace(config, sampler="uniform"), records=False)
    check_sources(replace(config, source_shares=()), records=False)


def test_sources_are_named_in_settings():
    assert source_shares(ReplayConfig(source_shares=("play=0.5", "selfplay=2"))) == {1: 0.5, 0: 2.0}
    with pytest.raises(ConfigError, match="length = 4, burn_in = 0, overlap = 4"):
        Window(length=4, overlap=4)
