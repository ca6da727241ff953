"""docs/batch.md against batches of real runs: every field, its axes, its dtype."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.replay.steps import Batch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "batch.md"
NEEDED_BY_SOME = (
    "legal",
    "next_legal",
    "weight",
    "state",
    "next_state",
    "final_observation",
    "policy_target",
    "records",
)  # None says: not here
CASES = {
    "transitions": [("connect-four", "dqn", ("batch_steps=32",), 0)],
    "sequences": [
        ("cartpole", "r2d2", ("batch_sequences=8", "sequence_steps=6", "burn_in_steps=3", "overlap_steps=2"), 9)
    ],
    "trajectories": [
        ("connect-four", "ppo", ("rollout_ticks=8",), 4),
        ("cartpole", "ppo", ("rollout_ticks=8", 'memory="gru:8"'), 8),
        ("cartpole", "mappo", ("rollout_ticks=8",), 8),
        ("connect-four", "alphazero", ("rollout_ticks=8", "simulations=2"), 4),
    ],
}
COLUMNS = {"transitions": 0, "sequences": 1, "trajectories": 2}


def rows():
    table = re.findall(r"^\| `(\w+)` \| ((?:[^|]+ \| ){4}[^|]+) \|$", PAGE.read_text(), re.M)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in table}


def test_the_page_names_every_field_in_its_order():
    assert list(rows()) == [field.name for field in fields(Batch)]


@pytest.mark.parametrize(("feeds", "case"), [(feeds, case) for feeds, cases in CASES.items() for case in cases])
def test_the_page_says_what_a_batch_is(feeds, case, config):
    game, algo, settings, time = case
    request = TrainRequest(game, algo, envs=4, settings=settings)
    small = config.layered({"replay.min_steps": 100, "replay.sampler": "prioritised"}, "test", above=True)
    planned = plan(request, small)
    assert planned.algorithm.feeds == feeds
    topology = build(planned, None)
    try:
        batch = next(turn.batch for turn in iter(topology.iterate, None) if turn.batch is not None)
    finally:
        topology.close()
    sizes = {"T": time, "B": batch.reward.shape[-1]}
    for name, cells in rows().items():
        said, dtype = cells[COLUMNS[feeds]], cells[3]
        value = getattr(batch, name)
        if value is None:
            assert said == "–" or name in NEEDED_BY_SOME, f"{name} is None"
            continue
        assert said != "–", f"{name} is there"
        for array in value.values() if isinstance(value, dict) else [value]:
            assert isinstance(array, np.ndarray)
            axes = said.strip("`[]").split(", ")
            known = [sizes.get(axis) for axis in axes if axis != "…"]
            assert len(array.shape) == len(known) or "…" in axes, name
            assert all(have == want or want is None for have, want in zip(array.shape, known, strict=False)), name
            assert dtype in (array.dtype.name, "the leaf's"), name
