"""`spar bench champion` and the player that it measures against."""

import numpy as np
import pytest
from bench.alpha_beta import BOTTOM, FULL_COLUMN, LINES, ORDER, WIN, AlphaBeta, has_line, negamax
from bench.champion import agreement, positions, score

from sparring.games.catalogue import spec_of
from sparring.games.connect_four import stones_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_heads, default_network
from sparring.wire.model import Lineage

TABLES = (LINES, ORDER, FULL_COLUMN, BOTTOM)


def exact(own, other, depth):
    """What each move is worth, each by a search of its own with all of alpha and beta."""
    found = {}
    for column in range(7):
        stone = ((own | other) + int(BOTTOM[column])) & int(FULL_COLUMN[column])
        if stone:
            won = has_line(own | stone)
            found[column] = WIN + depth if won else -negamax(other, own | stone, depth - 1, -WIN * 2, WIN * 2, TABLES)
    return found


def test_the_best_moves_of_alpha_beta_are_those_of_a_search_without_shared_bounds():
    boards, _ = positions(60)
    values, stones = AlphaBeta(3).values(boards), stones_of(boards)
    for row in range(len(boards)):
        wanted = exact(int(stones[row, 0]), int(stones[row, 1]), 3)
        best = max(wanted.values())
        assert {c for c in wanted if values[row, c] == best} == {c for c, value in wanted.items() if value == best}
        assert values[row].max() == best


@pytest.fixture(scope="module")
def model():
    spec = spec_of("connect-four")
    network = default_network(spec.seats[0], hidden=(8,), heads=default_heads(spec.seats[0].action))
    lineage = Lineage(algorithm="test", config={}, steps={})
    return make_model(spec, network, Network(network, 1).weights(), "categorical", lineage, 1)


def test_alpha_beta_beats_a_network_that_knows_nothing(model):
    found = score(model, 20)
    assert found["score"] < 0.2
    assert found["distinct"] > 10


def test_a_network_that_knows_nothing_agrees_as_often_as_chance(model):
    found = agreement(model, 100, depth=3)
    assert found["positions"] == 100
    assert abs(found["agreement"] - found["by chance"]) < 0.2


def test_positions_are_shown_to_who_is_to_move():
    boards, legal = positions(200)
    own, other = boards.sum(axis=(2, 3)).T.astype(int)
    assert set(other - own) == {0, 1}
    assert len(np.unique(own + other)) > 15
    assert legal.any(axis=1).all()
