"""The search of many games at once: what it finds, that games do not disturb each other, and what it refuses."""

import numpy as np
import pytest
from bait_game import Bait

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.games.vectorize import SingleView, VectorGame
from sparring.nets.batch_search import BatchSearch
from sparring.nets.tree_search import POLICY_TARGET, SearchSpec
from sparring.wire.network import Head, Input, NetworkSpec

NETWORK = NetworkSpec((Input("observation/board", (2, 6, 7)),), (Head("logits", 7), Head("value", 1)), ())


class Knows:
    """A network of Connect Four that knows nothing, or prefers one column."""

    spec = NETWORK

    def __init__(self, prefers=None):
        self._logits = np.zeros(7, np.float32)
        if prefers is not None:
            self._logits[prefers] = 3.0

    def __call__(self, observation, state=None):
        n = len(observation["observation/board"])
        return {"logits": np.tile(self._logits, (n, 1)), "value": np.zeros(n, np.float32)}


def after(*moves_of_games):
    """n games, each after its moves (equally many); with whom it is to move."""
    games = open_game("connect-four", len(moves_of_games))
    view = games.reset(np.zeros(games.n, np.uint64), np.ones(games.n, bool))
    for tick in range(len(moves_of_games[0])):
        moves = np.array([moves[tick] for moves in moves_of_games], np.int32)
        view = games.step([moves, moves])
    return games, view


def searched(games, view, *, simulations=32, forward=None, noise=0.0, seed=0, discount=0.99):
    forward = forward or Knows()
    search = BatchSearch(open_game("connect-four", games.n), SearchSpec(simulations, discount, noise))
    seats = view.to_act.argmax(axis=1)
    legal = np.where(seats[:, None] == 0, view.legal[0], view.legal[1])
    columns = {
        "observation/board": np.where(
            seats[:, None, None, None] == 0,
            view.observation[0]["observation/board"],
            view.observation[1]["observation/board"],
        )
    }
    return search.search(games.save_rows(), seats, forward(columns), legal, forward, np.random.default_rng(seed))


WIN = (0, 1, 0, 1, 0, 1)  # the first player wins in column 0
BLOCK = (0, 1, 0, 1, 6, 1)  # the first player has to answer in column 1
FULL = (0, 0, 0, 0, 0, 0)  # column 0 is full


def test_a_win_is_taken_and_a_loss_is_averted():
    found = searched(*after(WIN, BLOCK), simulations=64)
    assert found[POLICY_TARGET].argmax(axis=1).tolist() == [0, 1]
    assert found["value"][0] > 0.5
    np.testing.assert_allclose(np.exp(found["logits"]), found[POLICY_TARGET], rtol=1e-5)
    np.testing.assert_allclose(found[POLICY_TARGET].sum(axis=1), 1.0, rtol=1e-5)


def test_what_is_not_legal_has_no_probability():
    found = searched(*after(FULL), noise=0.25)
    assert found[POLICY_TARGET][0, 0] == 0.0
    assert (found[POLICY_TARGET][0, 1:] > 0).all()


def test_a_win_that_the_policy_would_hardly_try_is_found_by_the_noise():
    found = searched(*after(WIN), forward=Knows(prefers=3), noise=0.25, simulations=64)
    assert found[POLICY_TARGET][0].argmax() == 0


def test_each_game_is_searched_as_if_it_were_alone():
    together, view = after(WIN, BLOCK, FULL)
    all_at_once = searched(together, view)
    for place, moves in enumerate((WIN, BLOCK, FULL)):
        alone = searched(*after(moves))
        np.testing.assert_array_equal(alone[POLICY_TARGET][0], all_at_once[POLICY_TARGET][place])
        assert alone["value"][0] == all_at_once["value"][place]


@pytest.mark.parametrize("game_tells", [True, False])
def test_a_forced_win_is_certain(monkeypatch, game_tells):
    """The first player wins by making two threats at once, three plies deep."""
    if not game_tells:  # as of a game without that verb
        monkeypatch.delattr("sparring.games.connect_four.ConnectFour.move_outcomes")
    moves = (2, 2, 3, 3)  # two stones side by side, open at both ends: 1 or 4 makes three
    simulations = 8 if game_tells else 800
    found = searched(*after(moves), simulations=simulations)
    assert found["value"][0] == np.float32(0.99)  # two plies after the first one
    assert found[POLICY_TARGET][0].argmax() in (1, 4)
    assert searched(*after(moves), simulations=1)["value"][0] == 0.0


def test_a_lost_position_is_known_with_every_move_of_it():
    lost = after((2, 2, 3, 3, 1))  # threats in columns 0 and 4, and one stone to answer with
    found = searched(*lost, simulations=1)
    assert found["value"][0] == np.float32(-(0.99**0.5))
    assert found[POLICY_TARGET][0] == pytest.approx(np.full(7, 1 / 7))


def test_the_same_seed_finds_the_same():
    first, second, other = (searched(*after((2, 2, 3)), noise=0.5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[POLICY_TARGET], second[POLICY_TARGET])
    assert (first[POLICY_TARGET] != other[POLICY_TARGET]).any()


def test_what_two_teams_earn_before_the_end_is_added_up():
    games = VectorGame(Bait, 1)
    view = games.reset(np.zeros(1, np.uint64), np.ones(1, bool))

    def bad(observation):  # for who is to move
        n = len(observation["observation/path"])
        return {"logits": np.zeros((n, 2), np.float32), "value": np.full(n, -3, np.float32)}

    search, legal = BatchSearch(VectorGame(Bait, 1), SearchSpec(2, 1.0, 0.0)), np.ones((1, 2), bool)
    root = bad(view.observation[0])
    found = search.search(games.save_rows(), np.zeros(1, int), root, legal, bad, np.random.default_rng(0))
    assert found["value"][0] > 3.5  # 4 after the move that goes on, 1 after the other
    assert found[POLICY_TARGET][0].argmax() == 1


class Line:
    """Each step earns 1; the second cuts the game short."""

    seat = SeatSpec(
        name="one", observation=(vector("observation/at", 1),), action=discrete(2), reward_bounds=(0.0, 1.0)
    )
    spec = GameSpec(id="line", turns="alternating", seats=(seat,), max_ticks=2, resimulates=True)
    searchable = True

    def reset(self, seed):
        return self.seen(0.0)

    def step(self, actions):
        return self.seen(1.0)

    def seen(self, reward):
        return SingleView(({"observation/at": np.zeros(1, np.float32)},), (True,), (reward,), (0,), (0.0,), (None,))

    def save(self):
        return b""

    def restore(self, state):
        pass


def test_a_game_that_is_cut_short_is_worth_what_the_network_thinks_however_often_it_is_visited():
    games = VectorGame(Line, 1)
    view = games.reset(np.zeros(1, np.uint64), np.ones(1, bool))

    def fifty(observation):
        n = len(observation["observation/at"])
        return {"logits": np.zeros((n, 2), np.float32), "value": np.full(n, 50, np.float32)}

    search, legal = BatchSearch(VectorGame(Line, 1), SearchSpec(64, 1.0, 0.0)), np.ones((1, 2), bool)
    root = fifty(view.observation[0])
    found = search.search(games.save_rows(), np.zeros(1, int), root, legal, fifty, np.random.default_rng(0))
    assert 51 <= found["value"][0] <= 52


@pytest.mark.parametrize(
    ("game", "why"),
    [
        ("duel", "its seats move at the same time"),
        ("spiel:kuhn_poker", "it hides information or draws chance while it is played"),
    ],
)
def test_a_game_that_cannot_be_searched_is_refused(game, why):
    with pytest.raises(ConfigError, match=f"it cannot be searched: {why}.*Use ppo, dqn or mmd"):
        BatchSearch(open_game(game, 1), SearchSpec(8, 1.0, 0.0))
