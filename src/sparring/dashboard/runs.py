"""Training runs as their folders tell them: `<data>/runs/<run>/{run.json,status.json,metrics.jsonl}`."""

import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.errors import Missing

MAX_READ_BYTES = 8 << 20  # of metrics in one answer; the rest comes with the next
MAX_ROWS = 1_500  # more than that many points are thinned: no screen shows them
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. `state` is "died" where it says running and its process is gone."""

    run: str
    game: str
    algo: str
    state: str
    started_at_ms: int
    updated_at_ms: int
    model: str | None
    message: str


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Lines of metrics after some place, and the place to go on from. `reset`: the file was started again."""

    rows: list[dict[str, float | str | None]]
    next: int
    reset: bool


class Runs:
    """All runs of one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> list[RunSummary]:
        """Every run whose files read; those that learn now first, then the newest."""
        try:
            entries = [entry for entry in os.scandir(self.folder) if entry.is_dir() and _RUN.match(entry.name)]
        except FileNotFoundError:
            return []
        found = [run for entry in entries if (run := _read_run(Path(entry.path))) is not None]
        return sorted(found, key=lambda run: (run.state != "running", -run.started_at_ms, run.run))

    def metrics(self, run: str, after: int) -> MetricRows:
        """What was measured after byte `after` of the run's file, whole lines only."""
        if not _RUN.match(run) or not (self.folder / run).is_dir():
            raise Missing("there is no such run", where=f"run {run[:80]!r}", do="/api/runs lists those that are there")
        path = self.folder / run / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                reset = after > os.fstat(file.fileno()).st_size
                start = 0 if reset else max(0, after)
                file.seek(start)
                data = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return MetricRows([], 0, after > 0)
        whole = data[: data.rfind(b"\n") + 1]
        rows = [row for line in whole.splitlines() if (row := _row(line)) is not None]
        return MetricRows(_thinned(rows), start + len(whole), reset)


def _read_run(folder: Path) -> RunSummary | None:
    about, status = _object(folder / "run.json"), _object(folder / "status.json") or {}
    if about is None:
        return None
    state = str(status.get("state", "starting"))
    if state == "running" and not _alive(status.get("pid")):
        state = "died"
    started = int(about.get("started_at_ms", 0))
    return RunSummary(
        run=folder.name,
        game=str(about.get("game", "")),
        algo=str(about.get("algo", "")),
        state=state,
        started_at_ms=started,
        updated_at_ms=int(status.get("updated_at_ms", started)),
        model=status.get("model"),
        message=str(status.get("message") or ""),
    )


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return True  # the status names no process
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it runs as another user
    return True


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None  # being written, or not a run's folder
    return value if isinstance(value, dict) else None


def _row(line: bytes) -> dict[str, float | str | None] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    return {
        key: None if isinstance(item, float) and not math.isfinite(item) else item
        for key, item in value.items()
        if item is None or isinstance(item, (int, float, str))
    }


def _thinned(rows: list[dict[str, float | str | None]]) -> list[dict[str, float | str | None]]:
    if len(rows) <= MAX_ROWS:
        return rows
    step = (len(rows) - 1) / (MAX_ROWS - 1)
    return [rows[round(i * step)] for i in range(MAX_ROWS)]
