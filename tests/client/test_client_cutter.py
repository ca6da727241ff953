"""Steps become chunks: where they are cut, what is held back, and what a chunk says of its end."""

import numpy as np
import pytest
from recorded import CARTPOLE, buffer_of, seen, steps_of, taken, write

from sparring.errors import ChunkRefused
from sparring.games.cutter import cut, encoded
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.step_buffer import Behaviour
from sparring.wire.chunk import MAX_ENCODED_BYTES, decode
from sparring.wire.ids import GameId

MODEL = "model:" + "a" * 64


def test_an_ended_episode_is_one_chunk_with_its_ending_outcome_and_final_observation():
    buffer = buffer_of()
    for step in range(20):
        write(buffer, step)
    assert taken(buffer) == []
    buffer.end(seen(20), terminated=True, outcome=20.0)
    (chunk,) = taken(buffer)
    assert steps_of([chunk]) == list(range(20))
    assert (chunk.header.ending, chunk.header.outcome) == ("terminated", 20.0)
    assert np.array_equal(chunk.columns["final_observation/state"], seen(20))
    assert buffer.blocks == []


def test_a_long_episode_is_cut_into_full_chunks_and_nothing_is_missing_or_twice():
    big = GameSpec(id=GameId("long"), turns="simultaneous", seats=CARTPOLE.seats, max_ticks=10_000)
    buffer, chunks = buffer_of(big), []
    for step in range(1700):
        write(buffer, step)
        chunks += taken(buffer, spec=big)
    buffer.end(seen(1700), terminated=False, outcome=None)
    chunks += taken(buffer, spec=big)
    assert steps_of(chunks) == list(range(1700))
    assert [chunk.header.steps for chunk in chunks] == [512, 512, 512, 164]
    assert [chunk.header.ending for chunk in chunks] == ["running"] * 3 + ["truncated"]


def test_a_running_episode_gives_all_but_its_last_two_steps_when_due():
    buffer = buffer_of()
    for step in range(10):
        write(buffer, step)
    assert steps_of(taken(buffer, due=True)) == list(range(8))
    assert taken(buffer, due=True) == []
    write(buffer, 10)
    assert steps_of(taken(buffer, due=True)) == [8]


def test_what_is_earned_later_belongs_to_the_last_step_even_when_flushed_meanwhile():
    buffer = buffer_of()
    for step in range(3):
        write(buffer, step, reward=0.25)
    taken(buffer, due=True)
    buffer.earn(0.5)
    buffer.end(seen(3), terminated=True, outcome=None)
    (chunk,) = taken(buffer)
    assert chunk.columns["reward"].tolist() == [0.25, 0.75]


def test_a_change_of_actor_or_of_what_is_known_starts_a_new_chunk():
    buffer = buffer_of()
    write(buffer, 0)
    write(buffer, 1, actor=MODEL, logp=-0.5)
    write(buffer, 2, actor=MODEL, logp=-0.25)
    write(buffer, 3, actor=MODEL)
    write(buffer, 4, actor="person", legal=[1, 0])
    buffer.end(seen(5), terminated=True, outcome=None)
    chunks = taken(buffer)
    assert steps_of(chunks) == [0, 1, 2, 3, 4]
    assert [(c.header.first_step, c.header.actor) for c in chunks] == [
        (0, "person"),
        (1, MODEL),
        (3, MODEL),
        (4, "person"),
    ]
    assert chunks[1].columns["behaviour_logp"].tolist() == [-0.5, -0.25]
    assert "behaviour_logp" not in chunks[2].columns
    assert chunks[3].columns["legal"].tolist() == [[1, 0]]


@pytest.mark.parametrize("steps", [1, 2, 3, 511, 512, 513, 514])
@pytest.mark.parametrize("due", [False, True])
def test_an_episode_left_without_an_end_is_truncated_at_the_last_thing_seen(steps, due):
    big = GameSpec(id=GameId("long"), turns="simultaneous", seats=CARTPOLE.seats, max_ticks=10_000)
    buffer, chunks = buffer_of(big), []
    for step in range(steps):
        write(buffer, step)
        chunks += taken(buffer, due=due and step % 7 == 0, spec=big)
    buffer.leave()
    chunks += taken(buffer, spec=big)
    assert steps_of(chunks) == list(range(steps - 1))
    if chunks:
        assert chunks[-1].header.ending == "truncated"
        assert np.array_equal(chunks[-1].columns["final_observation/state"], seen(steps - 1))


def test_a_step_that_is_refused_leaves_no_trace():
    buffer = buffer_of()
    write(buffer, 0)
    bad = [
        ({"action": 2}, "action"),
        ({"action": -1}, "action"),
        ({"action": 0.5}, "action"),
        ({"action": 1, "legal": [1, 0]}, "action"),
        ({"legal": [1, 1, 1]}, "legal"),
        ({"reward": float("nan")}, "reward"),
        ({"reward": 1e9}, "reward"),
        ({"logp": 0.5}, "behaviour_logp"),
        ({"logp": float("nan")}, "behaviour_logp"),
        ({"tick": 0}, "tick"),
        ({"tick": 501}, "tick"),
    ]
    for wrong, field in bad:
        with pytest.raises(ChunkRefused) as caught:
            write(buffer, 1, **wrong)
        assert caught.value.field == field
    for observation in ([0, 0, 0], [[0, 0, 0, 0]], [0, 0, 0, np.nan], [0, 0, 0, 1e300], "text", {"nope": seen(1)}):
        with pytest.raises(ChunkRefused):
            buffer.write(observation, 0, 1.0, tick=None, legal=None, by=Behaviour(MODEL))
    write(buffer, 1)
    buffer.end(seen(2), terminated=True, outcome=None)
    assert steps_of(taken(buffer)) == [0, 1]


def test_the_sentence_of_a_refused_step_says_what_was_wrong_and_what_to_do():
    with pytest.raises(ChunkRefused) as caught:
        write(buffer_of(), 0, action=7)
    assert str(caught.value) == (
        "record: action: 7 is out of range; the limit is 1. Give what the game's spec says; nothing was recorded."
    )


def test_without_memory_the_rest_of_an_episode_is_dropped_and_counted_and_the_beginning_kept():
    big = GameSpec(id=GameId("long"), turns="simultaneous", seats=CARTPOLE.seats, max_ticks=10_000)
    buffer = buffer_of(big, memory_bytes=40_000)
    for step in range(2000):
        write(buffer, step)
    buffer.end(seen(2000), terminated=True, outcome=1.0)
    chunks = taken(buffer, spec=big)
    kept = steps_of(chunks)
    assert kept == list(range(len(kept)))
    assert len(kept) % 512 == 0
    assert buffer.lost
    assert buffer.dropped_steps == 2000 - len(kept)
    assert {chunk.header.ending for chunk in chunks} == {"running"}


def _wide(entries):
    seat = SeatSpec(
        name="p", observation=(vector("observation/state", entries),), action=discrete(2), reward_bounds=(0.0, 1.0)
    )
    return GameSpec(id=GameId("wide"), turns="simultaneous", seats=(seat,), max_ticks=1000)


def test_steps_that_do_not_compress_still_fit_their_chunks():
    spec, rng = _wide(20_000), np.random.default_rng(1)
    buffer = buffer_of(spec)
    for _ in range(30):
        buffer.write(rng.random(20_000, np.float32), 0, 0.0, tick=None, legal=None, by=Behaviour("person"))
    buffer.end(rng.random(20_000, np.float32), terminated=True, outcome=None)
    chunks = taken(buffer, spec=spec)
    assert sum(chunk.header.steps for chunk in chunks) == 30
    assert len(chunks) > 1
    assert [c.header.ending for c in chunks] == ["running"] * (len(chunks) - 1) + ["terminated"]


def test_a_single_step_above_the_limit_is_refused_with_both_sizes():
    spec, rng = _wide(300_000), np.random.default_rng(1)
    buffer = buffer_of(spec)
    buffer.write(rng.random(300_000, np.float32), 0, 0.0, tick=None, legal=None, by=Behaviour("person"))
    buffer.end(np.zeros(300_000, np.float32), terminated=True, outcome=None)
    (chunk,) = cut(buffer, due=False)
    with pytest.raises(ChunkRefused, match=f"the limit is {MAX_ENCODED_BYTES}") as caught:
        encoded(chunk)
    assert caught.value.value > MAX_ENCODED_BYTES


def test_a_nan_in_a_leaf_too_big_to_look_at_at_once_is_found_before_it_is_spooled():
    spec = _wide(5000)
    buffer = buffer_of(spec)
    buffer.write(np.full(5000, np.nan, np.float32), 0, 0.0, tick=None, legal=None, by=Behaviour("person"))
    buffer.end(np.zeros(5000, np.float32), terminated=True, outcome=None)
    (chunk,) = cut(buffer, due=False)
    with pytest.raises(ChunkRefused, match="NaN or infinite"):
        encoded(chunk)


def test_the_same_steps_become_the_same_bytes():
    buffer = buffer_of()
    for step in range(5):
        write(buffer, step)
    buffer.end(seen(5), terminated=True, outcome=None)
    (chunk,) = cut(buffer, due=False)
    first, second = encoded(chunk), encoded(chunk)
    assert first == second
    assert decode(first).content_hash() == decode(second).content_hash()
