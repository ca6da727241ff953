"""What commands share: output for people, one JSON object for programs, errors, stop signals, `spar` as a child."""

import argparse
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sparring.errors import Missing, Refused, SparringError, UserCodeError
from sparring.processes.supervisor import Launch

if TYPE_CHECKING:
    from sparring.config import Config
    from sparring.store.protocol import Store

_NUMBER = re.compile(r"-?\d[\d.,]*(e[-+]\d+)?( .*)?")  # with a unit, or a deviation, behind it
TOKEN = "SPARRING_TOKEN"
GRACE_S = 3.0  # for a child's checkpoint, after its parent is gone
QUIET_S = 5.0  # without a line, after which a command that waits says again what for


def token_argument(parser: argparse.ArgumentParser, about: str) -> None:
    """--token, or the variable SPARRING_TOKEN, which no list of processes shows."""
    default = os.environ.get(TOKEN)
    parser.add_argument("--token", metavar="KEY", default=default, help=f"{about}; or the variable {TOKEN}")


class Output:
    """Under --json standard output carries the result alone; everything else goes to standard error."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.stream = sys.stderr if json else sys.stdout
        self.live = self.stream.isatty()
        self._drawn = False
        self._wait, self._since_s, self._shown_s = "", 0.0, 0.0  # what is waited for, since when; when that was said
        self._reminding = threading.Lock()

    def say(self, text: str = "") -> None:
        """A line for people."""
        with self._reminding:
            self._wait = ""
            self._clear()
            print(text, file=self.stream, flush=True)

    def wait(self, text: str) -> None:
        """Say what is waited for ("starting Ray …"); inside of `waits` again every few seconds, until another line."""
        self.say(text)
        self._since_s = self._shown_s = time.monotonic()
        self._wait = text

    def progress(self, text: str) -> None:
        """A line that replaces the last one on a terminal, and is a plain line elsewhere."""
        with self._reminding:
            self._wait = ""
            self._line(text)

    def _line(self, text: str) -> None:
        if not self.live:
            print(text, file=self.stream, flush=True)
            return
        self.stream.write(f"\r\x1b[2K{text}")
        self.stream.flush()
        self._drawn = True

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Show what the package logs about its waits, and how long each takes, so that no wait is silent."""
        over, log = threading.Event(), logging.getLogger("sparring")
        handler, level = _LogLines(self), log.level

        def remind() -> None:
            while not over.wait(QUIET_S / 5):
                now = time.monotonic()
                with self._reminding:
                    if self._wait and now - self._shown_s >= QUIET_S:
                        self._shown_s = now
                        self._line(f"{self._wait} {now - self._since_s:.0f} s")

        thread = threading.Thread(target=remind, name="waits", daemon=True)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            log.removeHandler(handler)
            log.setLevel(level)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows under their column names; numbers to the right."""
        self._clear()
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [
            max(len(name), *(len(row[i]) for row in texts)) if texts else len(name) for i, name in enumerate(columns)
        ]
        for row in [list(columns), *texts]:
            cells = [c.rjust(w) if _NUMBER.fullmatch(c) else c.ljust(w) for c, w in zip(row, widths, strict=True)]
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


class _LogLines(logging.Handler):
    """A log line that ends with … says what is waited for; others are shown once."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        (self._output.wait if text.endswith("…") else self._output.say)(text)


def report(error: SparringError, output: Output) -> int:
    """Say the error as its sentence, and as an object under --json; 1."""
    if isinstance(error, UserCodeError):
        print(error.story, file=sys.stderr)
    print(f"spar: {error}", file=sys.stderr)
    if output.json:
        said: dict[str, Any] = {"error": error.wrong, "where": error.where, "do": error.do}
        if isinstance(error, Refused):
            said |= {"code": error.code, "field": error.field, "value": error.value, "limit": error.limit}
        print(msgspec.json.encode(said).decode(), flush=True)
    return 1


def unexpected(error: Exception) -> SparringError:
    """An unexpected error as a sentence; its traceback goes into a file that the sentence names."""
    with tempfile.NamedTemporaryFile("w", prefix="spar-", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    wrong = f"something went wrong that should not: {type(error).__name__}: {error}"
    return SparringError(
        wrong, where="unforeseen", do=f"This is a fault in Sparring; please report it with {file.name}"
    )


def utc_minute(at_ms: int) -> str:
    """A time to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def plain_text(value: object) -> str:
    """A value for people; nothing where there is nothing to say."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, item in value.items() if (text := plain_text(item)))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


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


def spar_command(words: list[str], nice: int = 0) -> Launch:
    """`spar WORDS` as a process that ends when this one is gone."""
    watched = ["sparring.processes.parent_watch", str(nice), f"{GRACE_S:g}", "sparring", *words]
    return Launch(watched, environment={"OMP_NUM_THREADS": "1"})


def recorded_play(config: "Config") -> "Store":
    """The store, opened; Missing where nothing was recorded yet, instead of an empty one."""
    from sparring.store import open_store

    file = Path(config.store_url.removeprefix("sqlite:///"))
    if config.store_url.startswith("sqlite:") and not file.exists():
        raise Missing("nothing was recorded yet", where=str(file), do="Run `spar serve` and play, or `spar collect`")
    return open_store(config.store_url)
