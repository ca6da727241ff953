"""A model that sees stacks of frames, in a game that shows one at a time: act() makes the stacks."""

import msgspec
import numpy as np
import pytest
from served_models import GAME

from sparring.client.episode import Episode
from sparring.errors import ChunkRefused, ModelDamaged
from sparring.games.step_buffer import StepLayout
from sparring.nets.chooser import Chooser
from sparring.nets.model_files import make_model, read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_network
from sparring.wire.ids import new_episode
from sparring.wire.model import Lineage

STACKED = msgspec.structs.replace(GAME, frame_stack=3)


class Deciding:
    """What an episode asks of its connection, without a gateway."""

    def __init__(self):
        self.rng, self.spec = np.random.default_rng(0), STACKED

    def decide(self, index, seat, chooser, asked, last):
        return chooser.decide(seat, asked, self.rng)

    def ended(self, episode, buffer):
        pass


def model():
    network = default_network(STACKED.seats[0], hidden=(8,), frame_stack=3)
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in parameters(network).items()}
    return make_model(STACKED, network, weights, "greedy", Lineage(algorithm="none", config={}, steps={}), 1)


def opened(chooser):
    layout = StepLayout(STACKED, 0)
    return Episode(Deciding(), layout, layout.header(new_episode(), "play"), "person", None, chooser)


def test_act_gives_the_model_the_last_frames_of_its_own_episode():
    made = model()
    forward, chooser = NumpyForward(made.card.network, read_weights(made)), Chooser(made)
    views = np.random.default_rng(1).normal(0, 0.05, (40, 4)).astype(np.float32)
    for start in (0, 20):
        episode = opened(chooser)
        for at in range(start, start + 20):
            stack = views[np.maximum([at - 2, at - 1, at], start)]
            wanted = int(forward({"observation/state": stack[None]})["logits"].argmax())
            if at % 3 == 1:  # a person decides: the model is not asked, and yet has seen this frame
                episode.record(views[at], 0)
                continue
            chosen = episode.act(views[at])
            assert chosen == wanted
            episode.record(views[at], chosen)


def test_a_frame_that_is_refused_is_in_no_stack():
    made = model()
    episode, other = opened(Chooser(made)), opened(Chooser(made))
    view = np.full(4, 0.01, np.float32)
    with pytest.raises(ChunkRefused):
        episode.act(np.zeros(5, np.float32))
    assert episode.act(view) == other.act(view)


def test_a_model_of_stacks_is_for_games_with_stacks():
    chooser = Chooser(model())
    chooser.check(STACKED.seats[0], 3)
    with pytest.raises(ModelDamaged, match="has shape"):
        chooser.check(GAME.seats[0])
