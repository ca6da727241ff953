"""A start of Ray that fails: what it says, and that nothing of it goes on running. Discovery starts none."""

import json
import subprocess
import sys

import pytest

from sparring.errors import Unreachable
from sparring.services.discovery import open_discovery

pytestmark = pytest.mark.slow

PROGRAM = """
import json, logging, sys
import psutil
from sparring.errors import Unreachable
from sparring.hosts.ray.cluster import join

began = set()

def seen(event, given):
    if event == "subprocess.Popen":
        began.add(" ".join(map(str, given[1])).partition(" --")[0])

sys.addaudithook(seen)
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
try:
    join("local", 1000, patience_s=0.0)  # less memory for objects than Ray takes, which it says when half of it is up
except Unreachable as error:
    left = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    print(json.dumps({"began": len(began), "gcs": any("gcs_server" in one for one in began), "left": left,
                      "wrong": error.wrong, "do": error.do}))
"""


def test_a_ray_that_did_not_come_up_leaves_no_process_behind():
    pytest.importorskip("ray")
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["gcs"], "a part of Ray was up before it failed"
    assert said["left"] == []
    assert said["wrong"].startswith("Ray did not come up: ")
    assert said["do"] == "See its logs in Ray's session_latest/logs"
    assert "starting Ray on this machine …" in ended.stderr.splitlines()


def test_a_process_that_looks_for_services_starts_no_cluster_of_its_own(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where `ray start` says which cluster runs
    with pytest.raises(Unreachable) as caught:
        open_discovery("ray://auto/ours")
    assert str(caught.value) == (
        "ray://auto/ours: no Ray cluster runs on this machine. "
        "Start the services first, or name their cluster: ray://HOST:PORT/NAMESPACE."
    )
