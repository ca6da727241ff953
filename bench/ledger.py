"""How a benchmark's result is written: the same JSON for every claim, with commit and machine beside it."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"


def case(  # noqa: PLR0913  (a claim has these parts)
    name: str,
    ours: float,
    unit: str,
    *,
    peers: Mapping[str, float] | None = None,
    limit: float | None = None,
    goals: Mapping[str, float] | None = None,
    less_is_better: bool = False,
    seeds: Sequence[int] = (),
    spread: tuple[float, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One figure beside its peers. A goal is a factor against a peer, or against "limit"."""
    peers = dict(peers or {})

    def factor(other: float) -> float:
        return other / ours if less_is_better else ours / other

    ratios = {peer: factor(figure) for peer, figure in peers.items()}
    if limit is not None:
        ratios["limit"] = factor(limit)
    against = {peer: ratios[peer] for peer in peers}
    return {
        "name": name,
        "ours": ours,
        "unit": unit,
        "peers": peers,
        "limit": limit,
        "ratio": min(against.values()) if against else ratios.get("limit"),
        "goals": dict(goals or {}),
        "passed": all(ratios[peer] >= wanted for peer, wanted in (goals or {}).items()),
        "seeds": list(seeds),
        "spread": spread,
        **more,
    }


def print_result(said: Mapping[str, Any]) -> int:
    """Print a benchmark's JSON; the exit code of its program."""
    print(json.dumps(said))
    return 0 if said["passed"] else 1


def result(name: str, cases: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """The benchmark's JSON: the worst case's fields on top, `passed` only if all did."""

    def margin(one: Mapping[str, Any]) -> float:
        return min((one["ratio"] or 0.0) / wanted for wanted in one["goals"].values()) if one["goals"] else float("inf")

    worst = min(cases, key=margin)
    top = {key: worst[key] for key in ("ours", "unit", "peers", "limit", "ratio", "goals", "seeds", "spread")}
    return {
        "name": name,
        "commit": commit(),
        "machine": machine(),
        "cases": list(cases),
        **top,
        "worst": worst["name"],
        "passed": all(one["passed"] for one in cases),
        **more,
    }


def keep(said: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write the result to bench/results/<name>.json, lists of numbers on one line each."""
    path = folder / f"{said['name'].replace('-', '_')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(said, indent=2)
    lines = re.sub(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]", lambda numbers: f"[{' '.join(numbers[1].split())}]", lines)
    path.write_text(lines + "\n")
    return path


def kept(name: str) -> dict[str, Any]:
    """The result that the last full run left; no cases where there was none."""
    path = RESULTS / f"{name.replace('-', '_')}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": []}
    return found


def commit() -> str:
    """The commit that was measured, with a + when files differ from it."""
    head = git("rev-parse", "--short", "HEAD")
    return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that was with others."""
    return {
        "system": platform.system(),
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
