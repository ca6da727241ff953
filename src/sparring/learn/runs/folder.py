"""A run's folder: its plan, its status, its metrics, and a checkpoint that is whole or absent.

run.json          the plan and what it was made with: never changed
settings.json     every setting of the run and where it comes from, as `spar train --explain` shows them
status.json       running, done, stopped or failed
metrics.jsonl     one object a line
checkpoint/state  everything needed to resume; replaced by one rename, so a crash leaves the one before

Trackers (trackers.py) get the same metrics.
"""

import hashlib
import json
import math
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sparring.durable import disk_errors, remove_drafts, replace_file
from sparring.errors import Missing, TrainingStopped
from sparring.learn.plan import Plan, without_token
from sparring.learn.protocol import Batch
from sparring.wire.tree import Tree, pack, pack_parts, part_bytes, unpack_parts

FORMAT = 4  # of run.json and of the checkpoint
_MAGIC = b"SPK\x01"
_DIGEST = 32
MetricsLine = Mapping[str, float | int | str | None]


def step_of(line: MetricsLine) -> int:
    """Where a line of metrics stands on the x axis: steps played, or updates where no game is played."""
    return int(line["env_steps"] or line["updates"] or 0)


class RunFolder:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.about: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
        self._checkpoint = folder / "checkpoint" / "state"
        self._metrics = folder / "metrics.jsonl"
        self.logged_step = -1  # of the last line of metrics before the run was resumed
        self._writing: Future[None] | None = None

    @classmethod
    def create(cls, runs: Path, plan: Plan, argv: list[str], track: Sequence[str] = ()) -> "RunFolder":
        """A new folder under `runs`, named by time, game and algorithm."""
        now = datetime.now(UTC)
        words = "".join(char if char.isalnum() or char in "-_" else "-" for char in f"{plan.game}-{plan.algo}")
        folder = runs / f"{now:%Y%m%d-%H%M%S}-{words}-{secrets.token_hex(2)}"
        about = {
            "format": FORMAT,
            "run": folder.name,
            "game": plan.game,
            "version": plan.spec.version,
            "spec": plan.spec.hash,
            "algo": plan.algo,
            "seed": plan.seed,
            "config": plan.record(),
            "commit": commit(),
            "versions": _versions(),
            "argv": [without_token(word) for word in argv],
            "track": list(track),
            "started_at_ms": int(now.timestamp() * 1000),
        }
        with disk_errors(folder):
            (folder / "checkpoint").mkdir(parents=True)
            replace_file(folder / "settings.json", _json([asdict(row) for row in plan.explained]))
            replace_file(folder / "run.json", _json(about))
        run = cls(folder)
        run.status("running")
        return run

    @classmethod
    def find(cls, runs: Path, game: str, algo: str, name: str = "") -> "RunFolder":
        """The run of that name, or the newest of that game and algorithm; Missing where there is none."""
        if name:
            if not (runs / name / "run.json").is_file():
                raise Missing(f"there is no run {name!r}", where=str(runs), do="Name one of the folders there")
            run = cls(runs / name)
            if run.about["game"] != game:
                raise Missing(f"it is a run of {run.about['game']}", where=f"run {name}", do=f"Name a run of {game}")
        else:
            found = [cls(path.parent) for path in runs.glob("*/run.json")]
            same = [run for run in found if (run.about["game"], run.about["algo"]) == (game, algo)]
            if not same:
                wrong = f"no run of {game} with {algo} is there"
                raise Missing(wrong, where=str(runs), do="Train without --resume first")
            run = max(same, key=lambda run: (run.about["started_at_ms"], run.name))
        run.check_format(run.about["format"])
        return run

    def check_format(self, found: int) -> None:
        """TrainingStopped where the run's files are of another format than this code writes."""
        if found != FORMAT:
            raise another_build(self, ValueError(f"its format is {found}, and {FORMAT} is read here"))

    def status(self, state: str, *, model: str | None = None, message: str = "") -> None:
        """Write the run's state: running, done, stopped or failed."""
        now_ms = int(time.time() * 1000)
        status = {"state": state, "pid": os.getpid(), "updated_at_ms": now_ms, "model": model, "message": message}
        with disk_errors(self.folder):
            replace_file(self.folder / "status.json", _json(status))

    def add_metrics(self, line: MetricsLine) -> None:
        """Append one line of metrics; numbers that are not finite become null."""
        clean = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        with disk_errors(self._metrics), self._metrics.open("ab") as file:
            file.write(json.dumps(clean).encode() + b"\n")

    def checkpoint(self, state: Tree) -> None:
        """Begin to write `state` in a thread, once the checkpoint before is written. A crash at any moment leaves this
        one or the one before, whole. `state` may change afterwards: all of it is copied here but the rows of replay
        tables, which are copied in that thread, as they stand now."""
        self.finish_checkpoint()
        parts = pack_parts({"format": FORMAT, "spec": self.about["spec"], "state": state})
        writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing = writer.submit(self._write_checkpoint, parts)
        writer.shutdown(wait=False)  # its thread ends with the write

    def finish_checkpoint(self, *, wait: bool = True) -> bool:
        """Whether the last checkpoint is durable, after waiting for it unless told not to; StoreFailed where the disk
        refused it."""
        if self._writing is not None and (wait or self._writing.done()):
            self._writing.result()
            self._writing = None
        return self._writing is None

    def _write_checkpoint(self, parts: list[Any]) -> None:
        body = [part_bytes(part) for part in parts]
        digest = hashlib.sha256()
        for part in body:
            digest.update(part)
        with disk_errors(self._checkpoint):
            replace_file(self._checkpoint, [_MAGIC, digest.digest(), *body])

    def restore(self) -> Tree:
        """The state of the last checkpoint; TrainingStopped where there is none or its bytes are damaged."""
        where = f"run {self.name}"
        remove_drafts(self._checkpoint.parent, 0.0, time.time())
        try:
            content = self._checkpoint.read_bytes()
        except FileNotFoundError:
            wrong = "it was stopped before its first checkpoint"
            raise TrainingStopped(wrong, where=where, do="Start a new run") from None
        head, body = content[: len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
        if head != _MAGIC + hashlib.sha256(body).digest():
            wrong = "its checkpoint is damaged: the bytes are not those that were written"
            raise TrainingStopped(wrong, where=where, do="Repair the disk, and start a new run")
        checkpoint = unpack_parts(body)
        self.check_format(checkpoint["format"])
        if checkpoint["spec"] != self.about["spec"]:
            wrong = f"its checkpoint is of another game than {self.about['game']}"
            raise TrainingStopped(wrong, where=where, do="Put back its own, or start a new run")
        return checkpoint["state"]

    def rewind(self, seconds: float) -> None:
        """Remove the metrics that were written after that time: a resumed run measures them again."""
        if not self._metrics.exists():
            return
        lines = self._metrics.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        valid = [line for line in whole if json.loads(line)["seconds"] <= seconds]
        self.logged_step = max((step_of(json.loads(line)) for line in whole), default=-1)
        if len(valid) < len(lines):
            with disk_errors(self._metrics):
                replace_file(self._metrics, b"".join(valid))

    def metrics(self) -> list[MetricsLine]:
        """The lines of metrics so far."""
        if not self._metrics.exists():
            return []
        return [json.loads(line) for line in self._metrics.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]

    def save_broken_batch(self, batch: Batch) -> Path:
        """Write the batch that stopped a run, for debugging; `sparring.wire.tree.unpack` reads it."""
        path = self.folder / "broken_batch"
        with disk_errors(path):
            replace_file(path, pack(asdict(batch)))
        return path


def another_build(run: RunFolder, error: Exception) -> TrainingStopped:
    """The error for a run whose files are intact and do not fit this code."""
    why = f"there is no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
    return TrainingStopped(
        f"the checkpoint was written by another build ({why})",
        where=f"run {run.name}",
        do="Resume it with the build that wrote it, or start a new run",
    )


def commit() -> str:
    """The commit of the code that runs, where it runs from a checkout; "" otherwise."""
    words = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("sparring", "torch", "numpy", "onnxruntime"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
