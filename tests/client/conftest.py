"""A directed peer, and connections that are closed when the test ends."""

import pytest
from peer import Peer

import sparring


@pytest.fixture
def peer():
    made = Peer()
    yield made
    made.close()


@pytest.fixture
def connect(tmp_path):
    opened = []

    def connect_to(url, game="cartpole", player=None, **settings):
        defaults = {"folder": tmp_path / "client", "retry_most_s": 0.2, "timeout_s": 20.0, "close_timeout_s": 0.2}
        connection = sparring.connect(url, game, player, **(defaults | settings))
        opened.append(connection)
        return connection

    yield connect_to
    for connection in opened:
        connection.close()
