"""The runs of a data folder as their files show them: for `spar runs`, the learning page and `sparring.runs`.

The files may be written by another process at the same time. Nothing here imports torch.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sparring.errors import Missing
from sparring.wire.chunk import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_READ_BYTES = 8 << 20  # of metrics in one page; the rest comes with the next
MAX_ROWS = 1_500  # more than that many points are thinned: no screen shows them
LAST_LINE_BYTES = 64 << 10
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

Metrics = dict[str, float | int | str | None]  # one line of metrics.jsonl


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what it learns, its state, and its newest line of metrics. `state` is running, done, stopped or failed;
    "died" where the folder says running and the process is gone; "starting" before the first status."""

    run: str
    game: str
    algo: str
    seed: int | None
    state: str
    started_at_ms: int
    updated_at_ms: int
    model: str | None  # the last that it published
    message: str
    env_steps: int
    updates: int
    seconds: float
    return_mean: float | None  # of the last 100 episodes as they were played


class MetricsPage(msgspec.Struct, frozen=True):
    """Lines of metrics, whole ones only, and the byte to go on from."""

    rows: list[Metrics]
    next: int
    reset: bool  # the file was started again


def list_runs(runs: Path) -> list[RunSummary]:
    """Every run whose files can be read: those that learn now first, then the newest."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(runs) if entry.is_dir() and _RUN.match(entry.name)]
    except FileNotFoundError:
        return []
    found = []
    for folder in folders:
        with suppress(Missing):  # it is being made, or deleted
            found.append(read_run(folder))
    return sorted(found, key=lambda run: (run.state != "running", -run.started_at_ms, run.run))


def find_run(runs: Path, text: str) -> Path:
    """The folder of the run with that name, or with that beginning or end where only one run has it."""
    names = [run.run for run in list_runs(runs)]
    found = [text] if text in names else [one for one in names if one.startswith(text) or one.endswith(text)]
    if len(found) != 1 or not text:
        wrong = f"{len(found)} runs begin or end with {text!r}" if found else f"there is no run {text!r}"
        raise Missing(wrong, where=str(runs), do="`spar runs list` shows their names")
    return runs / found[0]


def read_run(folder: Path) -> RunSummary:
    """The run in that folder; Missing where there is no run.json that can be read."""
    about, status = _object(folder / "run.json"), _object(folder / "status.json") or {}
    if about is None:
        raise Missing("there is no run in it", where=str(folder), do="`spar runs list` shows those that are there")
    state, started = str(status.get("state", "starting")), int(about.get("started_at_ms", 0))
    if state == "running" and not _alive(status.get("pid")):
        state = "died"
    last: dict[str, Any] = last_line(folder) or {}
    return RunSummary(
        run=folder.name,
        game=str(about.get("game", "")),
        algo=str(about.get("algo", "")),
        seed=about.get("seed"),
        state=state,
        started_at_ms=started,
        updated_at_ms=int(status.get("updated_at_ms", started)),
        model=status.get("model"),
        message=str(status.get("message") or ""),
        env_steps=last.get("env_steps") or 0,
        updates=last.get("updates") or 0,
        seconds=last.get("seconds") or 0.0,
        return_mean=last.get("return_mean"),
    )


def last_line(folder: Path) -> Metrics | None:
    """The newest line of the run's metrics; None where there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE_BYTES))
            lines = file.read(LAST_LINE_BYTES).rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return None
    return _row(lines[-1]) if lines else None


def metrics_after(runs: Path, run: str, after: int) -> MetricsPage:
    """What the run measured after byte `after` of its file, thinned to MAX_ROWS; Missing where there is no such run."""
    if not _RUN.match(run) or not (runs / run).is_dir():
        raise Missing("there is no such run", where=f"run {run[:80]!r}", do="/api/runs lists those that are there")
    try:
        with (runs / run / "metrics.jsonl").open("rb") as file:
            reset = after > os.fstat(file.fileno()).st_size
            start = 0 if reset else max(0, after)
            file.seek(start)
            data = file.read(MAX_READ_BYTES)
    except FileNotFoundError:
        return MetricsPage([], 0, after > 0)
    whole = data[: data.rfind(b"\n") + 1]
    return MetricsPage(_thinned(_rows(whole)), start + len(whole), reset)


def metrics_columns(folder: Path) -> dict[str, Array]:
    """One array for each metric, one entry for each line of metrics.jsonl; NaN where a line has no number."""
    try:
        lines = _rows((folder / "metrics.jsonl").read_bytes())
    except FileNotFoundError:
        lines = []
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: np.array([_number(line.get(name)) for line in lines]) for name in names}


def reached(metrics: Mapping[str, Array], target: float) -> tuple[int, float] | None:
    """Steps (updates where no game is played) and seconds at which `return_mean` was first that high; None: never."""
    at = np.flatnonzero(metrics.get("return_mean", np.zeros(0)) >= target)
    return (int(position(metrics)[at[0]]), float(metrics["seconds"][at[0]])) if len(at) else None


def position(metrics: Mapping[str, Array]) -> Array:
    """`env_steps` of each line; `updates` where no game is played."""
    return metrics["env_steps"] if metrics["env_steps"].any() else metrics["updates"]


def draw_curves(runs: Mapping[str, Mapping[str, Array]], title: str) -> "Figure":
    """The mean return of the last 100 episodes ± sd by steps, one line for each run (label → its metrics); the loss by
    updates where no run has returns, because they learn from records alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    measured = {label: metrics for label, metrics in runs.items() if metrics}
    plays = any(np.isfinite(metrics["return_mean"]).any() for metrics in measured.values())
    for label, metrics in measured.items():
        x, y = (position(metrics), metrics["return_mean"]) if plays else (metrics["updates"], metrics["loss"])
        marker = "o" if len(x) == 1 else ""  # a line of one point would not be seen
        (line,) = axes.plot(x, y, marker=marker, label=label)
        if plays:
            low, high = (y + sign * metrics["return_sd"] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="steps" if plays else "updates", ylabel="return (last 100 episodes, ± sd)" if plays else "loss")
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize="medium")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # never over the curves
    return figure


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return True  # the status names no process
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it runs as another user
    return True


def _object(source: Path | bytes) -> dict[str, Any] | None:
    """The JSON object in a file or a line; None where it is being written, or is something else."""
    try:
        value = json.loads(source if isinstance(source, bytes) else source.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _rows(lines: bytes) -> list[Metrics]:
    return [row for line in lines.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> Metrics | None:
    value = _object(line)
    return value and {
        key: None if isinstance(item, float) and not math.isfinite(item) else item
        for key, item in value.items()
        if item is None or isinstance(item, (int, float, str))
    }


def _thinned(rows: list[Metrics]) -> list[Metrics]:
    if len(rows) <= MAX_ROWS:
        return rows
    step = (len(rows) - 1) / (MAX_ROWS - 1)
    return [rows[round(i * step)] for i in range(MAX_ROWS)]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
