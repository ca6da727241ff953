"""The ratio gate: it holds the ratio, never blocks both sides, and refuses settings that could."""

import re
import subprocess
import sys

import numpy as np
import pytest

from sparring.errors import ConfigError
from sparring.replay.rate_limiter import RateLimiter, open_rate_limiter


@pytest.mark.parametrize("seed", range(300))
def test_settings_that_pass_never_block_both_sides(seed):
    rng = np.random.default_rng(seed)
    ratio = float(np.exp(rng.uniform(-3, 5)))
    insert, batch = int(rng.integers(1, 300)), int(rng.integers(1, 600))
    slack = (ratio * insert + batch) / 2 * float(rng.choice([1.0, 1.0, rng.uniform(1, 10)]))
    gate = open_rate_limiter(ratio, int(rng.integers(1, 2000)), slack, insert_steps=insert, batch_steps=batch)
    for _ in range(2000):
        may_insert, may_sample = gate.may_insert(insert), gate.may_sample(batch)
        assert may_insert or may_sample
        if may_insert and (not may_sample or rng.random() < 0.5):
            gate.insert(insert)
        else:
            gate.sample(batch)
    if gate.inserted > gate.min_steps:
        assert abs(gate.owed()) <= slack + ratio * insert + batch + 1e-6


def test_a_slack_that_blocks_both_sides_is_refused_with_the_least_that_does_not():
    with pytest.raises(ConfigError) as error:
        open_rate_limiter(8.0, 1000, 100.0, insert_steps=32, batch_steps=256)
    assert str(error.value) == (
        "[replay]: slack_samples = 100 can block both sides for ever with inserts of 32 and batches of 256. "
        "Set it to 256 or more."
    )
    stuck = RateLimiter(8.0, 1000, 100.0, inserted=1000)
    assert not stuck.may_insert(32)
    assert not stuck.may_sample(256)


def test_a_ratio_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=re.escape("[replay]: samples_per_insert = 0.0 and min_steps = 1000.")):
        open_rate_limiter(0.0, 1000, 1e9, insert_steps=1, batch_steps=1)


def test_nothing_is_sampled_before_the_least_number_of_steps():
    gate = open_rate_limiter(4.0, 100, 1000.0, insert_steps=10, batch_steps=64)
    gate.insert(90)
    assert not gate.may_sample(64)
    gate.insert(10)
    assert gate.may_sample(64)
    assert gate.flow() == {"inserted": 100, "sampled": 0, "owed": 0.0, "slack": 1000.0}


def test_the_module_shows_itself():
    shown = subprocess.run(
        [sys.executable, "-m", "sparring.replay.rate_limiter"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.count("insert") >= 12
