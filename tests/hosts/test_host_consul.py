"""Hosts of two machines whose services find each other by a real Consul. Here a machine is a folder of its own."""

import shutil
import tempfile
from pathlib import Path

import pytest
from host_contract import ONE
from host_services import Worker

from servers.running import ConsulAgent
from sparring.hosts.local import LocalHost
from sparring.services.keys import create_keys

pytestmark = pytest.mark.servers


@pytest.fixture
def url():
    folder = Path(tempfile.mkdtemp(prefix="spar"))  # short: sockets lie in it
    create_keys(folder / "k")
    with ConsulAgent(folder) as agent:
        yield lambda machine: f"{agent.url}?keys={folder}/k&folder={folder}/{machine}"
    shutil.rmtree(folder)


def test_a_service_of_one_machine_calls_one_of_another(url):
    with LocalHost(discovery=url("near")) as near, LocalHost(discovery=url("far")) as far:
        (asker,) = near.start(Worker, "asker", 1, ONE, {})
        (answerer,) = far.start(Worker, "answerer", 1, ONE, {"word": "far"})
        who = answerer.ask("who").result()
        assert asker.ask("ask_others", "answerer", "who").result() == who
