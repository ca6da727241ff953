"""What the tests of the league share: small models with random weights."""

import pytest

from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.wire.model import Lineage


@pytest.fixture
def model():
    """A model of a game whose weights come from a seed."""

    def made(game, seed, parents=()):
        spec = spec_of(game)
        network = default_network(spec.seats[0], hidden=(8,))
        lineage = Lineage(algorithm="dqn", config={}, steps={}, parents=tuple(parents))
        return make_model(spec, network, Network(network, seed).weights(), "greedy", lineage, seed)

    return made
