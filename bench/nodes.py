"""Nodes: what runs with them reach, what a hostile one does to them, and how many one parent serves.

    spar bench nodes [--quick] [--seeds S,S,…] [--plot FILE]

Learning: LunarLander-v3 with two node processes of two workers each, at most 4 million steps and 2,000 merges, as the
mean of 500 greedy episodes; beside it the setting of "A4C" (A3C, elastic(0.9, 0)), which reported 257.2 ± 39.9, and A3C
on one machine, which it reported as 255.9 ± 36.9. Hostile: five nodes learn CartPole by A3C, one of them sends what it
learned with the other sign, merged by median and by average. Swarm: nodes without torch that contribute as fast as the
parent answers; merges and bytes for each second of the parent's CPU, and what 1,000 nodes would need of it; and bytes
at the parent with and without a relay. --plot draws what the episodes of each seed returned. Quick: one seed, CartPole
in place of LunarLander, 8 nodes in the swarm.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench import ledger
from bench.node_runs import NodeRun, listening

from sparring.config import Config, NodesConfig
from sparring.gateway.connections import bound
from sparring.learn.plan import TrainRequest, plan
from sparring.nodes.board import Board
from sparring.nodes.link import Address, Door, Tokens, server_tls
from sparring.nodes.merge_rules import Merger, read_rule
from sparring.nodes.messages import Job, Terms, terms_of
from sparring.nodes.sessions import NodeSessions

REPORTED, REPORTED_ALONE, MOST_SD, MOST_MERGES = 257.2, 255.9, 40.0, 2_000
SEEDS, SWARM_S, LARGE_SWARM, EXCHANGE_S = (1, 2, 3, 4, 5), 20.0, 1_000, 2.0
LUNAR = NodeRun("gym:LunarLander-v3", "ppo", 3_900_000, workers=2, exchange_s=2.0, episodes=500)
QUICK = NodeRun("cartpole", "a3c", 150_000, exchange_s=0.3, episodes=50)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    seeds = args.seeds or (SEEDS[:1] if args.quick else SEEDS)
    ours = QUICK if args.quick else LUNAR
    original = NodeRun(ours.game, "a3c", ours.steps, "elastic(0.9, 0)", workers=ours.workers, episodes=ours.episodes)
    alone = replace(original, nodes=0)
    goals = {} if args.quick else {"A4C reported": 1.0}
    peers = {} if args.quick else {"A4C reported": REPORTED}
    peers_alone = {"A4C reported, one machine": REPORTED_ALONE}
    cases = [
        _learned(f"{ours.game}, two nodes, {ours.algo}, {ours.merge}", ours, seeds, peers, goals),
        _learned(f"{ours.game}, two nodes, a3c, elastic(0.9, 0)", original, seeds, peers, {}),
        _learned(f"{ours.game}, one machine, a3c", alone, seeds, {} if args.quick else peers_alone, {}),
        *_hostile(seeds, args.quick),
        _swarm(8 if args.quick else 50),
        _relayed(8 if args.quick else 50),
    ]
    return ledger.result("nodes", cases, seeds=list(seeds))


def _learned(name: str, one: NodeRun, seeds: tuple[int, ...], peers: Any, goals: Any) -> dict[str, Any]:
    runs = []
    for seed in seeds:
        runs.append(one.measured(seed))
        told = ", ".join(f"{key} {value:g}" for key, value in runs[-1].items() if key != "returns")
        print(f"nodes: {name}, seed {seed}: {told}", file=sys.stderr, flush=True)
    returns = [each["return"] for each in runs]
    case = ledger.case(
        name, statistics.median(returns), "return", peers=peers, goals=goals, seeds=seeds, runs=runs,
        spread=(min(returns), max(returns)),
    )  # fmt: skip
    if goals:  # the deviation and the merges are part of the goal
        kept = statistics.median(each["sd"] for each in runs) <= MOST_SD
        case["passed"] = case["passed"] and kept and max(each["merges"] for each in runs) <= MOST_MERGES
    return case


def plot(said: dict[str, Any], path: Path) -> None:
    """What the greedy episodes of each seed returned: half of them lie in the box, nine tenths between the whiskers."""
    from matplotlib.figure import Figure

    cases = [case for case in said["cases"] if "runs" in case]
    figure = Figure(figsize=(5 * len(cases), 4), layout="constrained")
    for axis, case in zip(figure.subplots(1, len(cases), sharey=True, squeeze=False)[0], cases, strict=True):
        names = [f"{seed}\n{one['seconds']:.0f} s" for seed, one in zip(said["seeds"], case["runs"], strict=True)]
        axis.boxplot([one["returns"] for one in case["runs"]], tick_labels=names, whis=(5, 95), sym="")
        for peer, figure_of in case["peers"].items():
            axis.axhline(figure_of, linestyle="--", label=f"{peer} {figure_of:g}")
        axis.set(title=case["name"], xlabel="seed, and how long it learned", ylabel="return of an episode")
        if case["peers"]:
            axis.legend(loc="lower right")
    figure.savefig(path, dpi=100)


def _hostile(seeds: tuple[int, ...], quick: bool) -> list[dict[str, Any]]:
    cases = []
    for attack in ("flip",) if quick else ("flip", "drift"):
        found = {}
        for merge in ("median", "average"):
            one = NodeRun("cartpole", "a3c", 400_000, merge, nodes=4, hostile=attack, exchange_s=0.3, episodes=50)
            runs = [one.measured(seed) for seed in seeds]
            found[merge] = statistics.median(each["return"] for each in runs)
            told = ", ".join(f"{each['return']:.0f}" for each in runs)
            print(f"nodes: one of five hostile ({attack}), {merge}: {told}", file=sys.stderr, flush=True)
        name = f"cartpole, one of five nodes hostile ({attack}), median"
        goals = {} if quick else {"solved": 1.0}
        peers = {"average": found["average"], "solved": 475.0}
        cases.append(ledger.case(name, found["median"], "return", peers=peers, goals=goals, seeds=seeds))
    return cases


@contextmanager
def _swarming(count: int, merge: str, *, relayed: bool = False) -> Iterator[tuple[NodeSessions, Terms]]:
    """A parent, and nodes that contribute as fast as it answers, once all of them did; behind a relay or not."""
    made = plan(TrainRequest("cartpole", "a3c"), Config())
    network = made.algorithm.begin(made.spec, made.settings, 0).network
    terms = terms_of(made.spec, network, "int8-delta", merge)
    config = NodesConfig(merge=merge, codec="int8-delta", max_staleness=1_000)
    merger = Merger(read_rule(merge), np.zeros(terms.byte_length // 4, np.float32))
    with tempfile.TemporaryDirectory() as name, bound("127.0.0.1", 0) as listen, ExitStack() as stack:
        folder = Path(name)
        tokens, (tls, mark) = Tokens(folder / "nodes"), server_tls(folder / "nodes", "127.0.0.1", "", "")
        url = str(Address("127.0.0.1", listen.getsockname()[1], tokens.read(), True, mark))
        job = Job("swarm", "cartpole", terms, {"algo": "a3c"}, 0, 0.01, 1_000)
        sessions = NodeSessions(lambda number: job, merger, config, Board(folder))
        sessions.start([], Door(listen, tls, tokens.holder))
        stack.callback(sessions.stop)
        if relayed:
            url = stack.enter_context(listening(folder, 0, 1, relay=url))
        command, root = [sys.executable, "-m", "bench.node_swarm", url], Path(__file__).parents[1]
        for number in range(count):
            process = subprocess.Popen([*command, f"swarm{number}"], cwd=root)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        until = time.monotonic() + 300
        while sum(one.merges > 0 for one in tuple(sessions.states.values())) < count:
            if time.monotonic() > until:
                raise SystemExit(f"{count} nodes did not join")
            time.sleep(0.1)
        yield sessions, terms


def _relayed(count: int) -> dict[str, Any]:
    """Bytes at the parent for each contribution, merged in rounds, with and without a relay in front of all nodes."""
    found = {}
    for relayed in (False, True):
        with _swarming(count, "average", relayed=relayed) as (sessions, _):
            before = (sessions.merger.merged, _moved(sessions))
            time.sleep(SWARM_S)
            merged, moved = (
                after - b for after, b in zip((sessions.merger.merged, _moved(sessions)), before, strict=True)
            )
            found[relayed] = moved / merged
    name = f"{count} nodes behind a relay: bytes at the parent for each contribution"
    return ledger.case(name, found[True], "bytes", less_is_better=True, without_a_relay=found[False])


def _swarm(count: int) -> dict[str, Any]:
    """Merges for each second of the parent's CPU, with nodes that contribute as fast as it answers."""
    with _swarming(count, "gradient") as (sessions, terms):
        return _measured_swarm(sessions, count, terms.byte_length)


def _measured_swarm(sessions: NodeSessions, count: int, whole_bytes: int) -> dict[str, Any]:
    merger = sessions.merger
    started = (time.monotonic(), time.process_time(), merger.merged, _moved(sessions))
    time.sleep(SWARM_S)
    seconds, cpu_s, merged, moved = (
        after - before
        for after, before in zip(
            (time.monotonic(), time.process_time(), merger.merged, _moved(sessions)), started, strict=True
        )
    )
    per_cpu_s = merged / cpu_s
    rate = LARGE_SWARM / EXCHANGE_S
    needs = {"exchange_s": EXCHANGE_S, "cpu_share": rate / per_cpu_s, "bytes_per_s": rate * moved / merged}
    needs["bases_bytes"] = float(LARGE_SWARM * whole_bytes)
    return ledger.case(
        f"{count} nodes on one parent: merges for each second of its CPU", per_cpu_s, "merges/s",
        merges_per_s=merged / seconds, bytes_per_s=moved / seconds, cpu_share=cpu_s / seconds, for_1000_nodes=needs,
    )  # fmt: skip


def _moved(sessions: NodeSessions) -> int:
    sessions.described()  # counts what went beside nodes' own messages
    return sum(one.received_bytes + one.sent_bytes for one in sessions.states.values())
