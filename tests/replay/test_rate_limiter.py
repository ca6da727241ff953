"""The rate limiter: it holds the ratio, never blocks both sides, and refuses settings that could."""

import re
import subprocess
import sys

import numpy as np
import pytest

from sparring.errors import ConfigError
from sparring.replay.rate_limiter import RateLimiter, open_rate_limiter


@pytest.mark.parametrize("seed", range(60))
def test_settings_that_pass_never_block_both_sides(seed):
    rng = np.random.default_rng(seed)
    ratio = float(np.exp(rng.uniform(-3, 5)))
    insert, batch = int(rng.integers(1, 300)), int(rng.integers(1, 600))
    slack = (ratio * insert + batch) / 2 * float(rng.choice([1.0, 1.0, rng.uniform(1, 10)]))
    limiter = open_rate_limiter(ratio, int(rng.integers(1, 2000)), slack, insert_steps=insert, batch_steps=batch)
    for _ in range(1000):
        may_insert, may_sample = limiter.may_insert(insert), limiter.may_sample(batch)
        assert may_insert or may_sample
        if may_insert and (not may_sample or rng.random() < 0.5):
            limiter.insert(insert)
        else:
            limiter.sample(batch)
    if limiter.inserted > limiter.min_steps:
        assert abs(limiter.owed()) <= slack + ratio * insert + batch + 1e-6


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
    limiter = open_rate_limiter(4.0, 100, 1000.0, insert_steps=10, batch_steps=64)
    limiter.insert(90)
    assert not limiter.may_sample(64)
    limiter.insert(10)
    assert limiter.may_sample(64)
    assert limiter.flow() == {"inserted": 100, "sampled": 0, "owed": 0.0, "slack": 1000.0}


def test_the_module_shows_itself():
    shown = subprocess.run(
        [sys.executable, "-m", "sparring.replay.rate_limiter"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.count("insert") >= 12
