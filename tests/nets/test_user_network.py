"""A user's own network: named in a setting, checked before anything is learned, and as portable as any other."""

import re
from pathlib import Path

import numpy as np
import pytest

from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import Network, default_heads
from sparring.nets.user_code import own_network
from sparring.wire.model import Lineage
from sparring.wire.network import Gru, Residual

GAME = spec_of("cartpole")
SEAT = GAME.seats[0]
HEADS = default_heads(SEAT.action)


@pytest.mark.parametrize("name", ["user_networks:deep", "user_networks:Deep"])
def test_a_function_or_a_class_makes_a_network_that_becomes_a_model(name):
    network = own_network(name, SEAT, HEADS)
    assert network.trunk[1:] == (Residual(), Residual(out="relu"))
    model = make_model(
        GAME,
        network,
        Network(network, 0).weights(),
        "categorical",
        Lineage(algorithm="x", config={}, steps={}),
        0,
    )
    assert model.card.network == network


def test_a_memory_is_for_algorithms_that_carry_it():
    assert own_network("user_networks:with_memory", SEAT, HEADS, memory=True).memory == Gru(32)
    with pytest.raises(ConfigError, match="it has a memory, and the algorithm carries none"):
        own_network("user_networks:with_memory", SEAT, HEADS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("for_another_seat", "its input 'observation/state' is float32 (5,), the seat sees float32 (4,)"),
        ("of_a_stranger", "its input 'observation/other' is float32 (4,), the seat sees nothing"),
        ("without_a_value", "its head 'value' has no units, the algorithm needs 1"),
        ("no_spec", "it made a dict"),
        ("empty", "0 inputs, heads [], 0 layers"),
    ],
)
def test_a_network_that_does_not_suit_is_refused_with_the_reason(name, text):
    with pytest.raises(ConfigError) as caught:
        own_network(f"user_networks:{name}", SEAT, HEADS)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("user_networks:missing", Missing),
        ("no_such_module:deep", Missing),
        ("user_networks", ConfigError),
        ("os; import x:deep", ConfigError),
        ("user_networks:number", ConfigError),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name, kind):
    with pytest.raises(kind):
        own_network(name, SEAT, HEADS)


def test_the_example_of_the_page_is_sound(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    section = page[page.index("## Your own network") :]
    (text,) = re.findall(r"```python\n# mine.py\n(.*?)```", section, re.S)
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for game in ("cartpole", "connect-four", "duel"):
        seat = spec_of(game).seats[0]
        network = own_network("mine:network", seat, default_heads(seat.action), memory=True)
        assert all(np.prod(shape) > 0 for shape in parameters(network).values())
