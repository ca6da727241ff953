"""Networks as a user would write them, sound and otherwise; the sound one is the page's own example."""

from sparring.nets.torch_network import default_heads, default_network
from sparring.wire.network import Dense, Gru, Head, Input, NetworkSpec, Residual


def deep(seat):
    """Two residual layers on what the default network reads."""
    usual = default_network(seat)
    return NetworkSpec(usual.inputs, default_heads(seat.action), (Dense(64, "relu"), Residual(), Residual(out="relu")))


class Deep:
    def __call__(self, seat):
        return deep(seat)


def with_memory(seat):
    return default_network(seat, memory=Gru(32))


def for_another_seat(seat):
    return NetworkSpec((Input("observation/state", (5,)),), default_heads(seat.action))


def of_a_stranger(seat):
    return NetworkSpec((Input("observation/other", (4,)),), default_heads(seat.action))


def without_a_value(seat):
    return NetworkSpec(default_network(seat).inputs, (Head("logits", seat.action.masks),))


def empty(seat):
    return NetworkSpec((), ())


def no_spec(seat):
    return {"trunk": [64, 64]}


number = 3
