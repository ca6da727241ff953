"""What a command shows: lines, tables and progress for people, one JSON object for programs."""

import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from sparring.errors import Missing, Refused, SparringError

EXTRA_OF = {  # a package that is missing → the extra that brings it
    "starlette": "serve",
    "uvicorn": "serve",
    "websockets": "serve",
    "rich": "serve",
    "torch": "train",
    "safetensors": "train",
    "onnx": "train",
    "matplotlib": "train",
    "numba": "train",
    "optuna": "train",
    "gymnasium": "games",
    "pettingzoo": "games",
    "pyspiel": "games",
    "ale_py": "games",
    "zmq": "services",
    "ray": "ray",
    "pyarrow": "export",
    "boto3": "aws",
    "botocore": "aws",
    "cassandra": "cassandra",
    "pyspark": "spark",
    "yaml": "ray",
    "minari": "export",
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
        return confess(error)
    extra = EXTRA_OF.get(package)
    what = f"sparring[{extra}]" if extra else package
    return Missing(
        f"the package {package!r} is not installed", where="this installation", do=f"Run pip install '{what}'"
    )


def confess(error: Exception) -> SparringError:
    """An error that nobody foresaw, as a sentence; its traceback goes into a file beside it."""
    with tempfile.NamedTemporaryFile("w", prefix="spar-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    wrong = f"something went wrong that should not: {type(error).__name__}: {error}"
    return SparringError(
        wrong, where="unforeseen", do=f"This is a fault in Sparring; please report it with {file.name}"
    )
