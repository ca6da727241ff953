"""Hosts of two machines whose services find each other by a real Consul. Here a machine is a folder of its own."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from host_contract import ONE
from host_services import Worker

from servers.running import ConsulAgent
from sparring.cli import main
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


def test_a_host_is_seen_and_scaled_from_another_machine(url, capsys):
    with LocalHost(seen=url("near")) as host:
        host.start(Worker, "worker", 1, ONE, {})
        assert main(["services", "list", "--discovery", url("far"), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["services"]
        assert [row["address"][:6] for row in rows if row["service"] == "host"] == ["tcp://"]
        assert main(["services", "scale", "worker=2", "--discovery", url("far"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scaled"] == {"worker": 2}
        assert [one.ask("who").result()["index"] for one in host.handles("worker")] == [0, 1]
        with LocalHost(seen=url("third")) as other:
            other.start(Worker, "worker", 1, ONE, {})
            assert main(["services", "scale", "worker=3", "--discovery", url("far")]) == 1
            assert "2 hosts run worker. Say --pid, one of" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path_factory):
    """No other host of this machine is found here."""
    folder = tempfile.mkdtemp(prefix="spar")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield
    shutil.rmtree(folder)


def test_a_service_of_one_machine_calls_one_of_another(url):
    with LocalHost(discovery=url("near")) as near, LocalHost(discovery=url("far")) as far:
        (asker,) = near.start(Worker, "asker", 1, ONE, {})
        (answerer,) = far.start(Worker, "answerer", 1, ONE, {"word": "far"})
        who = answerer.ask("who").result()
        assert asker.ask("ask_others", "answerer", "who").result() == who
