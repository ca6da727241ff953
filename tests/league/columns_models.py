"""Models of Connect Four that prefer some columns, whatever they see."""

import numpy as np

from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.wire.model import Lineage
from sparring.wire.network import Head, Input, NetworkSpec

FOUR = spec_of("connect-four")


def columns_model(*order):
    """Prefers the columns of `order`, whatever it sees."""
    board = Input("observation/board", (2, 6, 7), dtype="uint8")
    network = NetworkSpec((board,), (Head("logits", 7), Head("value", 1)), ())
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    weights["logits/bias"][list(order)] = np.arange(len(order), 0, -1)
    lineage = Lineage(algorithm="test", config={}, steps={})
    return make_model(FOUR, network, weights, "categorical", lineage, 1_790_000_000_000 + order[0])
