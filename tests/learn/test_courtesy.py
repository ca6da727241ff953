"""A player beside a learner waits for its turn, and still gets its share."""

import os
import subprocess
import sys

import pytest

CHILD = "import os; from sparring.learn.actors.actor_process import yield_cpu; yield_cpu(); "


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no such schedule")
def test_who_is_courteous_no_longer_stops_others_when_it_wakes():
    asked = CHILD + "print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout == b"True\n"


def test_where_there_is_no_such_schedule_nothing_happens():
    asked = "import os; vars(os).pop('SCHED_BATCH', None); " + CHILD + "print('goes on')"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True).stdout == b"goes on\n"
