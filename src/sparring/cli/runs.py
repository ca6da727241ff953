"""List, show, compare and delete training runs of this data folder.

list · show RUN · compare RUN RUN … · delete RUN …. RUN is a run's name, or a beginning or end of it that only one run
has. `show` and `compare` draw learning curves into --plot FILE. `compare` shows the settings that differ, and the
steps and seconds until the mean return of the last 100 episodes reached --target, by default the highest return that
all of these runs reached. `delete` removes a run's folder and never its models. In the tables `return` is that mean,
exploration included, and `evaluated` what the run's last model earned in the gate's games.
Example: spar runs compare 44ca 5aee
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sparring.acting.return_histogram import check_format, save_picture
from sparring.cli.output import Output, plain_text, utc_minute
from sparring.errors import ConfigError, Missing, Refused, SparringError
from sparring.learn.runs.summary import (
    RunSummary,
    draw_curves,
    find_run,
    last_line,
    list_runs,
    metrics_columns,
    reached,
    read_run,
)
from sparring.registry import open_registry
from sparring.registry.protocol import ListedModel
from sparring.wire.ids import GameId

STATES = ("starting", "running", "done", "stopped", "failed", "died")
SORTS = ("when", "evaluated", "return", "steps", "seconds")
COLUMNS = ("run", "game", "algo", "seed", "state", "steps", "updates", "return", "evaluated", "seconds")

Row = dict[str, Any]  # a RunSummary, and `evidence` and `lineage` of the model that it published last


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", *ACTIONS])
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's name, or a beginning or end of it")
    parser.add_argument("--game", metavar="GAME", help="list: runs of this game only")
    parser.add_argument("--algo", metavar="NAME", help="list: runs of this algorithm only")
    parser.add_argument("--state", choices=STATES, help="list: runs in this state only; died: its process is gone")
    parser.add_argument("--sort", choices=SORTS, default="when", help="list: the newest or the highest first (when)")
    parser.add_argument("--target", type=float, metavar="RETURN", help="compare: steps and seconds to this return")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="show, compare: draw learning curves (.png, .svg, .pdf)"
    )
    parser.add_argument("--yes", action="store_true", help="delete: without asking")


def run(args: argparse.Namespace, output: Output) -> dict[str, Any]:
    folder = Path(args.config.data) / "runs"
    if args.plot is not None:
        check_format(args.plot, "--plot")
    if args.action == "list" and not args.runs:
        return _list(folder, args, output)
    found = list(dict.fromkeys(find_run(folder, text) for text in args.runs)) if args.action != "list" else []
    if len(found) < {"compare": 2}.get(args.action, 1) or (args.action == "show" and len(found) > 1):
        words = {"list": "--game GAME", "show": "RUN", "compare": "RUN RUN …", "delete": "RUN …"}[args.action]
        wrong = f"runs that are named: {len(set(args.runs))}"
        raise ConfigError(wrong, where=f"spar runs {args.action}", do=f"Write: spar runs {args.action} {words}")
    return ACTIONS[args.action](found, args, output)


def _list(folder: Path, args: argparse.Namespace, output: Output) -> dict[str, Any]:
    wanted = {name: value for name in ("game", "algo", "state") if (value := getattr(args, name)) is not None}
    found = [one for one in list_runs(folder) if all(getattr(one, name) == value for name, value in wanted.items())]
    rows = _rows(found, args, output)
    if args.sort != "when":
        rows.sort(key=lambda row: -np.inf if (value := _sorted_by(row, args.sort)) is None else value, reverse=True)
    if not rows:
        such = "".join(f", {name} {value}" for name, value in wanted.items())
        output.say(f"no runs in {folder}{such}; `spar train GAME` starts one")
    else:
        ends = [(utc_minute(row["started_at_ms"]), (row["model"] or "")[:12]) for row in rows]
        output.table((*COLUMNS, "started", "model"), [_cells(row) + end for row, end in zip(rows, ends, strict=True)])
    return {"runs": rows}


def _rows(runs: list[RunSummary], args: argparse.Namespace, output: Output) -> list[Row]:
    """Each run with what the registry says of its model."""
    models: dict[str, ListedModel] = {}
    if games := {GameId(one.game) for one in runs if one.model is not None}:
        try:
            with open_registry(args.config.registry_url) as registry:
                models = {item.card.id: item for game in sorted(games) for item in registry.models(game)}
        except SparringError as error:  # the runs are shown all the same
            output.say(f"no evaluations: {error}")
    return [msgspec.to_builtins(one) | _about(models.get(one.model or "")) for one in runs]


def _about(model: ListedModel | None) -> Row:
    """What it earned, what it learned from, and the models that it was made from."""
    if model is None:
        return {"evidence": None, "lineage": None}
    lineage = {name: getattr(model.card.lineage, name) for name in ("steps", "parents", "store_until_ms")}
    return {"evidence": msgspec.to_builtins(model.evidence), "lineage": lineage}


def _sorted_by(row: Row, sort: str) -> float | None:
    if sort == "evaluated":
        row = row["evidence"] or {"mean": None}
    value: float | None = row[{"evaluated": "mean", "return": "return_mean", "steps": "env_steps"}.get(sort, sort)]
    return value


def _cells(row: Row) -> tuple[object, ...]:
    score = row["evidence"] and f"{row['evidence']['mean']:.4g} ± {row['evidence']['sd']:.3g}"
    first = (row["run"], row["game"], row["algo"], plain_text(row["seed"]), row["state"])
    return (*first, row["env_steps"], row["updates"], _short(row["return_mean"]), score or "", f"{row['seconds']:.1f}")


def _show(found: list[Path], args: argparse.Namespace, output: Output) -> dict[str, Any]:
    (folder,) = found
    one, about, settings = read_run(folder), json.loads((folder / "run.json").read_bytes()), _settings(folder)
    (row,) = _rows([one], args, output)
    said = row | {
        **{name: about.get(name) for name in ("version", "spec", "commit", "versions", "argv")},
        **{"settings": settings, "metrics": last_line(folder), "folder": str(folder), "bytes": _size(folder)},
    }
    times = {"started": utc_minute(one.started_at_ms), "updated": utc_minute(one.updated_at_ms)}
    hidden = ("settings", "metrics", "started_at_ms", "updated_at_ms")
    for key, value in ({name: item for name, item in said.items() if name not in hidden} | times).items():
        if text := plain_text(" ".join(value) if key == "argv" and value else value):
            output.say(f"{key:<14} {text}")
    output.say("\nsettings that are not defaults")
    output.table(("setting", "value", "from"), [tuple(row.values()) for row in settings if row["origin"] != "default"])
    output.say("\nlast metrics")
    output.table(("metric", "value"), [(name, plain_text(value)) for name, value in (said["metrics"] or {}).items()])
    _plot({f"{one.algo}, seed {one.seed}": metrics_columns(folder)}, f"{one.game}: {one.run}", args, output)
    return said


def _compare(found: list[Path], args: argparse.Namespace, output: Output) -> dict[str, Any]:
    runs, metrics = [read_run(folder) for folder in found], [metrics_columns(folder) for folder in found]
    best = [_best(one.get("return_mean")) for one in metrics]
    known = [value for value in best if value is not None]
    target = args.target if args.target is not None else min(known) if len(known) == len(best) else None
    rows = _rows(runs, args, output)
    for row, highest, measured in zip(rows, best, metrics, strict=True):
        at = None if target is None else reached(measured, target)
        row["best_return"], (row["target_steps"], row["target_seconds"]) = highest, at or (None, None)
    shown = "the target" if target is None else f"{target:.4g}"
    ends = ("best_return", "target_steps", "target_seconds")
    cells = [(*_cells(row), *(_short(row[name]) for name in ends)) for row in rows]
    output.table((*COLUMNS, "best return", f"steps to {shown}", f"seconds to {shown}"), cells)
    differing = _differing([_settings(folder) for folder in found])
    output.say("\nsettings that differ" if differing else "\nno setting differs")
    if differing:
        ids = [one.run.rpartition("-")[2] for one in runs]
        output.table(("setting", *ids), [(key, *map(plain_text, values)) for key, values in differing.items()])
    labels = [f"{one.run.rpartition('-')[2]}: {one.algo}, seed {one.seed}" for one in runs]
    _plot(dict(zip(labels, metrics, strict=True)), ", ".join(dict.fromkeys(one.game for one in runs)), args, output)
    return {"runs": rows, "target": target, "settings": differing}


def _differing(runs: list[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """Setting → its value in each run; None where a run does not have it."""
    tables = [{row["key"]: row["value"] for row in rows} for rows in runs]
    found = {key: [table.get(key) for table in tables] for table in tables for key in table}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def _delete(found: list[Path], args: argparse.Namespace, output: Output) -> dict[str, Any]:
    runs = [read_run(folder) for folder in found]
    if running := [one.run for one in runs if one.state == "running"]:
        raise Refused("it is running", where=f"run {running[0]}", do="Stop it first: Ctrl-C where it runs")
    sizes = [_size(folder) for folder in found]
    for one, size in zip(runs, sizes, strict=True):
        stays = f"; its model {one.model[:12]} stays in the registry" if one.model else ""
        output.say(f"{one.run}: {one.state}, {size:,} bytes{stays}")
    if not args.yes and not _confirmed(output):
        output.say("nothing was deleted")
        return {"deleted": [], "bytes": 0}
    for folder in found:
        (folder / "run.json").unlink()  # first: what is left of an interrupted deletion is no run to anyone
        shutil.rmtree(folder)
    output.say(f"deleted, {sum(sizes):,} bytes together")
    return {"deleted": [one.run for one in runs], "bytes": sum(sizes)}


def _confirmed(output: Output) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("no one can be asked here", where="spar runs delete", do="Add --yes")
    output.say("Delete? [y/N]")
    return input().strip().lower() in ("y", "yes")


def _plot(runs: dict[str, Any], title: str, args: argparse.Namespace, output: Output) -> None:
    if args.plot is not None:
        if not any(runs.values()):
            raise Missing("there is no line of metrics yet", where="--plot", do="Wait for the first")
        save_picture(draw_curves(runs, title), args.plot)
        output.say(f"drawn into {args.plot}")


def _settings(folder: Path) -> list[dict[str, Any]]:
    """Every setting with its value and origin, as `spar train --explain` shows them; older builds wrote none."""
    path = folder / "settings.json"
    rows: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else []
    return rows


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _best(returns: Any) -> float | None:
    return None if returns is None or np.isnan(returns).all() else float(np.nanmax(returns))


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


ACTIONS = {"show": _show, "compare": _compare, "delete": _delete}
