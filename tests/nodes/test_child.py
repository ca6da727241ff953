"""The node's main thread, between its signals and its other thread."""

import os
import signal
import threading
import time

import pytest

from sparring.config import Config
from sparring.nodes.child import Node


@pytest.mark.timeout(30)
def test_a_signal_that_outlasts_a_wait_does_not_prolong_it():
    handled, node = [], Node(Config(), "node", 1)

    def handle(*_):
        time.sleep(0.5)  # longer than what is left of the wait
        handled.append(True)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        node._answer(0.3)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled
