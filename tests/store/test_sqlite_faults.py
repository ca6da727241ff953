"""What the file survives: kills, cuts, flipped bits, full disks, and disks that fail."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from derived import GAME, chunks_of, differences, episode_of, player_of
from sparring.errors import SparringError, StoreFailed
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.store.sqlite.store import SqliteStore

WRITER = [sys.executable, str(Path(__file__).parent / "writer.py")]


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "experience.db"


def stored_episodes(file: Path) -> dict[str, int]:
    """Chunks per episode; every number is judged on the way."""
    found: dict[str, int] = {}
    with open_store(url_of(file)) as store:
        for chunk in store.read(Query(GAME)):
            assert differences(chunk) == []
            found[chunk.header.episode] = found.get(chunk.header.episode, 0) + 1
    return found


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_lose_nothing_that_was_acknowledged_and_leave_nothing_by_halves(file: Path, kills: int) -> None:
    rng = random.Random(11)
    acknowledged: set[int] = set()
    first = 0
    for _ in range(kills):
        process = subprocess.Popen([*WRITER, url_of(file), "0", str(first)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(1 + rng.randint(1, 4))]
        assert lines[0] == "open\n"
        time.sleep(rng.uniform(0.0, 0.02))  # into the next appends
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        acknowledged |= {int(line.split()[1]) for line in lines if line.startswith("ok ") and line.endswith("\n")}
        first = max(acknowledged, default=-1) + 2  # the next one may be stored without its acknowledgement
    found = stored_episodes(file)
    assert set(found.values()) == {3}
    assert not [n for n in acknowledged if episode_of(5, 0, n) not in found]
    assert len(acknowledged) <= len(found) <= len(acknowledged) + kills
    assert len(acknowledged) >= kills


@pytest.fixture
def strace() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not on the PATH")
    if subprocess.run([path, "-o", os.devnull, "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here")
    return path


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ("fsync,fdatasync", "error=EIO:when=12"),
        ("pwrite64", "error=ENOSPC:when=60..62"),
        pytest.param("fsync,fdatasync", "error=EIO:when=12+", marks=pytest.mark.slow),
        pytest.param("fsync,fdatasync", "error=ENOSPC:when=12", marks=pytest.mark.slow),
        pytest.param("pwrite64", "error=EIO:when=60+", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_fails_gets_no_acknowledgement(file: Path, strace: str, calls: str, fault: str) -> None:
    with open_store(url_of(file)):
        pass
    command = [strace, "-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"]
    done = subprocess.run([*command, *WRITER, url_of(file), "0", "0", "30"], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    failures = [n for n, line in enumerate(lines) if line.startswith("failed ")]
    assert failures, lines
    found = stored_episodes(file)
    acknowledged = [int(line.split()[1]) for line in lines if line.startswith("ok ")]
    assert all(episode_of(5, 0, n) in found for n in acknowledged)
    assert set(found.values()) <= {3}
    if "EIO" in fault:  # no success after the disk failed: the process must be started again
        assert not any(line.startswith("ok ") for line in lines[failures[0] :])


def filled(file: Path, clients: int = 3, episodes: int = 4) -> dict[str, bytes]:
    """Key → content hash of what was put in."""
    contents: dict[str, bytes] = {}
    with open_store(url_of(file)) as store:
        for client in range(clients):
            for episode in range(episodes):
                chunks = chunks_of(5, client, episode)
                store.append(chunks)
                contents |= {repr(chunk.key): chunk.content_hash() for chunk in chunks}
    return contents


@pytest.mark.parametrize("flips", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_flipped_bits_are_noticed_or_harmless_and_never_served(file: Path, tmp_path: Path, flips: int) -> None:
    contents = filled(file)
    with open_store(url_of(file)) as store:
        stats, records = store.stats(GAME), list(store.episodes(Query(GAME)))
    whole = file.read_bytes()
    rng = random.Random(3)
    refused = left_out = harmless = 0
    for _ in range(flips):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        for log in tmp_path.glob("experience.db-*"):
            log.unlink()
        try:
            with open_store(url_of(file)) as store:
                found = {repr(chunk.key): chunk.content_hash() for chunk in store.read(Query(GAME))}
                assert isinstance(store, SqliteStore)
                damaged = store.damaged
                assert found.items() <= contents.items(), f"byte {at} bit {bit} was served"
                assert len(found) + len(damaged) >= len(contents), f"byte {at} bit {bit} hid a chunk"
                if not damaged:
                    assert store.stats(GAME) == stats, f"byte {at} bit {bit}"
                    assert list(store.episodes(Query(GAME))) == records, f"byte {at} bit {bit}"
                left_out, harmless = left_out + bool(damaged), harmless + (not damaged)
        except SparringError:
            refused += 1
    assert refused + left_out + harmless == flips
    assert left_out > flips // 10  # most of the file are bodies; one of them is lost and the rest is read


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.6, 0.99])
def test_a_truncated_file_is_refused_with_what_to_do(file: Path, share: float) -> None:
    filled(file)
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(StoreFailed, match="spar restore"):
        open_store(url_of(file))


@pytest.mark.parametrize("spoiled", [b"CREATE TABLE bodies", b"CREATE TABLE chunks"])
def test_a_schema_that_is_no_text_any_more_is_refused(file: Path, spoiled: bytes) -> None:
    filled(file)
    raw = file.read_bytes()
    file.write_bytes(raw.replace(spoiled, spoiled[:4] + b"\xc6" + spoiled[5:]))
    with pytest.raises(StoreFailed, match="spar restore"):
        open_store(url_of(file))


def test_a_log_cut_anywhere_keeps_what_came_before_the_cut(file: Path, tmp_path: Path) -> None:
    with open_store(url_of(file)) as store:
        for episode in range(6):
            store.append(chunks_of(5, 0, episode))
        data, log = file.read_bytes(), Path(f"{file}-wal").read_bytes()
    rng = random.Random(5)
    for cut in sorted(rng.sample(range(len(log)), 30)):
        copy = tmp_path / "copy.db"
        copy.write_bytes(data)
        Path(f"{copy}-wal").write_bytes(log[:cut])
        found = stored_episodes(copy)
        assert list(found) == [episode_of(5, 0, n) for n in range(len(found))]
        assert set(found.values()) <= {3}
        for left in tmp_path.glob("copy.db*"):
            left.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MB of tmpfs."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_refuses_whole_appends_still_reads_and_goes_on_once_there_is_room(small_disk: Path) -> None:
    file = small_disk / "experience.db"
    with open_store(url_of(file)) as store:
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"\1" * (600 << 10))
        stored = 0

        def fill() -> None:
            nonlocal stored
            while True:
                store.append(chunks_of(5, 0, stored, steps=500, chunk_steps=500))
                stored += 1

        with pytest.raises(StoreFailed, match="the disk is full"):
            fill()
        assert sum(1 for _ in store.read(Query(GAME))) == stored
        ballast.unlink()
        assert store.append(chunks_of(5, 0, stored, steps=500, chunk_steps=500))[0].verdict == "new"
    assert len(stored_episodes(file)) == stored + 1


def raw_bytes(file: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(file.parent.glob(f"{file.name}*")))


def test_after_erasing_no_byte_of_the_player_is_left_in_any_file(file: Path) -> None:
    # Interleaved and of many sizes, so that pages are shared, split and merged.
    rng = random.Random(7)
    jobs = [(client, episode) for client in range(12) for episode in range(25)]
    rng.shuffle(jobs)
    with open_store(url_of(file)) as store:
        for client, episode in jobs:
            steps = rng.choice((1, 3, 20, 200))
            store.append(chunks_of(5, client, episode, steps=steps))
            store.append(chunks_of(5, client, episode, steps=steps, seat=1, player=None))  # a bot that saw the same
        needles: list[bytes] = []
        for client in (2, 3, 7):
            needles.append(player_of(client).encode())
            for chunk in store.read(Query(GAME, players=(player_of(client),))):
                needles += [chunk.body[20:52], chunk.header.episode.encode()]
                needles += [chunk.columns["observation/state"].tobytes()[:16]]
            assert any(needle in raw_bytes(file) for needle in needles[-3:])
        for client in (2, 3, 7):
            store.erase(GAME, player_of(client))
        raw = raw_bytes(file)
        assert [needle for needle in needles if needle in raw] == []
        assert store.stats(GAME).players == 9
        assert all(differences(chunk) == [] for chunk in store.read(Query(GAME)))


def test_an_erase_that_was_killed_before_scrubbing_is_finished_on_the_next_open(file: Path) -> None:
    filled(file)
    # What a kill between commit and scrubbing leaves: no rows, a tombstone, and their bytes still on the pages.
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA secure_delete = OFF")
    db.execute("DELETE FROM bodies WHERE id IN (SELECT id FROM chunks WHERE player = ?)", (player_of(1),))
    db.execute("DELETE FROM chunks WHERE player = ?", (player_of(1),))
    db.execute("UPDATE counters SET value = 1 WHERE name = 'scrub'")
    db.close()
    assert player_of(1).encode() in raw_bytes(file)
    with open_store(url_of(file)):
        assert player_of(1).encode() not in raw_bytes(file)


def test_a_large_file_is_scrubbed_by_the_next_trim(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.store.sqlite.removal.SCRUB_AT_ONCE_BYTES", 0)
    filled(file)
    with open_store(url_of(file)) as store:
        store.erase(GAME, player_of(1))
        assert player_of(1).encode() not in raw_bytes(file)
        assert pending(file) == 1
        store.trim()
        assert pending(file) == 0
        assert store.stats(GAME).players == 2


def pending(file: Path) -> int:
    db = sqlite3.connect(file)
    (value,) = db.execute("SELECT value FROM counters WHERE name = 'scrub'").fetchone()
    db.close()
    return int(value)


def test_retention_by_bytes_removes_the_oldest_and_the_file_shrinks(file: Path) -> None:
    with open_store(url_of(file)) as store:
        for episode in range(120):
            store.append(chunks_of(5, 0, episode, steps=400, chunk_steps=400))
        store.trim(max_bytes=1)  # empty the log, then fill again
        for episode in range(200, 320):
            store.append(chunks_of(5, 0, episode, steps=400, chunk_steps=400))
        before = store.stats(GAME).encoded_bytes
        trimmed = store.trim(max_bytes=before // 2)
        assert 40 < trimmed.episodes < 100
        assert file.stat().st_size <= before // 2
        assert Path(f"{file}-wal").stat().st_size == 0
        left = [record.received_at_ms for record in store.episodes(Query(GAME))]
        assert left == sorted(left)
        assert left[-1] == chunks_of(5, 0, 319)[0].header.received_at_ms
        assert len(left) == 120 - trimmed.episodes


def test_two_processes_write_one_file_while_a_third_reads_it(file: Path) -> None:
    writers = [
        subprocess.Popen([*WRITER, url_of(file), str(client), "0", "40"], stdout=subprocess.PIPE, text=True)
        for client in range(2)
    ]
    with open_store(url_of(file)) as store:
        while any(process.poll() is None for process in writers):
            assert all(differences(chunk) == [] for chunk in store.read(Query(GAME)))
        outputs = [process.communicate()[0].splitlines() for process in writers]
        assert [output.count("open") for output in outputs] == [1, 1]
        assert [sum(line.startswith("ok ") for line in output) for output in outputs] == [40, 40]
        assert store.stats(GAME).chunks == 240


def test_a_file_that_another_process_holds_is_said_to_be_held(file: Path) -> None:
    with SqliteStore(file, busy_timeout_s=0.05) as store:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreFailed, match="another process holds the file"):
            store.append(chunks_of(5, 0, 0))
        other.execute("ROLLBACK")
        other.close()
        assert store.append(chunks_of(5, 0, 0))[0].verdict == "new"


def test_a_file_of_an_older_version_is_refused_with_one_sentence(file: Path) -> None:
    shutil.copy(Path(__file__).parent / "fixtures" / "version-1.db", file)
    with pytest.raises(StoreFailed, match=r"it has version 1, this Sparring reads version 3\. Use the Sparring that"):
        open_store(f"sqlite:///{file}")


def test_a_file_from_the_future_is_refused_untouched(file: Path) -> None:
    filled(file)
    db = sqlite3.connect(file)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreFailed, match=r"it has version 99, this Sparring reads version 3\. Use the Sparring"):
        open_store(url_of(file))


def test_another_programs_database_is_refused_untouched(file: Path) -> None:
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.commit()
    db.close()
    with pytest.raises(StoreFailed, match="this database is another program's"):
        open_store(url_of(file))


def test_a_file_that_is_no_database_is_refused(file: Path) -> None:
    file.write_text("hello\n" * 1_000)
    with pytest.raises(StoreFailed, match="no database"):
        open_store(url_of(file))


def test_a_folder_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="it cannot be opened"):
        open_store(url_of(tmp_path))


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(SparringError, match=r"no store speaks 'mongo://x'\. Use one of sqlite://, cassandra://\."):
        open_store("mongo://x")
