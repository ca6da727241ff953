"""Large images of Gymnasium's and PettingZoo's games are scaled down by areas, unless the id says otherwise."""

import gymnasium
import numpy as np

from sparring.games.catalogue import open_game
from sparring.games.gymnasium import SIDE, _areas, _bands, from_factory


class Screen(gymnasium.Env):
    """Shows one picture, 168 x 120: even numbers above, odd ones below."""

    observation_space = gymnasium.spaces.Box(0, 255, (168, 120, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def _picture(self):
        picture = np.zeros((168, 120, 3), np.uint8)
        picture[84:, :, 0], picture[:, 60:, 1] = 200, 100
        return picture

    def reset(self, *, seed=None, options=None):
        return self._picture(), {}

    def step(self, action):
        return self._picture(), 0.0, False, False, {}


def test_an_image_keeps_its_colours_and_places_at_a_smaller_size() -> None:
    game = from_factory(Screen, "gym:python/Screen", 2)
    (leaf,) = game.spec.seats[0].observation
    assert (leaf.shape, leaf.dtype) == ((3, SIDE, SIDE), "uint8")
    seen = game.reset(np.arange(2, dtype=np.uint64), np.ones(2, bool)).observation[0][leaf.name][1]
    assert (seen[0, :42] == 0).all()
    assert (seen[0, 42:] == 200).all()
    assert (seen[1, :, 42:] == 100).all()
    assert not seen[2].any()


def test_areas_give_every_pixel_the_same_weight_in_all() -> None:
    for side in (85, 96, 280, 480):
        areas = _areas(side)
        assert areas.shape == (SIDE, side)
        assert np.allclose(areas.sum(axis=1), 1, atol=1e-5)
        assert np.allclose(areas.sum(axis=0), SIDE / side, atol=1e-5)
    assert np.array_equal(_areas(50), np.eye(50, dtype=np.float32))  # a short side stays


def test_bands_are_the_areas_in_parts() -> None:
    for side in (50, 85, 280, 481):
        line = np.random.default_rng(side).random(side).astype(np.float32)
        together = np.concatenate([share @ line[used] for used, share in _bands(side)])
        assert np.allclose(together, _areas(side) @ line, atol=1e-5)


def test_an_id_can_ask_for_full_images() -> None:
    small = open_game("pz:cooperative_pong_v6", 1).spec
    full = open_game("pz:cooperative_pong_v6(images=full)", 1).spec
    assert [one.seats[0].observation[0].shape for one in (small, full)] == [(3, 84, 84), (3, 280, 480)]
    assert full.id == "pz:cooperative_pong_v6(images=full)"
