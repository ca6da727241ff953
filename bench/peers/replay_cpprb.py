"""cpprb's prioritised buffer in the loop of bench/replay.py; run by its own environment. Prints seconds per loop.

python bench/peers/replay_cpprb.py ROWS LOOPS
"""

import json
import sys
import time

import numpy as np
from cpprb import PrioritizedReplayBuffer

ADD, BATCH = 32, 256
rows, loops = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
buffer = PrioritizedReplayBuffer(
    rows,
    {
        "obs": {"shape": 4, "dtype": np.float32},
        "act": {"dtype": np.int32},
        "rew": {"dtype": np.float32},
        "next_obs": {"shape": 4, "dtype": np.float32},
        "done": {"dtype": np.uint8},
    },
    alpha=0.6,
)


def steps(count):
    seen = rng.random((count, 4), np.float32)
    zeros = np.zeros(count, np.float32)
    return {"obs": seen, "act": zeros.astype(np.int32), "rew": zeros, "next_obs": seen, "done": zeros.astype(np.uint8)}


for _ in range(rows // 10_000):
    buffer.add(**steps(10_000))
added, errors, took = steps(ADD), rng.random((loops, BATCH), np.float32), []
for turn in range(loops):
    begun = time.perf_counter()
    buffer.add(**added)
    batch = buffer.sample(BATCH, beta=0.4)
    buffer.update_priorities(batch["indexes"], errors[turn])
    took.append(time.perf_counter() - begun)
print(json.dumps(took))
