"""examples/cloud-on-one-machine: its settings, and what its script refuses; tests/cloud/ walks its path."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cloud-on-one-machine"
CLOUD = [sys.executable, str(ROOT / "tests" / "servers" / "cloud.py")]


def run(words):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(words, env=clean, capture_output=True, text=True, check=False, timeout=240)


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
    assert "there is no such file" in done.stderr or "run `make servers S=" in done.stderr


def test_a_ring_is_named_by_addresses_that_follow_each_other(tmp_path):
    config = tmp_path / "spar.toml"
    for hosts in ("127.0.0.1,127.0.0.5", "127.0.0.2", "10.0.0.1"):
        config.write_text((EXAMPLE / "spar.toml").read_text().replace("127.0.0.1:9042", f"{hosts}:9042"))
        done = run([*CLOUD, "up", str(config)])
        assert done.returncode == 1
        assert "write cassandra://127.0.0.1:PORT/KEYSPACE to have it started" in done.stderr
