"""What administrators did, a JSON object a line in `<data>/audit.jsonl`: who, what, when; no secret, no name."""

import os
import threading
from pathlib import Path
from typing import Any

import msgspec


class Audit:
    """Appends; each line is whole and on disk before the action is answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, action: str, by: str, at_ms: int, **about: Any) -> None:
        """One line."""
        line = msgspec.json.encode({"at_ms": at_ms, "action": action, "by": by, **about}) + b"\n"
        with self._lock:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
