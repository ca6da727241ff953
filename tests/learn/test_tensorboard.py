"""TensorBoard's files: read back by a reader of their own, every checksum compared."""

import json
import struct
from dataclasses import replace
from pathlib import Path

from test_runs import trained

from sparring.learn.runs.folder import RunFolder
from sparring.learn.runs.trackers import TrackedRun, Trackers


def crc32c(content):
    """Bit by bit, unlike the writer's table."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records(content):
    """The messages of TFRecords whose masked checksums hold."""
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        message = content[12 : 12 + length]
        for part, at in ((content[:8], 8), (message, 12 + length)):
            crc = crc32c(part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack("<I", content[at : at + 4]) == (masked,)
        yield message
        content = content[16 + length :]


def fields(message):
    """(number, value) of one protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[key & 7]
            size = varint() if size is None else size
            value = message[at : at + size]
            at += size
        yield key >> 3, value


def points(run):
    """[(step, {tag: value})] of a run's one event file, and its version."""
    (path,) = (run.folder / "tensorboard").iterdir()
    assert "tfevents" in path.name
    first, *rest = records(path.read_bytes())
    assert dict(fields(first))[3] == b"brain.Event:2"
    read = []
    for message in rest:
        event = dict(fields(message))
        values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
        read.append((event[2], {one[1].decode(): struct.unpack("<f", one[2])[0] for one in values}))
    return read


def told(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


def test_every_number_of_every_line_of_metrics_is_a_point(config):
    quick = replace(config, train=replace(config.train, log_every_s=0.0))
    name = trained(quick, steps=1500).run
    run = RunFolder(Path(config.data) / "runs" / name)
    read, lines = points(run), told(run)
    assert len(lines) > 5
    assert [step for step, _ in read] == sorted({line["env_steps"] for line in lines})
    for step, values in read:
        line = next(line for line in lines if line["env_steps"] == step)
        numbers = {key: value for key, value in line.items() if isinstance(value, float | int)}
        assert values == {key: struct.unpack("<f", struct.pack("<f", value))[0] for key, value in numbers.items()}


def test_a_resumed_run_goes_on_without_telling_a_step_twice(config):
    quick = replace(config, train=replace(config.train, log_every_s=0.0, checkpoint_every_s=1e9))
    name = trained(quick, steps=1000).run
    run = RunFolder(Path(config.data) / "runs" / name)
    before = points(run)
    late = told(run)[-1] | {"seconds": 1e6, "env_steps": 10**6}  # what a run killed after its checkpoint has told
    run.add_metrics(late)
    (path,) = (run.folder / "tensorboard").iterdir()
    with path.open("ab") as file:
        file.write(b"\x07half a record")
    trained(quick, steps=2000, resume=name)
    after = points(run)
    steps = [step for step, _ in after]
    assert after[: len(before)] == before
    assert steps == sorted(set(steps))
    assert before[-1][0] < steps[-1] < 10**6


def test_where_nobody_plays_a_point_stands_at_its_update(tmp_path):
    run = TrackedRun("run", tmp_path, "game", {}, {}, "updates", 5.0)
    trackers = Trackers(["tensorboard"], run)
    for updates in (3, 3, 300):
        trackers.log({"seconds": 1.0, "env_steps": 0, "updates": updates, "loss": None, "note": "text"})
    trackers.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    steps = [dict(fields(message)).get(2) for message in records(path.read_bytes())]
    assert steps == [None, 3, 300]
