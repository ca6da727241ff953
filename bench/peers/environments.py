"""Environments of peers, each its own, made once: ~/.cache/sparring/peers/NAME.

python -m bench.peers.environments cpprb torchrl
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path.home() / ".cache" / "sparring" / "peers"
PEERS = {"cpprb": ("cpprb==11.0.0",), "torchrl": ("torchrl==0.14.1",)}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made where it is missing."""
    place = FOLDER / name
    python = place / "bin" / "python"
    if not (place / "made").exists():
        environment = {**os.environ, "UV_LINK_MODE": "hardlink"}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([uv(), "venv", "-q", "--clear", "--python", version, str(place)], env=environment, check=True)
        packages = [uv(), "pip", "install", "-q", "-p", str(python), *PEERS[name]]
        subprocess.run(packages, env=environment, check=True)
        (place / "made").touch()
    return python


def uv() -> str:
    """uv from PATH or from this environment."""
    beside = Path(sys.executable).parent / "uv"
    found = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if found is None:
        raise SystemExit("uv is on no path: install it (`pip install uv`), then run this again")
    return found


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PEERS:
        print(wanted, python_of(wanted))
