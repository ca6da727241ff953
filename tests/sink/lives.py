"""The lives of a Spark driver: how one is started, the moment at which it is killed, and what it leaves.

Import it as `from sink.lives import …`.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import sparring
from derived import GAME
from servers.aws_servers import Kinesis
from servers.spark_cluster import Spark
from sparring.store.protocol import Store

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.01

Moment = Literal["storing", "again", "planned", "counted", "between"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What drivers wrote down, as anybody may look at it."""

    data: Path

    def last(self, kind: Literal["offsets", "commits"]) -> int:
        """The newest batch that was planned, or finished; -1 before the first."""
        files = (self.data / "sink").glob(f"spark-*/{kind}/*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)

    @property
    def unfinished(self) -> bool:
        return self.last("offsets") > self.last("commits")


@dataclass(frozen=True, slots=True)
class Life:
    """A driver that runs."""

    process: "subprocess.Popen[bytes]"
    log: Path
    before: int  # bytes of the log that are of earlier lives
    begun_s: float

    @property
    def said(self) -> str:
        return self.log.read_bytes()[self.before :].decode(errors="replace")

    @property
    def batches(self) -> int:
        """Finished in this life, as it says."""
        return max((int(number) for number in re.findall(r" batch (\d+) in ", self.said)), default=0)

    def wait(self, what: str, there: Callable[[], bool]) -> float:
        """Until it is there; the seconds since this life began."""
        until_s = time.monotonic() + PATIENCE_S
        while not there():
            assert self.process.poll() is None, f"it ended before {what}: {self.said[-3000:]}"
            assert time.monotonic() < until_s, f"no {what} in {PATIENCE_S:g} s: {self.said[-3000:]}"
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - self.begun_s

    @property
    def at_work(self) -> bool:
        """Whether executors read, judge and store just now, as Spark's page says."""
        found = re.search(r"Spark UI (http://\S+)", self.said)
        if found is None:
            return False
        with suppress(OSError):
            api = f"{found[1]}/api/v1/applications"
            (application,) = _json(api)
            return bool(_json(f"{api}/{application['id']}/jobs?status=running"))
        return False

    def kill(self) -> None:
        """kill -9, Python and the JVM at once. Executors see it, and end."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _json(url: str) -> list[dict[str, str]]:
    with urllib.request.urlopen(url, timeout=2) as answer:
        found: list[dict[str, str]] = json.loads(answer.read())
        return found


@contextmanager
def alive(data: Path, command: list[str], env: Mapping[str, str]) -> Iterator[Life]:
    """A driver in a session of its own, which does not outlive the block."""
    log = data / "sink.log"
    before = log.stat().st_size if log.exists() else 0
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=data, env={**os.environ, **env}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield Life(process, log, before, time.monotonic())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_moment(moment: Moment, life: Life, checkpoint: Checkpoint, ledger: Store, rng: random.Random) -> None:
    """Return when a batch is just there: planned, in executors' hands, counted, or finished and the next not begun.

    "again" is the first work of a life, on what the life before it left unfinished.
    """
    planned, finished, steps = checkpoint.last("offsets"), checkpoint.last("commits"), _counted(ledger)
    if moment in ("storing", "again"):
        life.wait("batch at work", lambda: checkpoint.unfinished and life.at_work)
        time.sleep(rng.uniform(0.0, 0.3))
    elif moment == "planned":
        life.wait("new plan", lambda: checkpoint.last("offsets") > planned)
    elif moment == "counted":
        life.wait("new figures", lambda: _counted(ledger) > steps)
    else:
        life.wait("finished batch", lambda: checkpoint.last("commits") > finished)


def _counted(ledger: Store) -> int:
    return sum(minute.steps for minute in ledger.minutes(GAME, 0))


def settings(spark: Spark, kinesis: Kinesis) -> dict[str, str]:
    """Spark's own, for a small machine. Credentials are the worker's affair; here they open nothing."""
    env = {f"spark.executorEnv.{name}": value for name, value in kinesis.env.items()}
    return {**env, **spark.conf, "spark.driver.memory": "512m", "spark.executor.memory": "512m"}


def by_spar(spark: Spark, conf: dict[str, str], words: list[str]) -> list[str]:
    """`spar sink --spark`."""
    sets = [word for name, value in conf.items() for word in ("--spark-conf", f"{name}={value}")]
    return [sys.executable, "-m", "sparring", "sink", "--spark", spark.url, *sets, *words]


def by_submit(spark: Spark, conf: dict[str, str], words: list[str], folder: Path) -> list[str]:
    """`spark-submit` with the file that docs/sink.md names, and the package as a zip."""
    package = Path(sparring.__file__).parent
    with zipfile.ZipFile(folder / "sparring.zip", "w") as file:
        for one in package.rglob("*"):
            if one.is_file() and "__pycache__" not in one.parts:
                file.write(one, one.relative_to(package.parent))
    sets = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", spark.url, *sets]
    return [
        *submit,
        "--py-files",
        str(folder / "sparring.zip"),
        str(package / "__main__.py"),
        "sink",
        "--spark",
        "submitted",
        *words,
    ]
