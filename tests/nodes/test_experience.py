"""Experience of strangers: what a lease binds, what is played again, and a run that learns beside a cheat."""

import random
import threading
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sparring.acting.evaluate import evaluate
from sparring.config import Config, load
from sparring.errors import Refused, SparringError, WireError
from sparring.learn.plan import NodesPlan, TrainRequest, plan
from sparring.learn.replay.local import LocalReplay
from sparring.learn.topologies import build
from sparring.nets.numpy_forward import NumpyForward
from sparring.nodes.child import Node
from sparring.nodes.learner_weights import LearnerWeights
from sparring.nodes.leases import LEAST_SHARE, LeaseBook, LeasePlayer, lease_games, packed, unpacked
from sparring.nodes.messages import Job, encode, terms_of
from sparring.nodes.work import Play

SMALL = ("hidden_units=[16]", "normalise_observations=false")
WEIGHTS = np.zeros(3, np.float32)


def wish(config, accept="127.0.0.1:0", algo="ppo", **more):
    return TrainRequest("cartpole", algo, envs=4, settings=SMALL, nodes=NodesPlan(config, "data", (), accept), **more)


def book():
    return LeaseBook(rng=random.Random(1))


def test_a_lease_is_redeemed_once_by_its_node_with_its_weights():
    leases = book()
    lease = leases.issue("a", 1, WEIGHTS)
    assert leases.redeem("b", lease.number, lease.model) is None
    assert leases.redeem("a", lease.number, "another") is None
    assert leases.redeem("a", lease.number, lease.model) == lease
    assert leases.redeem("a", lease.number, lease.model) is None  # the same experience again
    old = leases.issue("a", 2, WEIGHTS)
    leases.issue("a", 3, WEIGHTS)
    assert leases.redeem("a", old.number, old.model) is None
    assert leases.refused["lease"] == 4


def test_less_is_played_again_of_a_node_with_a_streak_and_all_after_a_mismatch():
    leases = book()
    assert leases.share("a") == 1
    for _ in range(3):
        leases.judged("a", valid=True)
    assert leases.share("a") == 0.25
    for _ in range(100):
        leases.judged("a", valid=True)
    assert leases.share("a") == LEAST_SHARE
    assert not leases.judged("a", valid=False)
    assert leases.share("a") == 1
    assert not leases.judged("a", valid=False)
    assert leases.judged("a", valid=False)  # now it is banned
    assert leases.share("b") == 1


def test_a_lease_is_about_as_large_as_a_rollout_of_one_actor():
    assert lease_games(envs=16, rollout_ticks=32, lease_ticks=512) == 1
    assert lease_games(envs=32, rollout_ticks=64, lease_ticks=512) == 4
    assert lease_games(envs=16, rollout_ticks=5, lease_ticks=512) == 1  # longer than the rollout: games are fresh
    assert lease_games(envs=16, rollout_ticks=128, lease_ticks=64) == 32


@pytest.fixture(scope="module")
def player():
    """A player of short leases, and the weights of its network."""
    made = plan(TrainRequest("cartpole", "ppo", envs=4, settings=(*SMALL, "rollout_ticks=40")), Config())
    learner = made.algorithm.begin(made.spec, made.settings, 0)
    weights, player = LearnerWeights(learner), LeasePlayer(made, learner.network, 40)
    yield player, weights.layout, weights.read()
    player.close()


def test_seed_and_weights_determine_every_bit(player):
    plays, layout, weights = player
    first = plays.play(layout, weights, 5, 3)
    assert len(first) == plays.raw_bytes
    assert plays.play(layout, weights, 6, 3) != first
    assert plays.play(layout, weights, 5, 3) == first
    assert plays.play(layout, weights + np.float32(1e-3), 5, 3) != first
    found = plays.rollout([plays.read(first)])
    assert (found.env_steps, found.version, found.batch.reward.shape) == (160, 3, (40, 4))
    assert unpacked(packed(first), len(first)) == first


def test_leases_of_several_nodes_are_one_rollout(player):
    plays, layout, weights = player
    older, newer = (plays.read(plays.play(layout, weights, seed, version)) for seed, version in ((5, 3), (6, 4)))
    both = plays.rollout([older, newer])
    assert (both.env_steps, both.version, both.batch.reward.shape) == (320, 3, (40, 8))
    alone = plays.rollout([newer])
    np.testing.assert_array_equal(both.batch.action[:, 4:], alone.batch.action)
    np.testing.assert_array_equal(both.episodes.returns[-alone.games :], alone.episodes.returns)
    assert both.games == len(both.episodes.returns) > alone.games


def test_experience_that_no_game_gives_and_bombs_are_refused(player):
    plays, layout, weights = player
    raw = np.frombuffer(plays.play(layout, weights, 5, 3), np.uint8)
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        mutated = raw.copy()
        mutated[rng.integers(len(raw), size=50)] = 0xFF
        try:
            plays.read(mutated.tobytes())
        except WireError:
            refused += 1
    assert refused > 100
    with pytest.raises(WireError, match="declares"):
        unpacked(packed(bytes(1 << 20)), len(raw))
    with pytest.raises(WireError, match="does not inflate"):
        unpacked(b"noise", len(raw))


class Cheat(Node):
    """A node that earns more than the game gives."""

    def _play(self, lease):
        honest = super()._play(lease)
        raw = np.frombuffer(unpacked(honest.payload, self.work._player.raw_bytes), np.uint8).copy()
        offset = 0
        for name, (dtype, shape) in self.work._player._columns.items():
            size = dtype.itemsize * int(np.prod(shape))
            if name == "reward":
                raw[offset : offset + size] = np.full(shape, 2.0, np.float32).view(np.uint8).reshape(-1)
            offset += size
        return type(honest)(honest.lease, honest.model, packed(raw.tobytes()))


@pytest.mark.timeout(1800)
def test_a_run_learns_from_experience_and_a_cheat_is_banned(tmp_path):
    nodes = replace(Config().nodes, contribute="experience", lease_ticks=128, reconnect_s=0.5)
    request = replace(wish(nodes), settings=(*SMALL, "rollout_ticks=128"))
    made = plan(replace(request, nodes=replace(request.nodes, data=str(tmp_path))), Config())
    topology = build(made, None)
    address, said, staleness = topology.sessions.address, {}, []

    def live(node):
        try:
            said[node.name] = node.join(address)
        except SparringError as error:
            said[node.name] = error.wrong

    config = load(None, (f"data={tmp_path / 'node'}",))
    threads = [threading.Thread(target=live, args=(one,)) for one in (Node(config, "good", 1), Cheat(config, "bad", 1))]
    try:
        until = time.monotonic() + 600
        topology.iterate()
        for thread in threads:
            thread.start()
        while topology.env_steps < 30_000 or "bad" not in said:
            assert time.monotonic() < until
            assert "good" not in said, said
            staleness.append(topology.iterate().metrics.get("staleness_updates", 0))
        states = topology.sessions.states
        assert states["bad"].merges == 0
        assert states["bad"].refused["rerun"] >= 3
        assert "did not match when it was played again" in said["bad"]
        assert states["good"].merges >= topology.learner.updates  # two of them in an update while there were two nodes
        assert not states["good"].refused
        assert max(staleness) <= 2
        assert 0 < topology.flow()["reruns"] < states["good"].merges
        learner = topology.learner
        forward = NumpyForward(learner.network, learner.weights())
        assert evaluate("cartpole", forward, episodes=20, seed=1).mean > 50  # a random player earns 22
    finally:
        topology.close()
        for thread in threads:
            thread.join(120)
    assert said["good"] == "the run is done"


@pytest.fixture(scope="module")
def block_player():
    """A player of short leases of DQN, its weights, and an empty table for what it plays."""
    made = plan(TrainRequest("cartpole", "dqn", envs=4, settings=("hidden_units=[16]",)), Config())
    learner = made.algorithm.begin(made.spec, made.settings, 0)
    weights, player = LearnerWeights(learner), LeasePlayer(made, learner.network, 40)
    yield player, weights.layout, weights.read(), lambda: LocalReplay(made, learner.network, 4, None, actors=1)
    player.close()


def test_seed_epsilon_and_weights_determine_every_step_of_a_block(block_player):
    plays, layout, weights, _ = block_player
    first = plays.play(layout, weights, 5, 3, 0.5)
    assert len(first) == plays.raw_bytes
    assert plays.play(layout, weights, 5, 3, 0.4) != first
    assert plays.play(layout, weights, 6, 3, 0.5) != first
    assert plays.play(layout, weights, 5, 3, 0.5) == first
    block = plays.block(plays.read(first))
    assert (block.env_steps, block.version) == (160, 3)
    assert 150 < len(block.steps) <= 160
    assert len(block.episodes.returns) == block.games > 0


def test_no_block_of_a_cheat_breaks_the_table(block_player):
    plays, layout, weights, table = block_player
    raw = np.frombuffer(plays.play(layout, weights, 5, 3, 0.5), np.uint8)
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        mutated, replay = raw.copy(), table()
        mutated[rng.integers(len(raw), size=20)] = rng.integers(256, size=20)
        try:
            block = plays.block(plays.read(mutated.tobytes()))
        except WireError:
            refused += 1
            continue
        replay.insert_steps(block.steps)
        replay.break_off(0)
    assert 0 < refused < 300


def test_a_run_of_dqn_learns_from_replay_of_what_nodes_played(tmp_path):
    nodes = replace(Config().nodes, contribute="experience", lease_ticks=64)
    request = replace(wish(nodes, algo="dqn"), settings=("hidden_units=[16]",))
    made = plan(replace(request, nodes=replace(request.nodes, data=str(tmp_path))), Config())
    topology = build(made, None)
    node = Node(load(None, (f"data={tmp_path / 'node'}",)), "good", 1)
    thread = threading.Thread(target=node.join, args=(topology.sessions.address,))
    try:
        until = time.monotonic() + 240
        topology.iterate()
        thread.start()
        while topology.learner.updates < 50 or topology.sessions.states["good"].merges < 8:
            assert time.monotonic() < until
            topology.iterate()
        state = topology.sessions.states["good"]
        assert not state.refused
        assert topology.env_steps == 4 * 64 * state.merges
        assert topology.flow()["reruns"] > 0
        assert topology.sources().steps["node"] > 1_000
        saved = topology.save()
        topology.load(saved)
        assert topology.sessions.epsilon < 1.0
    finally:
        topology.close()
        thread.join(60)


def test_a_node_plays_no_lease_that_is_too_long():
    made = plan(wish(Config().nodes), Config())
    record = msgspec.msgpack.decode(encode(made.record()))  # as it arrives
    network = made.algorithm.begin(made.spec, made.settings, 0).network
    job = Job("run", "cartpole", terms_of(made.spec, network, "f32", "average"), record, 0, 1.0, 4, 0.0, 1 << 30)
    with pytest.raises(Refused, match="plays no leases of"):
        Play(job, Config())
