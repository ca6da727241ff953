"""The host of this machine's processes: the contract, and what holds of it alone."""

import pytest
from host_contract import *  # noqa: F403

from sparring.hosts.opening import open_host


@pytest.fixture
def host():
    with open_host("local://") as opened:
        yield opened
