"""Gymnasium's own vector environment plays what its single environments play, and keeps a game's promises."""

import gymnasium
import numpy as np

from sparring.games.catalogue import open_game
from sparring.games.conformance import check_conformance
from sparring.games.gymnasium import NATIVE_FROM, SEEDS, NativeVector
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED

N, TICKS = 8, 700


def test_a_native_vector_plays_what_single_environments_play() -> None:
    game = open_game("gym:CartPole-v1", N)
    assert isinstance(game, NativeVector)
    singles = [gymnasium.make("CartPole-v1") for _ in range(N)]
    rng = np.random.default_rng(3)
    endings = set()
    over = np.ones(N, bool)
    for _ in range(TICKS):
        if over.any():
            seeds = rng.integers(0, 2**64, N, dtype=np.uint64)
            view = game.reset(seeds, over)
            for i in np.flatnonzero(over):
                shown, _ = singles[i].reset(seed=int(seeds[i]) % SEEDS)
                assert view.observation[0]["observation/state"][i].tolist() == shown.tolist()
        seen = view.observation[0]["observation/state"]
        balance = (seen @ np.array([0.1, 0.5, 1.0, 1.0]) > 0).astype(np.int32)
        action = np.where(np.arange(N) < N // 2, balance, rng.integers(0, 2, N)).astype(np.int32)
        view = game.step([action])
        for i, env in enumerate(singles):
            shown, reward, terminated, truncated, _ = env.step(int(action[i]))
            ending = TERMINATED if terminated else TRUNCATED if truncated else RUNNING
            assert view.observation[0]["observation/state"][i].tolist() == shown.tolist()
            assert (view.reward[i, 0], view.ending[i, 0]) == (reward, ending)
            endings.add(ending)
        over = view.over
    assert endings == {RUNNING, TERMINATED, TRUNCATED}


def test_a_game_plays_the_same_whatever_stands_beside_it() -> None:
    few, many = open_game("gym:CartPole-v1", 2), open_game("gym:CartPole-v1", N)
    assert not isinstance(few, NativeVector)
    seeds = np.arange(N, dtype=np.uint64)
    few.reset(seeds[:2], np.ones(2, bool))
    many.reset(seeds, np.ones(N, bool))
    for tick in range(60):  # far beyond the end: a finished game stands still
        one = few.step([np.full(2, tick % 3 == 0, np.int32)])
        other = many.step([np.full(N, tick % 3 == 0, np.int32)])
        for name in ("to_act", "reward", "ending", "outcome", "tick"):
            assert getattr(one, name).tolist() == getattr(other, name)[:2].tolist()
        assert (one.observation[0]["observation/state"] == other.observation[0]["observation/state"][:2]).all()
    assert one.over.all()


def test_a_native_vector_keeps_every_promise_of_a_game() -> None:
    assert check_conformance(lambda n: open_game("gym:CartPole-v1", max(n, NATIVE_FROM))).broken == ()
