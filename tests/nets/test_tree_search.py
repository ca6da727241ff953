"""Search over a model: wins and blocks, exact ends, signs, the deadline, and what is refused."""

import importlib
import itertools
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from bait_game import Bait

from sparring.errors import Refused, SparringError, WireError
from sparring.games.catalogue import open_game, spec_of
from sparring.games.vectorize import VectorGame
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.nets.tree_search import SearchModel, TreeSearch, _Even
from sparring.wire.model import Lineage
from sparring.wire.network import Gru

DOCS = Path(__file__).parents[2] / "docs"
FOUR, TICTAC = "connect-four", "spiel:tic_tac_toe"
LONG_S = 60.0  # of searches that end by themselves, once the best move is certain


def chooser_of(game_id, policy="categorical", seed=1, **network):
    game = spec_of(game_id)
    net = default_network(game.seats[0], hidden=(16,), **network)
    lineage = Lineage(algorithm="test", config={}, steps={"selfplay": seed})
    return Chooser(make_model(game, net, Network(net, seed).weights(), policy, lineage, 1_790_000_000_000))


def tree_of(game_id):
    return TreeSearch(lambda n: open_game(game_id, n), spec_of(game_id))


def played(game_id, moves):
    """The game and its view after these moves of alternating seats."""
    game = open_game(game_id)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    for move in moves:
        view = game.step([np.array([move], np.int32)] * len(game.spec.seats))
    return game, view


def searched(chooser, tree, game, view, seconds, **more):
    seat = int(view.to_act[0].argmax())
    seen = {name: column[0] for name, column in view.observation[seat].items()}
    request = ActRequest(seen, view.legal[seat][0], game_state=game.save(), **more)
    return chooser.search(tree, seat, request, np.random.default_rng(0), time.monotonic() + seconds)


@pytest.mark.parametrize("policy", ["categorical", "greedy"])
@pytest.mark.parametrize(
    ("moves", "best", "value"),
    [
        ([3, 0, 3, 0, 3, 1], {3}, 1.0),  # the first player wins at once
        ([0, 3, 0, 3, 1, 3, 6], {3}, 1.0),  # so does the second
        ([3, 0, 4, 0], {2, 5}, 1.0),  # three in a row with two open ends, of which one alone can be closed
    ],
)
def test_a_forced_win_is_found_for_either_seat(policy, moves, best, value):
    game, view = played(FOUR, moves)
    found = searched(chooser_of(FOUR, policy), tree_of(FOUR), game, view, LONG_S)
    assert found.action in best
    assert found.value == value


def test_what_the_other_would_win_with_is_blocked():
    game, view = played(FOUR, [3, 0, 3, 0, 3])
    found = searched(chooser_of(FOUR), tree_of(FOUR), game, view, 1.0)
    assert found.action == 3


def minimax(state):
    """What the position is worth for who is to move, and the moves that hold it."""
    if state.is_terminal():
        return None, {}
    me, worth = state.current_player(), {}
    for move in state.legal_actions():
        after = state.child(move)
        worth[move] = after.returns()[me] if after.is_terminal() else -minimax(after)[0]
    return max(worth.values()), worth


def test_ends_are_exact_and_signs_are_right_in_every_position_of_tic_tac_toe():
    pyspiel = pytest.importorskip("pyspiel")
    rng, tree, chooser = np.random.default_rng(3), tree_of(TICTAC), chooser_of(TICTAC)
    for _ in range(12):
        moves = rng.permutation(9)[: rng.integers(3, 6)].tolist()
        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        for move in moves:
            if not state.is_terminal():
                state.apply_action(move)
        if state.is_terminal():
            continue
        game, view = played(TICTAC, moves)
        found, (value, worth) = searched(chooser, tree, game, view, LONG_S), minimax(state)
        assert found.value == value
        assert worth[found.action] == value


def test_the_only_move_of_a_position_is_valued_and_a_win_at_once_needs_no_time():
    pytest.importorskip("pyspiel")
    game, view = played(TICTAC, [0, 1, 2, 4, 3, 5, 7, 6])
    found = searched(chooser_of(TICTAC), tree_of(TICTAC), game, view, LONG_S)
    assert (found.action, found.value) == (8, 0.0)
    game, view = played(FOUR, [3, 0, 3, 0, 3, 1])
    found = searched(chooser_of(FOUR), tree_of(FOUR), game, view, -1.0)
    assert (found.action, found.value) == (3, 1.0)


def test_what_two_teams_earn_before_the_end_is_added_up():
    game, tree = VectorGame(Bait, 1), TreeSearch(lambda n: VectorGame(Bait, n), Bait.spec)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    net = default_network(Bait.spec.seats[0], hidden=(16,))
    weights, lineage = Network(net, 1).weights(), Lineage(algorithm="test", config={}, steps={})
    chooser = Chooser(make_model(Bait.spec, net, weights, "categorical", lineage, 1_790_000_000_000))
    request = ActRequest({"observation/path": view.observation[0]["observation/path"][0]}, game_state=game.save())
    found = chooser.search(tree, 0, request, np.random.default_rng(0), time.monotonic() + LONG_S)
    assert (found.action, found.value) == (1, 2.0)


def test_teams_whose_gain_is_not_the_others_loss_are_refused():
    seats = tuple(msgspec.structs.replace(seat, reward_bounds=(0.0, 1.0)) for seat in Bait.spec.seats)
    spec = msgspec.structs.replace(Bait.spec, seats=seats)
    constant = type("Constant", (Bait,), {"spec": spec})
    with pytest.raises(Refused, match="gain is not the other's loss"):
        TreeSearch(lambda n: VectorGame(constant, n), spec)


def test_the_state_is_rebuilt_from_the_board_that_either_seat_sees():
    rng, tree = np.random.default_rng(0), tree_of(FOUR)
    for length in (0, 1, 6, 13):
        game, view = played(FOUR, rng.permutation(np.repeat(np.arange(7), 2))[:length])
        seat = int(view.to_act[0].argmax())
        seen = {name: column[0] for name, column in view.observation[seat].items()}
        assert tree.row_of(seat, seen) == game.save_rows()[0] == tree.row_of_state(game.save())


@pytest.mark.parametrize("wrong", ["hangs", "turn", "both", "over"])
def test_a_board_that_no_game_shows_is_refused(wrong):
    board = np.zeros((2, 6, 7), np.uint8)
    if wrong == "hangs":
        board[0, 0, 0] = board[1, 5, 0] = 1
    elif wrong == "turn":
        board[0, 5, 0] = 1
    elif wrong == "both":
        board[:, 5, 0] = 1
    else:
        board[1, 5, :4], board[0, 4, :4] = 1, 1
    with pytest.raises(Refused, match="no running game shows this board"):
        tree_of(FOUR).row_of(0, {"observation/board": board})


def test_after_its_deadline_the_model_is_asked_once_and_chooses_as_without_a_search():
    chooser, (game, view) = chooser_of(FOUR), played(FOUR, [3, 3])
    found = searched(chooser, tree_of(FOUR), game, view, -1.0)
    seen = {name: column[0] for name, column in view.observation[0].items()}
    plain = chooser.decide(game.spec.seats[0], ActRequest(seen, view.legal[0][0]), np.random.default_rng(0))
    assert (found.action, found.logp) == (plain.action, plain.logp)
    assert found.value == pytest.approx(plain.value, abs=1e-5)


def test_a_search_looks_at_more_of_the_game_the_longer_it_lasts_and_keeps_to_what_is_allowed():
    tree, chooser, (game, _) = tree_of(FOUR), chooser_of(FOUR), played(FOUR, [3, 3])
    model, row = SearchModel(chooser._card, game.spec, chooser._run), game.save_rows()[0]
    allowed = np.array([0, 1, 0, 0, 1, 0, 0], bool)
    short, long = (tree.search(row, 0, model, time.monotonic() + s, allowed) for s in (0.02, 1.0))
    assert 0 < short.simulations < long.simulations
    assert long.visits.sum() == long.simulations
    assert set(np.flatnonzero(long.visits)) <= {1, 4}
    assert np.isneginf(long.scores[~allowed]).all()
    with pytest.raises(Refused, match="not legal in this position"):
        tree.search(row, 0, model, 0.0, np.zeros(7, bool))


def test_strength_weakens_a_search_as_it_weakens_a_model():
    _, view = played(FOUR, [3, 0, 3, 0, 3, 1])
    chooser, tree = chooser_of(FOUR), tree_of(FOUR)
    rng, actions = np.random.default_rng(0), []
    seen = {name: column[0] for name, column in view.observation[0].items()}
    for _ in range(40):
        found = chooser.search(tree, 0, ActRequest(seen, strength=0.0), rng, time.monotonic() + LONG_S)
        assert found.logp == pytest.approx(math.log(1 / 7), abs=1e-5)
        actions.append(found.action)
    assert len(set(actions)) > 4


def test_a_game_of_one_seat_is_searched_too():
    game = open_game("cartpole")
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    chooser, tree, ticks = chooser_of("cartpole"), tree_of("cartpole"), 0
    rng = np.random.default_rng(0)
    while not view.over[0] and ticks < 25:
        request = ActRequest({"observation/state": view.observation[0]["observation/state"][0]}, game_state=game.save())
        move = chooser.search(tree, 0, request, rng, time.monotonic() + 0.5).action
        view, ticks = game.step([np.array([move], np.int32)]), ticks + 1
    assert ticks == 25  # a network that has learned nothing lets the pole fall after some ten


@pytest.mark.parametrize(
    ("game", "sentence"),
    [
        ("duel", "its seats move at the same time"),
        ("spiel:kuhn_poker", "it hides information or draws chance"),
        ("spiel:backgammon", "it hides information or draws chance"),
        ("gym:Acrobot-v1", "its states cannot be saved and restored"),
    ],
)
def test_games_that_cannot_be_searched_are_refused_with_one_sentence(game, sentence):
    with pytest.raises(Refused, match=sentence):
        tree_of(game)


def test_a_model_with_memory_and_a_state_of_another_game_are_refused():
    game, view = played(FOUR, [])
    with pytest.raises(Refused, match="with memory"):
        searched(chooser_of(FOUR, memory=Gru(4)), tree_of(FOUR), game, view, 1.0)
    request = ActRequest({}, game_state=played(TICTAC, [])[0].save())
    with pytest.raises(WireError):
        chooser_of(FOUR).search(tree_of(FOUR), 0, request, np.random.default_rng(0), 0.0)
    request = ActRequest({}, game_state=game.save())
    with pytest.raises(Refused, match="seat 0 is to move, not seat 1"):
        chooser_of(FOUR).search(tree_of(FOUR), 1, request, np.random.default_rng(0), 0.0)
    with pytest.raises(SparringError, match="does not show the whole state"):
        tree_of(TICTAC).row_of(0, {})


@pytest.mark.parametrize("game_id", [FOUR, "cartpole", TICTAC])
def test_rows_of_a_game_are_restored_one_by_one_and_go_on_alike(game_id):
    rng = np.random.default_rng(1)
    games, other = open_game(game_id, 6), open_game(game_id, 4)
    view = games.reset(np.arange(6, dtype=np.uint64), np.ones(6, bool))
    other.reset(np.zeros(4, np.uint64), np.ones(4, bool))
    for _ in range(3):
        legal = view.legal[int(view.to_act[0].argmax())]
        keys = rng.random((6, games.spec.seats[0].action.choices[0])) * (1 if legal is None else legal)
        view = games.step([keys.argmax(axis=1).astype(np.int32)] * len(games.spec.seats))
    chosen, rows = [4, 1, 3], games.save_rows()
    other.restore_rows([rows[row] for row in chosen])
    seen = other.reset(np.zeros(4, np.uint64), np.zeros(4, bool))
    assert seen.over.tolist() == [False, False, False, True]
    np.testing.assert_array_equal(seen.tick[:3], view.tick[chosen])
    for name, column in view.observation[0].items():
        np.testing.assert_array_equal(seen.observation[0][name][:3], column[chosen])
    with pytest.raises(WireError):
        other.restore_rows([b"short"])


def test_the_class_of_the_page_rebuilds_a_position_and_tells_what_moves_lead_to(monkeypatch, tmp_path):
    for page, name in (("games", "countdown"), ("search", "countdowns")):
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
        (block,) = (one for one in blocks if "def make(n)" in one)
        (tmp_path / f"{name}.py").write_text(
            block.replace("    spec = SPEC\n", "    spec = SPEC\n    searchable = True\n")
        )
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.import_module("countdown").SPEC
    tree, model = TreeSearch(importlib.import_module("countdowns").make, spec), _Even()
    for left, seat in itertools.product(range(2, 22), (0, 1)):
        row = tree.row_of(seat, {"observation/left": np.array([left], np.float32)})
        found = tree.search(row, seat, model, time.monotonic() + LONG_S)
        assert found.value == (1.0 if left % 4 else -1.0)
        assert not left % 4 or (found.scores.argmax() + 1) % 4 == left % 4
    with pytest.raises(Refused, match="no running game has 0 matches"):
        tree.row_of(0, {"observation/left": np.zeros(1, np.float32)})


WITHOUT_NUMBA = """
import sys, time
sys.modules["numba"] = None  # as if it were not installed
from sparring.games.catalogue import open_game, spec_of
from sparring.nets.tree_search import TreeSearch, _Even
import numpy as np
game = open_game("connect-four")
game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
for move in (3, 0, 4, 0):
    game.step([np.array([move], np.int32)] * 2)
tree = TreeSearch(lambda n: open_game("connect-four", n), game.spec)
found = tree.search(game.save_rows()[0], 0, _Even(), time.monotonic() + 60)
print(found.scores.argmax(), found.value)
"""


def test_a_game_without_numba_is_searched_too():
    said = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True).stdout
    assert said.split()[0] in {"2", "5"}
    assert said.split()[1] == "1.0"
