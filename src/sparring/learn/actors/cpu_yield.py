"""A player beside a learner on one machine: it takes a core that is free, never one that the learner computes on."""

import os
from contextlib import suppress


def wait_for_a_turn() -> None:
    """From now on this thread, when it wakes, waits until a core is free or its turn has come.

    Otherwise the system stops whoever runs in favour of who slept: a learner that is handed blocks a thousand times a
    second was stopped 400 times, in the middle of a sample or an update. Its share of the cores stays the same. Nothing
    happens where the system has no such schedule.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
