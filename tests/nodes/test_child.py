"""A real node in this process: it stops when it is told to, and is dialled again by a parent that sent it away."""

import os
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from peers import PATIENCE_S, cartpole_job, parent
from sparring.config import Config
from sparring.gateway.connections import bound
from sparring.nodes.child import STOP_S, Node
from sparring.nodes.link import Address, Door, Tokens, server_tls


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


def test_a_call_of_a_conversation_that_was_cancelled_is_not_made():
    node, gone = Node(Config(), "node", 1), Future()
    gone.cancel()
    node._calls.put((lambda: pytest.fail("it was made"), gone))
    node._answer(0)


def test_a_node_that_waits_for_a_round_stops_when_it_is_told_to(tmp_path):
    node, said = Node(Config(), "one", 1), []
    with parent(tmp_path, asked=cartpole_job("median", algo="ppo", exchange_s=0.01), merge="median") as here:
        thread = threading.Thread(target=lambda: said.append(node.join(here.address)))
        thread.start()
        here.wait(lambda: here.merger.contributors() == {"one"})  # and the rule needs three
        began = time.monotonic()
        node.stop()
        thread.join(PATIENCE_S)
    assert said == ["stopped"]
    assert time.monotonic() - began < STOP_S + 20  # of a busy machine; a round would last for ever


def test_a_node_that_exchanges_seldom_hears_that_the_run_is_done_all_the_same(tmp_path):
    node, said = Node(Config(), "one", 1), []
    with parent(tmp_path, asked=cartpole_job(algo="ppo", exchange_s=15.0)) as here:
        thread = threading.Thread(target=lambda: said.append(node.join(here.address)))
        thread.start()
        here.wait(lambda: "one" in here.sessions.live)
    thread.join(PATIENCE_S)
    node.stop()
    thread.join(PATIENCE_S)
    assert said == ["the run is done"]


@contextmanager
def listening(tmp_path):
    """A node that waits for a parent, and where."""
    node, tokens = Node(Config(), "one", 1), Tokens(tmp_path / "node")
    tls, mark = server_tls(tmp_path / "node", "127.0.0.1", "", "")
    with bound("127.0.0.1", 0) as socket:
        thread = threading.Thread(target=lambda: node.listen(Door(socket, tls, tokens.holder)))
        thread.start()
        try:
            yield Address("127.0.0.1", socket.getsockname()[1], tokens.read(), True, mark)
        finally:
            node.stop()
            thread.join(PATIENCE_S)


def test_a_drained_node_is_dialled_ever_less_often_and_again_at_once_when_it_is_allowed(tmp_path, caplog):
    job = cartpole_job(algo="ppo", exchange_s=0.01)
    with listening(tmp_path) as there, parent(tmp_path, asked=job, dial=[there], reconnect_s=1e6) as here:

        def state():
            return here.sessions.states["one"].state if "one" in here.sessions.states else ""

        here.wait(lambda: state() == "working")
        here.board.order("drain", "one")
        here.wait(lambda: sum(here.sessions.turned_away.values()) >= 3)
        assert state() == "drained"
        tries = sum(here.sessions.turned_away.values())
        time.sleep(1.0)
        assert sum(here.sessions.turned_away.values()) <= tries + 1  # the next try is 2 to 4 seconds later
        here.board.order("allow", "one")
        here.wait(lambda: state() == "working")
    assert sum("was drained" in message for message in caplog.messages) == 2  # once on each side
