"""`quality` says what is there, what is missing and what the data suits, in words a person can act on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from derived import GAME, chunks_of, player_of
from sparring.store import open_store
from sparring.store.protocol import Query, Store
from sparring.store.quality import Moments, Quality, quality
from sparring.wire.chunk import Array, Chunk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/experience.db") as opened:
        yield opened


def of(store: Store, **query: object) -> Quality:
    return quality(store, Query(GAME, **query))  # type: ignore[arg-type]


def with_column(chunk: Chunk, name: str, array: Array) -> Chunk:
    return replace(chunk, columns={**chunk.columns, name: array})


def test_an_empty_store_says_that_there_is_nothing_to_learn_from(store: Store) -> None:
    found = of(store)
    assert found.suits == ()
    assert found.missing[0].startswith("steps: 0 are too few")


def test_rich_play_suits_imitation_and_offline_q_learning_but_lacks_log_probabilities(store: Store) -> None:
    for client in range(4):
        store.append([chunk for episode in range(10) for chunk in chunks_of(1, client, episode)])
    found = of(store)
    assert (found.episodes, found.chunks, found.steps) == (40, 120, 4000)
    assert [text.partition(":")[0] for text in found.suits] == ["bc", "offline dqn"]
    assert found.missing == ("behaviour_logp: 0% of the steps have it; no importance weights",)
    assert found.by_actor == {"person": 1.0}
    assert found.by_player == {player_of(client): 0.25 for client in range(4)}
    assert sum(found.actions.values()) == pytest.approx(1)
    assert 0.99 < (found.action_entropy or 0) <= 1
    true = [sum(float(c.columns["reward"].sum(dtype=np.float64)) for c in chunks_of(1, 0, n)) for n in range(10)]
    assert found.returns["min"] <= min(true) < max(true) <= found.returns["max"]
    rewards = [seat.reward for record in store.episodes(Query(GAME)) for seat in record.seats]
    assert found.returns["sd"] == pytest.approx(np.std(rewards))
    assert found.returns["median"] == pytest.approx(np.median(rewards))


def test_log_probabilities_suit_importance_weights(store: Store) -> None:
    for chunk in chunks_of(1, 0, 0, steps=2_000, chunk_steps=500):
        logp = np.full(chunk.header.steps, -0.7, np.float32)
        store.append([with_column(chunk, "behaviour_logp", logp)])
    found = of(store)
    assert found.logp_share == 1
    assert any(text.startswith("importance-weighted") for text in found.suits)


def test_one_player_one_action_no_reward_and_gaps_are_each_named(store: Store) -> None:
    for episode in range(10):
        for chunk in chunks_of(1, 0, episode, steps=200)[::2]:
            chunk = with_column(chunk, "action", np.zeros_like(chunk.columns["action"]))
            store.append([with_column(chunk, "reward", np.zeros_like(chunk.columns["reward"]))])
    said = " | ".join(of(store).missing)
    assert "whole episodes: 100% have a gap or no end" in said
    assert "only one action was ever tried" in said
    assert "rewards: every one is 0" in said
    assert "more players: one of them made 100% of the steps" in said


def test_an_action_tried_once_is_rarely_tried_and_spoils_q_learning(store: Store) -> None:
    for chunk in chunks_of(1, 0, 0, steps=2_000, chunk_steps=500):
        actions = np.arange(500, dtype=np.int32) % 2
        actions[0] = 7
        store.append([with_column(chunk, "action", actions)])
    found = of(store)
    assert found.rarely_tried == ("7",)
    assert not any(text.startswith("offline dqn") for text in found.suits)


def test_the_same_episode_under_other_names_is_a_copy(store: Store) -> None:
    from derived import episode_of

    for copy in range(4):
        for chunk in chunks_of(1, 0, 0):
            header = msgspec.structs.replace(chunk.header, episode=episode_of(9, 9, copy))
            store.append([Chunk(header, chunk.columns)])
    found = of(store)
    assert found.duplicate_share == 0.75
    assert "variety: 75% of the endings are copies of another" in found.missing


def test_a_version_that_looks_different_is_named(store: Store) -> None:
    store.append(chunks_of(1, 0, 0, steps=1_000, chunk_steps=500, version="1"))
    for chunk in chunks_of(1, 0, 1, steps=1_000, chunk_steps=500, version="2"):
        moved = chunk.columns["observation/state"] + np.array([0, 0, 3, 0], np.float32)
        store.append([with_column(chunk, "observation/state", moved)])
    found = of(store)
    assert (found.drift[0].versions, found.drift[0].what) == (("1", "2"), "seat 0 observation/state")
    assert found.drift[0].shift == pytest.approx(3 / np.sqrt(1 / 3), rel=0.05)
    assert any("one version: seat 0 observation/state moved by" in text for text in found.missing)
    assert of(store, versions=("1",)).drift == ()


def test_an_entry_that_never_moves_but_differs_is_a_large_shift() -> None:
    one, other = Moments(), Moments()
    one.add(np.zeros((10, 2)))
    other.add(np.zeros((10, 2)) + [0, 1])
    assert one.shift(one) == 0
    assert one.shift(other) > 1_000
