"""`spar runs` and `sparring.runs`, on the folders of two short training runs."""

import json
import os
import shutil

import numpy as np
import pytest

import sparring
from sparring.cli import main
from sparring.learn.runs.summary import draw_curves, reached

PNG = b"\x89PNG\r\n"
TRAIN = [
    "train",
    "cartpole",
    "--steps",
    "1024",
    "--set",
    "registry.gate_episodes=10",
    "--set",
    "train.log_every_s=0.05",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder, and its two runs, the older first."""
    data = str(tmp_path_factory.mktemp("trained") / "data")
    for seed, rate in ((1, "0.001"), (2, "0.0005")):
        assert main([*TRAIN, "--seed", str(seed), "--algo-set", f"learning_rate={rate}", "--data", data]) == 0
    return data, [run.name for run in reversed(sparring.runs(data=data))]


@pytest.fixture
def spar(trained, capsys):
    def call(*words, fails=False):
        code = main(["runs", *words, "--data", trained[0], "--json"])
        said = capsys.readouterr()
        assert bool(code) == fails, said.err
        return json.loads(said.out.splitlines()[-1])

    return call


def test_runs_are_listed_filtered_and_sorted(trained, spar, capsys):
    first, second = trained[1]
    rows = spar("list")["runs"]
    assert [(row["run"], row["seed"], row["state"]) for row in rows] == [(second, 2, "done"), (first, 1, "done")]
    for row in rows:
        assert (row["game"], row["algo"], row["env_steps"]) == ("cartpole", "ppo", 1024)
        assert (row["evidence"]["episodes"], row["lineage"]["steps"]) == (10, {"selfplay": 1024})
    means = [row["evidence"]["mean"] for row in spar("list", "--sort", "evaluated")["runs"]]
    assert means == sorted(means, reverse=True)
    assert spar("list", "--game", "duel")["runs"] == spar("list", "--algo", "dqn")["runs"] == []
    main(["runs", "list", "--data", trained[0]])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:5] == ["run", "game", "algo", "seed", "state"]
    assert [line.split()[0] for line in shown[1:]] == [second, first]


def test_a_run_is_shown_with_its_settings_and_their_origin(trained, spar, tmp_path, capsys):
    data, (first, _) = trained
    picture = tmp_path / "run.png"
    shown = spar("show", first[-4:], "--plot", str(picture))
    settings = {row["key"]: (row["value"], row["origin"]) for row in shown["settings"]}
    assert settings["ppo.learning_rate"] == (0.001, "command line")
    assert settings["steps"] == (1024, "command line")
    assert shown["metrics"]["env_steps"] == 1024
    assert picture.read_bytes().startswith(PNG)
    main(["runs", "show", first, "--data", data])
    assert "ppo.clip" not in capsys.readouterr().out, "defaults are left out for people"


def test_runs_are_compared_by_settings_and_by_steps_to_a_return(trained, spar, tmp_path):
    data, names = trained
    picture = tmp_path / "curves.svg"
    compared = spar("compare", *names, "--plot", str(picture))
    assert compared["settings"] == {"seed": [1, 2], "ppo.learning_rate": [0.001, 0.0005]}
    assert picture.read_text().count("seed") >= 2
    runs = {run.name: run.metrics for run in sparring.runs(data=data)}
    assert compared["target"] == min(np.nanmax(metrics["return_mean"]) for metrics in runs.values())
    for row in compared["runs"]:
        metrics = runs[row["run"]]
        at = int(np.argmax(metrics["return_mean"] >= compared["target"]))
        assert (row["target_steps"], row["target_seconds"]) == (metrics["env_steps"][at], metrics["seconds"][at])
    assert [row["target_steps"] for row in spar("compare", *names, "--target", "501")["runs"]] == [None, None]


def test_runs_from_python(trained):
    data, names = trained
    newest, oldest = sparring.runs("cartpole", "ppo", data=data)
    assert [oldest.name, newest.name] == names
    assert oldest.state == "done"
    assert oldest.return_mean == json.loads(json.dumps(oldest.return_mean))
    assert oldest.metrics["env_steps"][-1] == oldest.summary.env_steps == 1024
    assert oldest.model.predict(np.zeros(4, np.float32)) in (0, 1)
    assert sparring.runs("duel", data=data) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "2"], "2 runs begin or end with '2'"),
        (["show", "none"], "there is no run 'none'"),
        (["compare", "NEWEST"], "runs that are named: 1"),
        (["show"], "runs that are named: 0"),
        (["list", "cartpole"], "runs that are named: 1"),
        (["show", "NEWEST", "--plot", "curve.txt"], "'curve.txt' is no picture"),
        (["delete", "NEWEST"], "no one can be asked here"),
    ],
)
def test_wrong_calls_are_a_sentence(trained, spar, words, sentence):
    names = [trained[1][1] if word == "NEWEST" else word for word in words]
    assert spar(*names, fails=True)["error"] == sentence
    assert len(spar("list")["runs"]) == 2


def test_a_deleted_run_leaves_its_model_and_a_running_one_is_refused(trained, tmp_path, capsys):
    data, (first, second) = tmp_path / "data", trained[1]
    shutil.copytree(trained[0], data)
    folder = data / "runs" / first
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps(status | {"state": "running", "pid": os.getpid()}))
    words = ["runs", "delete", first, second, "--yes", "--json", "--data", str(data)]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "it is running"
    assert len(sparring.runs(data=data)) == 2, "none is deleted where one cannot be"
    (folder / "status.json").write_text(json.dumps(status))
    size = sum(path.stat().st_size for path in (data / "runs").rglob("*") if path.is_file())
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"deleted": [first, second], "bytes": size}
    assert list((data / "runs").iterdir()) == []
    assert main(["models", "show", status["model"], "--data", str(data)]) == 0


def test_curves_of_records_alone_show_the_loss():
    metrics = {"env_steps": np.zeros(3), "updates": np.arange(3.0), "seconds": np.arange(3.0), "loss": np.ones(3)}
    metrics |= {"return_mean": np.full(3, np.nan), "return_sd": np.full(3, np.nan)}
    axes = draw_curves({"one": metrics, "not yet": {}}, "offline").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), len(axes.lines)) == ("updates", "loss", 1)
    assert reached(metrics, 0.0) is None
