"""Small true models for CartPole, published and promoted in a gateway's own registry."""

import numpy as np

from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.model import Lineage
from sparring.wire.network import Dense, Head, Input, NetworkSpec

GAME = spec_of("cartpole")
NETWORK = NetworkSpec((Input("observation/state", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))


def always(action, number=0):
    """A model that always prefers `action`; `number` makes it another model."""
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(NETWORK).items()}
    weights["logits/bias"] = np.array([1.0, 0.0] if action == 0 else [0.0, 1.0], np.float32)
    lineage = Lineage(algorithm="none", config={}, steps={"selfplay": number})
    return make_model(GAME, NETWORK, weights, "greedy", lineage, 1_700_000_000_000 + number)


def registry_of(server):
    return open_registry(f"file://{server.data / 'models'}")


def promote(registry, model):
    registry.publish(model)
    return registry.promote(GAME.id, model.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
