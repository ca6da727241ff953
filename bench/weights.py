"""Codecs of weights: bytes of an exchange, the time to encode them, and the return that runs reach with each.

    spar bench weights [--quick] [--seeds S,S,…]

Bytes: of all that two nodes and their parent exchange in a run, for each contribution, TLS and TCP left out. Time: to
encode the update of a network with 128 hidden units in LunarLander. Return: CartPole by A3C with two nodes, the median
of the seeds for f32, int8-delta and topk, one seed for the others; topk passes where that is not below the worst seed
of f32. Quick: one seed, those three codecs.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
from bench import ledger
from bench.node_runs import NodeRun

from sparring.nodes.codecs import CODECS, Codec, Layout

SEEDS, JUDGED, SMALL = (1, 2, 3, 4, 5), ("f32", "int8-delta", "topk"), 8.0
LUNAR = Layout((("trunk/0/weight", (128, 8)), ("trunk/0/bias", (128,)), ("value_trunk/0/weight", (128, 8)),
                ("value_trunk/0/bias", (128,)), ("logits/weight", (4, 128)), ("logits/bias", (4,)),
                ("value/weight", (1, 128)), ("value/bias", (1,))))  # fmt: skip


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    seeds = args.seeds or (SEEDS[:1] if args.quick else SEEDS)
    codecs = JUDGED if args.quick else tuple(CODECS)
    steps = 150_000 if args.quick else 400_000
    found: dict[str, list[dict[str, Any]]] = {}
    for codec in codecs:
        one = NodeRun("cartpole", "a3c", steps, codec=codec, exchange_s=0.1, episodes=100)
        found[codec] = [one.measured(seed) for seed in (seeds if codec in JUDGED else seeds[:1])]
        print(f"weights: {codec}: returns {[each['return'] for each in found[codec]]}", file=sys.stderr, flush=True)
    whole = _bytes(found["f32"])
    returns = {codec: [each["return"] for each in runs] for codec, runs in found.items()}
    cases = []
    for codec in codecs:
        encode_us, decode_us = _times(codec)
        middle = statistics.median(returns[codec])
        is_small = codec == "topk"
        case = ledger.case(
            f"{codec}: bytes of an exchange", _bytes(found[codec]), "bytes", peers={"f32": whole},
            goals={"f32": SMALL} if is_small and not args.quick else {}, less_is_better=True,
            seeds=seeds[: len(returns[codec])],
            return_median=middle, returns=returns[codec], encode_us=encode_us, decode_us=decode_us,
        )  # fmt: skip
        if case["goals"]:
            case["passed"] = case["passed"] and middle >= min(returns["f32"])
        cases.append(case)
    return ledger.result("weights", cases, seeds=list(seeds))


def _bytes(runs: list[dict[str, Any]]) -> float:
    return statistics.median(each["node_bytes"] / max(1, each["merges"]) for each in runs)


def _times(name: str) -> tuple[float, float]:
    """Microseconds to encode, and to decode, the median of 200."""
    codec, rng = Codec(name, LUNAR), np.random.default_rng(0)
    base = rng.normal(size=LUNAR.size).astype(np.float32)
    weights = base + (0.01 * rng.normal(size=LUNAR.size)).astype(np.float32)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(200):
        began = time.perf_counter()
        payload = codec.encode(weights, base)
        times[0].append(time.perf_counter() - began)
        began = time.perf_counter()
        codec.decode(payload, base)
        times[1].append(time.perf_counter() - began)
    return statistics.median(times[0]) * 1e6, statistics.median(times[1]) * 1e6
