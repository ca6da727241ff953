"""R2D2: it remembers what DQN cannot, and its targets are those of a slow loop along each sequence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from recall_game import recall

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.games.scripts import play, script
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.algorithms.r2d2 import n_step_goals, td_errors
from sparring.learn.algorithms.returns import rescaled, unscaled
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Batch
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.store import open_store
from sparring.wire.tree import pack, unpack

ALGORITHM = open_algorithm("r2d2")
SHAPE = {"burn_in_steps": 3, "sequence_steps": 5, "overlap_steps": 2, "hidden_units": [12], "n_steps": 3}
BURN_IN, STEPS, N = 3, 5, 6
QUICK = ("learning_rate=0.002", "epsilon_steps=2000", "hidden_units=[16]")
SEQUENCES = (
    "learning_rate=0.005",
    "target_every_updates=50",
    "batch_sequences=16",
    "burn_in_steps=2",
    "sequence_steps=4",
    "overlap_steps=2",
    "memory=gru:16",
)


def wired(config, algo="r2d2", settings=SEQUENCES, sampler="prioritised"):
    wish = TrainRequest("recall_game:recall", algo, "sim", None, 0, 6_000, 8, (*QUICK, *settings))
    return build(plan(wish, replace(config, replay=replace(config.replay, min_steps=200, sampler=sampler))), None)


def played(topology):
    learner = topology.learner
    return evaluate("recall_game:recall", NumpyForward(learner.network, learner.weights()), episodes=50, seed=1).mean


@pytest.mark.slow
def test_it_remembers_a_sign_that_dqn_forgets(config):
    remembers, forgets = wired(config), wired(config, "dqn", ("batch_steps=64",), "uniform")
    while remembers.position < 5_000:
        remembers.iterate()
    assert played(remembers) == 1.0
    while forgets.position < 3_000:
        forgets.iterate()
    assert abs(played(forgets)) < 0.5


def test_a_run_goes_on_as_if_nothing_had_happened(config):
    first, second = wired(config), wired(config)
    while first.position < 1_000:
        first.iterate()
    second.load(unpack(pack(first.save())))
    for _ in range(10):
        first.iterate()
        second.iterate()
    assert pack(first.save()) == pack(second.save())


@pytest.mark.parametrize("n_steps", [1, 3, 9])
def test_goals_are_those_of_a_slow_loop(n_steps):
    rng = np.random.default_rng(n_steps)
    reward, value = rng.normal(size=(STEPS, N)), rng.normal(size=(STEPS + 1, N))
    lengths, ended = rng.integers(1, STEPS + 1, N), rng.random(N) < 0.5
    given = (torch.from_numpy(column) for column in (reward, value, lengths, ended))
    goals = n_step_goals(*given, n_steps, 0.9)
    for row in range(N):
        for t in range(lengths[row]):
            slow, k = 0.0, 0
            while k < n_steps and t + k < lengths[row]:
                slow += 0.9**k * reward[t + k, row]
                k += 1
            if not (ended[row] and t + k == lengths[row]):
                slow += 0.9**k * value[t + k, row]
            assert goals[t, row].item() == pytest.approx(slow)


def learner_of(seed=0, **settings):
    learner = ALGORITHM.begin(spec_of("connect-four"), settings_of(ALGORITHM, SHAPE | QUIET | settings), seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # a fresh head says nearly nothing
        for value in (*learner.online.parameters(), *learner.target.parameters()):
            value.add_(torch.randn(value.shape, generator=draw) * 0.3)
    return learner


QUIET = {"image_layers": ["flat"], "memory": "lstm:6"}


def drawn_batch():
    """Whole sequences, one whose episode began in the burn-in, ones that ended, were cut or go on unseen."""
    rng = np.random.default_rng(4)
    size = (BURN_IN + STEPS, N)
    first, length = np.array([0, 2, 0, 1, 0, 0]), np.array([5, 5, 3, 2, 4, 1])
    at = np.arange(size[0])[:, None]
    mask = (at >= first) & (at < BURN_IN + length)
    ending = np.full(size, RUNNING, np.uint8)
    ending[at < first] = TRUNCATED
    ending[BURN_IN + length - 1, np.arange(N)] = [RUNNING, TERMINATED, TERMINATED, TRUNCATED, RUNNING, TRUNCATED]
    legal = rng.random((*size, 7)) < 0.5
    legal[..., 3] = True
    return Batch(
        observation={"observation/board": rng.integers(0, 2, (*size, 2, 6, 7)).astype(np.uint8)},
        action=rng.integers(0, 7, size).astype(np.int32),
        reward=rng.normal(size=size).astype(np.float32) * 3,
        ending=ending,
        next_observation={"observation/board": rng.integers(0, 2, (N, 2, 6, 7)).astype(np.uint8)},
        legal=legal,
        next_legal=np.eye(7, dtype=bool)[:N] | np.eye(7, dtype=bool)[6],
        mask=mask,
        state=rng.normal(size=(N, 12)).astype(np.float32) * 0.5,
    ), (first, length)


def walked(weights, spec, batch, row, first, length):
    """Values at each learned step and behind the last, step by step, as an actor would have seen them."""
    forward = NumpyForward(spec, weights)
    state = batch.state[row : row + 1] if first == 0 else forward.initial_state(1)
    found = []
    for t in range(first, BURN_IN + length + 1):
        seen = batch.observation["observation/board"][t, row] if t < BURN_IN + length else None
        seen = batch.next_observation["observation/board"][row] if seen is None else seen
        out = forward({"observation/board": seen[None]}, state)
        state = out["state"]
        if t >= BURN_IN:
            found.append(out["logits"][0])
    return found


@pytest.mark.parametrize("rescale", [True, False])
def test_errors_are_those_of_a_walk_along_each_sequence(rescale):
    learner, (batch, (first, length)) = learner_of(rescale=rescale), drawn_batch()
    delta, there = td_errors(learner.online, learner.target, batch, learner.config)
    assert there.sum(0).tolist() == length.tolist()
    h = (lambda x: rescaled(torch.tensor(x)).item()) if rescale else float
    h_inverse = (lambda x: unscaled(torch.tensor(x)).item()) if rescale else float
    for row in range(N):
        nets = (learner.online.weights(), learner.target.weights())
        own, old = (walked(one, learner.network, batch, row, first[row], length[row]) for one in nets)
        for t in range(length[row]):
            m = min(3, length[row] - t)
            goal = sum(0.99**k * batch.reward[BURN_IN + t + k, row] for k in range(m))
            if not (t + m == length[row] and batch.ending[BURN_IN + length[row] - 1, row] == TERMINATED):
                behind = t + m == length[row]
                legal = batch.next_legal[row] if behind else batch.legal[BURN_IN + t + m, row]
                best = max(np.flatnonzero(legal), key=lambda action: own[t + m][action])
                goal += 0.99**m * h_inverse(float(old[t + m][best]))
            expected = h(float(goal)) - own[t][batch.action[BURN_IN + t, row]]
            assert delta[t, row].item() == pytest.approx(expected, abs=1e-4)
        assert (delta[length[row] :, row] == 0).all()


def test_priorities_mix_the_largest_error_of_a_sequence_with_their_mean_and_weights_scale_each():
    learner, (batch, (_, length)) = learner_of(priority_mix=0.75), drawn_batch()
    delta, _ = td_errors(learner.online, learner.target, batch, learner.config)
    size, before = delta.detach().abs().numpy(), learner.weights()
    expected = [0.75 * size[:, row].max() + 0.25 * size[: length[row], row].mean() for row in range(N)]
    still = ALGORITHM.update(learner, replace(batch, weight=np.zeros(N, np.float32)))
    assert still.priorities == pytest.approx(np.array(expected), abs=1e-5)
    assert all((learner.weights()[name] == value).all() for name, value in before.items())


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="overlap = 5"):
        settings_of(ALGORITHM, {"overlap_steps": 5, "sequence_steps": 5})
    with pytest.raises(ConfigError, match="it has no memory"):
        settings_of(ALGORITHM, {"memory": ""})
    with pytest.raises(ConfigError, match="priority_mix = 2"):
        settings_of(ALGORITHM, {"priority_mix": 2.0})
    forgetful = settings_of(ALGORITHM, {"network": "user_networks:deep", "dueling": False})
    with pytest.raises(ConfigError, match="network 'user_networks:deep': it has no memory"):
        ALGORITHM.begin(spec_of("cartpole"), forgetful, 0)


@pytest.mark.parametrize("source", ["store", "mix"])
def test_it_learns_from_records_whose_players_had_no_memory_of_its_kind(source, config):
    store = open_store(config.store_url)
    try:
        random = script("recall_game:recall", "random")
        for chunks in play(recall(8), [random], list(range(60)), np.random.default_rng(1)):
            store.append(chunks)
        wish = TrainRequest("recall_game:recall", "r2d2", source, None, 0, 4_000, 8, (*QUICK, *SEQUENCES))
        topology = build(plan(wish, replace(config, replay=replace(config.replay, min_steps=200))), store)
        while topology.learner.updates < 20:
            turn = topology.iterate()
        assert turn.batch.state.shape == (16, 16)
        assert turn.batch.mask.shape == (6, 16)
        assert topology.sources().steps["collect"] > 0
        assert (topology.env_steps == 0) == (source == "store")
    finally:
        store.close()
