"""Environments of peers, each its own, made once: ~/.cache/sparring/peers/NAME.

    python -m bench.peers.environments               all of them
    python -m bench.peers.environments cpprb torchrl

Those that learn have the Gymnasium that Sparring has, whatever older one they name themselves: then all play the same
environments, LunarLander-v3 included, which older ones lack.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path.home() / ".cache" / "sparring" / "peers"
TORCH, GYMNASIUM = "torch==2.15.0", "gymnasium==1.2.2"
ATARI = ("ale-py==0.12.1", "opencv-python-headless")  # for Gymnasium's own Atari wrappers
PLAYED = (GYMNASIUM, "box2d==2.3.10", "pygame-ce==2.5.8")  # Gymnasium's own [box2d] extra needs a compiler here


@dataclass(frozen=True, slots=True)
class Peer:
    """What goes into one environment."""

    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()  # without what they say they need: they cannot be had otherwise
    overrides: tuple[str, ...] = ()  # instead of what packages say they need


PEERS: Mapping[str, Peer] = {
    "cpprb": Peer(("cpprb==11.0.0",)),
    "torchrl": Peer(("torchrl==0.14.1",)),
    "reverb": Peer(("dm-reverb[tensorflow]==0.14.0", "setuptools<81")),
    "sb3": Peer(("stable-baselines3==2.9.2", TORCH, *PLAYED)),
    "cleanrl": Peer(
        (TORCH, *PLAYED, "gym==0.23.1", "numpy<2", "tensorboard", "setuptools<81"), bare=("cleanrl==1.2.0",)
    ),
    "tianshou": Peer(("tianshou==2.0.1", TORCH, *PLAYED), overrides=(GYMNASIUM,)),
    "sample-factory": Peer(("sample-factory==2.1.1", TORCH, *PLAYED, *ATARI), overrides=(GYMNASIUM,)),
    "envpool": Peer(("envpool==1.2.5", TORCH, GYMNASIUM)),
    "open-spiel": Peer(("open_spiel==2.0.2", "cvxpy==1.7.5", "scipy", "ecos", "matplotlib", "dm-tree", TORCH)),
    "rllib": Peer(("ray[rllib]==2.60.0", TORCH, *PLAYED)),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment, which is made where it is missing."""
    place = FOLDER / name
    python = place / "bin" / "python"
    if not (place / "made").exists():
        environment = {**os.environ, "UV_LINK_MODE": "hardlink"}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        subprocess.run([uv(), "venv", "-q", "--clear", "--python", version, str(place)], env=environment, check=True)
        with tempfile.TemporaryDirectory() as folder:
            for words in _installs(PEERS[name], Path(folder)):
                subprocess.run([uv(), "pip", "install", "-q", "-p", str(python), *words], env=environment, check=True)
        (place / "made").touch()
    return python


def _installs(peer: Peer, folder: Path) -> list[list[str]]:
    """The words of each `uv pip install`."""
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(peer.overrides))
    return [[*peer.packages, "--overrides", str(overrides)], *(["--no-deps", package] for package in peer.bare)]


def uv() -> str:
    """uv from PATH or from this environment."""
    beside = Path(sys.executable).parent / "uv"
    found = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if found is None:
        raise SystemExit("uv is on no path: install it (`pip install uv`), then run this again")
    return found


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PEERS:
        print(wanted, python_of(wanted), flush=True)
