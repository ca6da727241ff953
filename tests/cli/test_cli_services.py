"""`spar services`: what a person sees of what runs."""

import json
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from sparring.cli import main
from sparring.config import load
from sparring.services.discovery import Local
from sparring.services.register import register
from sparring.services.server import Server
from sparring.services.solver import Solver

ANSWER = threading.Event()


class Actor:
    @register()
    def wait(self):
        ANSWER.wait(60)


class Host:
    def __init__(self):
        self.counts = {"actor": 2, "replay": 1}

    @register()
    def scale(self, name, count):
        self.counts[name] = count
        return count

    @register(idempotent=True)
    def list(self):
        return [{"name": name, "count": count, "restarts": 0} for name, count in self.counts.items()]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="spar"))
    yield path
    shutil.rmtree(path)


def test_every_instance_is_listed_with_what_waits_there(folder, capsys):
    url = f"--discovery=local://{folder}"
    assert main(["services", "list", url]) == 0
    assert "no service is there" in capsys.readouterr().out
    local, within = Local(folder), Local(folder / "h-one")
    with Server(Actor(), local, id="a"), Server(Actor(), within, name="actor", id="0"), Solver(local) as solver:
        call = threading.Thread(target=lambda: solver.retrieve(Actor, "wait"))
        call.start()
        limit_s, counts = time.monotonic() + 60, []
        while counts != [("Actor", "a", 1), ("actor", "0", 0)] and time.monotonic() < limit_s:
            assert main(["services", "list", url, "--json"]) == 0
            rows = json.loads(capsys.readouterr().out)["services"]
            counts = [(row["service"], row["id"], row["outstanding"]) for row in rows]
        assert counts == [("Actor", "a", 1), ("actor", "0", 0)]
        assert all(row["pid"] and row["since_s"] > 0 and row["address"].startswith("ipc://") for row in rows)
        assert main(["services", "list", url]) == 0
        assert "outstanding" in capsys.readouterr().out
        ANSWER.set()
        call.join()


def test_a_host_is_asked_for_more(folder, capsys):
    url = f"--discovery=local://{folder}"
    assert main(["services", "scale", "actor=6", url]) == 1
    assert "no host is there" in capsys.readouterr().err
    host = Host()
    with Server(host, Local(folder / "h-one"), name="host"):
        assert main(["services", "scale", "actor=6", "replay=3", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scaled"] == {"actor": 6, "replay": 3}
        assert host.counts == {"actor": 6, "replay": 3}
        assert main(["services", "scale", "actr=6", url]) == 1
        assert "none of 1 hosts runs actr" in capsys.readouterr().err
        assert main(["services", "scale", "actor=many", url]) == 1
        assert "'actor=many' is no count. Write NAME=COUNT: actor=6." in capsys.readouterr().err


def test_keys_are_made_once_and_shown(folder, capsys):
    said = ["--folder", str(folder / "k"), "--json"]
    assert main(["services", "keys", "show", *said]) == 1
    capsys.readouterr()
    assert main(["services", "keys", "create", *said]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["services", "keys", "show", *said]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert len(made["public"]) == 40


def test_settings_become_the_url_of_a_discovery(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARRING_DISCOVERY", raising=False)
    file = tmp_path / "spar.toml"
    file.write_text('[services]\ndiscovery = "consul://127.0.0.1:8500"\nbind = "10.0.0.5"\nkeys = "k"\n')
    url = load(file).discovery_url
    assert url.startswith("consul://127.0.0.1:8500?bind=10.0.0.5&keys=")
    assert "k" in url.rpartition("=")[2]
    assert load(None, ("services.discovery=local:///x",)).discovery_url == "local:///x"
    monkeypatch.setenv("SPARRING_DISCOVERY", "local:///y")
    assert load(None).discovery_url == "local:///y"
