"""n actor processes, kept alive, and ended with the learner.

Each has a pipe (its standard input) and a wake-up socket; the end of either says that the other side has ended. Memory
reaches it as inherited descriptors. A process that dies is started again, with a longer wait each time; one that keeps
dying young ends the run with the last lines of its log.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparring.errors import ConfigError, TrainingStopped
from sparring.learn.actors.shared_memory import Wakeup, wait_any
from sparring.processes.supervisor import ONE_THREAD, Launch, ProcessLog, SupervisedProcess, stop_all

WORKER = "sparring.learn.actors.actor_process"
STOP_S = 2.0  # then those that are left are killed


@dataclass(slots=True, eq=False)
class _Actor:
    """One actor's process through its restarts, and our side of its wake-up socket."""

    number: int
    child: SupervisedProcess
    bell: Wakeup | None = None


class ProcessPool:
    """`launch` is asked at every start, with the process's number, how many starts were before, and the descriptor of
    its wake-up socket. It says what the process is told (one line) and which descriptors it inherits beside that; it
    gives the successor of a dead process memory that it has not touched."""

    def __init__(self, launch: Callable[[int, int, int], tuple[bytes, tuple[int, ...]]], module: str = WORKER) -> None:
        if os.name != "posix":
            raise ConfigError(
                "processes inherit no memory here", where="--topology", do="Use `--topology single` on this system"
            )
        self._launch, self._module = launch, module
        self._actors: list[_Actor] = []
        self.restarts = 0

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def generation(self) -> int:
        """More than that of any process that runs: where the pool that resumes this run begins."""
        return max((actor.child.generation for actor in self._actors), default=0)

    def resize(self, size: int, generation: int = 0) -> None:
        """So many from now on: the last are stopped, new ones are started, of that generation at least."""
        leaving, generation = self._actors[size:], max(generation, self.generation)
        del self._actors[size:]
        _stop(leaving)
        new = [
            _Actor(number, SupervisedProcess(f"actor {number}", ProcessLog(), generation=generation))
            for number in range(len(self._actors), size)
        ]
        self._actors += new
        try:
            for actor in new:
                self._start(actor)
        except BaseException:
            self.close()
            raise

    def pid(self, actor: int) -> int | None:
        """Of its process; None between two starts."""
        process = self._actors[actor].child.process
        return None if process is None else process.pid

    def replace(self, actor: int) -> None:
        """Kill an actor, also a frozen one; it is started again."""
        if (process := self._actors[actor].child.process) is not None:
            process.kill()

    def ring(self, actor: int) -> None:
        """Wake one actor: there is room, or there are new weights."""
        if (bell := self._actors[actor].bell) is not None:
            bell.ring()

    def ring_all(self) -> None:
        """Wake all."""
        for actor in self._actors:
            self.ring(actor.number)

    def wait(self, timeout_s: float) -> None:
        """Sleep until an actor wakes us or dies, at most so long; then restart the dead whose time has come."""
        bells = [actor.bell for actor in self._actors if actor.bell is not None]
        now = time.monotonic()
        waking = [actor.child.next_start_s - now for actor in self._actors if actor.child.process is None]
        timeout_s = max(0.0, min([timeout_s, *waking]))
        wait_any(bells, timeout_s)
        self.tend()

    def tend(self) -> None:
        """Restart the dead whose time has come; TrainingStopped where one keeps dying young."""
        now = time.monotonic()
        for actor in self._actors:
            child = actor.child
            if actor.bell is not None and child.up_s is None:
                actor.bell.hear()  # a learner that never waits hears nothing otherwise
                child.up_s = actor.bell.first_heard_s
            if (code := child.ended(now)) is not None:
                _close_bell(actor)
                if child.gave_up:
                    raise TrainingStopped(
                        f"it ended {child.policy.loop_deaths} times within {child.policy.loop_s:.0f} s, "
                        f"last with code {code}: {child.log.last_lines()}",
                        where=child.name,
                        do="Correct the game, or look at it with --topology single; --resume goes on from the last "
                        "checkpoint",
                    )
            if child.due(now):
                self.restarts += 1
                self._start(actor)
            elif child.process is not None:
                child.process.send()

    def close(self) -> None:
        """Stop all."""
        _stop(self._actors)
        self._actors = []

    def _start(self, actor: _Actor) -> None:
        actor.bell, theirs = Wakeup.pair()
        with theirs:
            told, descriptors = self._launch(actor.number, actor.child.generation, theirs.fileno())
            descriptors = (*descriptors, theirs.fileno())
            actor.child.start(Launch([self._module], told + b"\n", descriptors, ONE_THREAD))


def _stop(actors: list[_Actor]) -> None:
    stop_all((actor.child.process for actor in actors if actor.child.process is not None), STOP_S)
    for actor in actors:
        actor.child.close()
        _close_bell(actor)


def _close_bell(actor: _Actor) -> None:
    if actor.bell is not None:
        actor.bell.close()
        actor.bell = None
