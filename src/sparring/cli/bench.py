"""Run a benchmark of the repository's bench/ folder: every claim in the docs is one of them.

Each measures its peers in the same run and says whether its goals hold; the result is also kept in
bench/results/NAME.json (quick ones in bench/results/quick/), from which `make docs` writes docs/benchmarks.md. `all`
runs every one. Example: spar bench replay --quick
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from sparring.cli.output import Output
from sparring.errors import ConfigError, Missing

ROOT = Path(__file__).parents[3]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a file of bench/, or all")
    parser.add_argument(
        "--seeds", type=_seeds, default=(), metavar="S,S,…", help="where it learns; by default drawn from the commit"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the result, .png or .svg, where it has a picture"
    )
    parser.add_argument(
        "--game", default="", metavar="TEXT", help="only games whose id contains it; others keep their figures (mappo)"
    )
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures are rougher")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    folder = ROOT / "bench"
    if not folder.is_dir():
        do = "Clone the repository and run it there"
        raise ConfigError("benchmarks are not part of the installed package", where="spar bench", do=do)
    known = names(folder)
    if args.name != "all" and args.name.replace("_", "-") not in known:
        raise Missing(f"there is no benchmark {args.name!r}", where="bench/", do=f"Choose from {', '.join(known)}")
    sys.path.insert(0, str(ROOT))
    if args.plot is not None and (args.name == "all" or not hasattr(_module(args.name), "plot")):
        raise ConfigError(f"{args.name} has no picture", where="spar bench", do="Leave --plot out")
    if args.game and (args.name == "all" or not hasattr(_module(args.name), "tasks_of")):
        raise ConfigError(f"{args.name} does not choose among games", where="spar bench", do="Leave --game out")
    results = [_measure(name, args, output) for name in (known if args.name == "all" else [args.name])]
    failed = [one["name"] for one in results if not one.get("passed", True)]
    if failed:
        output.say(f"goals not met: {', '.join(failed)}")
    said = results[0] if args.name != "all" else {"name": "all", "results": results, "passed": not failed}
    return {**said, "exit_code": 1 if failed else 0}


def names(folder: Path) -> list[str]:
    """Files that have a `run`, with hyphens; the others are what they share."""
    return sorted(path.stem.replace("_", "-") for path in folder.glob("*.py") if "\ndef run(" in path.read_text())


def _measure(name: str, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    output.progress(f"{name} …")
    module = _module(name)
    said: dict[str, Any] = module.run(args)
    kept = ROOT / "bench" / "results" / ("quick" if args.quick else "")  # the docs show full results only
    importlib.import_module("bench.ledger").keep(said, kept)
    if args.plot is not None:
        module.plot(said, args.plot)
        output.say(f"drew {args.plot}")
    for case in said.get("cases", []):
        peers = ", ".join(f"{peer} {figure:,.4g}" for peer, figure in case["peers"].items())
        ratio = f", {case['ratio']:.2f}x" if case.get("ratio") else ""
        verdict = "" if not case["goals"] else ", goal met" if case["passed"] else ", GOAL NOT MET"
        output.say(f"{name}: {case['name']}: {case['ours']:,.4g} {case['unit']} ({peers}{ratio}{verdict})")
    return said


def _module(name: str) -> Any:
    return importlib.import_module(f"bench.{name.replace('-', '_')}")


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
