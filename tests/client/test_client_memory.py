"""A recurrent model in a game: its memory goes from decision to decision, and its chunks say what it began with."""

import numpy as np
import pytest
from recorded import buffer_of, taken, write
from served_models import GAME, promote, registry_of

from serving import serving
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.model_files import make_model, read_weights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.shapes import parameters, state_width
from sparring.nets.torch_network import default_network
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.model import Lineage
from sparring.wire.network import Gru, Lstm

STEPS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("memory")) as running:
        yield running


def remembering(memory, seed=0):
    network = default_network(GAME.seats[0], hidden=(8,), memory=memory)
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in parameters(network).items()}
    lineage = Lineage(algorithm="none", config={}, steps={"selfplay": seed})
    return make_model(GAME, network, weights, "greedy", lineage, 1_700_000_000_000 + seed)


def views(count, seed=0):
    return np.random.default_rng(seed).normal(0, 0.05, (count, 4)).astype(np.float32)


def alone(model, rows):
    """The action and the memory before it, for each row in turn, by the network itself."""
    forward = NumpyForward(model.card.network, read_weights(model))
    state = forward.initial_state(1)
    for row in rows:
        out = forward({"observation/state": row[None]}, state)
        yield int(out["logits"].argmax()), state[0]
        state = out["state"]


@pytest.mark.parametrize("memory", [Gru(5), Lstm(5)])
def test_a_chooser_goes_on_from_the_state_of_the_decision_before_and_begins_without_one(memory):
    model, rng, state, seat = remembering(memory), np.random.default_rng(0), None, GAME.seats[0]
    chooser = Chooser(model)
    chooser.check(seat)
    for row, (action, before) in zip(views(20), alone(model, views(20)), strict=True):
        decision = chooser.decide(seat, ActRequest({"observation/state": row}, state=state), rng)
        assert decision.action == action
        np.testing.assert_allclose(decision.state_before, before, atol=1e-5)
        state = decision.state_after
    fresh = chooser.decide(seat, ActRequest({"observation/state": views(1)[0]}), rng)
    assert not fresh.state_before.any()


@pytest.mark.parametrize("act", ["local", "server"])
def test_an_episode_remembers_and_every_chunk_carries_the_memory_of_its_first_step(server, connect, tmp_path, act):
    model = remembering(Gru(6), seed=7 if act == "local" else 8)
    with registry_of(server) as registry:
        promote(registry, model)
        later = remembering(Gru(6), seed=9)  # the champion from the middle of the episode on
        steps = STEPS if act == "local" else 40
        connection = connect(server.url, act=act, act_timeout_s=10.0, timeout_s=10.0)
        if act == "local":
            assert connection.wait_for_model() == model.id
        rows = views(steps)
        with connection.episode() as episode:
            expected = list(alone(model, rows))
            for i, (row, (action, _)) in enumerate(zip(rows, expected, strict=True)):
                if i == steps // 2:
                    promote(registry, later)
                assert episode.act(row) == action
                person = i == steps // 3  # who listens to the model and does otherwise
                episode.record(row, 1 - action if person else action, 1.0)
            episode.end(rows[0])
    assert connection.flush(30)
    with open_store(f"sqlite:///{server.data / 'experience.db'}") as store:
        chunks = [one for one in store.read(Query(game="cartpole")) if one.header.episode == episode.id]
    firsts = [chunk.header.first_step for chunk in chunks if chunk.header.actor == f"model:{model.id}"]
    assert len(chunks) == len(firsts) + 1 >= 3
    for chunk in chunks:
        if chunk.header.actor == "person":
            assert "state/state" not in chunk.columns
        else:
            state = chunk.columns["state/state"]
            assert (state.dtype, state.shape) == (np.float32, (state_width(model.card.network),))
            np.testing.assert_allclose(state, expected[chunk.header.first_step][1], atol=1e-4)


def test_a_chunk_cut_in_the_middle_of_a_block_carries_the_memory_of_its_own_first_step():
    buffer, actor = buffer_of(), "model:" + "a" * 64
    for step in range(12):
        write(buffer, step, actor=actor, logp=0.0, state=np.full(3, step, np.float32))
        if step == 7:
            (early,) = taken(buffer, due=True)
    buffer.end(np.zeros(4, np.float32), terminated=True, outcome=None)
    (late,) = taken(buffer)
    assert (early.header.steps, late.header.first_step) == (6, 6)
    assert early.columns["state/state"].tolist() == [0.0] * 3
    assert late.columns["state/state"].tolist() == [6.0] * 3


def test_memory_counts_against_the_budget_and_is_given_back():
    buffer = buffer_of()
    write(buffer, 0, actor="model:" + "a" * 64, state=np.zeros(256, np.float32))
    assert buffer._budget.taken_bytes >= buffer.layout.capacity_steps * 1024
    buffer.end(np.zeros(4, np.float32), terminated=True, outcome=None)
    taken(buffer)
    assert buffer._budget.taken_bytes == 0
