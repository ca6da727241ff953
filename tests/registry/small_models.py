"""Small models for the registry's tests: it keeps bytes and asks nothing of what they mean."""

import hashlib

from sparring.wire.ids import GameId
from sparring.wire.model import ONNX, WEIGHTS, Card, Lineage, Model
from sparring.wire.network import Dense, Head, Input, NetworkSpec

NETWORK = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))


def small_model(number=0, *, game="cartpole", version="1", files=None, **changes):
    """A model that differs from every other number's."""
    files = files or {WEIGHTS: b"weights %d" % number * 10, ONNX: b"onnx %d" % number * 10}
    card = Card(
        game=GameId(game),
        version=version,
        spec="5" * 64,
        network=NETWORK,
        policy="categorical",
        lineage=Lineage(algorithm="ppo", config={"learning_rate": 3e-4, "epochs": 4}, steps={"selfplay": number}),
        created_at_ms=1_700_000_000_000 + number,
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        **changes,
    )
    return Model(card, files)
