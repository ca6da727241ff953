"""What goes wrong around a training is said in a sentence, whole, and leaves nothing half done."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from test_runs import trained

from sparring.acting.return_histogram import plot
from sparring.cli import main
from sparring.config import load
from sparring.errors import ConfigError, Missing, StoreFailed, TrainingStopped
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.folder import FORMAT, RunFolder
from sparring.learn.runs.train import TrainOptions, train
from sparring.wire.tree import pack


def sentence(kind, act):
    with pytest.raises(kind) as caught:
        act()
    return str(caught.value)


def runs_of(config):
    return Path(config.data) / "runs"


def requested(config, game, algo="ppo", **options):
    return lambda: train(TrainRequest(game, algo, steps=100), TrainOptions(**options), config, lambda progress: None)


def rewritten(run, change):
    """The run with `change` applied to its checkpoint, whose checksum holds."""
    state = run.restore()
    change(state)
    run.checkpoint(state)
    run.finish_checkpoint()


def test_an_unknown_algorithm_and_key_are_answered_with_the_one_that_was_meant(config):
    assert sentence(Missing, requested(config, "cartpole", "dnq")) == (
        "--algo: there is no algorithm 'dnq'. Did you mean 'dqn'?"
    )
    wrong = TrainRequest("cartpole", settings=("entropy_coeficient=0.1",))
    assert sentence(ConfigError, lambda: train(wrong, TrainOptions(), config, lambda progress: None)) == (
        "[ppo]: unknown key 'entropy_coeficient'. Did you mean 'entropy_coefficient'?"
    )
    assert not runs_of(config).exists()


def test_records_and_a_memory_are_refused_before_a_run_begins(config):
    wrong = TrainRequest("cartpole", source="mix", settings=("memory=gru:32",))
    assert sentence(ConfigError, lambda: train(wrong, TrainOptions(), config, lambda progress: None)) == (
        "[ppo] memory: steps of the store do not record the state of a recurrent network. "
        "Leave out memory, or --from mix."
    )
    assert not runs_of(config).exists()


def test_a_game_whose_spaces_an_algorithm_cannot_take_is_refused_before_a_run_begins(config):
    pytest.importorskip("gymnasium")
    assert sentence(ConfigError, requested(config, "gym:Pendulum-v1", "dqn")) == (
        "game gym:Pendulum-v1: its actions are box, and dqn chooses among discrete ones. "
        "Use ppo, mappo, impala, a3c, sac, bc, cql or iql (docs/algorithms), or train a game with discrete actions."
    )
    assert not runs_of(config).exists()


def test_there_is_nothing_to_resume(config):
    assert sentence(Missing, requested(config, "cartpole", resume="")) == (
        f"{runs_of(config)}: no run of cartpole with ppo is there. Train without --resume first."
    )


def test_a_checkpoint_of_another_build_is_refused_with_what_it_lacks(config):
    name = trained(config, steps=200).run
    run = RunFolder(runs_of(config) / name)
    rewritten(run, lambda state: state["topology"]["actors"].pop("version"))
    assert sentence(TrainingStopped, requested(config, "cartpole", resume=name)) == (
        f"run {name}: the checkpoint was written by another build (there is no 'version'). "
        "Resume it with the build that wrote it, or start a new run."
    )


def test_a_checkpoint_of_another_format_is_refused(config, monkeypatch):
    name = trained(config, steps=200).run
    run = RunFolder(runs_of(config) / name)
    state = run.restore()
    monkeypatch.setattr("sparring.learn.runs.folder.FORMAT", 0)
    run.checkpoint(state)
    run.finish_checkpoint()
    monkeypatch.undo()
    assert sentence(TrainingStopped, requested(config, "cartpole", resume=name)) == (
        f"run {name}: the checkpoint was written by another build (its format is 0, and {FORMAT} is read here). "
        "Resume it with the build that wrote it, or start a new run."
    )


def test_a_plan_of_another_build_is_refused_too(config):
    name = trained(config, steps=200).run
    path = runs_of(config) / name / "run.json"
    about = json.loads(path.read_text())
    del about["config"]["opponents"]
    path.write_text(json.dumps(about))
    assert sentence(TrainingStopped, requested(config, "cartpole", resume=name)) == (
        f"run {name}: the checkpoint was written by another build (there is no 'opponents'). "
        "Resume it with the build that wrote it, or start a new run."
    )


def test_a_checkpoint_of_another_game_is_refused(config):
    name, other = trained(config, steps=200).run, trained(config, "duel", steps=200).run
    file = "checkpoint/state"
    (runs_of(config) / name / file).write_bytes((runs_of(config) / other / file).read_bytes())
    assert sentence(TrainingStopped, requested(config, "cartpole", resume=name)) == (
        f"run {name}: its checkpoint is of another game than cartpole. Put back its own, or start a new run."
    )


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    asked = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        pytest.skip(f"no small file system can be mounted here: {asked.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_checkpoint_before_and_the_run_goes_on_once_there_is_room(small_disk):
    config = load(None, (f"data={small_disk / 'data'}", "registry.gate_episodes=2"))
    name = trained(config, steps=200).run
    run = RunFolder(runs_of(config) / name)
    before = run.restore()
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_bsize))
    checkpoint = run.folder / "checkpoint" / "state"
    assert sentence(StoreFailed, lambda: (run.checkpoint(before), run.finish_checkpoint())) == (
        f"{checkpoint}: the disk would not keep it: No space left on device. "
        "Free space or mend the disk, then do it again; what was there before is untouched."
    )
    said = sentence(StoreFailed, lambda: trained(config, steps=600, resume=name))
    assert "the disk would not keep it: No space left on device" in said
    assert [path.name for path in checkpoint.parent.iterdir()] == ["state"]
    assert pack(run.restore()) == pack(before)
    filler.unlink()
    assert trained(config, steps=600, resume=name).env_steps >= 600


def test_a_picture_that_does_not_fit_leaves_the_one_before(small_disk):
    picture = small_disk / "returns.png"
    plot(np.arange(9.0), picture, "nine games")
    before = picture.read_bytes()
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize))
    assert sentence(StoreFailed, lambda: plot(np.zeros(3), picture, "three games")) == (
        f"{picture}: the disk would not keep it: No space left on device. "
        "Free space or mend the disk, then do it again; what was there before is untouched."
    )
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "returns.png"]
    assert picture.read_bytes() == before


@pytest.mark.slow
def test_a_sweep_that_does_not_fit_is_told_in_a_sentence(small_disk, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text("[sweep]\ntrials = 1\nsteps = 100\n[space]\nepochs = { low = 1, high = 2 }\n")
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize))
    words = ["train", "cartpole", "--sweep", str(file), "--data", str(small_disk / "data")]
    done = subprocess.run([sys.executable, "-m", "sparring", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    folder = small_disk / "data" / "sweeps" / "cartpole-ppo-s"
    assert done.stderr.startswith(f"spar: {folder}: its study could not be written: ")
    assert done.stderr.endswith(
        "Free space or repair the disk, then give the same command: finished trials are kept.\n"
    )


@pytest.fixture
def signals():
    """`spar train` takes the signals of its process; they are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def read_all(terminal, drawn):
    while True:
        try:
            drawn.append(os.read(terminal, 65536))
        except OSError:  # the other side is closed
            return


@pytest.mark.usefixtures("signals")
def test_on_a_terminal_one_line_is_drawn_over_and_elsewhere_each_is_its_own(config, monkeypatch, capsys):
    monkeypatch.setattr("sparring.cli.output.QUIET_S", 1e6)  # however busy the machine is
    words = ["train", "cartpole", "--data", config.data, "--steps", "6000"]
    words += ["--set", "registry.gate_episodes=2", "--set", "train.log_every_s=0.05"]
    assert main(words) == 0
    plain = capsys.readouterr().out
    terminal, inside = pty.openpty()
    drawn = []
    reader = threading.Thread(target=read_all, args=(terminal, drawn))
    reader.start()
    with os.fdopen(inside, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        code = main(words)
    reader.join(10)
    os.close(terminal)
    assert code == 0
    frames = b"".join(drawn).decode().split("\r\x1b[2K")[1:]
    assert len(frames) > 1
    assert all("\n" not in frame for frame in frames[:-1])
    assert "\x1b" not in plain
    assert "\r" not in plain
    for shown in (frames[-1], [line for line in plain.splitlines() if " steps/s" in line][-1]):
        for part in ("100%", " steps/s", " updates", "return ", "loss ", " left"):
            assert part in shown
