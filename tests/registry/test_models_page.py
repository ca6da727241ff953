"""docs/models.md: its example runs as it stands."""

import re
from pathlib import Path

import pytest

from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry.file import FileRegistry
from sparring.wire.model import Lineage

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.mark.parametrize("game", ["cartpole", "connect-four", "duel"])
def test_the_example_runs(game, tmp_path, monkeypatch, capsys):
    spec = spec_of(game)
    network = default_network(spec.seats[0])
    weights = Network(network, 0).weights()
    model = make_model(spec, network, weights, "categorical", Lineage(algorithm="ppo", config={}, steps={}), 0)
    FileRegistry(tmp_path / "data" / "models").publish(model)
    monkeypatch.chdir(tmp_path)
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(compile(example, str(PAGE), "exec"), {"MODEL_ID": model.id})
    assert re.fullmatch(r"action \d+ value -?[\d.e-]+\n", capsys.readouterr().out)
