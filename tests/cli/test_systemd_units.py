"""The units in deploy/: systemd takes them, and their commands are commands of ours."""

import argparse
import configparser
import importlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.cli import _common

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.*"))
SERVICES = [path for path in UNITS if path.suffix == ".service"]
BIN = "/opt/sparring/bin/"


def read(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    return unit


def command(path: Path) -> list[str]:
    """The words that systemd would start for the instance cartpole."""
    text = path.read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    variables = dict(re.findall(r'^Environment="(\w+)=(.*)"$', text, re.M))
    for name, value in variables.items():
        line = line.replace(f"${name}", value)
    return shlex.split(line.replace("%i", "cartpole"))


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_of_ours_with_options_that_it_has(path: Path) -> None:
    program, *words = command(path)
    if program == f"{BIN}python":
        assert words == ["-m", "cartpole"]
        return
    assert program == f"{BIN}spar"
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    importlib.import_module(f"sparring.cli.{words[0]}").arguments(parser)
    _common(parser)
    parser.parse_args(words[1:])


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_unit_runs_as_its_own_user_and_writes_to_its_own_folders(path: Path) -> None:
    service = read(path)["Service"]
    assert (service["User"], service["UMask"], service["StateDirectoryMode"]) == ("sparring", "0077", "0700")
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    for path in UNITS:  # programs that are there, because systemd looks
        (tmp_path / path.name).write_text(path.read_text().replace(BIN, f"{Path(sys.executable).parent}/"))
    done = subprocess.run(
        [analyze, "verify", *sorted(map(str, tmp_path.iterdir()))], capture_output=True, text=True, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "sparring" in line]
    assert said == []


def test_the_gateways_command_serves_and_ends_in_the_units_time(tmp_path: Path) -> None:
    (tmp_path / "spar.toml").write_text(f'data = "{tmp_path}/data"\n[gateway]\nport = 0\n')
    path = ROOT / "deploy" / "sparring-gateway.service"
    words = " ".join(command(path)[1:]).replace("/etc/sparring", str(tmp_path)).split()
    process = subprocess.Popen([sys.executable, "-m", "sparring", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    begun_s = time.monotonic()
    assert process.wait(60) == 0
    assert time.monotonic() - begun_s < 4 * int(read(path)["Service"]["TimeoutStopSec"])
    process.stdout.close()
