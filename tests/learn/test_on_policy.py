"""PPO, IMPALA and A3C beyond the smallest game: memories, numbers as actions, padding, old weights."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from chain_game import SPEC
from small_games import RECALL, STEER

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED
from sparring.learn.algorithms import a3c, impala, open_algorithm, ppo, settings_of
from sparring.learn.algorithms.trajectories import of_streams, parts
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.protocol import Batch, policy_for
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward

ON_POLICY = ("ppo", "impala", "a3c")
MEMORY = {
    "ppo": ("learning_rate=0.005", "rollout_ticks=16", "minibatch_steps=128", "hidden_units=[16]", "memory=gru:16"),
    "impala": ("learning_rate=0.01", "rollout_ticks=16", "hidden_units=[16]", "memory=lstm:16"),
    "a3c": ("learning_rate=0.01", "rollout_ticks=8", "hidden_units=[16]", "memory=gru:16"),
}
BOX = {
    "ppo": ("learning_rate=0.005", "rollout_ticks=16", "minibatch_steps=128", "hidden_units=[16]"),
    "impala": ("learning_rate=0.01", "rollout_ticks=8", "hidden_units=[16]"),
    "a3c": ("learning_rate=0.01", "rollout_ticks=4", "hidden_units=[16]"),
}


def learned(config, game, algo, settings, steps, seed=0):
    topology = build(plan(TrainRequest(game, algo, "sim", "single", seed, steps, 16, settings), config), None)
    while topology.position < steps:
        topology.iterate()
    return topology


def mean_return(game, learner):
    return evaluate(game, NumpyForward(learner.network, learner.weights()), episodes=40, seed=1).mean


def digest(learner):
    return hashlib.sha256(b"".join(w.tobytes() for _, w in sorted(learner.weights().items()))).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "steps"), [("ppo", 15_000), ("impala", 30_000), ("a3c", 30_000)])
def test_with_a_memory_the_first_view_is_recalled(algo, steps, config):
    learner = learned(config, "small_games:recall", algo, MEMORY[algo], steps).learner
    assert mean_return("small_games:recall", learner) == pytest.approx(1.0)


def test_without_a_memory_it_is_not(config):
    learner = learned(config, "small_games:recall", "ppo", MEMORY["ppo"][:-1], 15_000).learner
    assert mean_return("small_games:recall", learner) < 0.8


@pytest.mark.parametrize(("algo", "steps"), [("ppo", 12_000), ("impala", 24_000), ("a3c", 24_000)])
def test_numbers_as_actions_are_learned(algo, steps, config):
    learner = learned(config, "small_games:steer", algo, BOX[algo], steps).learner
    assert mean_return("small_games:steer", learner) > 1.9  # the best is 2, chance is about -5


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize("game", ["small_games:recall", "small_games:steer"])
def test_the_same_seed_learns_the_same_weights(algo, game, config):
    settings = MEMORY[algo] if game.endswith("recall") else BOX[algo]
    first, second, other = (digest(learned(config, game, algo, settings, 1000, seed).learner) for seed in (7, 7, 8))
    assert first == second
    assert first != other


@pytest.mark.parametrize("algo", ON_POLICY)
def test_a_learner_with_a_memory_goes_into_bytes_and_back(algo, config):
    topology = learned(config, "small_games:recall", algo, MEMORY[algo], 1000)
    algorithm, batch = open_algorithm(algo), topology.iterate().batch
    second = algorithm.begin(RECALL, topology.learner.config, 99)
    second.load(topology.learner.save())
    after = [algorithm.update(learner, batch).learner.save() for learner in (topology.learner, second)]
    assert after[0] == after[1]


def drawn(spec, state_numbers, seed=0, time=6, streams=4):
    """A batch by chance, with padding at the end of some streams and an end in the middle of one."""
    rng = np.random.default_rng(seed)
    mask = np.arange(time)[:, None] < np.array([6, 3, 1, 0])
    action = spec.seats[0].action
    taken = rng.integers(0, 2, (time, streams)).astype(np.int32)
    ending = np.zeros((time, streams), np.uint8)
    ending[2, 0] = TERMINATED

    def numbers(*shape):
        return rng.normal(size=shape).astype(np.float32)

    seen = numbers(time, streams, *spec.seats[0].observation[0].shape)
    return Batch(
        observation={spec.seats[0].observation[0].name: seen},
        action=taken if action.choices else np.tanh(numbers(time, streams, *action.shape)),
        reward=numbers(time, streams) * mask,
        ending=ending,
        next_observation={spec.seats[0].observation[0].name: seen[0].copy()},
        behaviour_logp=numbers(time, streams) * 0.1 - 0.7,
        value=numbers(time, streams) * mask,
        truncation_value=np.zeros((time, streams), np.float32),
        mask=mask,
        state=numbers(streams, state_numbers) if state_numbers else None,
        next_state=numbers(streams, state_numbers) if state_numbers else None,
    )


def gradient(algo, learner, batch):
    """Of every parameter, from the algorithm's own loss on the whole batch, and the loss."""
    if algo == "ppo":
        ((out, part),) = ppo.minibatches(learner, batch, ppo.judged(learner.net, batch, learner.config))
        total, _ = ppo.loss(out, part, learner.chosen, learner.config)
    else:
        total, _ = {"impala": impala, "a3c": a3c}[algo].loss(learner.net, batch, learner.chosen, learner.config)
    learned = [value for value in learner.net.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(total, learned)
    return torch.cat([one.flatten() for one in gradients]), total


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize("memory", ["", "gru:8", "lstm:8"])
@pytest.mark.parametrize("spec", [SPEC, STEER], ids=["choices", "numbers"])
def test_padding_has_no_gradient(algo, memory, spec):
    algorithm = open_algorithm(algo)
    learner = algorithm.begin(spec, settings_of(algorithm, {"memory": memory, "hidden_units": [8]}), 0)
    batch = drawn(spec, {"": 0, "gru:8": 16, "lstm:8": 32}[memory])
    leaf, seen = next(iter(batch.observation.items()))
    far = np.where(batch.mask[..., None], seen, np.float32(1e6))
    junk = replace(
        batch,
        observation={leaf: far},
        behaviour_logp=np.where(batch.mask, batch.behaviour_logp, np.float32(9.0)),
    )
    learner.rng = np.random.default_rng(0)
    clean, total = gradient(algo, learner, batch)
    learner.rng = np.random.default_rng(0)
    dirty, same = gradient(algo, learner, junk)
    assert torch.equal(clean, dirty)
    assert total.item() == same.item()
    assert clean.abs().max() > 0


@pytest.mark.parametrize("algo", ON_POLICY)
def test_a_stream_is_the_same_alone_and_among_others(algo):
    algorithm = open_algorithm(algo)
    learner = algorithm.begin(SPEC, settings_of(algorithm, {"memory": "gru:8", "hidden_units": [8]}), 0)
    batch = drawn(SPEC, 16)
    alone = of_streams(batch, np.array([1]))
    short = replace(
        alone,
        **{
            name: None if getattr(alone, name) is None else getattr(alone, name)[:3]
            for name in ("action", "reward", "ending", "behaviour_logp", "value", "truncation_value", "mask")
        },
        observation={name: column[:3] for name, column in alone.observation.items()},
    )
    assert short.mask.all()
    cut, whole = gradient(algo, learner, short), gradient(algo, learner, alone)
    assert torch.allclose(cut[0], whole[0], atol=1e-6)
    assert cut[1].item() == pytest.approx(whole[1].item(), abs=1e-6)


def test_minibatches_of_streams_hold_every_step_once():
    batch = drawn(SPEC, 16)
    found = parts(batch, np.random.default_rng(0), 6)
    assert sorted(np.concatenate(found)) == [0, 1, 2]  # stream 3 never moved
    assert sum(int(of_streams(batch, streams).mask.sum()) for streams in found) == 10


@pytest.mark.parametrize("settings", [(), ("clip=0.2", "epochs=3", "minibatch_steps=64")], ids=["plain", "appo"])
def test_impala_learns_from_what_older_weights_played(settings, config):
    quick = ("learning_rate=0.01", "rollout_ticks=16", "hidden_units=[32]", *settings)
    topology = build(
        plan(TrainRequest("chain_game:chain", "impala", "sim", "single", 0, 20_000, 8, quick), config), None
    )
    actor, learner, algorithm = topology.actors.newest(), topology.learner, open_algorithm("impala")
    corrections = []
    for update in range(150):
        if update % 10 == 0:  # what plays is up to ten updates old
            actor.use(NumpyForward(learner.network, learner.weights()))
        corrections.append(algorithm.update(learner, actor.rollout(16)).metrics["correction"])
    assert min(corrections) < 0.99  # the policies did differ
    assert mean_return("chain_game:chain", learner) == pytest.approx(0.7)


def test_a_policy_follows_the_kind_of_actions():
    for algo in ON_POLICY:
        algorithm = open_algorithm(algo)
        assert policy_for(algorithm, SPEC.seats[0].action) == "categorical"
        assert policy_for(algorithm, STEER.seats[0].action) == "gaussian"
    assert policy_for(open_algorithm("dqn"), SPEC.seats[0].action) == "greedy"


@pytest.mark.parametrize(
    ("algo", "settings", "said"),
    [
        ("ppo", {"memory": "elephant"}, "memory holds 'elephant'"),
        ("impala", {"rollout_ticks": 0}, "rollout_ticks = 0"),
        ("impala", {"correction_clip": 0.0}, "correction_clip = 0.0"),
        ("a3c", {"optimiser_options": {"alpha": -1.0}}, "Invalid alpha value: -1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(algo, settings, said):
    algorithm = open_algorithm(algo)
    with pytest.raises(ConfigError, match=said):
        algorithm.begin(SPEC, settings_of(algorithm, settings), 0)


@pytest.mark.parametrize("algo", ["impala", "a3c"])
def test_records_beside_play_are_ppos_alone(algo, config):
    with pytest.raises(ConfigError, match=f"{algo} learns only from what it has just played itself"):
        plan(TrainRequest("chain_game:chain", algo, "mix"), config)
