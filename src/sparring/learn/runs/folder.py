"""A run's folder: what it is, how it stands, what it measured, and a checkpoint that is whole or not there.

run.json          what was asked for: never changed
status.json       how it stands
metrics.jsonl     one object a line
tensorboard/      the same for TensorBoard
checkpoint/state  everything needed to go on; replaced in one rename, so a crash leaves the one before
"""

import hashlib
import json
import math
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from sparring.durable import disk_errors, remove_drafts, replace_file
from sparring.errors import Missing, TrainingStopped
from sparring.learn.plan import Plan
from sparring.learn.protocol import Batch
from sparring.learn.runs.tensorboard import EventFile
from sparring.wire.tree import Tree, pack, unpack

FORMAT = 2
_MAGIC = b"SPK\x01"
_DIGEST = 32


class RunFolder:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.about: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
        self._checkpoint = folder / "checkpoint" / "state"
        self._metrics = folder / "metrics.jsonl"
        self._events = EventFile(folder / "tensorboard", self.about["started_at_ms"] / 1000)

    @classmethod
    def create(cls, runs: Path, plan: Plan, argv: list[str]) -> "RunFolder":
        """A new folder under `runs`, named for when, what and how."""
        now = datetime.now(UTC)
        game = "".join(char if char.isalnum() or char in "-_" else "-" for char in plan.game)
        algo = "".join(char if char.isalnum() or char in "-_" else "-" for char in plan.algo)
        folder = runs / f"{now:%Y%m%d-%H%M%S}-{game}-{algo}-{secrets.token_hex(2)}"
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
            "argv": argv,
            "started_at_ms": int(now.timestamp() * 1000),
        }
        with disk_errors(folder):
            (folder / "checkpoint").mkdir(parents=True)
            replace_file(folder / "run.json", _json(about))
        run = cls(folder)
        run.status("running")
        return run

    @classmethod
    def find(cls, runs: Path, game: str, algo: str, name: str = "") -> "RunFolder":
        """The run of that name, or the newest of that game and algorithm; Missing where there is none."""
        if name:
            if not (runs / name / "run.json").is_file():
                raise Missing(
                    f"there is no run {name!r}", where=str(runs), do="See its folders for those that are there"
                )
            run = cls(runs / name)
            if run.about["game"] != game:
                raise Missing(f"it is a run of {run.about['game']}", where=f"run {name}", do=f"Name a run of {game}")
            return run
        found = [cls(path.parent) for path in runs.glob("*/run.json")]
        mine = [run for run in found if (run.about["game"], run.about["algo"]) == (game, algo)]
        if not mine:
            raise Missing(f"no run of {game} with {algo} is there", where=str(runs), do="Train without --resume first")
        return max(mine, key=lambda run: (run.about["started_at_ms"], run.name))

    def status(self, state: str, *, model: str | None = None, message: str = "") -> None:
        """Say how the run stands: running, done, stopped or failed."""
        said = {
            "state": state,
            "pid": os.getpid(),
            "updated_at_ms": int(time.time() * 1000),
            "model": model,
            "message": message,
        }
        with disk_errors(self.folder):
            replace_file(self.folder / "status.json", _json(said))

    def measure(self, line: Mapping[str, float | int | str | None]) -> None:
        """One more line of metrics; what is no finite number is null."""
        clean = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
        with disk_errors(self._metrics), self._metrics.open("ab") as file:
            file.write(json.dumps(clean).encode() + b"\n")
        self._events.add(clean)

    def checkpoint(self, state: Tree) -> None:
        """Keep `state`, durable on return. A crash at any moment leaves this one or the one before, whole."""
        body = pack({"format": FORMAT, "spec": self.about["spec"], "state": state})
        with disk_errors(self._checkpoint):
            replace_file(self._checkpoint, b"".join((_MAGIC, hashlib.sha256(body).digest(), body)))

    def restore(self) -> Tree:
        """The last state kept; TrainingStopped where there is none or its bytes are damaged."""
        remove_drafts(self._checkpoint.parent, 0.0, time.time())
        try:
            content = self._checkpoint.read_bytes()
        except FileNotFoundError:
            raise TrainingStopped(
                "it was stopped before its first checkpoint", where=f"run {self.name}", do="Start it anew"
            ) from None
        head, body = content[: len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
        if head != _MAGIC + hashlib.sha256(body).digest():
            raise TrainingStopped(
                "its checkpoint is damaged: the bytes are not those that were written",
                where=f"run {self.name}",
                do="Mend the disk, and start the run anew",
            )
        kept_state = unpack(body)
        if kept_state["format"] != FORMAT:
            raise another_build(self, ValueError(f"its format is {kept_state['format']}, and {FORMAT} is read here"))
        if kept_state.get("spec", self.about["spec"]) != self.about["spec"]:
            raise TrainingStopped(
                f"its checkpoint is of another game than {self.about['game']}",
                where=f"run {self.name}",
                do="Put back its own, or start a new run",
            )
        return kept_state["state"]

    def rewind(self, seconds: float) -> None:
        """Forget what was measured after that time: a resumed run measures it again."""
        if not self._metrics.exists():
            return
        lines = self._metrics.read_bytes().splitlines(keepends=True)
        stay = [line for line in lines if line.endswith(b"\n") and json.loads(line)["seconds"] <= seconds]
        if len(stay) < len(lines):
            with disk_errors(self._metrics):
                replace_file(self._metrics, b"".join(stay))
        self._events.rewrite(map(json.loads, stay))

    def keep_batch(self, batch: Batch) -> Path:
        """The batch that broke a run, for whoever looks into it (`sparring.wire.tree.unpack` reads it)."""
        path = self.folder / "broken_batch"
        with disk_errors(path):
            replace_file(path, pack(_batch_tree(batch)))
        return path


def another_build(run: RunFolder, error: Exception) -> TrainingStopped:
    """What to say where a run's files read well and yet do not fit this code."""
    lacks = f"there is no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
    return TrainingStopped(
        f"the checkpoint was written by another build ({lacks})",
        where=f"run {run.name}",
        do="Go on with the build that wrote it, or start a new run",
    )


def commit() -> str:
    """The commit of the code that runs, where it runs from a checkout; "" otherwise."""
    here = Path(__file__).resolve().parent
    try:
        asked = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _versions() -> dict[str, str]:
    names = ("sparring", "torch", "numpy", "onnxruntime")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _batch_tree(batch: Batch) -> Tree:
    def plain(value: Any) -> Tree:
        if isinstance(value, Batch):
            return _batch_tree(value)
        return dict(value) if isinstance(value, Mapping) else value

    return {name: plain(getattr(batch, name)) for name in Batch.__slots__}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
