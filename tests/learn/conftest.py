"""A data folder with a config that publishes and checks quickly, and the smallest game on the path."""

import sys
from pathlib import Path

import pytest

from sparring.config import load
from sparring.nets.row_threads import set_thread_count

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread():
    set_thread_count(1)


@pytest.fixture
def config(tmp_path):
    """Defaults, in a folder of its own, with a gate that plays a few episodes."""
    return load(None, (f"data={tmp_path / 'data'}", "registry.gate_episodes=10"))
