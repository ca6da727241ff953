"""Streams on both Kinesis servers, made for one test each."""

from collections.abc import Callable

import pytest

from servers.aws_servers import Kinesis
from stream.made import make


@pytest.fixture(scope="session", params=["kinesalite_server", "moto_server"])
def either(request: pytest.FixtureRequest) -> Kinesis:
    """Each of the two in turn; of the session, so that it is there before what counts what a test leaves behind."""
    found: Kinesis = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server(either: Kinesis, local_credentials: None) -> Kinesis:
    """Each of the two in turn, with credentials that it takes."""
    return either


@pytest.fixture
def new_stream(server: Kinesis) -> Callable[[int], str]:
    """`new_stream(4)` is the URL of a fresh stream of four shards."""
    return lambda shards: make(server, shards)
