"""TorchRL's prioritised buffer in the loop of bench/replay.py; run by its own environment. Prints seconds per loop.

python bench/peers/replay_torchrl.py ROWS LOOPS
"""

import json
import sys
import time

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

ADD, BATCH = 32, 256
rows, loops = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
buffer = TensorDictPrioritizedReplayBuffer(
    alpha=0.6, beta=0.4, storage=LazyTensorStorage(rows), batch_size=BATCH, priority_key="error"
)


def steps(count):
    return TensorDict(
        {
            "observation": torch.rand(count, 4),
            "action": torch.zeros(count, dtype=torch.int32),
            "reward": torch.zeros(count),
            "next_observation": torch.rand(count, 4),
            "done": torch.zeros(count, dtype=torch.bool),
        },
        batch_size=[count],
    )


for _ in range(rows // 10_000):
    buffer.extend(steps(10_000))
added, errors, took = steps(ADD), torch.rand(loops, BATCH), []
for turn in range(loops):
    begun = time.perf_counter()
    buffer.extend(added)
    batch = buffer.sample()
    batch["error"] = errors[turn]
    buffer.update_tensordict_priority(batch)
    took.append(time.perf_counter() - begun)
print(json.dumps(took))
