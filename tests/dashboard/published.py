"""Models with drawn weights, published and promoted into a server's own registry."""

import time

import numpy as np

from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.model import Lineage
from sparring.wire.network import Dense, Head, Input, NetworkSpec
from sparring.wire.strengths import Strengths, StrengthStep, Style


def publish(data, game, seed=0, *, mean=0.0, promote=True, memory=None, **lineage):
    """The id of a model of `game` whose weights are drawn from `seed`; champion unless told otherwise."""
    spec = spec_of(game)
    heads = (Head("logits", spec.seats[0].action.choices[0]), Head("value", 1))
    inputs = tuple(Input(leaf.name, leaf.shape, dtype=leaf.dtype) for leaf in spec.seats[0].observation)
    network = NetworkSpec(inputs, heads, (Dense(32), Dense(32, "relu")), memory=memory)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in parameters(network).items()}
    about = Lineage(algorithm="ppo", config={}, **{"steps": {"selfplay": 1000, "play": 50}, "seed": seed, **lineage})
    model = make_model(spec, network, weights, "categorical", about, int(time.time() * 1000))
    with open_registry(f"file://{data}/models") as registry:
        registry.publish(model)
        if promote:
            registry.promote(spec.id, model.id, Evidence(episodes=10, mean=mean, sd=1.0))
    return model.id


def sell(data, game, model, shares=(1.0,), **styles):
    """A signed ladder of strengths, each step of which is that model with a share of its own moves; of each style
    another model."""
    spec = spec_of(game)

    def steps_of(one):
        return tuple(StrengthStep(elo=0, low=0, high=0, model=one, share=share) for share in shares)

    ways = [Style(name=name, means=f"is {name}", members=(one,), steps=steps_of(one)) for name, one in styles.items()]
    about = {"game": spec.id, "version": spec.version, "spec": spec.hash, "games": 1, "issued_at_ms": 5}
    with open_registry(f"file://{data}/models") as registry:
        registry.sell(Strengths(**about, steps=steps_of(model), styles=tuple(ways)))
