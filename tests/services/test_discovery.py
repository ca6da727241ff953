"""Discovery by URL, and the folder in which a machine's services meet."""

import os
import subprocess
import sys

import pytest
from worker_services import Worker

from sparring.errors import ConfigError
from sparring.services.discovery import Instance, Local, default_folder, open_discovery
from sparring.services.server import Server
from sparring.services.solver import Solver


def test_a_url_or_the_environment_says_where_services_are_found(folder, monkeypatch):
    assert open_discovery(f"local://{folder}/a").folder == folder / "a"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert open_discovery("local://").folder == default_folder() == folder / f"sparring-{os.getuid()}"
    monkeypatch.setenv("SPARRING_DISCOVERY", f"local://{folder}/b")
    with Server(Worker("w"), Local(folder / "b")), Solver() as solver:
        assert solver.retrieve(Worker, "whoami") == "w"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("consl://x", "services.discovery: 'consl://x' is no discovery. Did you mean consul://?"),
        ("redis://x", "services.discovery: 'redis://x' is no discovery. Use one of local://, consul://, ray://."),
        ("local", "services.discovery: 'local' is no discovery. Did you mean local://?"),
        ("local://host/x", "names more than a folder. Write local:// or local:///folder."),
        ("consul://127.0.0.1:x", "Write consul://HOST:PORT."),
    ],
)
def test_a_wrong_url_is_refused_with_what_was_meant(url, words):
    with pytest.raises(ConfigError) as wrong:
        open_discovery(url)
    assert words in str(wrong.value)


def test_a_folder_of_another_user_is_not_used(folder):
    if os.geteuid() == 0:
        os.chown(folder, 1234, 1234)
        with pytest.raises(ConfigError, match="belongs to user 1234"):
            Local(folder)
        os.chown(folder, 0, 0)


DIES = """
import os, sys
from pathlib import Path
from sparring.services.discovery import Local
from sparring.services.discovery import Instance
local = Local(Path(sys.argv[1]))
local.announce(Instance(service="s", id="one", address=f"ipc://{sys.argv[1]}/s.one.old.sock"))
Path(sys.argv[1], "s.one.old.sock").touch()
os._exit(1)
"""


def test_a_successor_of_the_same_id_is_never_taken_for_the_dead(folder):
    local = Local(folder)
    for _ in range(5):
        subprocess.run([sys.executable, "-c", DIES, str(folder)], check=False)
        held = local.announce(Instance(service="s", id="one", address=f"ipc://{folder}/s.one.new.sock"))
        (alive,) = Local(folder).instances("s")
        assert alive.address.endswith("new.sock")
        dead = Instance(service="s", id="one", address=f"ipc://{folder}/s.one.old.sock")
        assert Local(folder).alive(dead)  # the id lives, by its successor
        held.close()
        assert Local(folder).instances("s") == ()


def test_what_the_dead_left_is_removed_by_whoever_looks(folder):
    subprocess.run([sys.executable, "-c", DIES, str(folder)], check=False)
    assert len(list(folder.iterdir())) == 2
    assert Local(folder).services() == ("s",)
    assert Local(folder).instances("s") == ()
    assert list(folder.iterdir()) == []


def test_instances_that_come_in_the_same_moment_are_all_seen(folder):
    local, held = Local(folder), []
    for number in range(50):
        held.append(local.announce(Instance(service="s", id=str(number), address="ipc://x")))
        assert len(local.instances("s")) == number + 1
    for one in held:
        one.close()
    assert local.instances("s") == ()
