"""Our Connect Four between two networks, as a match plays it. Prints JSON.

python bench/peers/matches_ours.py WEIGHTS BATCH GAMES SEED

BATCH is not used: `evaluate` chooses how many games it plays at once.
"""

import json
import sys
import time
from pathlib import Path

from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.matches import NETWORK

from sparring.acting.evaluate import evaluate
from sparring.nets.forward import forward_for_matches

weights, (_, games, seed) = load_file(sys.argv[1]), map(int, sys.argv[2:5])
players = [forward_for_matches(NETWORK, weights) for _ in range(2)]
evaluate("connect-four", players[0], episodes=8, seed=seed, against=players[1])
print("ready", flush=True)
sys.stdin.readline()
begun, cpu = time.perf_counter(), time.process_time()
played = evaluate("connect-four", players[0], episodes=games, seed=seed, against=players[1])
took = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
score = [played.wins, played.draws, played.losses]
print(json.dumps({**took, "games": games, "ticks": played.ticks, "score": score}), flush=True)
