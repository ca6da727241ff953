"""The spool on disk: kept over a kill, bounded, locked, and never sending what is damaged."""

import os
import random
import subprocess
import sys

import pytest

from sparring.client.file_lock import try_lock
from sparring.client.spool import Spool, find_records, write_record
from sparring.client.statistics import Counters
from sparring.wire.ids import new_episode

BIG = 1 << 30


@pytest.fixture
def opened(tmp_path):
    spools = []

    def open_spool(limit_bytes=BIG, folder="spool"):
        counters = Counters()
        spool = Spool(tmp_path / folder, limit_bytes, counters)
        spools.append(spool)
        return spool, counters

    yield open_spool
    for spool in spools:
        spool.close()


def everything(spool):
    return [entry.chunk for entry in spool.batch(10_000, BIG)]


def test_chunks_come_back_oldest_episode_first_and_each_seat_in_order(opened):
    spool, _ = opened()
    first, second = new_episode(1_000), new_episode(2_000)
    spool.add(second, 0, b"c")
    spool.add(first, 1, b"b1")
    spool.add(first, 0, b"a1")
    spool.add(first, 0, b"a2")
    assert everything(spool) == [b"a1", b"a2", b"b1", b"c"]
    assert [entry.chunk for entry in spool.batch(2, BIG)] == [b"a1", b"a2"]
    assert [entry.chunk for entry in spool.batch(9, 1)] == [b"a1"]


def test_what_is_settled_is_gone_and_its_file_with_it(opened, tmp_path):
    spool, _ = opened()
    spool.add(new_episode(), 0, b"one")
    (entry,) = spool.batch(9, BIG)
    spool.settle(entry)
    spool.settle(entry)
    assert everything(spool) == []
    assert spool.waiting == (0, 0)
    assert not list(tmp_path.rglob("*.chunks"))


def test_a_file_that_is_settled_and_then_grows_again_keeps_only_what_is_new(opened):
    spool, _ = opened()
    episode = new_episode()
    spool.add(episode, 0, b"one")
    spool.settle(spool.batch(9, BIG)[0])
    spool.add(episode, 0, b"two")
    assert everything(spool) == [b"two"]


def test_the_next_process_takes_over_what_a_killed_one_left(opened, tmp_path):
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from sparring.client.spool import Spool; from sparring.client.statistics import Counters\n"
        "from sparring.wire.ids import new_episode\n"
        "spool = Spool(Path(sys.argv[1]), 1 << 30, Counters())\n"
        "for n in range(5): spool.add(new_episode(1000 + n), 0, b'chunk %d' % n)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "spool")], check=False)
    spool, _ = opened()
    assert everything(spool) == [b"chunk %d" % n for n in range(5)]
    assert len(list((tmp_path / "spool").glob("at-*"))) == 1


def test_two_living_connections_never_take_each_others_files(opened):
    one, _ = opened()
    one.add(new_episode(), 0, b"mine")
    two, _ = opened()
    assert everything(two) == []
    assert two.adopt() == 0
    assert everything(one) == [b"mine"]


def test_a_closed_connection_leaves_its_unsent_chunks_for_the_next_one(opened):
    one, _ = opened()
    one.add(new_episode(), 0, b"unsent")
    one.close()
    two, _ = opened()
    assert everything(two) == [b"unsent"]


def test_above_its_limit_the_spool_drops_the_oldest_whole_episodes_and_counts_them(opened):
    spool, counters = opened(limit_bytes=10_000)
    episodes = [new_episode(1_000 + n) for n in range(10)]
    for episode in episodes:
        for seat in (0, 1):
            assert spool.add(episode, seat, bytes(1_000))
            spool.closed(episode)
    kept = {entry.name.split(".")[0] for entry in spool.batch(999, BIG)}
    assert kept == set(episodes[-4:])
    assert spool.waiting[1] <= 10_000
    read = counters.read()
    assert (read.dropped_episodes, read.dropped_chunks) == (6, 12)


def test_an_episode_dropped_while_it_is_recorded_is_not_spooled_any_further(opened):
    spool, counters = opened(limit_bytes=3_000)
    old, young = new_episode(1_000), new_episode(2_000)
    assert spool.add(old, 0, bytes(1_000))
    assert spool.add(young, 0, bytes(1_900))
    assert spool.add(young, 0, bytes(500))
    assert not spool.add(old, 0, bytes(10))
    spool.closed(old)
    assert counters.read().dropped_episodes == 1


def test_an_entry_dropped_while_it_was_on_its_way_may_still_be_settled(opened):
    spool, _ = opened(limit_bytes=2_000)
    spool.add(new_episode(1_000), 0, bytes(1_500))
    (entry,) = spool.batch(9, BIG)
    spool.add(new_episode(2_000), 0, bytes(1_500))
    spool.settle(entry)
    assert spool.waiting[0] == 1


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_are_set_aside_and_everything_else_is_still_sent(tmp_path, seed):
    """100 damages per seed: one byte of a spool file, anywhere, before the next process reads it."""
    rng = random.Random(seed)
    for n in range(100):
        folder = tmp_path / str(n)
        writer = Spool(folder, BIG, Counters())
        chunks = [rng.randbytes(rng.randint(1, 300)) for _ in range(5)]
        episode = new_episode()
        for chunk in chunks:
            writer.add(episode, 0, chunk)
        (path,) = folder.rglob("*.chunks")
        writer.close()
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)
        path.write_bytes(data)
        counters = Counters()
        reader = Spool(folder, BIG, counters)
        found = everything(reader)
        assert [chunk for chunk in chunks if chunk in found] == found  # nothing altered, in order
        assert len(found) == 4
        # A length that points past the end cannot be told from a torn tail in the last record.
        assert counters.read().damaged_chunks == 1 or found == chunks[:4]
        reader.close()


def test_damage_under_a_running_process_is_found_when_the_chunk_is_read(opened, tmp_path):
    spool, counters = opened()
    episode = new_episode()
    spool.add(episode, 0, b"first chunk")
    spool.add(episode, 0, b"second chunk")
    (path,) = tmp_path.rglob("*.chunks")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert everything(spool) == [b"second chunk"]
    assert counters.read().damaged_chunks == 1
    assert len(list((tmp_path / "spool" / "damaged").iterdir())) == 2


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_record(tmp_path):
    whole = b"".join(write_record(chunk) for chunk in (b"first", b"second"))
    start = len(write_record(b"first"))
    for size in range(start, len(whole)):
        assert list(find_records(whole[:size])) == [(0, start, True)]


def test_a_chunk_that_was_refused_lies_aside_with_its_reason(opened, tmp_path):
    spool, _ = opened()
    spool.add(new_episode(), 0, b"bad")
    (entry,) = spool.batch(9, BIG)
    spool.set_aside(entry, "its action 9 is out of range")
    assert everything(spool) == []
    aside = sorted((tmp_path / "spool" / "refused").iterdir())
    assert aside[0].read_bytes() == b"bad"
    assert aside[1].read_text() == "its action 9 is out of range\n"


def test_a_full_disk_leaves_the_file_as_it_was(opened, tmp_path):
    if not hasattr(os, "mkfifo") or not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    from sparring.client.spool import _append

    path = tmp_path / "file"
    path.write_bytes(b"12345")
    _append(path, b"678", 5)
    assert path.read_bytes() == b"12345678"
    with pytest.raises(OSError, match="No space left"):
        _append(tmp_path.joinpath("/dev/full"), b"x", 0)


def test_a_lock_ends_with_its_process(tmp_path):
    code = "import sys, time; from pathlib import Path; from sparring.client.file_lock import try_lock\n"
    code += "held = try_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    path = tmp_path / "lock"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"held\n"
        assert try_lock(path) is None
        child.kill()
    held = try_lock(path)
    assert held is not None
    held.close()
