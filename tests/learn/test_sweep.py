"""Sweeps: real runs of drawn settings, taken up again where they were broken off."""

import json
import math
import shlex
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sparring.cli import main
from sparring.errors import ConfigError, Missing, Refused
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.summary import read_run
from sparring.learn.sweeps.sweep import SweepCallbacks, sweep

QUICK = ("rollout_ticks=16", "minibatch_steps=128")
SPACE = """
[space]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
epochs = { low = 1, high = 3 }
hidden_units = { choices = [[8], [16, 16]] }
"""


@pytest.fixture(autouse=True)
def signals():
    """`spar train` takes the signals of its process; they are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def config(config):
    """A gate of two episodes: a sweep has many runs."""
    return replace(config, registry=replace(config.registry, gate_episodes=2))


def written(tmp_path, table, space=SPACE, name="s.toml"):
    path = tmp_path / name
    path.write_text(f"[sweep]\n{table}\n{space}")
    return path


def swept(
    config,
    path,
    *,
    begun=lambda sweep: None,
    progress=lambda trial, run, progress: None,
    seed=3,
    settings=QUICK,
    parallel=1,
    on=None,
):
    request = TrainRequest("cartpole", seed=seed, envs=8, settings=settings, on=on)
    callbacks = SweepCallbacks(progress, lambda told: None, begun)
    return sweep(path, request, config, callbacks, parallel=parallel)


def drawn(result):
    return [(one.state, one.settings, one.value) for one in result.trials]


def test_every_trial_is_real_runs_and_the_best_is_the_one_with_the_highest_return(config, tmp_path):
    result = swept(config, written(tmp_path, "trials = 2\nsteps = 200\nseeds = 2"))
    assert result.state == "done"
    assert result.best.value == max(one.value for one in result.trials)
    for one in result.trials:
        abouts = [json.loads((Path(config.data) / "runs" / run / "run.json").read_text()) for run in one.runs]
        assert [about["seed"] for about in abouts] == [3, 4]
        for about in abouts:
            used = about["config"]["settings"]
            assert used["rollout_ticks"] == 16
            for key, value in one.settings.items():
                assert used[key] == value
        assert 1e-4 <= one.settings["learning_rate"] <= 1e-2
        assert one.settings["epochs"] in (1, 2, 3)
    words = shlex.split(result.flags)
    assert words[::2] == ["--algo-set"] * 3
    fewer = swept(config, written(tmp_path, "trials = 1\nsteps = 200\nseeds = 2"))
    assert (fewer.state, fewer.trials) == ("done", result.trials), "nothing is left to run"
    flags = dict(word.split("=", 1) for word in words[1::2])
    assert {key: json.loads(text) for key, text in flags.items()} == result.best.settings


@pytest.mark.slow
def test_a_sweep_broken_off_and_taken_up_again_draws_what_an_unbroken_one_does(config, tmp_path):
    space, table = written(tmp_path, "trials = 6\nsteps = 128"), "trials = 6\nsteps = 128\nname = 'broken'"
    unbroken = swept(config, space)
    broken = written(tmp_path, table, name="broken.toml")
    begun = []

    def stop_the_sixth(trial, run, progress):
        if trial == 6:
            begun[0].on_signal(signal.SIGINT, None)

    first = swept(config, broken, begun=begun.append, progress=stop_the_sixth)
    assert (first.state, len(first.trials)) == ("stopped", 5)
    second = swept(config, broken)
    assert second.state == "done"
    assert drawn(second) == drawn(unbroken)
    assert [one.number for one in second.trials] == [1, 2, 3, 4, 5, 6]
    more = swept(config, written(tmp_path, table.replace("6", "7"), name="broken.toml"))
    assert drawn(more)[:6] == drawn(second)
    assert len(more.trials) == 7


@pytest.mark.slow
def test_a_target_is_sought_with_the_fewest_steps_and_missing_it_counts_twice(config, tmp_path):
    easy = swept(config, written(tmp_path, 'trials = 2\nsteps = 1000\nobjective = "steps"\ntarget = 1.0'))
    assert all(one.value < 1000 for one in easy.trials)
    assert easy.best.value == min(one.value for one in easy.trials)
    table = 'trials = 1\nsteps = 300\nobjective = "steps"\ntarget = 1e6\nname = "hard"'
    hard = swept(config, written(tmp_path, table))
    assert hard.trials[0].value >= 600


def test_a_trial_that_breaks_is_told_and_the_sweep_goes_on(config, tmp_path):
    space = "[space]\nlearning_rate = { choices = [1e30] }\n"
    path = written(tmp_path, "trials = 2\nsteps = 20000", space)
    result = swept(config, path, settings=("max_gradient_norm=1e30", "rollout_ticks=16"))
    assert [one.state for one in result.trials] == ["failed", "failed"]
    assert "is no finite number after update" in result.trials[0].note
    assert (result.best, result.flags) == (None, "")


def test_the_command_shows_a_table_flags_and_pictures(config, tmp_path, capsys):
    path = written(tmp_path, "trials = 2\nsteps = 200")
    words = ["train", "cartpole", "--data", config.data, "--sweep", str(path), "--set", "registry.gate_episodes=2"]
    words += ["--parallel", "1"]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert [one["state"] for one in result["trials"]] == ["complete", "complete"]
    assert isinstance(result["best"]["settings"]["learning_rate"], float)
    assert f"best: spar train cartpole --algo ppo {result['flags']}" in said.err
    assert "trial  return" in said.err
    assert "trial 2 run 1  100%" in said.err
    folder = Path(config.data) / "sweeps" / "cartpole-ppo-s"
    assert result["plots"] == [str(folder / "sweep.png"), str(folder / "sweep.svg")]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (folder / "sweep.svg").read_bytes()
    assert main([*words, "--steps", "5"]) == 1
    assert capsys.readouterr().err == (
        "spar: --sweep: --steps does not go with it. "
        "Say it in the file; a sweep that was broken off goes on by itself.\n"
    )


WRONG = [
    ("trils = 3\nsteps = 9", SPACE, "s.toml [sweep]: unknown key 'trils'. Did you mean 'trials'?"),
    ("trials = 3", SPACE, "[sweep]: how long a run is must be said once. Give steps, or else minutes."),
    (
        'steps = 9\nobjective = "steps"',
        SPACE,
        "[sweep]: objective = 'steps' has no target. Give target = RETURN.",
    ),
    (
        "steps = 9",
        "[space]\nlerning_rate = { low = 1, high = 2 }",
        "s.toml [space]: unknown key 'lerning_rate'. Did you mean 'learning_rate'?",
    ),
    (
        "steps = 9",
        "[space]\nepochs = { low = 1, hgh = 2 }",
        "s.toml [space] epochs: unknown key 'hgh'. Did you mean 'high'?",
    ),
    (
        "steps = 9",
        "[space]\nepochs = { low = 1.5, high = 2 }",
        "s.toml [space]: epochs: low = 1.5, high = 2, log = false. "
        "Let low be below high, above 0 where log is true, and whole where the setting is.",
    ),
    (
        "steps = 9",
        '[space]\nactivation = { choices = ["tanh", "gelu"] }',
        "[ppo]: activation = 'gelu'. Use one of 'relu', 'tanh', 'none'.",
    ),
    ("steps = 9", "", "s.toml: it has no table [space]. Name at least one setting to search."),
]


@pytest.mark.parametrize(("table", "space", "sentence"), WRONG, ids=[sentence[:40] for *_, sentence in WRONG])
def test_a_wrong_file_is_refused_with_what_was_meant(table, space, sentence, config, tmp_path):
    with pytest.raises(ConfigError) as error:
        swept(config, written(tmp_path, table, space))
    assert str(error.value) == sentence
    assert not (Path(config.data) / "sweeps").exists()


def test_a_missing_file_and_another_sweep_of_the_same_name_are_refused(config, tmp_path):
    with pytest.raises(Missing) as missing:
        swept(config, tmp_path / "none.toml")
    assert str(missing.value) == (
        f"{tmp_path / 'none.toml'}: there is no such file. Write one; docs/training.md shows how."
    )
    path = written(tmp_path, "trials = 1\nsteps = 128")
    held = []

    def meet(under_way):
        with pytest.raises(Refused, match="it is under way in another process"):
            swept(config, path)
        held.append(under_way)

    assert math.isfinite(swept(config, path, begun=meet).best.value)
    assert held
    with pytest.raises(ConfigError) as other:
        swept(config, path, seed=4)
    assert str(other.value) == (
        "sweep cartpole-ppo-s: it was begun with another game, algorithm, space or length of run. "
        'Give the new one another name: [sweep] name = "…".'
    )


def trial_processes():
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if "sparring.learn.sweeps.trial" in one.cmdline():
                found.append(one)
    return found


@pytest.mark.slow
def test_two_trials_run_at_once_and_a_killed_one_is_told(config, tmp_path):
    together, killed = [], []

    def watch(trial, run, progress):
        together.append(len(trial_processes()))
        if together[-1] == 2 and not killed:
            killed.append(trial)
            victim = max(trial_processes(), key=lambda one: one.create_time())
            victim.kill()

    path = written(tmp_path, "trials = 4\nsteps = 3000")
    quick = replace(config, train=replace(config.train, log_every_s=0.05))
    result = swept(quick, path, progress=watch, parallel=2)
    assert max(together) == 2
    assert result.state == "done"
    assert [one.number for one in result.trials] == [1, 2, 3, 4]
    (lost,) = [one for one in result.trials if one.state == "failed"]
    assert lost.note.startswith("its process ended with signal SIGKILL")
    for one in result.trials:
        if one is not lost:
            about = json.loads((Path(config.data) / "runs" / one.runs[0] / "run.json").read_text())
            assert about["config"]["settings"]["learning_rate"] == one.settings["learning_rate"]
    assert result.best.value == max(one.value for one in result.trials if one is not lost)


@pytest.mark.slow
def test_ctrl_c_stops_the_processes_of_a_sweep_and_the_same_command_goes_on(config, tmp_path):
    path, begun = written(tmp_path, "trials = 3\nsteps = 3000"), []

    def stop(trial, run, progress):
        if not begun[0].stop_requested:
            begun[0].on_signal(signal.SIGINT, None)

    first = swept(config, path, begun=begun.append, progress=stop, parallel=2)
    assert first.state == "stopped"
    assert len(first.trials) < 3
    assert not trial_processes()
    states = [json.loads(one.read_text())["state"] for one in Path(config.data).glob("runs/*/status.json")]
    assert "stopped" in states
    assert "running" not in states
    second = swept(config, path, parallel=2)
    assert (second.state, len(second.trials)) == ("done", 3)


@pytest.mark.slow
def test_trials_below_the_median_are_pruned_in_processes_too(config, tmp_path):
    space = "[space]\nlearning_rate = { choices = [2.5e-3, 1e-9] }\n"
    quick = replace(config, train=replace(config.train, log_every_s=0.02))

    def begin(under_way):
        for text in ["0.0025"] * 6 + ["1e-09"]:
            under_way.study.enqueue_trial({"learning_rate": text})

    path = written(tmp_path, "trials = 7\nsteps = 6000\nprune = true", space)
    result = swept(quick, path, begun=begin, parallel=2)
    assert [one.settings["learning_rate"] for one in result.trials] == [0.0025] * 6 + [1e-9]
    assert result.trials[-1].state == "pruned"
    assert [one.state for one in result.trials].count("complete") >= 5


@pytest.mark.slow
def test_trials_run_on_ray_tune(config, tmp_path):
    pytest.importorskip("ray")
    path = written(tmp_path, "trials = 3\nsteps = 1000\nseeds = 2")
    shown = set()
    result = swept(config, path, on="ray://local", progress=lambda trial, run, _: shown.add((trial, run)), parallel=2)
    assert result.state == "done"
    assert [one.state for one in result.trials] == ["complete"] * 3
    assert shown == {(trial, run) for trial in (1, 2, 3) for run in (1, 2)}
    for one in result.trials:
        abouts = [json.loads((Path(config.data) / "runs" / run / "run.json").read_text()) for run in one.runs]
        assert [about["seed"] for about in abouts] == [3, 4]
        assert {about["config"]["settings"]["learning_rate"] for about in abouts} == {one.settings["learning_rate"]}
    assert result.best.value == max(one.value for one in result.trials)
    more = swept(config, written(tmp_path, "trials = 4\nsteps = 1000\nseeds = 2"), on="ray://local", parallel=2)
    assert len(more.trials) == 4
    assert more.trials[:3] == result.trials


def ray_trials():
    """The processes of Ray, of this one's cluster alone, that run a trial."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if one.cmdline()[0].startswith("ray::ImplicitFunc"):
                found.append(one)
    return found


@pytest.mark.slow
def test_a_trial_on_ray_tune_whose_process_is_killed_has_failed_and_the_sweep_goes_on(config, tmp_path):
    pytest.importorskip("ray")
    killed = []

    def kill_the_first(trial, run, progress):
        if trial == 1 and not killed:
            (victim,) = ray_trials()
            victim.kill()
            killed.append(victim.pid)

    quick = replace(config, train=replace(config.train, log_every_s=0.05))
    path = written(tmp_path, "trials = 3\nsteps = 2000")
    result = swept(quick, path, on="ray://local", progress=kill_the_first, parallel=1)
    assert killed
    assert result.state == "done"
    assert [one.state for one in result.trials] == ["failed", "complete", "complete"]
    assert result.trials[0].note == "its process was lost"
    assert result.best.value == max(one.value for one in result.trials[1:])


@pytest.mark.slow
def test_trials_below_the_median_are_pruned_on_ray_tune_too(config, tmp_path):
    pytest.importorskip("ray")
    space = "[space]\nlearning_rate = { choices = [2.5e-3, 1e-9] }\n"
    quick = replace(config, train=replace(config.train, log_every_s=0.02))

    def begin(under_way):
        for text in ["0.0025"] * 5 if under_way.left == 5 else ["1e-09"]:
            under_way.study.enqueue_trial({"learning_rate": text})

    table = "trials = 5\nsteps = 6000\nprune = true"
    here = swept(quick, written(tmp_path, table, space), begun=begin)  # which are compared with, in this process
    assert [one.state for one in here.trials] == ["complete"] * 5
    path = written(tmp_path, table.replace("5", "6"), space)
    result = swept(quick, path, begun=begin, on="ray://local", parallel=1)
    assert result.trials[:5] == here.trials
    assert (result.trials[-1].settings["learning_rate"], result.trials[-1].state) == (1e-9, "pruned")
    (run,) = result.trials[-1].runs
    folder = Path(config.data) / "runs" / run
    assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    assert read_run(folder).env_steps < 6000
