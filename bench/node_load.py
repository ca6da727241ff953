"""How many nodes one parent serves: merges and bytes for each second of its CPU, and what a relay saves.

    spar bench node-load [--quick]

Nodes of CartPole's network without torch (bench/node_swarm.py) contribute as fast as the parent answers. From what that
costs follows what 1,000 nodes that contribute every 2 s would need. Then bytes at the parent with and without a relay
in front of all nodes. Quick: 8 nodes in place of 50.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench import ledger
from bench.node_runs import listening

from sparring.config import Config, NodesConfig
from sparring.gateway.connections import bound
from sparring.learn.plan import TrainRequest, plan
from sparring.nodes.board import Board
from sparring.nodes.link import Address, Door, Tokens, server_tls
from sparring.nodes.merge_rules import Merger, read_rule
from sparring.nodes.messages import Job, Terms, terms_of
from sparring.nodes.sessions import NodeSessions

NODES, QUICK_NODES, SWARM_S, LARGE_SWARM, EXCHANGE_S = 50, 8, 20.0, 1_000, 2.0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    count = QUICK_NODES if args.quick else NODES
    return ledger.result("node_load", [_swarm(count), _relayed(count)])


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
