"""Steps of another process reach a table whole and in their order, however they are handed over."""

import subprocess
import sys

import numpy as np
import pytest

from sparring.games import cartpole
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.actors.inlet import Inlet
from sparring.replay.steps import Steps
from sparring.replay.table import Table

SEAT = cartpole.SPEC.seats[0]
SEEN = "observation/state"
ROWS, LENGTH, EPISODES = 64, 10, 60
WRITER = """
import sys, time
import test_inlet
test_inlet.write(int(sys.argv[1]), sys.argv[2])
"""


def episode(number):
    """An observation is (episode, step, 0, 0); every third is cut, the others end."""
    place = np.arange(LENGTH + 1, dtype=np.float32)
    seen = np.stack([np.full(LENGTH + 1, number, np.float32), place, 0 * place, 0 * place], axis=1)
    ending = np.full(LENGTH, RUNNING, np.uint8)
    ending[-1] = TERMINATED if number % 3 else TRUNCATED
    final = np.array([LENGTH - 1] if ending[-1] == TRUNCATED else [], np.int64)
    return Steps(
        stream=np.zeros(LENGTH, np.int64),
        observation={SEEN: seen[:-1]},
        action=np.zeros(LENGTH, np.int32),
        reward=place[:-1],
        ending=ending,
        legal=None,
        behaviour_logp=None,
        value=None,
        final=final,
        final_observation={SEEN: seen[1:][final]},
    )


def write(descriptor, how):
    """The other process: hand over all episodes, waiting where there is no room."""
    inlet = Inlet(SEAT, ROWS, descriptor=descriptor)
    for number in range(EPISODES):
        steps, done = episode(number), 0
        while done < LENGTH:
            if how == "one by one":
                last = done == LENGTH - 1
                after = {SEEN: steps.final_observation[SEEN][0]} if last and len(steps.final) else None
                one = {SEEN: steps.observation[SEEN][done]}
                done += inlet.insert(one, 0, steps.reward[done], ending=int(steps.ending[done]), after=after)
            else:
                part = range(done, LENGTH)
                rest = Steps(
                    **{
                        **{name: getattr(steps, name) for name in Steps.__slots__},
                        **{name: getattr(steps, name)[part] for name in ("stream", "action", "reward", "ending")},
                        "observation": {SEEN: steps.observation[SEEN][part]},
                        "final": steps.final - done,
                    }
                )
                done += inlet.extend(rest)


@pytest.mark.parametrize("how", ["one by one", "as columns"])
def test_what_another_process_hands_over_is_replayed_right(how):
    inlet, table = Inlet(SEAT, ROWS, first_stream=2), Table(SEAT, 2_000, streams=3, masks=False)
    path = ":".join([*sys.path, __file__.rsplit("/", 1)[0]])
    descriptor = inlet.block.descriptor
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(descriptor), how], pass_fds=(descriptor,), env={"PYTHONPATH": path}
    )
    try:
        while table.steps < EPISODES * LENGTH:
            assert inlet.drain(table, 7) or writer.poll() in (None, 0)
    finally:
        assert writer.wait(20) == 0
    assert inlet.waiting() == 0
    batch, _ = table.sample(3_000, np.random.default_rng(0), n_steps=2, discount=1.0)
    now, then = batch.observation[SEEN], batch.next_observation[SEEN]
    assert set(np.unique(now[:, 0])) == set(range(EPISODES))
    goes_on = batch.ending != TERMINATED
    assert (now[goes_on, 0] == then[goes_on, 0]).all()
    assert (then[goes_on, 1] - now[goes_on, 1] == batch.n_steps[goes_on]).all()
    assert (batch.reward == np.where(batch.n_steps == 2, 2 * now[:, 1] + 1, now[:, 1])).all()
    inlet.close()


def test_a_full_inlet_takes_no_more_until_it_is_drained():
    inlet, table = Inlet(SEAT, 4), Table(SEAT, 100, streams=1, masks=False)
    seen = {SEEN: np.zeros(4, np.float32)}
    assert [inlet.insert(seen, 0, 1.0) for _ in range(6)] == [True] * 4 + [False] * 2
    assert inlet.extend(episode(1)) == 0
    assert inlet.drain(table) == 4
    assert inlet.insert(seen, 0, 1.0)
    inlet.close()
