"""What commands share: lines, tables and progress for people, one JSON object for programs, errors, stop signals."""

import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sparring.errors import Missing, Refused, SparringError

if TYPE_CHECKING:
    from sparring.config import Config
    from sparring.store.protocol import LedgerStore

EXTRAS = {  # extra → packages that it brings
    "serve": ("starlette", "uvicorn", "websockets", "rich"),
    "train": ("torch", "safetensors", "onnx", "matplotlib", "numba", "optuna"),
    "games": ("gymnasium", "pettingzoo", "pyspiel", "ale_py"),
    "services": ("zmq",),
    "ray": ("ray", "yaml"),
    "export": ("pyarrow", "minari"),
    "aws": ("boto3", "botocore"),
    "cassandra": ("cassandra",),
    "spark": ("pyspark",),
}


class Output:
    """Under --json standard output carries the result alone; everything else goes to standard error."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.stream = sys.stderr if json else sys.stdout
        self.live = self.stream.isatty()
        self._drawn = False

    def say(self, text: str = "") -> None:
        """A line for people."""
        self._clear()
        print(text, file=self.stream, flush=True)

    def progress(self, text: str) -> None:
        """A line that replaces the last one on a terminal, and is a plain line elsewhere."""
        if not self.live:
            print(text, file=self.stream, flush=True)
            return
        self.stream.write(f"\r\x1b[2K{text}")
        self.stream.flush()
        self._drawn = True

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under their column names; numbers to the right."""
        self._clear()
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [
            max(len(name), *(len(row[i]) for row in texts)) if texts else len(name) for i, name in enumerate(columns)
        ]
        for row in [list(columns), *texts]:
            cells = [
                c.rjust(w) if c[:1].isdigit() or c[:1] == "-" else c.ljust(w) for c, w in zip(row, widths, strict=True)
            ]
            print("  ".join(cells).rstrip(), file=self.stream)

    def finish(self, result: Any) -> int:
        """Print the result of a command; 0, or its `exit_code` where a dictionary has one."""
        self._clear()
        code = result.pop("exit_code", 0) if isinstance(result, dict) else 0
        if self.json:
            print(msgspec.json.encode(result).decode(), flush=True)
        return int(code)

    def _clear(self) -> None:
        if self._drawn:
            self.stream.write("\n")
            self._drawn = False


def report(error: SparringError, output: Output) -> int:
    """Say the error as its sentence, and as an object under --json; 1."""
    print(f"spar: {error}", file=sys.stderr)
    if output.json:
        said: dict[str, Any] = {"error": error.wrong, "where": error.where, "do": error.do}
        if isinstance(error, Refused):
            said |= {"code": error.code, "field": error.field, "value": error.value, "limit": error.limit}
        print(msgspec.json.encode(said).decode(), flush=True)
    return 1


def missing_package(error: ModuleNotFoundError) -> SparringError:
    """What to install for a module that is not there; a bug of ours where it is our own."""
    package = (error.name or "").partition(".")[0]
    if package == "sparring" or not package:
        return unexpected(error)
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    what = f"sparring[{extra}]" if extra else package
    return Missing(
        f"the package {package!r} is not installed", where="this installation", do=f"Run pip install '{what}'"
    )


def unexpected(error: Exception) -> SparringError:
    """An unexpected error as a sentence; its traceback goes into a file that the sentence names."""
    with tempfile.NamedTemporaryFile("w", prefix="spar-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    wrong = f"something went wrong that should not: {type(error).__name__}: {error}"
    return SparringError(
        wrong, where="unforeseen", do=f"This is a fault in Sparring; please report it with {file.name}"
    )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set instead of ending the process; commands wait for it."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recorded_play(config: "Config") -> "LedgerStore":
    """The store, opened; Missing where nothing was recorded yet, instead of an empty one."""
    from sparring.store import open_store

    file = Path(config.store_url.removeprefix("sqlite:///"))
    if config.store_url.startswith("sqlite:") and not file.exists():
        raise Missing("nothing was recorded yet", where=str(file), do="Run `spar serve` and play, or `spar collect`")
    return open_store(config.store_url)
