"""Recorded episodes run again, and everything that was changed in them is found."""

import numpy as np
import pytest
from small_chunks import episode, with_columns, with_entry, with_header

from sparring.errors import Refused
from sparring.games.catalogue import open_game
from sparring.games.resimulation import Mismatch, resimulate
from sparring.wire.chunk import Chunk, decode, encode

FOUR = episode("connect-four", "tactical", "random", seed=3)
DUEL = episode("duel", "tracker", "random", seed=3)


def changed(chunks: list[Chunk], place: int, other: Chunk) -> list[Chunk]:
    return [*chunks[:place], other, *chunks[place + 1 :]]


@pytest.mark.parametrize(
    ("game_id", "players"),
    [
        ("cartpole", ["random"]),
        ("cartpole", ["balance"]),
        ("connect-four", ["tactical", "random"]),
        ("duel", ["tracker", "random"]),
        ("spiel:leduc_poker", ["random", "random"]),
        ("spiel:goofspiel(num_cards=4)", ["random", "random"]),
    ],
)
def test_recorded_play_runs_again_without_a_mismatch(game_id: str, players: list[str]) -> None:
    for seed in range(4):
        chunks = [decode(encode(chunk)) for chunk in episode(game_id, *players, seed=seed)]
        if len({chunk.header.seat for chunk in chunks}) == len(players):
            again = resimulate(chunks, open_game(game_id, 2))
            assert again.mismatches == ()
            assert again.steps == sum(chunk.header.steps for chunk in chunks)


def test_chunks_may_come_in_any_order_and_without_optional_columns() -> None:
    bare = [with_columns(chunk, legal=None) for chunk in FOUR]
    assert resimulate(bare[::-1], open_game("connect-four")).mismatches == ()
    assert resimulate(changed(FOUR, 0, bare[0]), open_game("connect-four")).mismatches == ()


@pytest.mark.parametrize(
    ("column", "place", "value", "what"),
    [
        ("observation/board", (1, 0, 0, 0), 1, "observation/board"),
        ("reward", (1,), 0.5, "reward"),
        ("tick", (1,), 3, "tick"),
        ("final_observation/board", (1, 0, 0), 1, "observation/board"),
    ],
)
def test_one_changed_number_is_one_mismatch(column: str, place: tuple[int, ...], value: float, what: str) -> None:
    chunks = changed(FOUR, 0, with_entry(FOUR[0], column, place, value))
    (found,) = resimulate(chunks, open_game("connect-four")).mismatches
    assert (found.seat, found.what) == (0, what)


def test_a_mismatch_says_what_was_recorded_and_what_the_game_gives() -> None:
    chunks = changed(FOUR, 1, with_entry(FOUR[1], "tick", (2,), 6))
    assert resimulate(chunks, open_game("connect-four")).mismatches == (Mismatch(1, 2, "tick", "6", "5"),)


def test_another_action_or_seed_is_found() -> None:
    actions = DUEL[0].columns["action"]
    other = with_columns(DUEL[0], action=np.roll(actions, 40))
    assert resimulate(changed(DUEL, 0, other), open_game("duel")).mismatches
    assert resimulate([with_header(chunk, seed=99) for chunk in DUEL], open_game("duel")).mismatches


def test_a_move_that_cannot_be_made_ends_the_replay() -> None:
    full = with_columns(FOUR[0], action=np.full(FOUR[0].header.steps, 0, np.int32))
    other = with_columns(FOUR[1], action=np.full(FOUR[1].header.steps, 0, np.int32))
    found = resimulate([full, other], open_game("connect-four")).mismatches
    assert found[-1].what == "action"
    assert found[-1].simulated == "action 0 in game 0 is not legal"


def test_an_end_that_was_not_the_game_s_is_found() -> None:
    wrong = [with_header(chunk, outcome=-chunk.header.outcome) for chunk in FOUR if chunk.header.outcome]
    assert [found.what for found in resimulate(wrong, open_game("connect-four")).mismatches] == ["outcome", "outcome"]
    cut = [with_header(chunk, ending="truncated") for chunk in FOUR]
    assert {found.what for found in resimulate(cut, open_game("connect-four")).mismatches} == {"ending"}


def test_an_episode_that_a_player_left_is_compared_as_far_as_it_goes() -> None:
    whole = episode("cartpole", "balance")[0]
    columns = {name: array[:100] for name, array in whole.columns.items() if not name.startswith("final_")}
    left = with_header(Chunk(whole.header, columns), steps=100, ending="truncated", outcome=None)
    again = resimulate([left], open_game("cartpole"))
    assert (again.steps, again.mismatches) == (100, ())


@pytest.mark.parametrize(
    ("chunks", "game_id", "said"),
    [
        ([], "duel", "there are no chunks"),
        (FOUR, "duel", "follows another spec"),
        (FOUR[:1], "connect-four", "seat 1 was not recorded from its first step without a gap"),
        (DUEL[1:], "duel", "was not recorded from its first step"),
        ([with_header(chunk, seed=None) for chunk in FOUR], "connect-four", "its seed was not recorded"),
        ([*FOUR, *episode("connect-four", "random", "random")], "connect-four", "several episodes"),
        (episode("gym:Taxi-v3", "random"), "gym:Taxi-v3", "cannot be run again from a seed"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_cannot_be_run_again_is_refused(chunks: list[Chunk], game_id: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        resimulate(chunks, open_game(game_id))
