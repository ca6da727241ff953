"""Reverb's server in one process, its client in another; run by its own environment. Prints a JSON object.

    python bench/peers/replay_reverb.py ROWS ROUNDS

Single inserts/s (client.insert of one step each), steps/s as trajectories of 100 (trajectory_writer, one item for
each), sampled items/s (client.sample, which prefetches), each in ROUNDS rounds that are reported one by one.
"""

import json
import subprocess
import sys
import time

import numpy as np
import reverb

INSERTS, EPISODES, LENGTH, SAMPLES = 4_000, 100, 100, 20_000


def serve(rows):
    """Until the end of standard input."""
    tables = [
        reverb.Table(
            name=name,
            sampler=reverb.selectors.Prioritized(0.6),
            remover=reverb.selectors.Fifo(),
            max_size=rows,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        for name in ("steps", "trajectories")
    ]
    server = reverb.Server(tables=tables)
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()


def step(rng):
    return {
        "observation": rng.random(4, np.float32),
        "action": np.int32(0),
        "reward": np.float32(0.0),
        "next_observation": rng.random(4, np.float32),
        "done": np.uint8(0),
    }


def single(client, made):
    begun = time.perf_counter()
    for turn in range(INSERTS):
        client.insert(made[turn % len(made)], priorities={"steps": 1.0})
    return INSERTS / (time.perf_counter() - begun)


def trajectories(client, made):
    begun = time.perf_counter()
    with client.trajectory_writer(num_keep_alive_refs=LENGTH) as writer:
        for _ in range(EPISODES):
            for place in range(LENGTH):
                writer.append(made[place % len(made)])
            history = {name: column[-LENGTH:] for name, column in writer.history.items()}
            writer.create_item("trajectories", priority=1.0, trajectory=history)
            writer.end_episode()
        writer.flush()
    return EPISODES * LENGTH / (time.perf_counter() - begun)


def sampled(client):
    begun, count = time.perf_counter(), 0
    for _ in client.sample("steps", num_samples=SAMPLES):
        count += 1
    return count / (time.perf_counter() - begun)


def main(rows, rounds):
    server = subprocess.Popen(
        [sys.executable, __file__, str(rows), "0", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        client = reverb.Client(f"localhost:{server.stdout.readline().strip()}")
        rng = np.random.default_rng(0)
        made = [step(rng) for _ in range(64)]
        found = {"inserts": [], "trajectory_steps": [], "samples": []}
        for _ in range(rounds):
            found["inserts"].append(single(client, made))
            found["trajectory_steps"].append(trajectories(client, made))
            found["samples"].append(sampled(client))
        print(json.dumps(found))
    finally:
        server.stdin.close()
        server.wait(20)


if __name__ == "__main__":
    if sys.argv[3:] == ["serve"]:
        serve(int(sys.argv[1]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
