"""`spar` as a person calls it: help, mistakes, doctor, init. Real processes."""

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparring.cli import COMMANDS, main
from sparring.cli.output import Output

SPAR = [sys.executable, "-m", "sparring"]


def spar(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPAR, *words], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_help_lists_every_command_and_imports_nothing_heavy(tmp_path: Path) -> None:
    found = spar("--help", cwd=tmp_path)
    assert found.returncode == 0
    assert all(f"\n  {name} " in found.stdout for name in COMMANDS)
    code = "import sys; from sparring.cli import main; main(['--help']); print([m for m in sys.modules])"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert not any(f"'{heavy}'" in modules for heavy in ("numpy", "torch", "starlette", "httpx", "msgspec", "rich"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(flag in said for flag in ("--json", "--set", "--config", "--data"))
    assert f"Example: spar {command}" in " ".join(said.split())


def test_a_command_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    found = spar("trian", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (2, "spar: there is no command 'trian'; did you mean `spar train`?\n")


def test_a_wrong_setting_is_a_sentence_and_an_object(tmp_path: Path) -> None:
    found = spar("doctor", "--set", "gateway.prot=3", "--json", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr == "spar: --set [gateway]: unknown key 'prot'. Did you mean 'port'?\n"
    assert json.loads(found.stdout) == {
        "error": "unknown key 'prot'", "where": "--set [gateway]", "do": "Did you mean 'port'",
    }  # fmt: skip


def test_doctor_finds_nothing_broken_here_and_says_what_is(tmp_path: Path) -> None:
    found = spar("doctor", "--json", "--set", "gateway.port=0", cwd=tmp_path)
    said = json.loads(found.stdout.splitlines()[-1])
    assert (found.returncode, said["broken"]) == (0, [])
    assert {"python", "store", "registry", "data folder", "extra [train]"} <= {one["what"] for one in said["findings"]}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "experience.db").write_bytes(b"this is no database" * 500)
    broken = spar("doctor", "--json", "--set", "gateway.port=0", cwd=tmp_path)
    said = json.loads(broken.stdout.splitlines()[-1])
    assert (broken.returncode, said["broken"]) == (1, ["store"])
    assert "Traceback" not in broken.stderr


def test_init_writes_a_spec_that_passes_every_check_and_never_over_a_file(tmp_path: Path) -> None:
    found = spar("init", "tank-duel", "--features", "6", "--actions", "5", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["steps_checked"] == 4
    listed = spar("games", "list", "--json", cwd=tmp_path)
    assert "tank-duel" in listed.stdout
    again = spar("init", "tank-duel", cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr == (
        "spar: spar init: spar.toml, games/tank-duel.toml, record.py is there already. Choose another --folder.\n"
    )
    compiled = subprocess.run([sys.executable, "-m", "py_compile", "record.py"], cwd=tmp_path, timeout=60)
    assert compiled.returncode == 0


MISSING = """
import sys
from sparring.cli import main
sys.modules["torch"] = None  # as where the extra was not installed
sys.exit(main(["train", "cartpole", "--steps", "1000"]))
"""


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", MISSING], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (
        1, "spar: this installation: the package 'torch' is not installed. Run pip install 'sparring[train]'.\n",
    )  # fmt: skip


def test_what_nobody_foresaw_is_a_sentence_and_its_story_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from sparring.cli import main, doctor; doctor.run = lambda *a: 1 / 0; sys.exit(main(['doctor']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert found.returncode == 1
    assert found.stderr.startswith(
        "spar: unforeseen: something went wrong that should not: ZeroDivisionError: division by"
    )
    (story,) = tmp_path.glob("spar-*.txt")
    assert str(story) in found.stderr
    assert "Traceback" in story.read_text()


def test_output_that_nobody_reads_ends_without_a_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        found = subprocess.run(
            [*SPAR, "doctor", "--set", "gateway.port=0"], cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, timeout=60
        )
    assert b"Traceback" not in found.stderr


def test_a_token_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparring.cli import collect

    monkeypatch.setenv("SPARRING_TOKEN", "spar_a_b")
    parser = argparse.ArgumentParser()
    collect.arguments(parser)
    assert parser.parse_args(["cartpole"]).token == "spar_a_b"
    assert parser.parse_args(["cartpole", "--token", "other"]).token == "other"


def test_a_wait_is_said_again_with_its_length_until_another_line_comes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.cli.output.QUIET_S", 0.01)
    output, log, said = Output(), logging.getLogger("sparring.hosts.ray.cluster"), ""
    with output.waits():
        log.warning("it is slow")
        log.info("starting Ray …")
        until = time.monotonic() + 60
        while said.count("starting Ray … ") < 2 and time.monotonic() < until:
            said += capsys.readouterr().out
        output.progress("1 %")
    said += capsys.readouterr().out
    lines = said.splitlines()
    assert lines[:2] == ["it is slow", "starting Ray …"]
    assert lines[-1] == "1 %"
    assert {re.sub(r"\d+", "N", line) for line in lines[2:-1]} == {"starting Ray … N s"}
    assert logging.getLogger("sparring").handlers == []
