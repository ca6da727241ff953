"""Handshakes as short conversations: whatever differs is refused with a sentence that names it."""

import msgspec
import pytest

from sparring.config import Config
from sparring.errors import Refused, WireError
from sparring.games.catalogue import spec_of
from sparring.learn.plan import NodesPlan, TrainRequest, plan
from sparring.nodes import messages
from sparring.nodes.messages import Hello, decode, disagreement, encode, hello_disagreement, terms_of
from sparring.nodes.work import check_job, plan_of
from sparring.wire.network import Conv, Dense, Head, Input, ModuleGraph, NetworkSpec

NETWORK = NetworkSpec((Input("pole", (4,)),), (Head("logits", 2), Head("value", 1)), (Dense(8),))
TERMS = terms_of(spec_of("cartpole"), NETWORK, "f32", "average")


def job(**changes):
    request = TrainRequest("cartpole", "a3c", nodes=NodesPlan(Config().nodes, "data"))
    record = msgspec.msgpack.decode(encode(plan(request, Config()).record()))  # as it arrives
    whole = messages.Job("run", "cartpole", TERMS, record, 1, 2.0, 4)
    return msgspec.structs.replace(whole, **changes)


def test_equal_terms_agree_and_travel_whole():
    assert disagreement(TERMS, TERMS) == ""
    assert decode(encode(job())) == job()
    assert TERMS.byte_length == 4 * (8 * 4 + 8 + 2 * 8 + 2 + 8 + 1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"game": "duel"}, "the game differs: the parent has cartpole, the node duel"),
        ({"game_version": "9"}, "the game's version differs"),
        ({"spec_hash": "0" * 64}, "the game's spec differs: the parent has"),
        ({"network": NetworkSpec(NETWORK.inputs, NETWORK.heads)}, "the network differs"),
        ({"layout": (("trunk/0/weight", (8, 5)),)}, "the layout of the weights differs"),
        ({"byte_length": 8}, "the weights' length in bytes differs: the parent has 268, the node 8"),
        ({"codec": "f16"}, "the codec differs: the parent has f32, the node f16"),
        ({"merge": "median"}, "the merge rule differs"),
    ],
)
def test_terms_that_differ_are_named(change, sentence):
    assert sentence in disagreement(TERMS, msgspec.structs.replace(TERMS, **change))


def test_another_protocol_and_two_of_a_kind_are_refused():
    assert hello_disagreement(Hello(1, "node", "a"), "parent") == ""
    assert "update Sparring on the side of it" in hello_disagreement(Hello(0, "node", "a"), "parent")
    assert "update Sparring on the side of this side" not in hello_disagreement(Hello(0, "node", "a"), "parent")
    assert "protocol 2" in hello_disagreement(Hello(2, "node", "a"), "parent")
    assert "both sides are a node" in hello_disagreement(Hello(1, "node", "a"), "node")
    later = msgspec.msgpack.encode({"type": "hello", "protocol": 7, "role": "node", "node": "a", "more": 1})
    assert decode(later).protocol == 7  # so that it can be refused in words


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x93\x01\x02",
        "text",
        encode({"type": "job"}),
        encode({"type": "weights", "version": -1, "payload": b""}),
        encode({"type": "contribution", "version": 1, "payload": b"", "returns": [0.0] * 2_000}),
        encode({"type": "hello", "protocol": 1, "role": "node", "node": "no/such name\n"}),
        b"\x81\xa4type" + b"\x91" * 5_000,
    ],
)
def test_frames_that_are_no_messages_are_refused(frame):
    with pytest.raises(WireError, match="message of a node"):
        decode(frame)


def settings(**changes):
    record = job().plan
    return {**record, "settings": {**record["settings"], **changes}}


def with_network(**changes):
    return msgspec.structs.replace(TERMS, network=msgspec.structs.replace(NETWORK, **changes))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"game": "os:system"}, "plays no 'os:system'"),
        ({"game": "gym:os:system"}, "plays no"),
        ({"game": "gym:X-v0(entry_point=a)"}, "plays no"),
        ({"game": "pz:os"}, "plays no"),
        ({"plan": settings(network="evil:Net")}, "takes? no code|take no code"),
        ({"plan": settings(optimiser="evil:Adam")}, "optimiser of the parent's own"),
        ({"plan": {**settings(), "policy": "evil:policy"}}, "policy of the parent's own"),
        ({"plan": {**settings(), "algo": "evil:Algo"}}, "does not learn 'evil:Algo'"),
        ({"plan": {**settings(), "envs": 1 << 30}}, "games at once"),
        ({"plan": {**settings(), "source": "store"}}, "simulation alone"),
        ({"plan": {}}, "does not learn"),
        ({"exchange_s": float("nan")}, "exchange every"),
        ({"terms": with_network(trunk=(Dense(1 << 24),))}, "bytes, above this node's nodes.max_message_bytes"),
        ({"terms": with_network(trunk=(Dense(-1),))}, "cannot build the network"),
        ({"terms": with_network(trunk=(Conv(8, 3),))}, "cannot build the network"),
        ({"terms": with_network(module=ModuleGraph((), b""))}, "take no code"),
    ],
)
def test_a_node_refuses_jobs_that_name_code_or_ask_for_too_much(change, sentence):
    with pytest.raises(Refused, match=sentence):
        check_job(job(**change), Config())


def test_a_node_plays_what_its_own_file_lists():
    check_job(job(), Config())
    check_job(job(game="gym:LunarLander-v3"), Config())
    check_job(job(game="mygame:make"), Config(games=("mygame:make",)))


def test_a_plan_of_another_version_is_refused_with_a_sentence():
    assert plan_of(job(), 2).actors == 2
    assert plan_of(job(), 2).topology == "hogwild"
    record = job().plan
    del record["reward_clip"]
    with pytest.raises(Refused, match="another version of Sparring"):
        plan_of(job(plan=record), 1)
    with pytest.raises(Refused, match="cannot learn this"):
        plan_of(job(plan=settings(no_such_setting=1)), 1)
    with pytest.raises(Refused, match="cannot learn this"):
        plan_of(job(game="gym:NoSuchGame-v0"), 1)
