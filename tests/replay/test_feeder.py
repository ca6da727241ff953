"""Records of the store in a table: whole, in order, and only where they fit."""

import numpy as np
import pytest

from sparring.errors import ConfigError
from sparring.games import cartpole
from sparring.games.catalogue import open_game
from sparring.games.protocol import TERMINATED, TRUNCATED
from sparring.replay.feeder import Feeder, check_share
from sparring.replay.table import Table
from sparring.store import open_store
from sparring.wire.chunk import Chunk, Header
from sparring.wire.ids import new_episode
from sparring.wire.tree import pack, unpack

SPEC = cartpole.SPEC


def episode_chunks(seed, length=40, spec=SPEC.hash, cut_at=25, source="play"):
    """A CartPole episode by a seeded random player, in two chunks; one that stands at its end is cut there."""
    game, rng = open_game("cartpole"), np.random.default_rng(seed)
    view = game.reset(np.array([seed], np.uint64), np.array([True]))
    seen, actions, rewards = [], [], []
    while not view.over[0] and len(seen) < length:
        seen.append(view.observation[0]["observation/state"][0])
        actions.append(int(rng.integers(2)))
        view = game.step([np.array(actions[-1:], np.int32)])
        rewards.append(float(view.reward[0, 0]))
    final = view.observation[0]["observation/state"][0]
    ending = "terminated" if view.ending[0, 0] == TERMINATED else "truncated"
    episode = new_episode()
    parts = [(0, min(cut_at, len(seen)))]
    if len(seen) > cut_at:
        parts.append((cut_at, len(seen)))
    chunks = []
    for first, last in parts:
        ends = last == len(seen)
        columns = {
            "observation/state": np.array(seen[first:last], np.float32),
            "action": np.array(actions[first:last], np.int32),
            "reward": np.array(rewards[first:last], np.float32),
            "tick": np.arange(first, last, dtype=np.int64),
        }
        if ends:
            columns["final_observation/state"] = final
        header = Header(
            game=SPEC.id,
            version=SPEC.version,
            spec=spec,
            episode=episode,
            seat=0,
            first_step=first,
            steps=last - first,
            actor="person",
            source=source,
            ending=ending if ends else "running",
            received_at_ms=1_700_000_000_000 + seed,
        )
        chunks.append(Chunk(header, columns))
    return chunks


@pytest.fixture
def store(tmp_path):
    opened = open_store(f"sqlite:///{tmp_path}/experience.db")
    yield opened
    opened.close()


def table_and_feeder(store, capacity=5000):
    table = Table(SPEC.seats[0], capacity, streams=3, masks=False)
    return table, Feeder(store, SPEC, table, 2, np.random.default_rng(0))


def check_physics(table):
    batch, _ = table.sample(2000, np.random.default_rng(1), n_steps=1, discount=0.99)
    goes_on = batch.ending != TERMINATED
    force = np.where(batch.action == 1, cartpole.FORCE, -cartpole.FORCE)
    moved = cartpole._moved(batch.observation["observation/state"].astype(np.float64), force)
    assert np.allclose(moved[goes_on], batch.next_observation["observation/state"][goes_on], atol=1e-5)
    return batch


def test_every_record_becomes_a_transition_of_the_game(store):
    chunks = [chunk for seed in range(30) for chunk in episode_chunks(seed, length=10 + seed)]
    assert all(kept.verdict == "new" for kept in store.append(chunks))
    table, feeder = table_and_feeder(store)
    total = sum(chunk.header.steps for chunk in chunks)
    assert feeder.fill() == total
    assert dict(feeder.steps) == {"play": total}
    assert feeder.until_ms is not None
    batch = check_physics(table)
    assert (batch.ending == TRUNCATED).any()
    assert (batch.ending == TERMINATED).any()


def test_chunks_of_another_spec_are_left_out_and_counted(store):
    store.append([chunk for seed in range(3) for chunk in episode_chunks(seed, spec="0" * 64)])
    store.append(fitting := episode_chunks(9))
    table, feeder = table_and_feeder(store)
    feeder.fill()
    assert feeder.unfit_chunks >= 3
    assert table.steps == sum(chunk.header.steps for chunk in fitting)


def test_the_store_keeps_pace_with_what_is_played(store):
    store.append([chunk for seed in range(20) for chunk in episode_chunks(seed, source="collect")])
    table, feeder = table_and_feeder(store, 100_000)
    fed = sum(feeder.keep_pace(16, 0.25) for _ in range(500))
    assert fed / (fed + 16 * 500) == pytest.approx(0.25, abs=0.01)
    assert set(feeder.steps) == {"collect"}
    check_physics(table)


def test_an_empty_store_feeds_nothing_and_owes_nothing(store):
    _, feeder = table_and_feeder(store)
    assert feeder.fill() == 0
    assert [feeder.keep_pace(16, 0.5) for _ in range(10)] == [0] * 10
    store.append(episode_chunks(1))
    assert 0 < feeder.keep_pace(16, 0.5) < 80  # it does not make up for what was not there


def test_a_store_larger_than_the_table_is_drawn_from(store):
    store.append([chunk for seed in range(40) for chunk in episode_chunks(seed)])
    table, feeder = table_and_feeder(store, 300)
    feeder.fill()
    assert table.written >= 300
    check_physics(table)


def test_a_feeder_goes_on_where_it_stopped(store):
    store.append([chunk for seed in range(20) for chunk in episode_chunks(seed)])
    first_table, first = table_and_feeder(store)
    first.keep_pace(100, 0.5)
    second_table, second = table_and_feeder(store)
    second.load(unpack(pack(first.save())))
    second_table.load(unpack(pack(first_table.save())))
    first.keep_pace(100, 0.5)
    second.keep_pace(100, 0.5)
    assert pack(first_table.save()) == pack(second_table.save())
    assert pack(first.save()) == pack(second.save())


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_cannot_be_kept_is_refused(share):
    with pytest.raises(ConfigError) as error:
        check_share(share)
    assert str(error.value) == (
        f"[replay]: store_share = {share}. Set it between 0 and 1; --from store learns from the store alone."
    )
