"""An actor's process: `python -m sparring.learn.actors.actor_process`, its ActorSpec as a line of JSON on stdin.

It plays with the newest weights in shared memory, writes what it played into its ring buffer, and waits where that is
full. The end of standard input says that the learner is gone or wants it to stop: the process ends at once, whatever it
is doing. A version on a line of standard input asks for the actor as it was before it played that version; the answer
goes to standard output. No torch here: the process starts in a fraction of a second and stays small.
"""

import os
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from sparring.learn.actors.actor_runner import ActorRunner
from sparring.learn.actors.actor_spec import ActorSpec, read_actor_spec
from sparring.learn.actors.wakeup import Wakeup
from sparring.learn.actors.weights import NONE

SLEEP_S = 3600.0  # of one sleep, which a wakeup or the end of standard input ends, not the clock
ANSWER = struct.Struct("<qq")  # before a saved actor: its version and length


class SavedState:
    """The actor as it was before the current rollout: the main thread writes it, the thread of `read_spec` reads it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version, self._state = NONE, b""

    def put(self, version: int, state: bytes) -> None:
        with self._changed:
            self._version, self._state = version, state
            self._changed.notify_all()

    def before(self, version: int) -> tuple[int, bytes]:
        """Waits for that version or a later one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version >= version)
            return self._version, self._state


def read_spec(saved: SavedState) -> ActorSpec:
    """The spec from standard input; from now on the end of standard input ends this process."""
    lines = lines_of(sys.stdin.fileno())
    spec = next(lines, None)
    if spec is None:
        os._exit(0)  # the learner was gone before it said what to do
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a game prints is no answer
    threading.Thread(target=_end_with_input, args=(lines, saved, answers), name="stdin", daemon=True).start()
    return read_actor_spec(spec)


def yield_cpu() -> None:
    """From now on this thread, when it wakes, waits until a core is free or it is scheduled in turn.

    Otherwise the system preempts a running process for one that slept: a learner that is handed blocks a thousand times
    a second was stopped 400 times, in the middle of a sample or an update. Its share of the cores stays the same.
    Systems without SCHED_BATCH change nothing.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Play until the end of standard input: one rollout or block after another, each with the newest weights."""
    saved = SavedState()
    spec = read_spec(saved)
    weights, wakeup = spec.open_weights(spec.weights_descriptor), Wakeup.inherited(spec.wakeup_descriptor)
    out, runner = spec.open_ring(spec.ring_descriptor), ActorRunner(spec)
    if spec.feeds == "steps":
        yield_cpu()  # the learner waits for no single block
    while not wakeup.gone:
        if not out.ring.wait_for_room(wakeup, SLEEP_S, spec.writer):
            continue
        if not weights.wait_for(runner.version + 1 if spec.synchronous else 0, wakeup, SLEEP_S):
            continue
        if weights.version > runner.version and (snapshot := weights.newest()) is not None:
            runner.use(snapshot, weights)
        if spec.synchronous:
            saved.put(runner.version, runner.save())
        runner.play(out)
        wakeup.ring()


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Unbuffered: a thread that sleeps in a buffered read would hold its lock when the process wants to end."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _end_with_input(lines: Iterator[bytes], saved: SavedState, answers: int) -> None:
    for line in lines:
        version, state = saved.before(int(line))
        with open(answers, "wb", closefd=False) as out:
            out.write(ANSWER.pack(version, len(state)) + state)
    os._exit(0)


if __name__ == "__main__":
    main()
