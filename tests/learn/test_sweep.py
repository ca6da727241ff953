"""Sweeps: real runs of drawn settings, taken up again where they were broken off."""

import json
import math
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sparring.cli import main
from sparring.errors import ConfigError, Missing, Refused
from sparring.learn.plan import TrainRequest
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


def swept(config, path, *, begun=lambda loop: None, seed=3, settings=QUICK):
    request = TrainRequest("cartpole", seed=seed, envs=8, settings=settings)
    return sweep(path, request, config, SweepCallbacks(lambda trial, run, progress: None, lambda told: None, begun))


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
            for key, text in one.settings.items():
                assert used[key] == json.loads(text)
        assert 1e-4 <= float(one.settings["learning_rate"]) <= 1e-2
        assert 1 <= int(one.settings["epochs"]) <= 3
    words = shlex.split(result.flags)
    assert words[::2] == ["--algo-set"] * 3
    assert dict(word.split("=", 1) for word in words[1::2]) == result.best.settings


@pytest.mark.slow
def test_a_sweep_broken_off_and_taken_up_again_draws_what_an_unbroken_one_does(config, tmp_path):
    space, table = written(tmp_path, "trials = 6\nsteps = 128"), "trials = 6\nsteps = 128\nname = 'broken'"
    unbroken = swept(config, space)
    broken = written(tmp_path, table, name="broken.toml")
    begun = []

    def stop_the_sixth(loop):
        begun.append(loop)
        loop.stop_requested = len(begun) == 6

    first = swept(config, broken, begun=stop_the_sixth)
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
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert [one["state"] for one in result["trials"]] == ["complete", "complete"]
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

    def meet(loop):
        with pytest.raises(Refused, match="it is under way in another process"):
            swept(config, path)
        held.append(loop)

    assert math.isfinite(swept(config, path, begun=meet).best.value)
    assert held
    with pytest.raises(ConfigError) as other:
        swept(config, path, seed=4)
    assert str(other.value) == (
        "sweep cartpole-ppo-s: it was begun with another game, algorithm, space or length of run. "
        'Give the new one another name: [sweep] name = "…".'
    )
