"""What a node makes of its parent's weights: its progress is kept, what was refused is dropped, a rule is obeyed."""

import msgspec
import numpy as np
import pytest

from peers import cartpole_job
from sparring.config import Config
from sparring.errors import Refused
from sparring.games.catalogue import spec_of
from sparring.learn.algorithms import open_algorithm
from sparring.learn.plan import TrainRequest, plan
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.messages import Weights, terms_of
from sparring.nodes.work import Work
from sparring.wire.network import Dense, Input


def work(merge="average", codec="f32", algo="a3c", change=lambda job: job):
    return Work(change(cartpole_job(merge, codec, algo)), Config(), 1)


@pytest.fixture
def opened():
    """Makes works that are closed at the end."""
    made = []

    def make(*about, **more):
        made.append(work(*about, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def whole(one, number, version=0, missed=0):
    vector = np.full(one.weights.layout.size, number, "<f4")
    return Weights(version, vector.tobytes(), whole=True, missed=missed)


def answer(one, base, number, version, refused=""):
    vector = np.full(one.weights.layout.size, number, np.float32)
    return Weights(version, one.codec.encode(vector, base), refused=refused)


def learn(one, amount):
    """As workers do, without playing."""
    one.weights.add(np.full(one.weights.layout.size, amount, np.float32))
    one.topology.learner.updates += 1


def test_what_was_learned_is_sent_and_what_was_learned_meanwhile_is_kept(opened):
    one = opened()
    one.take(whole(one, 1.0))
    assert one.contribution() is None  # it learned nothing yet
    learn(one, 0.5)
    sent = one.contribution()
    assert np.allclose(one.codec.decode(sent.payload, one._base), 1.5)
    assert (sent.version, sent.updates) == (0, 1)
    learn(one, 0.25)  # while the answer is under way
    one.take(answer(one, one._base, 3.0, 1))
    assert np.allclose(one.weights.read(), 3.25)
    assert np.allclose(one.codec.decode(one.contribution().payload, one._base), 3.25)


def test_a_refused_contribution_is_dropped_even_where_it_is_not_finite(opened):
    one = opened()
    one.take(whole(one, 1.0))
    one.topology.learner.optimiser.numbers[0, 3] = np.nan
    learn(one, 0.0)
    assert not np.isfinite(one.codec.decode(one.contribution().payload, one._base)).all()
    one.take(answer(one, one._base, 2.0, 1, refused="not finite"))
    assert np.allclose(one.weights.read(), 2.0)
    assert one.refused == {"not finite": 1}


def test_elastic_keeps_its_own_or_moves_back_by_beta(opened):
    for rule, there in (("elastic(0.9, 0)", 2.0), ("elastic(0.9, 0.5)", 6.0)):
        one = opened(rule)
        one.take(whole(one, 1.0))
        learn(one, 1.0)
        one.contribution()
        one.take(answer(one, one._base, 10.0, 1))
        assert np.allclose(one.weights.read(), there), rule


def test_after_a_reconnection_what_it_learned_alone_counts_unless_that_is_too_old(opened):
    for missed, there in ((2, 5.5), (3, 5.0)):
        one = opened()
        one.take(whole(one, 1.0))
        learn(one, 0.5)
        one.take(whole(one, 5.0, version=missed, missed=missed))
        assert np.allclose(one.weights.read(), there), missed


def test_topk_sends_the_rest_later(opened):
    one = opened(codec="topk(0.5)")
    one.take(whole(one, 0.0))
    learn(one, 1.0)
    got = one.codec.decode(one.contribution().payload, one._base)
    assert (got == 1).sum() == round(got.size / 2)
    one.take(answer(one, one._base, 0.0, 1))  # the parent stays where it was
    learn(one, 0.0)
    rest = one.codec.decode(one.contribution().payload, one._base)
    assert np.array_equal(got + rest, np.ones(got.size))


def test_terms_that_the_node_does_not_make_itself_are_refused(opened):
    def other(job):
        return msgspec.structs.replace(job, terms=msgspec.structs.replace(job.terms, spec_hash="0" * 64))

    with pytest.raises(Refused, match="the game's spec differs"):
        opened(change=other)


def test_the_network_is_the_one_of_the_terms_whatever_the_settings_say(opened):
    def larger(job):
        spec = msgspec.structs.replace(job.terms.network, trunk=(Dense(5), Dense(3, "relu")), separate_value=True)
        terms = terms_of(spec_of("cartpole"), spec, "f32", "average")
        return msgspec.structs.replace(job, terms=terms)

    one = opened(change=larger)
    assert one.topology.learner.network.trunk == (Dense(5), Dense(3, "relu"))
    assert one.weights.layout.shapes == one.job.terms.layout


def test_a_network_for_another_game_is_refused_in_words(opened):
    def other(job):
        spec = msgspec.structs.replace(job.terms.network, inputs=(Input("board", (3,)),))
        return msgspec.structs.replace(job, terms=terms_of(spec_of("cartpole"), spec, "f32", "average"))

    with pytest.raises(Refused, match="its input 'board' is float32"):
        opened(change=other)


def test_whole_weights_of_another_length_are_refused(opened):
    one = opened()
    with pytest.raises(Refused, match="whole weights of 4 bytes"):
        one.take(Weights(0, b"1234", whole=True))


@pytest.mark.parametrize("algo", ["a3c", "ppo", "dqn"])
def test_weights_of_every_algorithm_are_read_written_and_changed(algo):
    made = plan(TrainRequest("cartpole", algo, settings=("hidden_units=[4]",)), Config())
    learner = open_algorithm(algo).begin(made.spec, made.settings, 3)
    weights = LearnerWeights(learner)
    before = weights.read()
    goal = np.arange(before.size, dtype=np.float32)
    weights.write(goal)
    assert np.array_equal(weights.read(), goal)
    weights.add(goal)
    assert np.array_equal(weights.read(), 2 * goal)
    assert np.array_equal(weights.layout.flat(learner.weights()), 2 * goal)
