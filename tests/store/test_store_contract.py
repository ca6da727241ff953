"""What every store promises, written against the protocol alone; a new backend is one more `url` in conftest.py."""

import threading
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from derived import EPOCH_MS, GAME, chunks_of, columns_of, differences, episode_of, player_of
from sparring.errors import StoreFailed
from sparring.store import open_store
from sparring.store.protocol import MinuteCount, Query, Store
from sparring.store.rows import batch_number, mark
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


def verdicts(store: Store, chunks: list[Chunk]) -> list[str]:
    return [kept.verdict for kept in store.append(chunks)]


def changed(chunk: Chunk, **fields: object) -> Chunk:
    return Chunk(msgspec.structs.replace(chunk.header, **fields), chunk.columns)


def keys(chunks: list[Chunk]) -> list[object]:
    return [chunk.key for chunk in chunks]


def test_what_was_appended_is_read_back_number_for_number_in_the_order_of_receipt(store: Store) -> None:
    sent = [chunk for episode in range(5) for chunk in chunks_of(1, 0, episode)]
    assert set(verdicts(store, sent)) == {"new"}
    found = list(store.read(Query(GAME)))
    assert keys(found) == keys(sent)
    for mine, theirs in zip(sent, found, strict=True):
        assert differences(theirs) == []
        assert mine.content_hash() == theirs.content_hash()
        assert (theirs.header.uploader, theirs.header.received_at_ms) == (
            mine.header.uploader,
            mine.header.received_at_ms,
        )


def test_a_chunk_sent_again_is_had_and_stored_once(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    store.append(sent)
    assert verdicts(store, sent) == ["had"] * 3
    assert verdicts(store, [changed(sent[0], received_at_ms=EPOCH_MS + 9)]) == ["had"]
    assert keys(list(store.read(Query(GAME)))) == keys(sent)


def test_a_chunk_that_the_store_had_is_answered_with_the_batch_that_brought_it(store: Store) -> None:
    first, second = chunks_of(1, 0, 0), chunks_of(1, 0, 1)
    store.append(first, "one")
    store.append(second)
    answers = store.append([*first, *second], "two")
    assert {kept.verdict for kept in answers} == {"had"}
    assert [kept.batch_id for kept in answers] == [batch_number("one")] * len(first) + [0] * len(second)


def test_the_same_chunk_twice_in_one_append_is_new_and_then_had(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    assert verdicts(store, [sent[0], sent[0]]) == ["new", "had"]


def test_other_content_under_one_key_is_a_conflict_and_the_first_stays(store: Store) -> None:
    first = chunks_of(1, 0, 0)[0]
    store.append([first])
    other = Chunk(first.header, {**first.columns, "action": 1 - first.columns["action"]})
    (kept,) = store.append([other])
    assert (kept.verdict, kept.field) == ("conflict", "first_step")
    assert kept.reason == "another chunk is stored at step 0; the first stays"
    assert [differences(chunk) for chunk in store.read(Query(GAME))] == [[]]


@pytest.mark.parametrize(
    ("held", "sent", "field", "limit"),
    [
        ((0, 40), (30, 20), "first_step", "40 or more"),
        ((40, 40), (30, 20), "steps", "up to 10"),
        ((10, 5), (0, 40), "steps", "up to 10"),
        ((0, 40), (39, 1), "first_step", "40 or more"),
    ],
)
def test_steps_that_overlap_are_a_conflict_that_says_where(
    store: Store, held: tuple[int, int], sent: tuple[int, int], field: str, limit: str
) -> None:
    store.append([piece(*held)])
    (kept,) = store.append([piece(*sent)])
    assert (kept.verdict, kept.field, kept.limit) == ("conflict", field, limit)
    assert len(list(store.read(Query(GAME)))) == 1


def piece(first: int, steps: int, ending: str = "running") -> Chunk:
    chunk = changed(chunks_of(1, 0, 0)[0], first_step=first, steps=steps, ending=ending)
    return Chunk(chunk.header, columns_of(1, 0, 0, first, steps))


def test_a_step_after_the_end_is_a_conflict(store: Store) -> None:
    store.append([piece(0, 40, "terminated")])
    (kept,) = store.append([piece(40, 10)])
    assert (kept.verdict, kept.reason, kept.limit) == ("conflict", "the seat ended at step 39", "below 40")


def test_an_end_before_later_steps_is_a_conflict(store: Store) -> None:
    store.append([piece(40, 10)])
    (kept,) = store.append([piece(0, 40, "truncated")])
    assert (kept.verdict, kept.field, kept.value, kept.limit) == ("conflict", "ending", "truncated", "running")


def test_a_seat_belongs_to_the_uploader_that_opened_it_even_for_the_same_bytes(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    store.append(sent[:1])
    stolen = [changed(chunk, uploader="key-thief") for chunk in sent]
    results = store.append(stolen)
    assert [kept.verdict for kept in results] == ["forbidden"] * 3
    assert results[0].field == "uploader"
    assert verdicts(store, [changed(sent[0], uploader="key-thief", seat=1)]) == ["new"]
    assert len(list(store.read(Query(GAME, seats=(0,))))) == 1


def test_a_refused_chunk_does_not_keep_the_others_of_its_append_out(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    other = Chunk(sent[0].header, {**sent[0].columns, "action": 1 - sent[0].columns["action"]})
    assert verdicts(store, [sent[0], other, sent[1]]) == ["new", "conflict", "new"]
    assert keys(list(store.read(Query(GAME)))) == keys(sent[:2])


def test_chunks_may_come_in_any_order_and_a_gap_makes_the_episode_incomplete(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    store.append([sent[2], sent[0]])
    (record,) = store.episodes(Query(GAME))
    assert not record.complete
    assert list(store.episodes(Query(GAME, complete=True))) == []
    assert list(store.read(Query(GAME, complete=True))) == []
    assert store.stats(GAME).incomplete_episodes == 1
    store.append([sent[1]])
    (record,) = store.episodes(Query(GAME, complete=True))
    assert record.complete
    assert len(list(store.read(Query(GAME, complete=True)))) == 3
    assert store.stats(GAME).incomplete_episodes == 0


def test_an_episode_is_summed_up_from_its_chunks_seat_by_seat(store: Store) -> None:
    seed = 2**64 - 1
    mine = chunks_of(seed, 0, 7, actor="model:" + "a" * 64)
    theirs = [changed(chunk, seat=1, player=player_of(5)) for chunk in chunks_of(seed, 0, 7, steps=30)]
    store.append([*mine, *theirs])
    (record,) = store.episodes(Query(GAME))
    assert (record.episode, record.ticks, record.seed) == (episode_of(seed, 0, 7), 99, seed)
    assert (record.version, record.source, record.received_at_ms) == ("1", "play", EPOCH_MS + 7)
    first, second = record.seats
    reward = sum(float(chunk.columns["reward"].sum(dtype=np.float64)) for chunk in mine)
    assert (first.seat, first.steps, first.reward) == (0, 100, pytest.approx(reward))
    assert (first.ending, first.outcome, first.actor) == ("terminated", 100.0, "model:" + "a" * 64)
    assert (second.seat, second.player, second.steps, second.complete) == (1, player_of(5), 30, True)


def test_a_seat_with_an_outcome_and_rewards_of_minus_zero_is_summed_up_like_any_other(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    last = changed(sent[-1], outcome=-0.0)
    last.columns["reward"][:] = -0.0
    store.append([*sent[:-1], last])
    (record,) = store.episodes(Query(GAME))
    assert record.seats[0].outcome == 0.0
    assert record.seats[0].complete


def test_a_players_episodes_show_that_players_seats_alone(store: Store) -> None:
    theirs = [changed(chunk, seat=1, player=player_of(5)) for chunk in chunks_of(1, 0, 7)]
    store.append([*chunks_of(1, 0, 7), *theirs])
    (record,) = store.episodes(Query(GAME, players=(player_of(5),)))
    assert [seat.player for seat in record.seats] == [player_of(5)]


def test_episodes_come_newest_last_and_across_pages(store: Store) -> None:
    order = [(n * 37) % 300 for n in range(300)]
    store.append([chunk for n in order for chunk in chunks_of(1, 0, n, steps=2)])
    assert [record.episode for record in store.episodes(Query(GAME))] == [episode_of(1, 0, n) for n in order]


def several(store: Store) -> None:
    for client in range(4):
        store.append(
            [
                chunk
                for episode in range(6)
                for chunk in chunks_of(
                    1,
                    client,
                    episode,
                    version=str(1 + client % 2),
                    source=("play", "selfplay")[client // 2],
                    actor=("person", "script:random", "model:" + "a" * 64, "model:" + "b" * 64)[client],
                )
            ]
        )


@pytest.mark.parametrize(
    ("query", "clients"),
    [
        (Query(GAME), {0, 1, 2, 3}),
        (Query(GAME, versions=("2",)), {1, 3}),
        (Query(GAME, versions=("1", "2"), sources=("play",)), {0, 1}),
        (Query(GAME, actors=("model:",)), {2, 3}),
        (Query(GAME, actors=("model:" + "b" * 64, "person")), {0, 3}),
        (Query(GAME, players=(player_of(2), player_of(9))), {2}),
        (Query(GAME, players=(player_of(2),), versions=("2",)), set()),
        (Query(GameId("duel")), set()),
        (Query(GAME, seats=(1,)), set()),
        (Query(GAME, complete=True), {0, 1, 2, 3}),
    ],
)
def test_a_query_finds_what_it_says_by_every_verb(store: Store, query: Query, clients: set[int]) -> None:
    several(store)
    rng = np.random.default_rng(0)
    uploaders = {f"key-{client}" for client in clients}
    assert {chunk.header.uploader for chunk in store.read(query)} == uploaders
    assert {seat.uploader for record in store.episodes(query) for seat in record.seats} == uploaders
    assert {chunk.header.uploader for chunk in store.sample(query, 20_000, rng)} == uploaders


def test_times_select_from_since_up_to_but_without_until(store: Store) -> None:
    several(store)
    query = Query(GAME, since_ms=EPOCH_MS + 2, until_ms=EPOCH_MS + 4)
    assert {chunk.header.received_at_ms for chunk in store.read(query)} == {EPOCH_MS + 2, EPOCH_MS + 3}


def test_one_episode_is_found_by_its_name(store: Store) -> None:
    several(store)
    query = Query(GAME, episodes=(episode_of(1, 2, 3),))
    assert [chunk.header.first_step for chunk in store.read(query)] == [0, 40, 80]
    assert [record.episode for record in store.episodes(query)] == [episode_of(1, 2, 3)]


@pytest.mark.parametrize("of", [2, 3, 7])
def test_parts_share_out_whole_episodes_and_miss_none(store: Store, of: int) -> None:
    several(store)
    parts = [list(store.read(Query(GAME), part=part, of=of)) for part in range(of)]
    assert Counter(map(repr, (chunk.key for part in parts for chunk in part))) == Counter(
        map(repr, (chunk.key for chunk in store.read(Query(GAME))))
    )
    episodes = [{chunk.header.episode for chunk in part} for part in parts]
    assert sum(map(len, episodes)) == len(set().union(*episodes))


def test_a_sample_holds_what_was_asked_for_and_favours_long_chunks_by_their_steps(store: Store) -> None:
    store.append(chunks_of(1, 0, 0, steps=300, chunk_steps=300) + chunks_of(1, 1, 0, steps=100, chunk_steps=100))
    drawn = [c for _ in range(400) for c in store.sample(Query(GAME), 1, np.random.default_rng(_))]
    assert len(drawn) == 400
    long = sum(chunk.header.steps == 300 for chunk in drawn)
    assert 250 < long < 350  # 300 expected, sd 9
    assert sum(chunk.header.steps for chunk in store.sample(Query(GAME), 5_000, np.random.default_rng(1))) >= 5_000
    assert store.sample(Query(GameId("duel")), 10, np.random.default_rng(1)) == []


def test_the_same_generator_draws_the_same_sample(store: Store) -> None:
    several(store)
    first, second = (keys(store.sample(Query(GAME), 1_000, np.random.default_rng(3))) for _ in range(2))
    assert first == second


def test_a_sample_sees_what_was_stored_since_the_last_one(store: Store) -> None:
    sent = chunks_of(1, 0, 0)
    rng = np.random.default_rng(0)
    for query in (Query(GAME), Query(GAME, complete=True)):
        store.sample(query, 10, rng)
    store.append(sent[:2])
    assert {c.header.first_step for c in store.sample(Query(GAME), 2_000, rng)} == {0, 40}
    assert store.sample(Query(GAME, complete=True), 10, rng) == []
    store.append(sent[2:])
    for query in (Query(GAME), Query(GAME, complete=True)):
        assert {c.header.first_step for c in store.sample(query, 4_000, rng)} == {0, 40, 80}


def test_stats_count_by_source_and_version(store: Store) -> None:
    assert store.stats(GAME).steps == 0
    several(store)
    stats = store.stats(GAME)
    assert (stats.chunks, stats.steps, stats.episodes, stats.players) == (72, 2400, 24, 4)
    assert stats.steps_by_source == {"play": 1200, "selfplay": 1200}
    assert stats.steps_by_version == {"1": 1200, "2": 1200}
    assert (stats.first_received_ms, stats.last_received_ms) == (EPOCH_MS, EPOCH_MS + 5)
    assert stats.encoded_bytes > 10_000
    assert store.games() == [GAME]


def test_an_erased_player_is_gone_and_stays_gone_and_no_one_else_is(store: Store) -> None:
    several(store)
    store.sample(Query(GAME), 10, np.random.default_rng(0))
    erased = store.erase(GAME, player_of(1))
    assert (erased.chunks, erased.steps, erased.episodes) == (18, 600, 6)
    assert (erased.first_received_ms, erased.last_received_ms) == (EPOCH_MS, EPOCH_MS + 5)
    assert {chunk.header.uploader for chunk in store.read(Query(GAME))} == {"key-0", "key-2", "key-3"}
    drawn = store.sample(Query(GAME), 20_000, np.random.default_rng(0))
    assert {chunk.header.uploader for chunk in drawn} == {"key-0", "key-2", "key-3"}
    (kept,) = store.append(chunks_of(1, 1, 99, steps=5))
    assert (kept.verdict, kept.field) == ("gone", "player")
    assert store.erase(GAME, player_of(1)).chunks == 0
    assert verdicts(store, chunks_of(1, 1, 50, steps=5, game=GameId("duel"))) == ["new"]


def game_of(client: int, episode: int, other: int | None = None, **fields: object) -> list[Chunk]:
    """Both seats of an episode: the client's, and that of a bot or of another player."""
    theirs = chunks_of(1, client, episode, **fields)
    player, actor = (None, "script:random") if other is None else (player_of(other), "person")
    return theirs + [changed(chunk, seat=1, player=player, actor=actor) for chunk in theirs]


def test_every_seat_of_an_erased_players_episodes_goes_and_none_comes_back(store: Store) -> None:
    against_bot, against_person, unrelated = game_of(1, 0), game_of(1, 1, other=2), game_of(2, 2)
    assert set(verdicts(store, [*against_bot, *against_person, *unrelated])) == {"new"}
    erased = store.erase(GAME, player_of(1), {"1": (True, True)})
    assert (erased.episodes, erased.chunks, erased.steps) == (2, 12, 400)
    assert sorted(map(str, keys(list(store.read(Query(GAME)))))) == sorted(map(str, keys(unrelated)))
    stats = store.stats(GAME)
    assert (stats.episodes, stats.steps, stats.steps_by_source, stats.players) == (1, 200, {"play": 200}, 1)
    for seat, field in ((1, "episode"), (0, "player")):  # a bot's and another person's alone, then the player's own
        late = [chunk for chunk in (*against_bot, *against_person) if chunk.header.seat == seat]
        assert {(kept.verdict, kept.field) for kept in store.append(late)} == {("gone", field)}
    assert verdicts(store, game_of(2, 3)) == ["new"] * 6  # the other person plays on


def test_a_seat_that_sees_nothing_of_the_others_outlives_their_erasure(store: Store) -> None:
    sent = game_of(1, 0, other=2)
    store.append(sent[:4])  # the other seat is still being played
    assert store.erase(GAME, player_of(1), {"1": (True, False)}).chunks == 3
    assert verdicts(store, sent) == ["gone"] * 3 + ["had"] + ["new"] * 2
    assert {chunk.header.seat for chunk in store.read(Query(GAME))} == {1}


def test_an_erased_player_who_plays_on_leaves_no_other_seat_of_it(store: Store) -> None:
    store.erase(GAME, player_of(1))
    sent = game_of(1, 7)
    assert verdicts(store, sent[3:5]) == ["new"] * 2  # a bot's seat does not say whom it met
    assert verdicts(store, sent[:1]) == ["gone"]
    assert list(store.read(Query(GAME))) == []
    assert store.stats(GAME).chunks == 0
    assert verdicts(store, sent) == ["gone"] * 6


def test_an_erased_player_removes_no_episode_of_strangers(store: Store) -> None:
    store.append(game_of(2, 0))
    store.erase(GAME, player_of(1))
    forged = changed(chunks_of(1, 2, 0)[0], player=player_of(1), uploader="key-1")
    assert verdicts(store, [forged]) == ["gone"]
    assert store.stats(GAME).chunks == 6


def test_the_counts_by_the_minute_follow_an_erasure(store: Store) -> None:
    minute_ms, signs = EPOCH_MS // 60_000 * 60_000, [mark(GAME, player_of(client)) for client in (1, 2)]
    mine, theirs = game_of(1, 0), game_of(2, 1)
    store.append([*mine, *theirs], "a")
    returns = sum(float(chunk.columns["reward"].sum(dtype="float64")) for chunk in theirs)
    total = returns + sum(float(chunk.columns["reward"].sum(dtype="float64")) for chunk in mine)
    store.append(game_of(1, 2), "b")
    store.count_minutes(
        [
            MinuteCount(GAME, minute_ms, "a", 400, 12, tuple(signs), 4, total, 1_200, 300),
            MinuteCount(GAME, minute_ms, "b", 200, 6, (signs[0],), 2, 1.0, 60, 30),
        ]
    )
    store.erase(GAME, player_of(1))
    (left,) = store.minutes(GAME, 0)
    assert (left.steps, left.chunks, left.players, left.ended, left.lag_ms) == (200, 6, 1, 2, 100.0)
    assert left.mean_return == pytest.approx(returns / 2)


def test_what_is_trimmed_are_whole_episodes_and_the_oldest(store: Store) -> None:
    several(store)
    trimmed = store.trim(before_ms=EPOCH_MS + 3)
    assert (trimmed.episodes, trimmed.chunks, trimmed.steps) == (12, 36, 1200)
    left = list(store.episodes(Query(GAME)))
    assert {record.received_at_ms for record in left} == {EPOCH_MS + n for n in (3, 4, 5)}
    assert all(record.complete for record in left)
    assert store.trim(before_ms=EPOCH_MS + 3).episodes == 0
    assert store.trim().episodes == 0


def test_threads_may_append_and_read_at_once(store: Store) -> None:
    def write(client: int) -> None:
        for episode in range(20):
            store.append(chunks_of(1, client, episode, steps=20, chunk_steps=10))

    writers = [threading.Thread(target=write, args=(client,)) for client in range(4)]
    for thread in writers:
        thread.start()
    while any(thread.is_alive() for thread in writers):
        assert all(differences(chunk) == [] for chunk in store.read(Query(GAME)))
        store.stats(GAME)
    for thread in writers:
        thread.join()
    assert store.stats(GAME).chunks == 160


def test_it_is_all_there_after_closing_and_opening(url: str) -> None:
    with open_store(url) as store:
        several(store)
        store.erase(GAME, player_of(3))
    with open_store(url) as store:
        assert store.stats(GAME).chunks == 54
        assert verdicts(store, chunks_of(1, 0, 0, version="1")) == ["had"] * 3
        assert verdicts(store, chunks_of(1, 3, 0)) == ["gone"] * 3


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
    store.close()
    store.close()
    with pytest.raises(StoreFailed, match=r"the store is closed\. Open it again\."):
        store.append(chunks_of(1, 0, 0))


def test_counts_kept_up_to_date_equal_counts_made_anew(url: str) -> None:
    rng = np.random.default_rng(4)
    jobs = [chunk for client in range(4) for episode in range(8) for chunk in chunks_of(1, client, episode)]
    with open_store(url) as store:
        for n, at in enumerate(rng.permutation(len(jobs)).tolist()):
            store.append([jobs[at]])
            if n == 60:
                store.erase(GAME, player_of(2))
            if n % 12 == 0:
                with open_store(url) as fresh:
                    assert store.stats(GAME) == fresh.stats(GAME)
        with open_store(url) as fresh:
            assert store.stats(GAME) == fresh.stats(GAME)
        assert store.stats(GAME).incomplete_episodes == 0
