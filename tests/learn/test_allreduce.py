"""Several learners with one gradient: equal weights, lost learners, checkpoints. Real processes, gloo on loopback."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from sparring.config import Config, TrainConfig
from sparring.errors import SparringError
from sparring.learn.algorithms.trajectories import of_streams
from sparring.learn.plan import Plan, TrainRequest, plan
from sparring.learn.protocol import Batch, Topology
from sparring.learn.ring_allreduce import Meeting, RingAlgorithm, RingAllReduce, RingBroken, carrier, visit
from sparring.learn.topologies import allreduce as ring
from sparring.learn.topologies import build, single
from sparring.wire.tree import unpack

SMALL = ("rollout_ticks=32", "minibatch_steps=128", "epochs=2")


def wished(learners: int, algo: str = "ppo", settings: tuple[str, ...] = SMALL, envs: int = 8) -> Plan:
    wish = TrainRequest(
        game="cartpole", algo=algo, learners=learners, settings=settings, envs=envs, seed=3, steps=100_000
    )
    return plan(wish, Config())


@contextmanager
def ring_of(learners: int) -> Iterator[Any]:
    topology: Topology = build(wished(learners), None)
    try:
        yield topology
    finally:
        topology.close()


def digest(weights: Any) -> str:
    """By which equal weights are known."""
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights))
    ).hexdigest()


def digest_of(learner: bytes) -> str:
    """Of the weights of a learner that was saved."""
    return digest(unpack(learner)["parts"]["net"])


def digests(topology: Any) -> set[str]:
    others = [member.ask("state").result(20) for member in topology.members.values()]
    return {digest_of(state) for state in (topology.learner.save(), *others)}


def workers() -> list[psutil.Process]:
    """The learners beside this process."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "sparring.hosts.worker" in child.cmdline()]


@pytest.mark.parametrize(
    ("device", "cuda", "nccl", "expected"),
    [
        ("cuda", True, True, "nccl"),
        ("cuda", True, False, "gloo"),
        ("cuda", False, True, "gloo"),
        ("cpu", True, True, "gloo"),
        ("cpu", False, False, "gloo"),
    ],
)
def test_gradients_go_by_nccl_only_where_they_lie_on_a_gpu(device: str, cuda: bool, nccl: bool, expected: str) -> None:
    assert carrier(device, cuda=cuda, nccl=nccl) == expected


def test_three_learners_have_the_same_weights_after_every_update() -> None:
    with ring_of(3) as topology:
        seen = set()
        for number in range(1, 4):
            turn = topology.iterate()
            assert (turn.metrics["learners"], topology.learner.updates) == (3, number)
            (one,) = digests(topology)
            seen.add(one)
        assert len(seen) == 3, "and they learn"
        assert topology.env_steps == 3 * 3 * 8 * 32
        assert topology.learner.steps == (3 + 3 + 1) * 8 * 32, "schedules go by the steps of all, and its own rollout"
        assert topology.sources().steps == {"selfplay": topology.env_steps}


@pytest.mark.slow
def test_a_checkpoint_goes_on_as_if_nothing_had_happened() -> None:
    with ring_of(2) as topology:
        topology.iterate()
        state = topology.save()
        topology.iterate()
        unbroken, steps = digest_of(topology.learner.save()), topology.env_steps
    with ring_of(2) as again:
        again.load(state)
        again.iterate()
        assert (digest_of(again.learner.save()), again.env_steps) == (unbroken, steps)
        assert digests(again) == {unbroken}


@pytest.mark.slow
def test_a_learner_killed_between_two_updates_leaves_and_the_rest_go_on() -> None:
    with ring_of(3) as topology:
        topology.iterate()
        workers()[0].kill()
        updates = [topology.iterate() and topology.learner.updates for _ in range(4)]
        assert sorted(updates) == updates
        assert updates[-1] >= 4, "one turn at most is lost"
        assert topology.iterate().metrics["learners"] == 2
        assert len(digests(topology)) == 1
        before = topology.env_steps
        kept = topology.save()
        assert len(kept["others"]) == 1
    with ring_of(3) as again:  # a resumed run has them all again, and counts what the lost one played
        again.load(kept)
        assert again.env_steps == before
        assert again.iterate().metrics["learners"] == 3
        assert len(digests(again)) == 1


@pytest.mark.slow
def test_a_frozen_learner_leaves_after_the_deadline_and_the_rest_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "DEADLINE_S", 12.0)  # what the others may need for a turn on a busy machine
    monkeypatch.setattr(ring, "ANSWER_S", 12.0)
    with ring_of(3) as topology:
        topology.iterate()
        frozen = workers()[0]
        frozen.suspend()
        begun = time.monotonic()
        learners = [topology.iterate().metrics["learners"] for _ in range(3)]
        assert learners[-1] == 2
        assert time.monotonic() - begun < 60, "it is not waited for again and again"
        assert len(digests(topology)) == 1
        assert topology.learner.updates >= 3
    assert not frozen.is_running(), "and it is ended with the run"


@pytest.mark.slow
def test_learners_killed_in_the_middle_of_updates_leave_until_one_is_alone() -> None:
    with ring_of(3) as topology:
        topology.iterate()
        learners = []
        for victim in workers():
            timer = threading.Timer(0.05, victim.kill)
            timer.start()
            for _ in range(6):
                turn = topology.iterate()
                learners.append(turn.metrics["learners"])
            timer.join()
            assert len(digests(topology)) == 1
        assert learners[-1] == 1
        assert 2 in learners
        assert topology.learner.updates >= 8


def test_several_learners_step_as_one_with_the_joint_batch() -> None:
    settings = ("rollout_ticks=16", "normalise=false", "epochs=1", "minibatch_steps=0")
    alone = wished(1, "impala", settings, envs=4)
    batch = single.build(alone, None).iterate().batch
    assert batch is not None
    halves = [of_streams(batch, np.arange(2)), of_streams(batch, np.arange(2, 4))]
    one = alone.algorithm.begin(alone.spec, alone.settings, 5)
    alone.algorithm.update(one, batch)
    weights = together(alone, [[half] for half in halves])
    for name, value in one.weights().items():
        np.testing.assert_allclose(weights[0][name], value, rtol=1e-4, atol=1e-6)
    assert digest(weights[0]) == digest(weights[1])


def test_shares_of_different_size_make_the_same_steps() -> None:
    settings = ("rollout_ticks=16", "minibatch_steps=16", "epochs=2")
    alone = wished(1, "ppo", settings, envs=8)
    batch = single.build(alone, None).iterate().batch
    assert batch is not None
    shares = [of_streams(batch, np.arange(1)), of_streams(batch, np.arange(1, 4)), of_streams(batch, np.arange(4, 8))]
    weights = together(alone, [[share, share] for share in shares])
    assert len({digest(one) for one in weights}) == 1


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_weights_that_came_apart_are_those_of_the_leader_again(optimiser: str) -> None:
    alone = wished(1, "ppo", ("rollout_ticks=16", f"optimiser={optimiser}"), envs=2)
    batch = single.build(alone, None).iterate().batch
    assert batch is not None
    weights = together(alone, [[batch], [batch]], apart=1e-3)
    assert digest(weights[0]) == digest(weights[1])


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_learners_that_send_their_largest_entries_alone_have_the_same_weights(optimiser: str) -> None:
    alone = wished(1, "ppo", ("rollout_ticks=16", f"optimiser={optimiser}"), envs=2)
    topology = single.build(alone, None)
    batches = [topology.iterate().batch for _ in range(3)]
    weights = together(alone, [batches[:2], batches[1:]], share=0.05)  # type: ignore[list-item]
    assert digest(weights[0]) == digest(weights[1])
    whole = together(alone, [batches[:2], batches[1:]])  # type: ignore[list-item]
    assert digest(weights[0]) != digest(whole[0])


def test_what_is_not_sent_comes_later_and_nothing_is_lost() -> None:
    """Two learners with constant gradients: after some rounds the sum of all averages is that of whole gradients."""
    meeting, numbers, rounds = Meeting(), 1000, 400
    constant = [torch.linspace(0.5, 1.5, numbers), torch.linspace(1.5, 0.5, numbers)]
    totals, sent = [torch.zeros(numbers) for _ in range(2)], [0, 0]

    def learn(rank: int) -> None:
        ring = RingAllReduce(visit(meeting.host, meeting.port), meeting.host, 1, (rank, 2), 20.0, share=0.01)
        for _ in range(rounds):
            gradient = constant[rank].clone()
            assert ring.average_gradient(gradient)
            totals[rank] += gradient
        assert not ring.average_gradient(torch.zeros(numbers), parts=0)
        sent[rank] = ring.sent_bytes
        ring.close()

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(totals[0], totals[1])
    assert sent[0] == sent[1] == 4 * 21 * (rounds + 1)  # of 4 * 1001 for each whole gradient
    # Every entry is sent once in about 100 rounds: what is late is that of the last ones.
    assert torch.allclose(totals[0] / rounds, torch.ones(numbers), atol=0.35)


def together(agreed: Plan, batches: list[list[Batch]], apart: float = 0.0, share: float = 1.0) -> list[Any]:
    """Learners in threads of this process, each with its own batches; the weights of each at the end."""
    meeting, world = Meeting(), len(batches)
    found: list[Any] = [None] * world

    def learn(rank: int) -> None:
        algorithm = RingAlgorithm(agreed.algorithm)
        learner: Any = algorithm.begin(agreed.spec, agreed.settings, 5)
        store = visit(meeting.host, meeting.port)
        algorithm.ring = RingAllReduce(store, meeting.host, 1, (rank, world), 20.0, share)
        learner.optimiser.everything()[0].data.add_(apart * rank)
        for batch in batches[rank]:
            algorithm.update(learner, batch)
        algorithm.leave()
        found[rank] = learner.weights()

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_nobody_waits_for_ever_for_one_who_does_not_come() -> None:
    meeting = Meeting()
    with pytest.raises(RingBroken):
        RingAllReduce(meeting.store, meeting.host, 1, (0, 2), 0.5)


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"algo": "dqn"}, "allreduce carries trajectories"),
        ({"topology": "async", "algo": "impala"}, "async has one learner"),
        ({"learners": 0}, "Count them from 1"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(wish: dict[str, Any], says: str) -> None:
    with pytest.raises(SparringError, match=says):
        plan(TrainRequest(**({"game": "cartpole", "learners": 2} | wish)), Config())


def test_settings_say_how_many_too() -> None:
    agreed = plan(TrainRequest(game="cartpole"), Config(train=TrainConfig(learners=2)))
    assert (agreed.topology, agreed.learners, agreed.record()["learners"]) == ("allreduce", 2, 2)


@pytest.mark.slow
def test_a_killed_leader_takes_the_rest_with_it_and_the_run_is_resumed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sparring", "train", "cartpole", "--steps", "8000", "--data", str(tmp_path)]
    words += ["--set", "train.checkpoint_every_s=0.2", "--set", "registry.gate_episodes=10", "--no-promote"]
    with subprocess.Popen([*words, "--learners", "2"], stdout=subprocess.DEVNULL) as leader:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("runs/*/checkpoint/state")) and time.monotonic() < until:
            time.sleep(0.1)
        others = psutil.Process(leader.pid).children(recursive=True)
        leader.send_signal(signal.SIGKILL)
    assert others
    assert not psutil.wait_procs(others, timeout=10)[1]
    done = subprocess.run(
        [*words, "--resume", "--json"], capture_output=True, text=True, timeout=200, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["env_steps"] >= 8_000
    lines = [
        json.loads(line) for path in tmp_path.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    assert lines[-1]["learners"] == 2
