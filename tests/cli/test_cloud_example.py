"""examples/cloud-on-one-machine: comes up, is found well by `spar doctor`, goes down, and nothing is left."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from servers.process import free_ports
from servers.running import installed
from servers.spark_cluster import described

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cloud-on-one-machine"
CLOUD = [sys.executable, str(ROOT / "tests" / "servers" / "cloud.py")]
SPAR = Path(sys.executable).parent / "spar"


def run(words, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(words, env=clean | environment, capture_output=True, text=True, check=False, timeout=240)


def findings(config, **environment):
    done = run([SPAR, "doctor", "--json", "--config", str(config), "--set", "gateway.port=0"], **environment)
    return {one["what"]: one for one in json.loads(done.stdout)["findings"]}


@pytest.mark.servers
@pytest.mark.slow
def test_the_example_comes_up_is_well_and_goes_down(tmp_path):
    with installed():
        described(tmp_path / "look")
    kinesis, cassandra, s3, spark = free_ports(4)
    text = (EXAMPLE / "spar.toml").read_text()
    for port, free in ((4567, kinesis), (9042, cassandra), (7070, s3)):
        text = text.replace(f":{port}", f":{free}")
    config = tmp_path / "spar.toml"
    config.write_text(text)
    try:
        up = run([*CLOUD, "up", str(config), "--spark-port", str(spark), "--shards", "2"])
        if "make servers" in up.stderr:
            pytest.skip(up.stderr)
        assert up.returncode == 0, up.stdout + up.stderr
        again = run([*CLOUD, "up", str(config), "--spark-port", str(spark)])
        assert again.returncode == 0, again.stdout + again.stderr
        status = run([*CLOUD, "status", str(config)])
        assert status.returncode == 0, status.stdout
        pids = [int(pid) for pid in re.findall(r"pid (\d+)", status.stdout)]
        assert len(pids) == 5
        secrets = tmp_path / "data" / "servers" / "cloud.env"
        assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
        environment = dict(line.removeprefix("export ").split("=", 1) for line in secrets.read_text().splitlines())
        found = findings(config, **environment)
        assert all(found[part]["ok"] for part in ("stream", "store", "registry")), found
        assert environment["AWS_SECRET_ACCESS_KEY"] not in json.dumps(found) + up.stdout + status.stdout
    finally:
        down = run([*CLOUD, "down", str(config)])
    assert down.returncode == 0, down.stdout + down.stderr
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert run([*CLOUD, "status", str(config)]).returncode == 1


def test_the_examples_settings_are_about_ten_lines_and_take_no_credentials():
    text = (EXAMPLE / "spar.toml").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10
    settings = tomllib.loads(text)
    assert {name: settings[name]["url"].partition(":")[0] for name in ("stream", "store", "registry")} == {
        "stream": "kinesis",
        "store": "cassandra",
        "registry": "s3",
    }
    assert not re.search(r"key|secret|token|password", text, re.I)


def test_a_setting_that_is_not_of_this_machine_is_refused_before_anything_starts(tmp_path):
    config = tmp_path / "spar.toml"
    config.write_text('[stream]\nurl = "kinesis://play?region=eu-central-1"\n')
    done = run([*CLOUD, "up", str(config)])
    assert done.returncode == 1
    assert (
        "stream.url = 'kinesis://play?region=eu-central-1': its endpoint must be http://127.0.0.1:PORT" in done.stderr
    )
    assert "nothing was started here" in run([*CLOUD, "status", str(config)]).stdout


def test_the_script_finds_its_way_from_anywhere(tmp_path):
    done = subprocess.run([EXAMPLE / "run.sh", "status", "/nowhere.toml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no such file" in done.stderr or "run `make servers` first" in done.stderr
