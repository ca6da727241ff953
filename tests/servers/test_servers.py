"""Servers are installed once, said when they are missing, and required where that is asked."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from servers.install import NAMES, RECIPES, alone, folder, main
from servers.running import installed, program, redis
from servers.spark_cluster import described

ROOT = Path(__file__).parents[2]


@pytest.mark.servers
def test_what_is_there_is_not_made_again(tmp_path, capsys):
    for recipe in RECIPES.values():
        program(recipe.program)
    with installed():
        described(tmp_path)  # Spark is a package and a Java
    begun = time.monotonic()
    assert main([]) == 0
    assert time.monotonic() - begun < 5
    said = capsys.readouterr().out
    assert all(f"{name}: already made" in said or f"{name}: on the PATH" in said for name in NAMES)


@pytest.mark.servers
def test_redis_answers(tmp_path):
    with (
        redis(tmp_path) as server,
        socket.create_connection(("127.0.0.1", int(server.ready.rpartition(":")[2])), 1) as line,
    ):
        line.sendall(b"PING\r\n")
        assert line.recv(16) == b"+PONG\r\n"


@pytest.mark.parametrize(
    ("server", "fix"),
    [
        ("consul", "there is no `go` on the PATH: install Go 1.22 or newer"),
        ("versitygw", "there is no `go` on the PATH: install Go 1.25 or newer"),
        ("s3", "versitygw is compiled with Go"),
        ("cassandra", "apt-get install "),  # Java, or where that is found elsewhere Maven
    ],
)
def test_what_a_server_is_made_with_is_named_where_it_is_missing_and_nothing_is_left(
    server, fix, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SPARRING_SERVERS", str(tmp_path / "servers"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([server]) == 1
    assert fix in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "servers").iterdir()] == ["lock"]
    assert main([f"{server}l"]) == 2


def test_make_hands_on_the_names_of_the_servers_that_are_wanted():
    command = ["make", "--dry-run", "--no-print-directory", "servers", "S=cassandra s3 kinesis"]
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}  # of the `make test` that runs this test
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.rstrip().endswith("tests/servers/install.py cassandra s3 kinesis")


def test_one_that_cannot_be_made_does_not_keep_the_next_from_being_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_SERVERS", str(tmp_path / "servers"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["consul", "versitygw"]) == 1
    assert capsys.readouterr().err.count("there is no `go` on the PATH") == 2


def test_two_runs_wait_for_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_SERVERS", str(tmp_path))
    inside, order = threading.Event(), []

    def first():
        with alone():
            inside.set()
            time.sleep(0.3)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait()
    with alone():
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert "another `make servers` is at work" in capsys.readouterr().out
    assert folder() == tmp_path


@pytest.mark.parametrize("required", ["", "servers"])
def test_a_missing_server_is_skipped_unless_it_is_required(tmp_path, required):
    place = {"SPARRING_SERVERS": str(tmp_path), "SPARRING_REQUIRE": required, "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::test_redis_answers"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | place, capture_output=True, text=True, check=False)
    if "PONG" in done.stdout or "1 passed" in done.stdout:
        pytest.skip("a redis-server of the system's is in the way")
    assert "there is no redis-server here: `make servers` installs it" in done.stdout
    assert (done.returncode == 0) == (not required)
    assert ("1 skipped" in done.stdout) == (not required)


SKIPS = """
import pytest
{}
def test_one():
    pytest.skip("it is not here")
"""


@pytest.mark.parametrize(
    ("text", "required", "fails"),
    [
        ("", "", False),
        ("", "servers", False),
        ("", "all", True),
        ("pytest.importorskip('nothing_of_this_name')", "servers", False),
        ("pytestmark = pytest.mark.servers; pytest.importorskip('nothing_of_this_name')", "servers", True),
        ("pytest.importorskip('nothing_of_this_name')", "all", True),
    ],
    ids=["a test", "a test, servers", "a test, all", "a file, servers", "a file that needs servers", "a file, all"],
)
def test_nothing_is_skipped_silently_where_it_is_required(tmp_path, text, required, fails):
    file = tmp_path / "test_skips.py"
    file.write_text(SKIPS.format(text))
    place = {"SPARRING_REQUIRE": required, "PYTHONPATH": str(ROOT / "tests")}
    words = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "conftest", "-p", "no:cacheprovider", str(file)]
    words += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | place, capture_output=True, text=True, check=False)
    assert (done.returncode in (1, 2)) == fails, done.stdout + done.stderr
    assert ("it is not here" in done.stdout) or ("nothing_of_this_name" in done.stdout)
