"""Trackers: where the metrics of a run go beside metrics.jsonl. `train.track` and `--track` name them: tensorboard,
wandb, mlflow, or a class of your own as module:name, which is called with a TrackedRun.

    training loop ─ log(line) ─► queue ─► thread of the trackers ─► log(step, values) of each

The training never waits for a tracker. One that raises is left out from then on, with one warning.
"""

import importlib.util
import json
import logging
import math
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from sparring.errors import ConfigError, Missing
from sparring.games.game_state import did_you_mean
from sparring.learn.runs.folder import MetricsLine, RunFolder, step_of
from sparring.user_code import load_code

log = logging.getLogger(__name__)

FINISH_S = 60.0  # that trackers may take to send what is left, at the end of a run
MLFLOW_PARAMS = 100  # that MLflow takes at once


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run when it is made."""

    name: str  # unique; a resumed run has the name of its first start
    folder: Path  # of the run
    project: str  # the game, unless `train.track_project` says otherwise
    tags: Mapping[str, str]  # game, algo, seed
    settings: Mapping[str, Any]  # every setting, as `spar train --explain` shows them
    x_axis: str  # the metric that `step` counts: "env_steps", or "updates" where no game is played
    started_s: float  # since the epoch
    lines: Sequence[MetricsLine] = ()  # of a resumed run: its metrics so far
    logged_step: int = -1  # of a resumed run: the last step that was logged, which may lie behind those lines


class Tracker(Protocol):
    """One run in one tool. What it raises ends the tracking by it, and never the training."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of one step; steps rise."""
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run has ended: its state ("done", "stopped", "failed"), model, final_return_mean and final_return_sd."""
        ...


class Trackers:
    """All trackers of one run, called in a thread of their own."""

    def __init__(self, names: Sequence[str], run: TrackedRun) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._queue: SimpleQueue[tuple[int, Mapping[str, Any]] | None] = SimpleQueue()
        self._summary: Mapping[str, Any] = {"state": "failed"}
        for name in names:
            with self._left_out_if_it_fails(name):
                self._trackers[name] = tracker_class(name)(run)
        self._thread = Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def log(self, line: MetricsLine) -> None:
        """Hand a line of metrics to the trackers: the finite numbers in it."""
        self._queue.put((step_of(line), finite_numbers(line)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """How the run ended; `close` sends it."""
        self._summary = summary

    def close(self) -> None:
        """Send what is left, and wait for that, though not for ever."""
        self._queue.put(None)
        self._thread.join(FINISH_S)
        if self._thread.is_alive():
            log.warning("tracking by %s did not end within %.0f s", " and ".join(self._trackers), FINISH_S)

    def _work(self) -> None:
        last = -1
        while (item := self._queue.get()) is not None:
            step, values = item
            if step > last:
                for name, tracker in list(self._trackers.items()):
                    with self._left_out_if_it_fails(name):
                        tracker.log(step, values)
                last = step
        for name, tracker in list(self._trackers.items()):
            with self._left_out_if_it_fails(name):
                tracker.finish(self._summary)

    @contextmanager
    def _left_out_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever a tool or a user's class raises)
            self._trackers.pop(name, None)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            log.warning("tracking by %s ends, the training goes on: %s", name, why)


def finite_numbers(line: MetricsLine) -> dict[str, float]:
    """The metrics of a line that can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, float | int) and math.isfinite(value)}


def tracker_class(name: str) -> Any:
    """The class of that name; ConfigError or Missing where there is none, or the package that it needs is not there."""
    if ":" in name:
        return load_code(name, "tracker")
    if name not in TRACKERS:
        do = did_you_mean(name, TRACKERS, f"Use {', '.join(TRACKERS)} or module:name")
        raise ConfigError(f"there is no tracker {name!r}", where="--track", do=do)
    if name != "tensorboard" and importlib.util.find_spec(name) is None:
        do = f"Install it: pip install 'sparring[{name}]'"
        raise Missing(f"the package {name} is not installed", where=f"--track {name}", do=do)
    return TRACKERS[name]


def open_trackers(names: Sequence[str], run: RunFolder, project: str) -> Trackers:
    """The trackers of a run that begins or was resumed."""
    about = run.about
    rows = json.loads((run.folder / "settings.json").read_bytes())
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in project or about["game"])  # wandb takes no colon
    tracked = TrackedRun(
        name=run.name,
        folder=run.folder,
        project=plain,
        tags={"game": about["game"], "algo": about["algo"], "seed": str(about["seed"])},
        settings={row["key"]: row["value"] for row in rows},
        x_axis="updates" if about["config"]["source"] == "store" else "env_steps",
        started_s=about["started_at_ms"] / 1000,
        lines=run.metrics(),
        logged_step=run.logged_step,
    )
    return Trackers(names, tracked)


class WandbTracker:
    """A run of Weights & Biases, whose id is the run's name. Its files are in WANDB_DIR or in the run's folder."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._logged = run.logged_step
        self._run = wandb.init(
            project=run.project,
            id=run.name,
            name=run.name,
            resume="allow",
            config=dict(run.settings),
            allow_val_change=True,  # a resumed run may have more steps
            tags=[f"{key}:{value}"[:64] for key, value in run.tags.items()],
            dir=os.environ.get("WANDB_DIR") or run.folder,
            reinit="create_new",  # a run of the caller's own goes on beside it
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric(run.x_axis)
        self._run.define_metric("*", step_metric=run.x_axis)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._logged:
            self._run.log(dict(values))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=int(summary["state"] == "failed"))


class MLflowTracker:
    """A run of MLflow, found again by its tag sparring.run. Where no tracking URI is set it is in <data>/mlflow.db."""

    def __init__(self, run: TrackedRun) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        from mlflow.entities import Param

        uri = None if mlflow.is_tracking_uri_set() else f"sqlite:///{run.folder.parents[1].absolute()}/mlflow.db"
        self._client, self._logged = mlflow.MlflowClient(uri), run.logged_step
        found = self._client.get_experiment_by_name(run.project)
        experiment = self._client.create_experiment(run.project) if found is None else found.experiment_id
        runs = self._client.search_runs([experiment], f"tags.`sparring.run` = '{run.name}'")
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {**run.tags, "sparring.run": run.name}
        self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        params = [Param(key, str(value)) for key, value in run.settings.items()]
        for at in range(0, len(params), MLFLOW_PARAMS):
            self._client.log_batch(self._id, params=params[at : at + MLFLOW_PARAMS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._logged:
            self._client.log_batch(self._id, metrics=self._metrics(step, values))

    def finish(self, summary: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        numbers = {key: value for key, value in summary.items() if isinstance(value, float)}
        tags = [RunTag(key, str(value)) for key, value in summary.items() if key not in numbers]
        self._client.log_batch(self._id, metrics=self._metrics(0, numbers), tags=tags)
        self._client.set_terminated(self._id, "FAILED" if summary["state"] == "failed" else "FINISHED")

    def _metrics(self, step: int, values: Mapping[str, float]) -> list[Any]:
        from mlflow.entities import Metric

        return [Metric(key, value, int(time.time() * 1000), step) for key, value in values.items()]


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reflected
    return value


_CRC_TABLE = tuple(map(_crc_of_byte, range(256)))


class TensorBoardTracker:
    """An event file of TensorBoard, in the run's folder: TFRecords of Event messages, one scalar for each number.

        record   length (8 bytes), masked CRC-32C of it, the message, masked CRC-32C of the message
        Event    1: wall time (double), 2: step (varint), 3: version (text), 5: Summary → 1: Value → 1: tag, 2: float

    The `tensorboard` package would bring protobuf, gRPC and a web server; the format is these two lines. A resumed run
    writes the file again from its valid lines of metrics, so no step appears twice.
    """

    def __init__(self, run: TrackedRun) -> None:
        self.path = run.folder / "tensorboard" / f"events.out.tfevents.{int(run.started_s):010d}.sparring"
        self._started_s, self._last_step = run.started_s, -1
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_bytes(_record(_double(1, self._started_s) + _bytes(3, b"brain.Event:2")))
        for line in run.lines:
            self.log(step_of(line), finite_numbers(line))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Wall time leaves out the pauses before a run was resumed, as `seconds` does."""
        if step <= self._last_step:
            return
        self._last_step = step
        scalars = b"".join(
            _bytes(1, _bytes(1, name.encode()) + struct.pack("<Bf", 2 << 3 | 5, value))
            for name, value in values.items()
        )
        wall_s = self._started_s + values.get("seconds", 0.0)
        with self.path.open("ab") as file:
            file.write(_record(_double(1, wall_s) + b"\x10" + _varint(step) + _bytes(5, scalars)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """An event file has no end."""


def _record(message: bytes) -> bytes:
    """The message as one TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked_crc(length)) + message + struct.pack("<I", _masked_crc(message))


def _masked_crc(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


TRACKERS = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker, "mlflow": MLflowTracker}
