"""Every benchmark that `spar bench` offers can be opened: what it imports is there."""

import importlib

import pytest

from sparring.cli.bench import ROOT, names


@pytest.mark.parametrize("name", names(ROOT / "bench"))
def test_a_benchmark_can_be_opened(name):
    assert callable(importlib.import_module(f"bench.{name.replace('-', '_')}").run)
