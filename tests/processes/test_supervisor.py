"""Child processes: their logs, restarts and ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest

from sparring.processes import supervisor
from sparring.processes.supervisor import (
    ChildProcess,
    Launch,
    ProcessLog,
    RestartPolicy,
    SupervisedProcess,
    Supervisor,
    stop_all,
)

LIMIT_S = 60.0
SLEEPER = """
import subprocess, sys, time
from sparring.processes.parent_watch import end_with_parent, first_line, read_lines
lines = read_lines()
sys.stdout.write(first_line(lines).decode() + "\\n")
end_with_parent(lines)
child = subprocess.Popen(["sleep", "1000"])
sys.stdout.write(f"{child.pid}\\n")
sys.stdout.flush()
time.sleep(1000)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that children import."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def until(there):
    end = time.monotonic() + LIMIT_S
    while not (found := there()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_is_told_what_it_is_and_ends_with_all_that_it_started(module):
    with closing(ProcessLog()) as log:
        child = ChildProcess(Launch([module("sleeper", SLEEPER)], b"hello\n", answers=True), log.file)
        assert child.stdout.readline() == b"hello\n"
        grandchild = int(child.stdout.readline())
        assert child.exit_code() is None
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(LIMIT_S)
        assert child.exit_code() == -signal.SIGKILL
        child.close()
    until(lambda: ended(grandchild))


def test_a_child_ends_when_its_parent_is_killed(module):
    module("sleeper", SLEEPER)
    program = (
        "import sys, time; from sparring.processes.supervisor import ChildProcess, Launch;"
        "child = ChildProcess(Launch(['sleeper'], b'x\\n', answers=True), None);"
        "child.stdout.readline(); child.stdout.readline(); print(child.pid, flush=True); time.sleep(1000)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as parent:
        pid = int(parent.stdout.readline())
        assert not ended(pid)
        parent.kill()
    until(lambda: ended(pid))


def test_a_child_that_does_not_end_by_the_deadline_is_killed(module):
    name = module(
        "stubborn", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint(1, flush=True)\ntime.sleep(999)"
    )
    child = ChildProcess(Launch([name], answers=True), None)
    assert child.stdout.readline() == b"1\n"
    stop_all([child], 0.2)
    assert child.exit_code() == -signal.SIGKILL


def test_a_supervised_command_is_restarted_and_what_it_said_is_kept(module, tmp_path):
    name, said = module("failing", "import sys\nprint('alas')\nsys.exit(3)"), []
    quick = lambda: RestartPolicy(first_wait_s=0.05, longest_wait_s=0.1, loop_deaths=0)  # noqa: E731
    failures = []

    def launch(count):
        failures.append(count)
        return Launch([name])

    with Supervisor(tmp_path / "logs", said.append, quick, 1.0) as children:
        children.add("failing", launch)

        def three():
            children.tick(time.monotonic())
            return len(said) >= 3

        until(three)
    assert failures[:3] == [0, 1, 2]
    log = tmp_path / "logs" / "failing.log"
    assert said[0] == f"failing ended with code 3; again in 0 s. See {log}"
    assert log.read_text().count("alas") >= 3


def test_a_crash_loop_is_given_up(module):
    name = module("dying", "raise SystemExit(7)")
    child = SupervisedProcess("dying", ProcessLog(), RestartPolicy(first_wait_s=0.0, loop_deaths=2))

    def over():
        now = time.monotonic()
        child.ended(now)
        if child.due(now):
            child.start(Launch([name]))
        return child.gave_up

    until(over)
    assert child.generation == 2
    child.close()


def test_a_log_keeps_its_end_and_no_more(tmp_path):
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writing, closing(supervisor.ProcessLog(log)) as kept:
        writing.write(b"x" * (supervisor.MAX_LOG_BYTES + 10))
        writing.write(b"end")
        kept.trim()
        writing.write(b" more")
    assert log.stat().st_size == supervisor.KEPT_LOG_BYTES + 5
    assert log.read_bytes().endswith(b"xend more")


def test_the_dead_are_started_again_later_each_time_and_those_that_keep_dying_young_are_not():
    policy = RestartPolicy()
    assert [policy.died(now, now - 1.0) for now in range(RestartPolicy().loop_deaths - 1)] == [0.2, 0.4, 0.8, 1.6]
    assert policy.died(4.0, 3.0) is None
    assert [RestartPolicy().died(now, None) for now in range(2)] == [0.2, 0.2]
    steady = RestartPolicy()
    assert [steady.died(100.0 * life, 100.0 * life - 50.0) for life in range(20)] == [0.2] * 20
    assert RestartPolicy(restarts=1).died(0.0, -50.0) == 0.2
    killed = RestartPolicy()
    assert all(killed.died(now, now - 1.0, killed=True) is not None for now in range(20))
    twice = RestartPolicy(restarts=1)
    assert [twice.died(0.0, -50.0), twice.died(100.0, 50.0)] == [0.2, None]
