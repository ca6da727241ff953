"""A card's bytes are its name: what was published keeps its id, whatever a later card can say."""

import hashlib
from pathlib import Path

import msgspec

from sparring.wire.champion import canonical
from sparring.wire.ids import GameId
from sparring.wire.model import Card, Lineage
from sparring.wire.network import Conv, Dense, Entities, Gru, Head, Input, Lstm, NetworkSpec, Pool, Residual

GOLDEN = Path(__file__).parent / "golden" / "card.json"  # written before networks had memory, blocks and entities
GOLDEN_ID = "4817df0aacc8352913397a0d1bd6f5687bfc6fafd9a16186df7628a44610d0bb"

NETWORK = NetworkSpec(
    inputs=(
        Input("observation/screen", (4, 84, 84), 0.0, 1 / 255, dtype="uint8", image=True),
        Input("observation/speed", (2,), 100.0, 0.005),
        Input("observation/card", (2,), one_hot=5, dtype="int8"),
    ),
    heads=(Head("logits", 3, dueling=True), Head("value", 1)),
    trunk=(Dense(32), Dense(16, "relu")),
    image=(Conv(8, 8, 4), Conv(4, 3, 1, 1, "none")),
    separate_value=True,
)
PLAIN = NetworkSpec((Input("observation/x", (4,)),), (Head("logits", 2),))


def card(network):
    return Card(
        game=GameId("cartpole"),
        version="1",
        spec="5" * 64,
        network=network,
        policy="categorical",
        lineage=Lineage(algorithm="ppo", config={"learning_rate": 3e-4}, steps={"selfplay": 7}, seed=3),
        created_at_ms=1_700_000_000_000,
        files={"weights.safetensors": "a" * 64, "model.onnx": "b" * 64},
    )


def test_a_card_of_the_first_format_has_the_bytes_and_the_id_that_it_had():
    assert canonical(card(NETWORK)) == GOLDEN.read_bytes()
    assert card(NETWORK).id == GOLDEN_ID == hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
    assert card(PLAIN).id == "a0a76e6aa391ac26af8c0cf8f1fba9c3334db4a8b5ad1113cd11c45a04399a37"


def test_a_card_of_the_first_format_reads_and_keeps_its_id():
    read = msgspec.json.decode(GOLDEN.read_bytes(), type=Card)
    assert read == card(NETWORK)
    assert read.id == GOLDEN_ID
    assert msgspec.json.decode(msgspec.json.encode(read), type=Card).id == GOLDEN_ID


def test_what_a_network_does_not_have_is_not_in_its_card():
    assert set(msgspec.to_builtins(NETWORK)) == {"inputs", "heads", "trunk", "image", "separate_value"}
    assert set(msgspec.to_builtins(PLAIN)) == {"inputs", "heads", "trunk", "image", "separate_value"}
    assert all(set(head) == {"name", "units", "dueling"} for head in msgspec.to_builtins(NETWORK)["heads"])
    spelled = NetworkSpec(PLAIN.inputs, PLAIN.heads, (), (), False, None, ())
    assert card(spelled).id == card(PLAIN).id


def test_memory_blocks_and_entities_travel_in_the_card_and_change_its_id():
    inputs = (*NETWORK.inputs, Input("observation/e", (5, 3)), Input("observation/e/count", ()))
    entities = (Entities("observation/e", "observation/e/count"),)
    layers = (Conv(4, 3), Pool(), Residual(out="relu"))
    seen = {card(NETWORK).id}
    for memory in (Gru(8), Lstm(8)):
        network = NetworkSpec(inputs, NETWORK.heads, (Residual(3),), layers, memory=memory, entities=entities)
        read = msgspec.json.decode(canonical(card(network)), type=Card)
        assert read.network == network
        assert read.id == card(network).id
        seen.add(read.id)
    assert len(seen) == 3
