"""The rules of docs/rules.md, game by game."""

import gymnasium
import numpy as np
import pytest
from small_chunks import episode

from sparring.errors import Refused
from sparring.games import duel
from sparring.games.cartpole import CartPole, sin_cos
from sparring.games.catalogue import open_game
from sparring.games.connect_four import ConnectFour, has_four, stones_of
from sparring.games.duel import Duel
from sparring.games.game_state import draw, uniform
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, View
from sparring.games.scripts import script

ALL = np.ones(1, bool)


def test_chance_is_splitmix64() -> None:
    # The reference numbers of seed 1234567 (Vigna's splitmix64.c).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert draw(np.array([1234567], np.uint64), np.arange(3)).tolist() == expected
    drawn = uniform(np.arange(10_000, dtype=np.uint64), 0)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01


# CartPole


def test_every_step_of_cartpole_is_gymnasium_s() -> None:
    peer = gymnasium.make("CartPole-v1").unwrapped
    game, rng = CartPole(64), np.random.default_rng(0)
    view = game.reset(np.arange(64, dtype=np.uint64), np.ones(64, bool))
    for _ in range(60):
        states, running = game._state.copy(), ~view.over
        action = rng.integers(0, 2, 64)
        view = game.step([action])
        for i in np.flatnonzero(running):
            peer.reset()
            peer.state = states[i]
            seen, reward, terminated, _, _ = peer.step(int(action[i]))
            assert np.abs(game._state[i] - peer.state).max() < 1e-14
            assert np.abs(view.observation[0]["observation/state"][i] - seen).max() < 1e-6
            assert (view.reward[i, 0], view.ending[i, 0] == TERMINATED) == (reward, terminated)


def test_stored_observations_give_the_next_one_within_1e_5() -> None:
    for seed in range(20):
        chunk = episode("cartpole", "random", seed=seed)[0]
        states = np.vstack([chunk.columns["observation/state"], chunk.columns["final_observation/state"]])
        game = CartPole(len(states) - 1)
        game.reset(np.zeros(game.n, np.uint64), np.ones(game.n, bool))
        game._state[:] = states[:-1]
        again = game.step([chunk.columns["action"]]).observation[0]["observation/state"]
        assert np.abs(again - states[1:]).max() < 1e-5


def test_our_sine_is_within_the_last_bit() -> None:
    angles = np.linspace(-0.25, 0.25, 100_001)
    sin, cos = sin_cos(angles)
    assert (np.abs(sin - np.sin(angles)) <= np.spacing(np.abs(np.sin(angles)))).all()
    assert (np.abs(cos - np.cos(angles)) <= np.spacing(np.cos(angles))).all()


def test_a_balanced_pole_is_cut_short_at_500_ticks() -> None:
    chunk = episode("cartpole", "balance")[0]
    assert (chunk.header.steps, chunk.header.ending, chunk.header.outcome) == (500, "truncated", 500.0)
    assert (chunk.columns["reward"] == 1).all()


def test_a_pole_that_falls_ends_the_game_and_its_last_tick_still_earns() -> None:
    chunk = episode("cartpole", "random")[0]
    assert (chunk.header.ending, chunk.header.outcome) == ("terminated", float(chunk.header.steps))
    assert abs(chunk.columns["final_observation/state"][2]) > 12 * 2 * np.pi / 360


# Connect Four


def drop(columns: str) -> tuple[ConnectFour, View]:
    """A board after those columns, the players taking turns."""
    game = ConnectFour()
    view = game.reset(np.zeros(1, np.uint64), ALL)
    for column in columns:
        assert not view.over[0], "the game ended too early"
        view = game.step([np.array([int(column)])] * 2)
    return game, view


LINES = [
    [(row + i * down, column + i * right) for i in range(4)]
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    for row in range(6)
    for column in range(7)
    if row + 3 * down < 6 and 0 <= column + 3 * right < 7
]


def test_each_of_the_69_lines_wins_and_no_three_of_its_stones_do() -> None:
    assert len(LINES) == 69
    boards = np.zeros((69, 2, 6, 7), np.uint8)
    for board, line in zip(boards, LINES, strict=True):
        board[0][tuple(zip(*line, strict=True))] = 1
    assert has_four(stones_of(boards)).tolist() == [[True, False]] * 69
    for i in range(4):
        fewer = boards.copy()
        for board, line in zip(fewer, LINES, strict=True):
            board[0][line[i]] = 0
        assert not has_four(stones_of(fewer)).any()


def test_lines_are_found_on_random_boards_as_by_looking_at_each() -> None:
    boards = (np.random.default_rng(0).random((2000, 2, 6, 7)) < 0.4).astype(np.uint8)
    looked = np.zeros((2000, 2), bool)
    for line in LINES:
        looked |= boards[:, :, *zip(*line, strict=True)].all(axis=2)
    assert 0 < looked.sum() < looked.size
    assert (has_four(stones_of(boards)) == looked).all()


@pytest.mark.parametrize(
    ("columns", "winner"),
    [
        ("001122", None),
        ("0011223", 0),  # a row
        ("0101010", 0),  # a column
        ("01122323363", 0),  # a diagonal up
        ("65544343303", 0),  # and one down
        ("60010203", 1),  # a row of the second player's
        ("0112136", None),  # 6, 0 and 1 are not beside each other
    ],
)
def test_four_in_a_line_win(columns: str, winner: int | None) -> None:
    _, view = drop(columns)
    if winner is None:
        assert view.ending.tolist() == [[RUNNING, RUNNING]]
        return
    assert view.ending.tolist() == [[TERMINATED, TERMINATED]]
    score = [1.0, -1.0] if winner == 0 else [-1.0, 1.0]
    assert view.reward.tolist() == view.outcome.tolist() == [score]


def test_a_full_column_is_not_legal() -> None:
    game, view = drop("000000")
    assert view.legal[0] is not None
    assert view.legal[0][0].tolist() == [False, *[True] * 6]
    with pytest.raises(Refused) as caught:
        game.step([np.array([0])] * 2)
    said = "connect-four, seat 0: action 0 in game 0 is not legal. Choose from 1, 2, 3, 4, 5, 6."
    assert str(caught.value) == said


def test_a_full_board_without_a_line_is_a_draw() -> None:
    _, view = drop("600055155220266636513610145243021234433441")
    assert view.tick.tolist() == [42]
    assert view.ending.tolist() == [[TERMINATED, TERMINATED]]
    assert not view.outcome.any()
    assert not view.reward.any()
    assert all(legal is not None and legal.all() for legal in view.legal)


def test_moves_that_win_and_moves_that_let_the_other_win_are_told() -> None:
    game, rng = ConnectFour(200), np.random.default_rng(5)
    view = game.reset(np.zeros(200, np.uint64), np.ones(200, bool))
    for _ in range(14):
        moves = (rng.random((200, 7)) * (view.legal[0] & view.legal[1])).argmax(axis=1).astype(np.int32)
        view = game.step([moves, moves])
    told, rows, legal = game.move_outcomes(), game.save_rows(), view.legal[0] & view.legal[1]
    assert {-1, 0, 1} == set(told[~view.over].reshape(-1).tolist())

    def wins(before: list[bytes], column: int) -> np.ndarray:
        """Of each game whether the stone in that column wins it; the games go on behind it."""
        game.restore_rows(before)
        free = game._legal()[:, column]
        moves = np.where(free, column, game._legal().argmax(axis=1)).astype(np.int32)
        return (game.step([moves, moves]).ending[:, 0] == TERMINATED) & (game._outcome != 0) & free

    for column in range(7):
        won, replied = wins(rows, column), np.zeros(200, bool)
        after = game.save_rows()
        for reply in range(7):
            replied |= wins(after, reply)
        expected = np.where(won, 1, np.where(replied, -1, 0))
        here = ~view.over & legal[:, column]
        assert (told[here, column] == expected[here]).all()


def test_each_seat_sees_its_own_stones_first_and_the_top_row_on_top() -> None:
    _, view = drop("330")
    own, theirs = view.observation[0]["observation/board"][0]
    assert np.argwhere(own).tolist() == [[5, 0], [5, 3]]
    assert np.argwhere(theirs).tolist() == [[4, 3]]
    assert (view.observation[1]["observation/board"][0] == np.stack([theirs, own])).all()
    assert view.to_act.tolist() == [[False, True]]


def test_the_loser_s_last_step_carries_minus_one() -> None:
    losers = 0
    for seed in range(10):
        chunks = episode("connect-four", "random", "tactical", seed=seed)
        for chunk in chunks:
            reward, outcome = chunk.columns["reward"], chunk.header.outcome
            assert reward[-1] == outcome
            assert not reward[:-1].any()
            losers += outcome == -1
        # Whoever loses did not move last: what it is told came while the other moved.
        last = max(chunks, key=lambda chunk: chunk.columns["tick"][-1])
        assert last.header.outcome in (0, 1)
    assert losers >= 9


# Duel


def field(view: View, seat: int = 0) -> dict[str, float]:
    return dict(zip(duel.FEATURES, view.observation[seat]["observation/field"][0].tolist(), strict=True))


def act(left: int = 1, right: int = 1) -> list[np.ndarray]:
    return [np.array([left]), np.array([right])]


def served(seed: int) -> tuple[Duel, View]:
    """A duel at the moment at which its first ball flies."""
    game = Duel()
    view = game.reset(np.array([seed], np.uint64), ALL)
    for _ in range(duel.PAUSE_TICKS + 1):
        view = game.step(act())
    return game, view


def test_both_seats_see_themselves_on_the_left() -> None:
    game, view = served(1)
    view = game.step(act(0, 2))
    left, right = field(view, 0), field(view, 1)
    assert left["own paddle"] == right["other paddle"] == -160 / 4096
    assert left["other paddle"] == right["own paddle"] == 160 / 4096
    assert left["ball x"] == -right["ball x"] != 0
    assert left["ball vx"] == -right["ball vx"] != 0
    assert (left["ball y"], left["ball vy"]) == (right["ball y"], right["ball vy"])


def test_a_paddle_stops_at_the_wall() -> None:
    game = Duel()
    game.reset(np.zeros(1, np.uint64), ALL)
    for _ in range(20):
        view = game.step(act(0, 2))
    assert field(view)["own paddle"] == -duel.PADDLE_LIMIT / 4096
    assert field(view)["other paddle"] == duel.PADDLE_LIMIT / 4096


def test_where_the_paddle_meets_the_ball_sets_its_angle_and_every_hit_its_speed() -> None:
    slopes = {}
    for offset in (-600, -300, 0, 300, 600):
        game, _ = served(1)
        game._ball[0] = (-4800, offset, -192, 0)
        slopes[offset] = game.step(act())
        x, _, vx, vy = game._ball[0].tolist()
        assert (x, vx) == (-2 * 4864 + 4992, 216)
        assert vy == int(offset * 216 / 608)
    game, _ = served(1)
    game._ball[0] = (4800, 609, 192, 0)
    assert game.step(act()).reward.tolist() == [[1.0, -1.0]]


def test_the_ball_bounces_off_the_walls_and_stays_in_the_field() -> None:
    game, _ = served(1)
    game._ball[0] = (0, 2900, 192, 100)
    game.step(act())
    assert game._ball[0].tolist() == [192, 2 * 2976 - 3000, 192, -100]


def test_five_points_win_and_every_point_is_earned_once() -> None:
    game, view = Duel(200), None
    rng, player = np.random.default_rng(0), script("duel", "random")
    view = game.reset(np.arange(200, dtype=np.uint64), np.ones(200, bool))
    earned = np.zeros((200, 2))
    while not view.over.all():
        view = game.step([player.act(s, view.observation[s], None, rng) for s in (0, 1)])
        earned += view.reward
        assert (np.abs(view.observation[0]["observation/field"]) <= 1).all()
    assert (view.ending == TERMINATED).all()
    assert (game._score.max(axis=1) == 5).all()
    assert (earned[:, 0] == game._score[:, 0] - game._score[:, 1]).all()
    assert (view.outcome[:, 0] == np.sign(earned[:, 0])).all()
    assert (view.outcome.sum(axis=1) == 0).all()


def test_a_duel_is_cut_short_at_3600_ticks_and_the_score_decides() -> None:
    game, view = served(1)
    game._score[0] = (2, 1)
    game._tick[0] = 3599
    view = game.step(act())
    assert view.ending.tolist() == [[TRUNCATED, TRUNCATED]]
    assert view.outcome.tolist() == [[1.0, -1.0]]


def test_serves_go_both_ways_and_at_every_slope() -> None:
    game = Duel(2000)
    game.reset(np.arange(2000, dtype=np.uint64), np.ones(2000, bool))
    right = game._ball[:, 2] > 0
    assert 900 < right.sum() < 1100
    assert (np.abs(game._ball[:, 2]) == duel.SERVE_SPEED).all()
    assert game._ball[:, 3].min() == -128
    assert game._ball[:, 3].max() == 128


def test_the_same_seed_gives_the_same_game_whatever_is_played_beside_it() -> None:
    for game_id in ("cartpole", "duel"):
        few, many = open_game(game_id, 1), open_game(game_id, 17)
        one = few.reset(np.array([9], np.uint64), ALL)
        all_of_them = many.reset(np.full(17, 9, np.uint64), np.ones(17, bool))
        for name, array in one.observation[0].items():
            assert (all_of_them.observation[0][name] == array).all()
