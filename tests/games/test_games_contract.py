"""One contract for every game: built-in, Gymnasium's, PettingZoo's, OpenSpiel's, Atari's, and a person's own."""

import numpy as np
import pytest

from sparring.errors import ConfigError, Missing, Refused, WireError
from sparring.games.catalogue import open_game
from sparring.games.conformance import check_conformance
from sparring.games.protocol import RUNNING, TERMINATED

GAMES = [
    "cartpole",
    "connect-four",
    "duel",
    "gym:CartPole-v1",
    "gym:Taxi-v3",  # a mask in info
    "gym:Blackjack-v1",  # a Tuple
    "gym:Pendulum-v1",  # a Box action
    "gym:LunarLander-v3",
    "pz:connect_four_v3",
    "pz:tictactoe_v3",
    "pz:rps_v2",
    "pz:leduc_holdem_v4",
    "pz:simple_spread_v3(identity=true)",  # of mpe2
    "pz:simple_tag_v3",  # seats with different spaces
    "spiel:tic_tac_toe",
    "spiel:kuhn_poker",
    "spiel:leduc_poker",
    "spiel:goofspiel(num_cards=4)",  # simultaneous, with chance
    "atari:Pong",
    "own_game:countdown",
]
EPISODES = {"atari:Pong": 1}  # some 900 ticks each


@pytest.mark.parametrize(
    "game_id", [pytest.param(name, marks=pytest.mark.slow) if name in EPISODES else name for name in GAMES]
)
def test_a_game_keeps_every_promise_of_the_protocol(game_id: str) -> None:
    found = check_conformance(lambda n: open_game(game_id, n), EPISODES.get(game_id, 6))
    assert found.broken == ()
    assert found.steps >= 6


def test_images_of_a_parallel_game_are_drawn_and_travel_with_their_channels_first() -> None:
    game = open_game("pz:cooperative_pong_v6(images=full)")
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    assert game.spec.turns == "simultaneous"
    before = view.observation[0]["observation/image"].copy()
    assert before.shape == (1, 3, 280, 480)
    assert view.to_act.tolist() == [[True, True]]
    after = game.step([np.ones(1, np.int32), np.ones(1, np.int32)]).observation[0]["observation/image"]
    assert before.any()
    assert (before != after).any()  # the paddles move


@pytest.mark.parametrize("game_id", GAMES)
def test_only_the_games_that_are_named_start_anew(game_id: str) -> None:
    game = open_game(game_id, 2)
    seeds = np.array([3, 4], np.uint64)
    before = game.reset(seeds, np.array([True, False]))
    assert before.over.tolist() == [False, True]
    after = game.reset(seeds, np.array([False, True]))
    assert after.over.tolist() == [False, False]
    for ours, theirs in zip(before.observation, after.observation, strict=True):
        assert all((ours[name][0] == theirs[name][0]).all() for name in ours)


@pytest.mark.parametrize("game_id", ["gym:CartPole-v1", "pz:tictactoe_v3", "atari:Pong"])
def test_a_game_that_cannot_be_restored_says_so(game_id: str) -> None:
    game = open_game(game_id)
    assert not game.spec.resimulates
    with pytest.raises(Refused) as caught:
        game.restore(b"")
    sentence = f"game {game_id}: its state cannot be saved and restored. Use a game whose spec says resimulates = true."
    assert str(caught.value) == sentence


@pytest.mark.parametrize("game_id", ["cartpole", "connect-four", "duel", "spiel:kuhn_poker"])
def test_a_state_of_another_kind_is_refused(game_id: str) -> None:
    others = {"cartpole": "duel"}
    foreign = open_game(others.get(game_id, "cartpole")).save()
    for state in (foreign, b"", b"\xc1", open_game(game_id, 3).save()):
        with pytest.raises(WireError, match="Restore what save"):
            open_game(game_id, 2).restore(state)


def test_the_final_view_of_a_gymnasium_game_is_its_own_and_not_the_next_one() -> None:
    import gymnasium

    game, peer = open_game("gym:CartPole-v1", 2), gymnasium.make("CartPole-v1")
    view = game.reset(np.array([5, 6], np.uint64), np.ones(2, bool))
    seen, _ = peer.reset(seed=5)
    terminated = False
    while not terminated:
        assert (view.observation[0]["observation/state"][0] == seen).all()
        view = game.step([np.ones(2, np.int32)])
        seen, _, terminated, _, _ = peer.step(1)
    assert view.ending[0, 0] == TERMINATED
    assert (view.observation[0]["observation/state"][0] == seen).all()
    assert view.outcome[0, 0] == view.tick[0]


def test_a_gymnasium_mask_is_the_legal_mask() -> None:
    game = open_game("gym:Taxi-v3", 4)
    view = game.reset(np.arange(4, dtype=np.uint64), np.ones(4, bool))
    legal = view.legal[0]
    assert legal is not None
    assert legal.shape == (4, 6)
    assert not legal.all()
    wrong = (~legal).argmax(axis=1)
    with pytest.raises(Refused, match="is not legal"):
        game.step([wrong])


def test_chance_in_kuhn_poker_comes_from_the_seed_and_is_fair() -> None:
    n = 1200
    game = open_game("spiel:kuhn_poker", n)
    view = game.reset(np.arange(n, dtype=np.uint64), np.ones(n, bool))
    card = view.observation[0]["observation/state"][:, 2:5].argmax(axis=1)
    counts = np.bincount(card, minlength=3)
    assert (np.abs(counts - n / 3) < 4 * np.sqrt(n * 2 / 9)).all()  # four standard deviations


def test_information_that_is_hidden_stays_hidden() -> None:
    game = open_game("spiel:kuhn_poker", 50)
    view = game.reset(np.arange(50, dtype=np.uint64), np.ones(50, bool))
    mine, theirs = (view.observation[s]["observation/state"] for s in (0, 1))
    first = (mine[:, 2:5] == mine[0, 2:5]).all(axis=1)
    assert len(np.unique(mine[first], axis=0)) == 1  # one card of mine, one view,
    assert len(np.unique(theirs[first], axis=0)) == 2  # whichever of the other two cards they hold


@pytest.mark.parametrize("game_id", ["cartpole", "connect-four", "duel"])
def test_a_move_that_is_none_is_refused_and_changes_nothing(game_id: str) -> None:
    game = open_game(game_id, 2)
    game.reset(np.zeros(2, np.uint64), np.ones(2, bool))
    before = game.save()
    seats = len(game.spec.seats)
    for wrong in (np.array([0, 9]), np.array([0, -1]), np.array([0, 0, 0])):
        with pytest.raises(Refused):
            game.step([wrong] * seats)
        if game.spec.turns == "simultaneous":  # also when the last seat alone is wrong
            with pytest.raises(Refused):
                game.step([*[np.array([0, 0])] * (seats - 1), wrong])
    assert game.save() == before


def test_nothing_runs_before_its_first_reset() -> None:
    for game_id in GAMES:
        game = open_game(game_id, 2)
        view = game.step([np.zeros((2, *seat.action.shape), seat.action.dtype) for seat in game.spec.seats])
        assert view.over.all()
        assert not view.to_act.any()
        assert not view.reward.any()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shared", "a view changed after it was given: arrays belong to the caller"),
        ("chance", "the same seed and actions give another game: in another row, or beside others"),
        ("restless", "a finished game does not stand still"),
        ("greedy", "seat 0 earns"),
        ("endless", "a game runs on after max_ticks"),
        ("forgetful", "a step after restore() gives another view"),
    ],
)
def test_a_broken_promise_is_found(fault: str, said: str) -> None:
    from own_game import broken

    found = check_conformance(lambda n: broken(fault, n), episodes=2)
    assert any(sentence.startswith(said) for sentence in found.broken), found.broken


def test_a_game_of_one_s_own_may_be_wrong_in_its_spec() -> None:
    with pytest.raises(ConfigError, match="has reward_bounds"):
        open_game("own_game:without_bounds")
    with pytest.raises(Missing, match="own_game has no 'countdwn'"):
        open_game("own_game:countdwn")


def test_an_unfinished_game_is_running() -> None:
    view = open_game("own_game:countdown").reset(np.zeros(1, np.uint64), np.ones(1, bool))
    assert (view.ending == RUNNING).all()
