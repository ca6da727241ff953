"""One gateway for each file of tests, and the small talk with it."""

import httpx
import pytest

from serving import serving


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Without keys: anybody on this machine may record, act and read."""
    with serving(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
