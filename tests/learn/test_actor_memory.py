"""What processes share: never torn, never half-written, never lost on the way, and gone with the last of them."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sparring.acting.actor import Actor, Episodes
from sparring.acting.opponents import Opponents
from sparring.errors import StoreFailed
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.learn.actors.experience import joined, played, side_by_side
from sparring.learn.actors.shared_memory import RingBuffer, SharedArrays, Wakeup, wait_any
from sparring.learn.actors.weights import NONE, SharedWeights
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.torch_network import Network, default_heads, default_network

WRITER = """
import sys, time
import msgspec
import numpy as np
from sparring.learn.actors.weights import SharedWeights
from sparring.nets.shapes import parameters
from sparring.wire.network import NetworkSpec
network = msgspec.json.decode(sys.argv[2], type=NetworkSpec)
board = SharedWeights(network, 2, int(sys.argv[1]))
until, version = time.monotonic() + 1.5, 0
while time.monotonic() < until:
    weights = {name: np.full(shape, version, np.float32) for name, shape in parameters(network).items()}
    board.publish(weights, version, version / 2)
    board.put_past_self(version % 2, weights)
    version += 1
print(version)
"""


def network_of(game):
    spec = spec_of(game)
    seat = spec.seats[0]
    return default_network(seat, hidden=(64, 64), heads=default_heads(seat.action), separate_value=True)


def steady(network, value):
    return {name: np.full_like(one, value) for name, one in Network(network, 0).weights().items()}


def actor_of(game, seed=0, envs=4):
    network = network_of(game)
    forward = NumpyForward(network, Network(network, 0).weights())
    partners = Opponents(network, 0.0)
    return Actor(open_game(game, envs), forward, "categorical", np.random.default_rng(seed), partners)


def ring_of(game, feeds, ticks):
    part = {"game": game, "spec": spec_of(game), "network": network_of(game), "policy": "categorical"}
    return ActorSpec(**part, envs=4, seed=0, feeds=feeds, ticks=ticks, slots=2).open_ring()


def test_weights_are_never_torn_however_fast_they_are_written():
    network = network_of("cartpole")
    board = SharedWeights(network, 2)
    descriptor = board.block.descriptor
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(descriptor), msgspec.json.encode(network).decode()],
        pass_fds=(descriptor,),
        stdout=subprocess.PIPE,
        text=True,
    )
    seen, past = [], 0
    while writer.poll() is None:
        edition = board.newest()
        if edition is None:
            time.sleep(0.01)
            continue
        numbers = np.concatenate([one.reshape(-1) for one in edition.weights.values()])
        assert (numbers == edition.version).all(), "torn"
        assert edition.epsilon == edition.version / 2
        seen.append(edition.version)
        for place, weights in board.new_past_selves(edition).items():
            flat = np.concatenate([one.reshape(-1) for one in weights.values()])
            assert (flat == flat[0]).all(), "torn"
            assert flat[0] % 2 == place
            past += 1
    published = int(writer.communicate()[0])
    assert seen == sorted(seen)
    assert len(set(seen)) > 20
    assert past > 20
    assert board.newest().version == board.version == published - 1
    board.close()


def test_a_version_is_waited_for_without_a_look_at_the_clock():
    network = network_of("cartpole")
    board = SharedWeights(network)
    learner, theirs = Wakeup.pair()
    actor = Wakeup(theirs)
    assert board.version == NONE
    assert board.newest() is None

    def publish():
        board.publish(steady(network, 7.0), 3)
        learner.ring()

    timer = threading.Timer(0.1, publish)
    timer.start()
    assert actor.wait_for(lambda: board.version >= 3)
    timer.join()
    learner.close()
    begun = time.monotonic()
    assert not actor.wait_for(lambda: board.version >= 4)
    assert time.monotonic() - begun < 10.0  # nobody is there who could publish it
    actor.close()
    board.close()


def test_a_full_ring_lets_its_writer_wait_and_loses_nothing():
    ring = RingBuffer({"number": ("int64", (3,))}, slots=2)
    reader, theirs = Wakeup.pair()
    writer = Wakeup(theirs)
    waited = []

    def write():
        for number in range(50):
            waited.append(not ring.room())
            assert writer.wait_for(ring.room)
            ring.to_write()["number"][:] = number
            ring.commit()
            writer.ring()

    thread = threading.Thread(target=write)
    thread.start()
    got = []
    while len(got) < 50:
        if not ring.ready():
            wait_any((reader,), 1.0)
            continue
        if not got:
            time.sleep(0.1)
            assert ring.ready() == 2
        got.append(int(ring.to_read()["number"][0]))
        ring.release()
        reader.ring()
    thread.join()
    assert got == list(range(50))
    assert any(waited)
    reader.close()
    assert not writer.wait_for(lambda: False)
    writer.close()
    ring.close()


@pytest.mark.parametrize("game", ["cartpole", "connect-four"])
def test_what_lies_in_a_slot_is_what_the_actor_would_have_handed_on_itself(game):
    rings = [ring_of(game, "rollouts", 9) for _ in range(2)]
    with_it, without, other = actor_of(game), actor_of(game), actor_of(game, seed=5)
    for version in range(6):  # slots are used again
        rings[1].play(with_it, version, 0.0)
        rings[0].play(other, version, 0.0)
        expected, ended = without.rollout(9), without.ended()
        alone = played(rings[1].to_read())
        both = played(side_by_side([ring.to_read() for ring in rings]))
        length = len(expected.reward)
        for name in ("action", "reward", "ending", "behaviour_logp", "value", "truncation_value", "mask"):
            assert np.array_equal(getattr(alone.batch, name), getattr(expected, name)), name
            assert np.array_equal(getattr(both.batch, name)[:length, with_it.streams :], getattr(expected, name)), name
        for name in expected.observation:
            assert np.array_equal(alone.batch.observation[name], expected.observation[name])
            assert np.array_equal(alone.batch.next_observation[name], expected.next_observation[name])
        assert (alone.batch.legal is None) == (expected.legal is None)
        if expected.legal is not None:
            assert np.array_equal(alone.batch.legal, expected.legal)
        assert np.array_equal(alone.episodes.returns, ended.returns)
        assert (alone.version, alone.env_steps, both.env_steps) == (version, 36, 72)
        assert (both.batch.version == version).all()
        for ring in rings:
            ring.release()
    for ring in rings:
        ring.close()


def test_blocks_of_steps_arrive_as_they_were_played():
    actor = actor_of("connect-four")
    shared, seat = ring_of("connect-four", "steps", 12), spec_of("connect-four").seats[0]
    for version in range(4):
        steps = [actor.step() for _ in range(12)]
        ended = actor.ended()
        shared.write(steps, ended, version=version, env_steps=48, games=3)
        block = joined(shared.to_read(), seat)
        assert (block.version, block.env_steps, block.games) == (version, 48, 3)
        assert np.array_equal(block.episodes.returns, ended.returns)
        here, final = block.steps, 0
        assert (here.version, here.priority) == (version, None)
        for name in ("stream", "action", "reward", "ending", "legal", "behaviour_logp", "value"):
            assert np.array_equal(np.concatenate([getattr(one, name) for one in steps]), getattr(here, name)), name
        for name, column in here.observation.items():
            assert np.array_equal(np.concatenate([one.observation[name] for one in steps]), column)
        first = np.cumsum([0, *map(len, steps)])
        for tick, there in enumerate(steps):
            finals = slice(final, final + len(there.final))
            assert np.array_equal(there.final + first[tick], here.final[finals])
            for name, column in there.final_observation.items():
                assert np.array_equal(column, here.final_observation[name][finals])
            final = finals.stop
        shared.release()
    shared.write([], Episodes(np.zeros(0, np.float32), np.zeros(0, bool)), version=9, env_steps=0, games=0)
    assert len(joined(shared.to_read(), seat).steps) == 0
    shared.close()


def test_memory_has_no_name_and_what_cannot_be_had_is_said():
    folder = Path("/dev/shm")
    before = set(folder.glob("tmp*"))
    block = SharedArrays.create({"one": ("float32", (1000, 1000))})
    assert set(folder.glob("tmp*")) <= before
    block.close()
    with pytest.raises(StoreFailed, match="bytes of shared memory cannot be had"):
        SharedArrays.create({"all": ("float32", (1 << 48,))})


def test_without_room_in_memory_a_temporary_file_does(monkeypatch):
    monkeypatch.setattr("sparring.learn.actors.shared_memory._SHARED", "/nowhere")
    block = SharedArrays.create({"one": ("float32", (3,)), "two": ("int64", (2, 2))})
    again = SharedArrays(os.dup(block.descriptor), {"one": ("float32", (3,)), "two": ("int64", (2, 2))})
    block.arrays["two"][1] = 7
    assert again.arrays["two"].tolist() == [[0, 0], [7, 7]]
    block.close()
    again.close()
