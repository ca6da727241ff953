"""A running league whose Redis goes away, or whose disk is full: one sentence, nothing half-written, and it goes on."""

import os
import signal
import sqlite3
import subprocess
import tomllib
from contextlib import closing

import pytest
from test_league_kills import TOML, spar_league, state_of, wait_for

from servers.running import redis
from sparring.config import load
from sparring.errors import StoreFailed, Unreachable
from sparring.games.catalogue import spec_of
from sparring.league.league_file import parse_league
from sparring.league.service import LeagueService
from sparring.league.state import LeagueState
from sparring.learn.league.launch import RunningLeague
from sparring.registry.file import FileRegistry
from sparring.services.discovery import open_discovery


def steps_of(league):
    return {one["name"]: (one["generation"], one["steps"]) for one in league.status().get("learners", [])}


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_a_league_waits_for_its_redis_and_goes_on(tmp_path):
    with redis(tmp_path / "redis") as server:
        config = load(None, (f"data={tmp_path / 'data'}", f"league.pool_url={server.ready}/0?timeout_s=2"))
        file = parse_league(tomllib.loads(TOML))
        with RunningLeague("connect-four", file, config) as league, closing(open_discovery(league.discovery)) as found:
            wait_for(lambda: league.status().get("members", 0) > 2, "a first model is frozen")
            server.kill()
            (learner, *_) = found.instances("learner")
            os.kill(learner.pid, signal.SIGKILL)  # its successor opens the pool while there is none
            wait_for(lambda: learner.pid not in {one.pid for one in found.instances("learner")}, "it has ended")
            wait_for(lambda: len(found.instances("learner")) == 2, "its successor is there")
            before, members = steps_of(league), league.status()["members"]
            server.start()
            wait_for(lambda: all(now > before[one] for one, now in steps_of(league).items()), "every learner goes on")
            wait_for(lambda: league.status().get("members", 0) > members, "another model is frozen")


@pytest.mark.servers
def test_a_league_without_its_redis_does_not_begin(tmp_path):
    with redis(tmp_path / "redis") as server:
        url = f"{server.ready}/0"
    config = load(None, (f"data={tmp_path / 'data'}", f"league.pool_url={url}?timeout_s=1"))
    with pytest.raises(Unreachable, match=f"^.league. pool_url: {url} does not answer "):
        RunningLeague("connect-four", parse_league({}), config)
    assert not (tmp_path / "data").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"no small file system can be mounted here: {asked.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """A file that takes all room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return filler


def stored_in(folder):
    """The ids of all results and matches."""
    with closing(sqlite3.connect(folder / "league" / "connect-four.db")) as file:
        return {id for (id,) in file.execute("SELECT id FROM results UNION ALL SELECT id FROM matches")}


def frozen_until_refused(league):
    """The first model that the league cannot store: pages that are there already may take a few."""
    for number in range(1000):
        try:
            league.freeze("main-0", 0, f"{number:064x}", False)
        except StoreFailed as error:
            assert error.do.startswith("Free space or mend the disk")
            return f"{number:064x}"
    return pytest.fail("the disk is not full")


def test_what_a_full_disk_did_not_take_has_not_happened(small_disk):
    league = LeagueService("connect-four", str(small_disk), {}, f"file://{small_disk}/models", "memory://")
    with closing(league), LeagueState(small_disk, spec_of("connect-four").id) as state:
        results = [[f"{number}", "x" * 1000, 1, 0, 0] for number in range(1000)]
        filler = fill(small_disk)
        for _ in range(2):  # the second call meets nothing that the first left behind
            with pytest.raises(StoreFailed, match="Free space or mend the disk"):
                league.exchange("main-0", 0, results)
            model = frozen_until_refused(league)
            assert model not in {one.name for one in state.members()}
        filler.unlink()
        league.exchange("main-0", 0, results)
        league.freeze("main-0", 0, model, False)
        assert model in {one.name for one in state.members()}
        assert state.games() == len(results)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_league_on_a_full_disk_ends_with_a_sentence_and_goes_on_once_there_is_room(small_disk):
    (small_disk / "league.toml").write_text(TOML)
    with spar_league(small_disk) as process:
        wait_for(lambda: any(one.role == "main" for one in state_of(small_disk)[1]), "a main agent is frozen")
        wait_for(lambda: stored_in(small_disk), "games are counted")
        acknowledged = stored_in(small_disk)
        filler = fill(small_disk)
        assert process.wait(120) == 1
        said = process.stderr.read().strip().splitlines()[-1]
    assert "No space left on device" in said or "disk is full" in said, said
    assert "Traceback" not in said
    filler.unlink()
    with closing(sqlite3.connect(small_disk / "league" / "connect-four.db")) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert acknowledged <= stored_in(small_disk)
    learners, members = state_of(small_disk)
    registry = FileRegistry(small_disk / "models")
    assert all(registry.fetch(one.name) for one in members if one.role != "script")  # whole, each of them
    with spar_league(small_disk):
        wait_for(lambda: state_of(small_disk)[0]["main-0"].steps > learners["main-0"].steps, "the main agent goes on")
