"""Games of Connect Four between two members of a league with one fixed network, on two cores.

    spar bench matches [--quick]

The network is 84-256-256-7 with ReLU and random weights, the same for both sides. A game is played as a match plays it:
each side's first three moves are drawn, then both take their best legal action; half of the games from each side. Ours
is `evaluate`, which plays a match, in two processes. The peer is PettingZoo's connect_four_v3 in a loop with torch that
asks each network once for all boards (bench/peers/matches_pettingzoo.py), in two processes with a thread each; with
64, 256 and 1,024 boards at once, of which the best counts, by either clock. Both are measured in turns, so that they
meet the same machine; a figure is the median of its turns (3 for each number of boards, quick 2). `per_cpu_s` are games
per second of CPU time of both, which others on the machine disturb less, and `ratio_of_cpu_time` compares them.
`ticks_per_game` shows that both play games of one length.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import ledger
from safetensors.numpy import save_file

from sparring.nets.torch_network import Network
from sparring.wire.network import Dense, Head, Input, NetworkSpec

NETWORK = NetworkSpec(
    inputs=(Input(name="observation/board", shape=(2, 6, 7), dtype="uint8"),),
    heads=(Head("logits", 7),),
    trunk=(Dense(256, "relu"), Dense(256, "relu")),
)
PEER, GOAL = "PettingZoo 1.27.0 and torch", 20.0
PROCESSES, BOARDS = 2, (64, 256, 1024)
GAMES = {"ours": 60_000, "pettingzoo": 2_000}  # of each process; quick a tenth


def turn(who: str, weights: Path, boards: int, games: int, seed: int) -> dict[str, float]:
    """Both processes at once, ready before the clock starts: games per second, and per second of CPU time."""
    script = ledger.ROOT / "bench" / "peers" / f"matches_{who}.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, str(script), str(weights), str(boards), str(games)]
    processes = [
        subprocess.Popen([*words, str(seed + one)], env=environment, text=True, stdin=-1, stdout=-1)
        for one in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{script} does not start")
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        answers.append(json.loads(process.communicate()[0].splitlines()[-1]))
    played = sum(one["games"] for one in answers)
    return {
        "per_s": played / max(one["seconds"] for one in answers),
        "per_cpu_s": played / sum(one["cpu_s"] for one in answers),
        "ticks_per_game": sum(one["ticks"] for one in answers) / played,
    }


def median(turns: list[dict[str, float]], what: str) -> float:
    return round(statistics.median(one[what] for one in turns), 1)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` plays fewer games."""
    rounds, part = (2, 10) if args.quick else (3, 1)
    ours: list[dict[str, float]] = []
    peers: dict[int, list[dict[str, float]]] = {boards: [] for boards in BOARDS}
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        save_file(Network(NETWORK, 0).weights(), weights)
        for number in range(rounds):
            for boards in BOARDS:
                ours.append(turn("ours", weights, boards, GAMES["ours"] // part, 10 * number))
                peers[boards].append(turn("pettingzoo", weights, boards, GAMES["pettingzoo"] // part, 10 * number))
    best, by_cpu = (max(BOARDS, key=lambda one: median(peers[one], what)) for what in ("per_s", "per_cpu_s"))
    found = {"ours": ours, PEER: peers[by_cpu]}
    per_s = [one["per_s"] for one in ours]
    case = ledger.case(
        f"Connect Four, 84-256-256-7 against itself, {PROCESSES} processes (peer: {best} boards at once)",
        median(ours, "per_s"),
        "games/s",
        peers={PEER: median(peers[best], "per_s")},
        goals={PEER: GOAL},
        ratio_of_cpu_time=round(median(ours, "per_cpu_s") / median(peers[by_cpu], "per_cpu_s"), 2),
        seeds=[10 * number for number in range(rounds)],
        spread=(round(min(per_s), 1), round(max(per_s), 1)),
        per_cpu_s={who: median(turns, "per_cpu_s") for who, turns in found.items()},
        ticks_per_game={who: median(turns, "ticks_per_game") for who, turns in found.items()},
        boards={str(boards): median(turns, "per_s") for boards, turns in peers.items()},
        boards_per_cpu_s={str(boards): median(turns, "per_cpu_s") for boards, turns in peers.items()},
    )
    return ledger.result("matches", [case])


if __name__ == "__main__":
    print(json.dumps(run(argparse.Namespace(quick="--quick" in sys.argv)), indent=2, ensure_ascii=False))
