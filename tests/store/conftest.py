"""The stores that every contract is held against."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite"])
def url(tmp_path: Path) -> str:
    """A fresh store's URL, of each backend in turn."""
    return f"sqlite:///{tmp_path}/experience.db"
