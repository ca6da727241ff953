"""Atari through ALE's vectors: each game from its own seed, its last picture shown, standing still until its reset."""

import msgspec
import numpy as np
import pytest

from sparring.errors import ConfigError, Missing, Refused
from sparring.games.atari import SCREEN, Atari, Options
from sparring.games.catalogue import open_game, spec_of
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Game, View
from sparring.nets.torch_network import default_network
from sparring.wire.champion import canonical
from sparring.wire.network import NetworkSpec

ALL = np.ones(2, bool)


def seeds(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def breakout_to_an_end(game: Game, view: View, rng: np.random.Generator) -> View:
    while not view.over.any():
        view = game.step([rng.integers(0, 4, game.n)])
    return view


@pytest.mark.parametrize("game_id", ["atari:Pong", "atari:Pong(sticky=0.25)"])
def test_a_seed_and_actions_give_the_same_frames_in_any_row_and_after_any_game(game_id: str) -> None:
    pair, alone = open_game(game_id, 2), open_game(game_id)
    actions = np.random.default_rng(0).integers(0, 6, 60)

    def frames(game: Game, row: int, *numbers: int) -> list[bytes]:
        view = game.reset(seeds(*numbers), np.ones(game.n, bool))
        seen = [view.observation[0][SCREEN][row].tobytes()]
        for action in actions:
            view = game.step([np.full(game.n, action)])
            seen.append(view.observation[0][SCREEN][row].tobytes())
        return seen

    first = frames(pair, 1, 5, 2**63 + 6)
    assert frames(alone, 0, 2**63 + 6) == first
    assert frames(pair, 0, 2**63 + 6, 9) == first
    assert frames(pair, 0, 5, 9) != first  # other no-op starts


@pytest.mark.slow
def test_the_final_observation_is_the_last_frame_and_the_other_game_loses_none() -> None:
    """Held against ALE's own vector, stepped bare with the same actions."""
    from ale_py.vector_env import AtariVectorEnv

    game = open_game("atari:Breakout", 2)
    peer = AtariVectorEnv("breakout", 2, stack_num=1, reward_clipping=False)
    view = game.reset(seeds(1, 2), ALL)
    shown: np.ndarray = peer.reset(seed=np.array([1, 2]))[0]
    rng, over, score = np.random.default_rng(3), np.zeros(2, bool), np.zeros(2)
    last = shown[:, 0].copy()
    while not over.all():
        actions = rng.integers(0, 4, 2)
        view = game.step([actions])
        shown, points, terminated, _, _ = peer.step(np.where(over, 0, actions))
        last[~over] = shown[~over, 0]
        assert (view.observation[0][SCREEN] == last).all()
        assert (view.reward[:, 0] == np.where(over, 0, points)).all()
        score += np.where(over, 0, points)
        over |= terminated
        assert (view.ending[:, 0] == np.where(over, TERMINATED, RUNNING)).all()
    assert (view.outcome[:, 0] == score).all()
    again = game.reset(seeds(1, 7), np.array([True, False]))  # from its seed, though ALE has played on meanwhile
    shown, _ = AtariVectorEnv("breakout", 1, stack_num=1).reset(seed=np.array([1]))
    assert (again.observation[0][SCREEN][0] == shown[0, 0]).all()
    assert (again.observation[0][SCREEN][1] == last[1]).all()
    assert again.ending[:, 0].tolist() == [RUNNING, TERMINATED]
    after = game.step([np.array([1, 1])])
    assert after.tick[0] == 1
    assert (after.observation[0][SCREEN][1] == last[1]).all()


def test_a_game_is_cut_short_at_its_most_ticks() -> None:
    game = Atari("pong", "Pong", 2, Options(), most_ticks=20)
    view = game.reset(seeds(1, 2), ALL)
    for _ in range(10):
        view = game.step([np.zeros(2, int)])
    view = game.reset(seeds(3, 3), np.array([True, False]))
    for _ in range(10):
        view = game.step([np.zeros(2, int)])
    assert view.ending[:, 0].tolist() == [RUNNING, TRUNCATED]
    assert view.tick.tolist() == [10, 20]


def test_points_are_not_clipped_and_a_caller_may_write_into_what_it_was_shown() -> None:
    game, rng = open_game("atari:SpaceInvaders"), np.random.default_rng(0)
    view = game.reset(seeds(1), np.ones(1, bool))
    most = 0.0
    while not view.over.all():
        view = game.step([rng.integers(0, 6, 1)])
        most = max(most, float(view.reward.max()))
    assert most >= 5
    kept = view.observation[0][SCREEN].copy()
    view.observation[0][SCREEN][:] = 0
    assert (game.step([np.zeros(1, int)]).observation[0][SCREEN] == kept).all()


def test_with_one_life_a_game_ends_sooner() -> None:
    ticks = {}
    for game_id in ("atari:Breakout", "atari:Breakout(lives=one)"):
        game = open_game(game_id)
        view = game.reset(seeds(1), np.ones(1, bool))
        ticks[game_id] = int(breakout_to_an_end(game, view, np.random.default_rng(0)).tick[0])
    assert ticks["atari:Breakout(lives=one)"] < ticks["atari:Breakout"]


def test_one_choice_of_options_has_one_id() -> None:
    spec = spec_of("atari:Pong(actions=full, sticky=0.250)")
    assert spec.id == "atari:Pong(sticky=0.25,actions=full)"
    assert spec.seats[0].action.choices == (18,)
    assert spec_of(spec.id) == spec
    assert spec_of("atari:Pong(sticky=0)") == spec_of("atari:Pong")
    assert (spec.max_ticks, spec.frame_stack) == (27_000, 4)


@pytest.mark.parametrize(
    ("game_id", "said"),
    [
        ("atari:Pnog", "Did you mean 'atari:Pong'"),
        ("atari:pong", "Did you mean 'atari:Pong'"),
        ("atari:MsPackman(sticky=0.25)", "Did you mean 'atari:MsPacman'"),
        ("atari:zzzzz", "Use one of Adventure, "),
    ],
)
def test_an_unknown_game_is_said_with_one_that_is_known(game_id: str, said: str) -> None:
    with pytest.raises(Missing, match=said):
        open_game(game_id)


@pytest.mark.parametrize("options", ["stick=0.1", "sticky=1", "sticky=often", "actions=some", "lives=two"])
def test_an_unknown_option_is_refused(options: str) -> None:
    with pytest.raises(ConfigError, match="Choose from sticky="):
        open_game(f"atari:Pong({options})")


def test_an_action_that_is_none_is_refused() -> None:
    game = open_game("atari:Pong", 2)
    game.reset(seeds(1, 2), ALL)
    with pytest.raises(Refused, match="action 6 in game 1"):
        game.step([np.array([0, 6])])


def test_a_network_for_it_sees_four_frames_as_channels_and_reads_back_as_it_was_written() -> None:
    spec = spec_of("atari:Pong")
    network = default_network(spec.seats[0], frame_stack=spec.frame_stack)
    assert [(leaf.shape, leaf.image, leaf.scale) for leaf in network.inputs] == [((4, 84, 84), True, 1 / 255)]
    written = canonical(network)
    assert canonical(msgspec.json.decode(written, type=NetworkSpec)) == written
