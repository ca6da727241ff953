"""What tests of services share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where services meet. Not in tmp_path: a socket's path has a limit."""
    path = Path(tempfile.mkdtemp(prefix="spar"))
    yield path
    shutil.rmtree(path)
