"""What faults of one node, and of its link, cost the others. Needs root on Linux: ip, tc and cgroups.

    spar bench node-faults [--quick]

Four nodes learn CartPole by A3C, each in a network namespace of its own with 0.15 of a core. The first one is
killed (SIGKILL) every 10 s for 3 minutes and started again at once, is frozen for 30 s, loses its link for 20 s, loses
a tenth of its packets, and has 256 kbit/s, 30 s each. For each fault: contributions for each second of CPU of the other
three, as a share of what they had before; the median of the three nodes has to keep 90 %. After every fault the first
node has to contribute again. `left_over`: processes of killed nodes that lived on. Then the run stops, and its model
plays 100 episodes; runs of as many steps without faults and without quotas are the band for what it returns.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import ledger
from bench.node_runs import SPAR, NodeRun, answer, spar, wait_for

from sparring.nodes.board import Board

NODES, QUOTA, KEEPS, SEEDS = 4, 0.15, 0.9, (1, 2)
WHOLE_S = {"before": 60.0, "killed": 180.0, "frozen": 30.0, "link down": 20.0, "10 % loss": 30.0, "256 kbit/s": 30.0}
KILL_EVERY_S, PERIOD_US = 10.0, 100_000
PARENT = "10.77.19.1"  # an address of the loopback device, which the namespaces have a route to
LOSES_A_TENTH = "4,32 0 0 4294963256,37 1 0 429496729,6 0 0 2,6 0 0 4294967295,"  # by a random number of the kernel
CPU, CPU_COUNT = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuacct")


class QuotaNode:
    """A `spar node` in a namespace and a control group of its own."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self._folder = f"node{number}", folder
        self.link, self.space = f"sp{os.getpid()}n{number}", f"spar{os.getpid()}n{number}"
        self.ours, self._theirs = f"10.77.{20 + number}.1", f"10.77.{20 + number}.2"
        self._groups = [root / self.space for root in (CPU, CPU_COUNT)]
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @contextmanager
    def opened(self) -> Iterator["QuotaNode"]:
        """Its namespace with a link to here, and its control groups."""
        _ip("netns", "add", self.space)
        try:
            _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
            _ip("addr", "add", f"{self.ours}/24", "dev", self.link)
            _ip("link", "set", self.link, "up")
            for words in (
                ("addr", "add", f"{self._theirs}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("route", "add", PARENT, "via", self.ours),
            ):
                _ip("-n", self.space, *words)
            for group in self._groups:
                group.mkdir()
            (self._groups[0] / "cpu.cfs_quota_us").write_text(str(int(QUOTA * PERIOD_US)))
            yield self
        finally:
            self.kill()
            wait_for(lambda: not self.pids(), 30, f"{self.name} does not end")
            for group in self._groups:
                group.rmdir()
            _ip("netns", "del", self.space)

    def start(self) -> None:
        """Join the parent."""
        command = ("ip", "netns", "exec", self.space, *SPAR, "node", "--join", self.url, "--workers", "1")
        words = ("--name", self.name, "--data", str(self._folder / self.name), "--set", "nodes.reconnect_s=1")
        with (self._folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen([*command, *words], stdout=log, stderr=log, preexec_fn=self._enter)

    def kill(self) -> None:
        """SIGKILL for the node's own process; what it started has to notice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def pids(self) -> list[int]:
        return [int(line) for line in (self._groups[0] / "cgroup.procs").read_text().split()]

    def cpu_s(self) -> float:
        return int((self._groups[1] / "cpuacct.usage").read_text()) / 1e9

    def _enter(self) -> None:
        for group in self._groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _tc(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, capture_output=True)


class FaultyRun:
    """A run with four such nodes; the first one suffers."""

    def __init__(self, folder: Path, nodes: list[QuotaNode], parent: "subprocess.Popen[str]") -> None:
        self._board, self.nodes, self.parent = Board(folder / "data"), nodes, parent
        self.left_over = 0

    def merges(self) -> dict[str, int]:
        return {one.node: one.merges for state in self._board.parents() for one in state.nodes}

    def rates(self, seconds: float, during: Callable[[float], None] = time.sleep) -> list[float]:
        """Contributions of each of the others for each second of its CPU, while `during` lasts."""
        others = self.nodes[1:]
        merges, cpu_s = self.merges(), [node.cpu_s() for node in others]
        during(seconds)
        after = self.merges()
        return [
            (after[node.name] - merges[node.name]) / (node.cpu_s() - used_s)
            for node, used_s in zip(others, cpu_s, strict=True)
        ]

    def contributes_again(self) -> float:
        """Seconds until the first node contributed three times more."""
        began_s, before = time.monotonic(), self.merges().get(self.nodes[0].name, 0)
        wait_for(lambda: self.merges().get(self.nodes[0].name, 0) >= before + 3, 300, "it does not come back")
        return time.monotonic() - began_s

    def killed(self, seconds: float) -> None:
        victim, until = self.nodes[0], time.monotonic() + seconds
        while time.monotonic() < until:
            old = set(victim.pids())
            victim.kill()
            victim.start()
            time.sleep(min(KILL_EVERY_S, max(until - time.monotonic(), 0.1)))
            self.left_over += len(old & set(victim.pids()))

    def frozen(self, seconds: float) -> None:
        stopped = self.nodes[0].pids()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

    def cut(self, seconds: float) -> None:
        _ip("link", "set", self.nodes[0].link, "down")
        time.sleep(seconds)
        _ip("link", "set", self.nodes[0].link, "up")

    def lossy(self, seconds: float) -> None:
        link = self.nodes[0].link
        _tc("qdisc", "add", "dev", link, "clsact")
        for way in ("ingress", "egress"):
            _tc("filter", "add", "dev", link, way, "bpf", "da", "bytecode", LOSES_A_TENTH)
        time.sleep(seconds)
        _tc("qdisc", "del", "dev", link, "clsact")

    def slow(self, seconds: float) -> None:
        link = self.nodes[0].link
        _tc("qdisc", "add", "dev", link, "root", "tbf", *("rate", "256kbit", "burst", "4k", "latency", "400ms"))
        time.sleep(seconds)
        _tc("qdisc", "del", "dev", link, "root")


@contextmanager
def faulty_run(folder: Path) -> Iterator[FaultyRun]:
    """The parent, and the nodes, once each of them contributed."""
    words = ["cartpole", "--algo", "a3c", "--steps", str(1 << 40), "--seed", "1", "--no-promote", "--json"]
    words += ["--accept-nodes", f"{PARENT}:0", "--data", "data", "--set", "train.publish_every_s=1e9"]
    log = folder / "parent.log"
    with ExitStack() as stack:
        _ip("addr", "add", f"{PARENT}/32", "dev", "lo")
        stack.callback(_ip, "addr", "del", f"{PARENT}/32", "dev", "lo")
        nodes = [stack.enter_context(QuotaNode(number, folder).opened()) for number in range(NODES)]
        with log.open("w") as file:
            command = [*SPAR, "train", *words, "--set", "nodes.exchange_s=0.5"]
            parent = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=file, text=True)
        stack.callback(parent.wait)
        stack.callback(parent.terminate)
        wait_for(lambda: "wss://" in log.read_text() or parent.poll() is not None, 240, "the parent does not start")
        if (url := re.search(r"wss://[^' ]*", log.read_text())) is None:
            raise SystemExit(f"the parent did not start: {log.read_text()[-500:]}")
        for node in nodes:
            node.url = url[0]
            node.start()
        found = FaultyRun(folder, nodes, parent)
        wait_for(lambda: min([found.merges().get(node.name, 0) for node in nodes]) > 3, 300, "nodes did not join")
        yield found


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON."""
    lasts = {name: (seconds / 6 if args.quick else seconds) for name, seconds in WHOLE_S.items()}
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with faulty_run(folder) as one:
            faults = {"killed": one.killed, "frozen": one.frozen, "link down": one.cut}
            faults |= {"10 % loss": one.lossy, "256 kbit/s": one.slow}
            before = one.rates(lasts["before"])
            for fault, during in faults.items():
                rates = one.rates(lasts[fault], during)
                again_s = one.contributes_again()
                kept = statistics.median(rate / usual for rate, usual in zip(rates, before, strict=True))
                print(f"node-faults: {fault}: {kept:.3f}, again after {again_s:.1f} s", file=sys.stderr, flush=True)
                about = (
                    f"one of four nodes, {fault} for {lasts[fault]:.0f} s: contributions per CPU second of the others"
                )
                goals = {} if args.quick else {"before": KEEPS}
                cases.append(ledger.case(about, kept, "share", peers={"before": 1.0}, goals=goals, again_s=again_s))
            left_over = one.left_over
            one.parent.send_signal(signal.SIGINT)
            said, _ = one.parent.communicate(timeout=300)
            trained = answer(said)
        played = spar(folder, "evaluate", trained["model"], "--episodes", "100")["return_mean"]
    steps = trained["env_steps"]
    free = [NodeRun("cartpole", "a3c", steps, nodes=NODES, exchange_s=0.5).measured(seed)["return"]
            for seed in SEEDS[: 1 if args.quick else None]]  # fmt: skip
    case = ledger.case(
        f"greedy return after {steps:,} steps with all these faults", played, "return",
        peers={"without faults": min(free)}, goals={} if args.quick else {"without faults": 1.0},
        without_faults=free, left_over=left_over,
    )  # fmt: skip
    return ledger.result("node_faults", [*cases, case])
