"""The replay table against a slow twin that keeps every episode as a list."""

import numpy as np
import pytest

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.games.spec import SeatSpec, discrete, vector
from sparring.replay.sampler import Uniform
from sparring.replay.steps import Steps
from sparring.replay.table import Table
from sparring.wire.tree import pack, unpack

SEAT = SeatSpec(
    name="one", observation=(vector("observation/x", 3),), action=discrete(4), reward_bounds=(-1000.0, 1000.0)
)


def steps_of(stream, seen, reward, ending, after, legal=None):
    """Steps whose observation says which episode and which step they are."""
    final = np.flatnonzero(np.asarray(ending) != RUNNING)
    return Steps(
        stream=np.asarray(stream, np.int64),
        observation={"observation/x": np.asarray(seen, np.float32).reshape(-1, 3)},
        action=np.asarray([int(s[1]) % 4 for s in seen], np.int32),
        reward=np.asarray(reward, np.float32),
        ending=np.asarray(ending, np.uint8),
        legal=legal,
        behaviour_logp=None,
        value=None,
        final=final,
        final_observation={"observation/x": np.asarray(after, np.float32).reshape(-1, 3)[final]},
    )


class Episodes:
    """Random episodes of random lengths in interleaved streams; an observation is (episode, step, 0)."""

    def __init__(self, seed, streams):
        self.rng = np.random.default_rng(seed)
        self.streams = streams
        self.count = streams
        self.at = [(stream, 0) for stream in range(streams)]
        self.rewards = {}  # (episode, step) → reward
        self.endings = {}  # (episode, step) → ending, of those played

    def play(self):
        chosen = np.flatnonzero(self.rng.random(self.streams) < 0.7)
        seen, reward, ending, after = [], [], [], []
        for stream in chosen:
            episode, step = self.at[stream]
            end = int(self.rng.choice([RUNNING, TERMINATED, TRUNCATED], p=[0.85, 0.1, 0.05]))
            earned = float(self.rng.integers(-5, 6))
            self.rewards[episode, step], self.endings[episode, step] = earned, end
            seen.append((episode, step, 0))
            reward.append(earned)
            ending.append(end)
            after.append((episode, step + 1, 0))
            if end == RUNNING:
                self.at[stream] = (episode, step + 1)
            else:
                self.at[stream] = (self.count, 0)
                self.count += 1
        return steps_of(chosen, seen, reward, ending, after)

    def check(self, batch, n_steps, discount):
        for row in range(len(batch.reward)):
            episode, step, _ = map(int, batch.observation["observation/x"][row])
            span = int(batch.n_steps[row])
            endings = [self.endings[episode, step + k] for k in range(span)]
            assert all(end == RUNNING for end in endings[:-1])
            assert batch.ending[row] == endings[-1]
            assert 1 <= span <= n_steps
            wanted = sum(discount**k * self.rewards[episode, step + k] for k in range(span))
            assert batch.reward[row] == pytest.approx(wanted, abs=1e-4)
            assert batch.action[row] == step % 4
            if endings[-1] != TERMINATED:
                assert batch.next_observation["observation/x"][row].tolist() == [episode, step + span, 0]
            if span < n_steps and endings[-1] == RUNNING:  # cut short only because the next step is not complete
                later = self.endings.get((episode, step + span))
                assert later is None or (later == RUNNING and (episode, step + span + 1) not in self.endings)


@pytest.mark.parametrize("seed", range(25))
def test_transitions_never_cross_an_end_and_are_right_at_a_cut(seed):
    rng = np.random.default_rng(seed)
    streams, capacity = int(rng.integers(1, 9)), int(rng.integers(40, 300))
    n_steps, discount = int(rng.integers(1, 6)), 0.9
    table, episodes = Table(SEAT, capacity, streams=streams, masks=False), Episodes(seed, streams)
    for turn in range(200):
        played = episodes.play()
        if len(played):
            table.insert(played)
        if table.ready and turn % 5 == 0:
            batch, _ = table.sample(64, rng, n_steps=n_steps, discount=discount)
            episodes.check(batch, n_steps, discount)
    assert table.flow()["rows"] == min(table.written, capacity)


def test_the_oldest_steps_go_first():
    table = Table(SEAT, 50, streams=1, masks=False)
    for step in range(500):
        table.insert(steps_of([0], [(0, step, 0)], [1.0], [RUNNING], [(0, step + 1, 0)]))
    batch, _ = table.sample(2000, np.random.default_rng(0), n_steps=1, discount=1.0)
    seen = batch.observation["observation/x"][:, 1]
    assert (seen.min(), seen.max()) == (450, 498)  # the last waits for its successor


def test_consecutive_steps_of_one_stream_may_come_at_once():
    table = Table(SEAT, 100, streams=2, masks=False)
    seen = [(7, step, 0) for step in range(5)]
    table.insert(
        steps_of([1] * 5, seen, [1.0] * 5, [RUNNING] * 4 + [TRUNCATED], [(7, step + 1, 0) for step in range(5)])
    )
    batch, _ = table.sample(200, np.random.default_rng(0), n_steps=9, discount=1.0)
    starts = batch.observation["observation/x"][:, 1]
    assert set(starts.tolist()) == {0, 1, 2, 3, 4}
    assert (batch.reward == 5 - starts).all()
    assert (batch.next_observation["observation/x"][:, 1] == 5).all()
    assert (batch.ending == TRUNCATED).all()


def test_a_stream_that_breaks_off_is_not_joined_to_what_comes_next():
    table = Table(SEAT, 100, streams=1, masks=False)
    table.insert(steps_of([0, 0], [(1, 0, 0), (1, 1, 0)], [1.0, 1.0], [RUNNING] * 2, [(1, 1, 0), (1, 2, 0)]))
    table.break_off(0)
    table.insert(steps_of([0, 0], [(2, 0, 0), (2, 1, 0)], [1.0, 1.0], [RUNNING] * 2, [(2, 1, 0), (2, 2, 0)]))
    batch, _ = table.sample(100, np.random.default_rng(0), n_steps=3, discount=1.0)
    assert (batch.observation["observation/x"][:, 0] == batch.next_observation["observation/x"][:, 0]).all()
    assert (batch.observation["observation/x"][:, 1] == 0).all()


def test_legal_actions_come_with_a_step_and_with_what_follows_it():
    table = Table(SEAT, 100, streams=1, masks=True)
    for step in range(4):
        legal = np.zeros((1, 4), bool)
        legal[0, step] = True
        end = TERMINATED if step == 3 else RUNNING
        table.insert(steps_of([0], [(0, step, 0)], [0.0], [end], [(0, step + 1, 0)], legal))
    batch, _ = table.sample(100, np.random.default_rng(0), n_steps=1, discount=1.0)
    running = batch.ending == RUNNING
    assert (batch.legal.argmax(1) == batch.action).all()
    assert (batch.next_legal.argmax(1) == batch.action + 1)[running].all()


def test_an_empty_table_says_so_and_too_many_steps_at_once_are_refused():
    table = Table(SEAT, 8, streams=1, masks=False)
    with pytest.raises(TrainingStopped, match="replay table: no step of it can be sampled yet"):
        table.sample(1, np.random.default_rng(0), n_steps=1, discount=1.0)
    with pytest.raises(ConfigError, match="Set capacity_steps to 10 or more"):
        table.insert(steps_of([0] * 5, [(0, k, 0) for k in range(5)], [0.0] * 5, [RUNNING] * 5, [(0, 0, 0)] * 5))


def test_a_table_goes_into_bytes_and_goes_on_as_if_nothing_had_happened():
    first, episodes = Table(SEAT, 60, streams=4, masks=False), Episodes(3, 4)
    for _ in range(100):
        first.insert(episodes.play())
    second = Table(SEAT, 60, streams=4, masks=False)
    second.load(unpack(pack(first.save())))
    for _ in range(30):
        played = episodes.play()
        first.insert(played)
        second.insert(played)
        (one, rows), (two, same) = (
            table.sample(32, np.random.default_rng(9), n_steps=3, discount=0.9) for table in (first, second)
        )
        assert (rows == same).all()
        assert (one.reward == two.reward).all()
    assert pack(first.save()) == pack(second.save())


@pytest.mark.parametrize("seed", range(10))
def test_the_uniform_sampler_draws_exactly_what_is_ready(seed):
    rng, sampler, ready = np.random.default_rng(seed), Uniform(50), set()
    for _ in range(200):
        rows = rng.choice(50, int(rng.integers(1, 12)), replace=False)
        if rng.random() < 0.5:
            fresh = np.array([row for row in rows if row not in ready], np.int64)
            sampler.add(fresh)
            ready |= set(fresh.tolist())
        else:
            sampler.remove(rows)
            ready -= set(rows.tolist())
        assert len(sampler) == len(ready)
        if ready:
            assert set(sampler.draw(1000, rng).rows.tolist()) == ready
