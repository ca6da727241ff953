"""Killed or failed at each system call that matters, a registry holds the old or the new, whole."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import small_model

from sparring.errors import Missing
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import verify
from sparring.wire.ids import GameId

GAME = GameId("cartpole")
OLD, NEW = small_model(1), small_model(2)
EVIDENCE = Evidence(episodes=1, mean=1.0, sd=0.0)
STRACE = shutil.which("strace")
MOST_CALLS = 60

PUBLISH = """
import sys
from pathlib import Path
from small_models import small_model
from sparring.errors import StoreFailed
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
registry = FileRegistry(Path(sys.argv[1]))
try:
    registry.publish(small_model(2))
    print("published", flush=True)
    registry.promote("cartpole", small_model(2).id, Evidence(episodes=1, mean=1.0, sd=0.0))
    print("promoted", flush=True)
except StoreFailed:
    sys.exit(3)
"""


def fresh(root):
    shutil.rmtree(root, ignore_errors=True)
    registry = FileRegistry(root)
    registry.publish(OLD)
    registry.promote(GAME, OLD.id, EVIDENCE)


def run(root, inject):
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [STRACE, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={inject.split(':')[0]}", "-e", f"inject={inject}"]
        + [sys.executable, "-c", PUBLISH, str(root)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def judge(root, said):
    """Old or new, whole; what was said to be done is done; and the work can be done again."""
    registry = FileRegistry(root)
    assert registry.fetch(OLD.id) == OLD
    try:
        assert registry.fetch(NEW.id) == NEW
    except Missing:
        assert "published" not in said
    champion = verify(registry.champion(GAME, "1"), registry.trust)
    assert (champion.model, champion.counter) in ((OLD.id, 1), (NEW.id, 2))
    assert champion.model == NEW.id or "promoted" not in said
    assert registry.fetch(champion.model).id == champion.model
    registry.publish(NEW)
    again = verify(registry.promote(GAME, NEW.id, EVIDENCE), registry.trust)
    assert again.counter == champion.counter + 1
    assert registry.fetch(NEW.id) == NEW


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not on PATH")
@pytest.mark.parametrize("calls", ["rename,renameat,renameat2", "fsync", "link,linkat", "unlink,unlinkat,rmdir"])
def test_killed_at_each_call_it_holds_the_old_or_the_new(tmp_path, calls):
    root, points = tmp_path / "models", 0
    for n in range(1, MOST_CALLS):
        fresh(root)
        done = run(root, f"{calls}:signal=SIGKILL:when={n}")
        judge(root, done.stdout)
        if done.returncode == 0:
            break
        assert done.returncode in (137, -9)
        points += 1
    assert 1 <= points < MOST_CALLS - 1


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not on PATH")
@pytest.mark.parametrize(("ever_after", "step"), [("", 2), ("+", 4)])
def test_a_failed_fsync_is_never_taken_for_success(tmp_path, ever_after, step):
    root, points = tmp_path / "models", 0
    for n in range(1, MOST_CALLS, step):
        fresh(root)
        done = run(root, f"fsync:error=EIO:when={n}{ever_after}")
        judge(root, done.stdout)
        if done.returncode == 0:
            break
        assert done.returncode == 3, "the failure was not said"
        assert "promoted" not in done.stdout
        points += 1
    assert 1 <= points < MOST_CALLS - 1
