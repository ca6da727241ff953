"""A run's metrics as a TensorBoard event file: TFRecords of Event messages, one scalar for each number.

    record   length (8 bytes), masked CRC-32C of it, the message, masked CRC-32C of the message
    Event    1: wall time (double), 2: step (varint), 3: version (text), 5: Summary → 1: Value → 1: tag, 2: float

The `tensorboard` package would bring protobuf, gRPC and a web server; the format is these two lines. The file follows
from metrics.jsonl: a resumed run writes it again from the lines that are valid, so no step appears twice.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from sparring.durable import disk_errors

MetricsLine = Mapping[str, float | int | str | None]


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial, reflected
    return value


_CRC_TABLE = tuple(map(_crc_of_byte, range(256)))


class EventFile:
    """The event file in `folder` of a run that began at `started_s`."""

    def __init__(self, folder: Path, started_s: float) -> None:
        self.path = folder / f"events.out.tfevents.{int(started_s):010d}.sparring"
        self._started_s = started_s
        self._last_step = -1

    def add(self, *lines: MetricsLine) -> None:
        """Append lines of metrics. A step that the file already has is skipped."""
        with disk_errors(self.path):
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("ab") as file:
                if not file.tell():
                    file.write(_record(_double(1, self._started_s) + _bytes(3, b"brain.Event:2")))
                for line in lines:
                    step = int(line["env_steps"] or line["updates"] or 0)  # updates where no game is played
                    if step > self._last_step:
                        file.write(self._event(line, step))
                        self._last_step = step

    def rewrite(self, lines: Iterable[MetricsLine]) -> None:
        """Start the file again with these lines."""
        with disk_errors(self.path):
            self.path.unlink(missing_ok=True)
        self._last_step = -1
        self.add(*lines)

    def _event(self, line: MetricsLine, step: int) -> bytes:
        """Wall time leaves out the pauses before a run was resumed, as `seconds` does."""
        values = b"".join(
            _bytes(1, _bytes(1, name.encode()) + struct.pack("<Bf", 2 << 3 | 5, value))
            for name, value in line.items()
            if isinstance(value, float | int) and math.isfinite(value)
        )
        wall_s = self._started_s + float(line["seconds"] or 0.0)
        return _record(_double(1, wall_s) + b"\x10" + _varint(step) + _bytes(5, values))


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
