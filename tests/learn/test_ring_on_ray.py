"""The same ring on a real Ray cluster: its learners are Ray's actors, and one is killed.

In a process of its own, because Ray leaves its own processes to the end of the one that started it.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest


@pytest.mark.slow
def test_learners_on_ray_have_the_same_weights_and_go_on_when_one_is_killed() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["learners"][0] == 3
    assert said["learners"][-1] == 2
    assert said["digests"] == [1, 1]
    assert said["updates"] >= 3, "one turn at most is lost"


def learn() -> dict[str, object]:
    from test_ring import digests, wished

    from sparring.learn.topologies import wire

    wiring = wire(replace(wished(3), on="ray://local"), None)
    try:
        learners, same = [wiring.turn().metrics["learners"]], [len(digests(wiring))]
        actors = [one for one in psutil.Process().children(recursive=True) if "ray::Actor" in " ".join(one.cmdline())]
        actors[0].kill()
        learners += [wiring.turn().metrics["learners"] for _ in range(3)]
        same.append(len(digests(wiring)))
        return {"learners": learners, "digests": same, "updates": wiring.learner.updates}
    finally:
        wiring.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps(learn()))  # noqa: T201
