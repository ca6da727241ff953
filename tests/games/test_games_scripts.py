"""Scripts are players of known strength: each stronger one beats the weaker one."""

import numpy as np
import pytest

from sparring.errors import Missing
from sparring.games.catalogue import open_game
from sparring.games.scripts import Script, script, script_for, scripts_for
from sparring.games.spec import GameSpec, Leaf, SeatSpec, vector
from sparring.wire.ids import GameId


def outcomes(game_id: str, players: list[Script], n: int = 200) -> np.ndarray:
    """float32 [n, seats] of n games, and an assertion that nothing illegal was played."""
    game, rng = open_game(game_id, n), np.random.default_rng(3)
    view = game.reset(np.arange(n, dtype=np.uint64), np.ones(n, bool))
    while not view.over.all():
        view = game.step([p.act(s, view.observation[s], view.legal[s], rng) for s, p in enumerate(players)])
    return view.outcome


class Lazy:
    """A tracker that stays where it is in a share of the ticks."""

    def __init__(self, share: float) -> None:
        self.share, self.tracker = share, script("duel", "tracker")

    def act(self, seat: int, observation: dict, legal: None, rng: np.random.Generator) -> np.ndarray:
        actions = self.tracker.act(seat, observation, legal, rng)
        return np.where(rng.random(len(actions)) < self.share, 1, actions)


def test_balance_lasts_to_the_end_and_random_falls() -> None:
    assert (outcomes("cartpole", [script("cartpole", "balance")]) == 500).all()
    assert 15 < outcomes("cartpole", [script("cartpole", "random")]).mean() < 30


@pytest.mark.parametrize("seat", [0, 1])
def test_tactical_beats_random_from_either_seat(seat: int) -> None:
    players = [script("connect-four", "random")] * 2
    players[seat] = script("connect-four", "tactical")
    assert (outcomes("connect-four", players)[:, seat] > 0).mean() >= 0.85


def test_tactical_wins_at_once_and_blocks_at_once() -> None:
    tactical, rng = script("connect-four", "tactical"), np.random.default_rng(0)
    board = np.zeros((1, 2, 6, 7), np.uint8)
    board[0, 0, 5, :3] = 1
    assert tactical.act(0, {"observation/board": board}, None, rng).tolist() == [3]
    assert tactical.act(0, {"observation/board": board[:, ::-1]}, None, rng).tolist() == [3]
    board[0, 1, 2:5, 6] = 1
    board[0, 0, 5, 6] = 1
    assert tactical.act(0, {"observation/board": board}, None, rng).tolist() == [3], "its own win comes first"


@pytest.mark.parametrize("seat", [0, 1])
def test_tracker_beats_random_nearly_always(seat: int) -> None:
    players = [script("duel", "random")] * 2
    players[seat] = script("duel", "tracker")
    assert (outcomes("duel", players, 100)[:, seat] > 0).mean() >= 0.98


@pytest.mark.slow
def test_a_duel_rewards_skill_and_even_players_part_even() -> None:
    tracker = script("duel", "tracker")
    even = outcomes("duel", [tracker, tracker], 100)[:, 0]
    assert 0.3 < (even > 0).mean() < 0.7
    assert (even != 0).mean() > 0.95, "matches of equals come to an end"
    assert (outcomes("duel", [tracker, Lazy(0.3)], 100)[:, 0] > 0).mean() > 0.7
    assert (outcomes("duel", [Lazy(0.6), Lazy(0.3)], 100)[:, 1] > 0).mean() > 0.7


def test_every_game_has_a_random_player_and_unknown_ones_are_named() -> None:
    assert scripts_for("duel") == ("random", "tracker")
    assert scripts_for("gym:CartPole-v1") == ("random",)
    with pytest.raises(Missing) as caught:
        script("duel", "traker")
    assert str(caught.value) == "scripts of duel: there is no script 'traker'. Did you mean 'tracker'?"


def test_random_actions_are_uniform_over_what_is_legal() -> None:
    rng, n = np.random.default_rng(0), 6000
    legal = np.tile(np.array([True, False, True, True, False, False, False]), (n, 1))
    board = {"observation/board": np.zeros((n, 2, 6, 7), np.uint8)}
    counts = np.bincount(script("connect-four", "random").act(0, board, legal, rng), minlength=7)
    assert counts[[1, 4, 5, 6]].tolist() == [0, 0, 0, 0]
    assert (np.abs(counts[[0, 2, 3]] - n / 3) < 4 * np.sqrt(n * 2 / 9)).all()


@pytest.mark.parametrize(
    "action",
    [
        Leaf(name="action", kind="multi-discrete", shape=(2,), dtype="int8", choices=(3, 5)),
        Leaf(name="action", kind="box", shape=(3,), low=-2.0, high=0.5),
        Leaf(name="action", kind="box", shape=(2, 2)),
    ],
    ids=lambda leaf: f"{leaf.kind} {leaf.shape}",
)
def test_random_actions_fit_every_kind_of_space(action: Leaf) -> None:
    seat = SeatSpec(name="one", observation=(vector("observation/x", 1),), action=action, reward_bounds=(0, 0))
    spec = GameSpec(id=GameId("any"), turns="simultaneous", seats=(seat,), max_ticks=1)
    rng = np.random.default_rng(0)
    actions = script_for(spec, "random").act(0, {"observation/x": np.zeros((500, 1), np.float32)}, None, rng)
    assert actions.shape == (500, *action.shape)
    assert actions.dtype == action.dtype
    if action.choices:
        assert actions.max(axis=0).tolist() == [2, 4]
        masks = np.tile(np.array([True, False, False, False, True, False, False, False]), (500, 1))
        masked = script_for(spec, "random").act(0, {"observation/x": np.zeros((500, 1), np.float32)}, masks, rng)
        assert np.unique(masked, axis=0).tolist() == [[0, 1]]
    else:
        low, high = (-1.0, 1.0) if action.low is None else (-2.0, 0.5)
        assert low <= actions.min() < low + 0.05
        assert high - 0.05 < actions.max() <= high
