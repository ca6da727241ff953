"""An ok survives a power cut: whatever was acknowledged before the instant of the cut is in what the disk then held.

POWER_DISKS=100 makes it a long run of 500 cuts; the suite makes five.
"""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from derived import GAME, differences, episode_of
from sparring.store import open_store
from sparring.store.protocol import Query
from store import power

DISKS = int(os.environ.get("POWER_DISKS", "1"))
CUTS = 5  # of each disk
WRITER = [sys.executable, str(Path(__file__).parent / "writer.py")]


class Ledger:
    """What a writer has acknowledged so far, read from its output as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.acknowledged: list[int] = []
        self._process = process
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ok "):
                self.acknowledged.append(int(line.split()[1]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(not power.possible(), reason="mounting a file needs root and loop devices")
@pytest.mark.parametrize("disk", range(DISKS))
def test_what_was_acknowledged_before_a_power_cut_is_on_the_disk_after_it(tmp_path: Path, disk: int) -> None:
    image, copy, rng = tmp_path / "disk.img", tmp_path / "cut.img", random.Random(disk)
    power.make(image)
    checked = 0
    with power.mounted(image, tmp_path / "disk") as folder:
        url = f"sqlite:///{folder}/experience.db"
        writer = subprocess.Popen([*WRITER, url, "0", "0"], stdout=subprocess.PIPE, text=True)
        ledger = Ledger(writer)
        try:
            for _ in range(CUTS):
                more = len(ledger.acknowledged) + rng.randint(1, 40)
                until = time.monotonic() + 60
                while len(ledger.acknowledged) < more and time.monotonic() < until:
                    time.sleep(rng.uniform(0.001, 0.02))
                before = list(ledger.acknowledged)
                power.cut(image, copy, writer)
                checked += len(before)
                with power.mounted(copy, tmp_path / "after") as after:
                    found = episodes(after / "experience.db")
                assert not [n for n in before if episode_of(5, 0, n) not in found]
                assert set(found.values()) == {3}, "an append was stored by halves"
        finally:
            ledger.close()
    image.unlink()
    copy.unlink()
    assert checked > CUTS


def episodes(file: Path) -> dict[str, int]:
    """Chunks per episode; every number is judged on the way."""
    found: dict[str, int] = {}
    with open_store(f"sqlite:///{file}") as store:
        for chunk in store.read(Query(GAME)):
            assert differences(chunk) == []
            found[chunk.header.episode] = found.get(chunk.header.episode, 0) + 1
    return found
