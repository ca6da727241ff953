"""A run's metrics as a file that TensorBoard reads: TFRecords of Event messages, one scalar for each number.

    record   length (8 bytes), masked CRC-32C of it, the message, masked CRC-32C of the message
    Event    1: wall time (double), 2: step (varint), 3: version (text), 5: Summary → 1: Value → 1: tag, 2: float

The file follows from metrics.jsonl, so a resumed run writes it anew from what stayed there: no point is told twice.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparring.durable import disk_errors, replace_file

Line = Mapping[str, float | int | str | None]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK = 0xA282EAD8


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


class EventFile:
    """The event file in `folder`, of a run that began at `started_s`."""

    def __init__(self, folder: Path, started_s: float) -> None:
        self.path = folder / f"events.out.tfevents.{int(started_s):010d}.sparring"
        self._started_s = started_s
        self._last_step = -1

    def add(self, line: Line) -> None:
        """One more line of metrics. A step that is already told is left as it was."""
        step = step_of(line)
        if step <= self._last_step:
            return
        with disk_errors(self.path):
            if not self.path.exists():
                self.path.parent.mkdir(exist_ok=True)
                replace_file(self.path, self._header())
            with self.path.open("ab") as file:
                file.write(self._record(line))
        self._last_step = step

    def rewrite(self, lines: Iterable[Line]) -> None:
        """These lines, and nothing else."""
        records, self._last_step = [self._header()], -1
        for line in lines:
            if step_of(line) > self._last_step:
                records.append(self._record(line))
                self._last_step = step_of(line)
        with disk_errors(self.path):
            self.path.parent.mkdir(exist_ok=True)
            replace_file(self.path, b"".join(records))

    def _header(self) -> bytes:
        return framed(_double(1, self._started_s) + _bytes(3, b"brain.Event:2"))

    def _record(self, line: Line) -> bytes:
        """Wall time leaves out the pauses between sittings, as `seconds` does."""
        values = b"".join(
            _bytes(1, _bytes(1, name.encode()) + struct.pack("<Bf", 2 << 3 | 5, value))
            for name, value in line.items()
            if isinstance(value, float | int) and math.isfinite(value)
        )
        wall_s = self._started_s + float(line["seconds"] or 0.0)
        return framed(_double(1, wall_s) + b"\x10" + _varint(step_of(line)) + _bytes(5, values))


def step_of(line: Line) -> int:
    """Where the line stands on TensorBoard's axis: ticks of all games, or updates where nobody plays."""
    return int(line["env_steps"] or line["updates"] or 0)


def framed(message: bytes) -> bytes:
    """The message as one TFRecord."""
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", _masked(length)) + message + struct.pack("<I", _masked(message))


def _masked(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
