"""Trackers: real offline stores of wandb and MLflow read back, a class of the user's own, and that none stops a run."""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_runs import trained

from sparring.errors import ConfigError, Missing, TrainingStopped


class Recorder:
    """A tracker of a user's own: it writes down what it gets."""

    def __init__(self, run):
        self.file = (Path(run.folder) / "recorded.jsonl").open("a")
        self.write("begin", run.project, dict(run.tags), run.settings["ppo.rollout_ticks"], run.logged_step)

    def write(self, *values):
        self.file.write(json.dumps(values) + "\n")

    def log(self, step, values):
        self.write("log", step, values["updates"])

    def finish(self, summary):
        self.write("finish", summary)
        self.file.close()


class Failing:
    """A tracker whose server is gone."""

    def __init__(self, run):
        self.run = run

    def log(self, step, values):
        raise OSError("no route to the server\nand a long story")


class NeverBegun(Failing):
    def __init__(self, run):
        raise ValueError


def tracked(config, *names, **settings):
    return replace(config, train=replace(config.train, log_every_s=0.0, track=names, **settings))


def recorded(config, run):
    lines = (Path(config.data) / "runs" / run / "recorded.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_tracker_gets_the_settings_every_line_of_metrics_and_the_model(config):
    config = tracked(config, "test_trackers:Recorder", track_project="my project")
    first = trained(config, steps=600)
    told = recorded(config, first.run)
    assert told[0] == ["begin", "my-project", {"game": "cartpole", "algo": "ppo", "seed": "0"}, 16, -1]
    metrics = (Path(config.data) / "runs" / first.run / "metrics.jsonl").read_text().splitlines()
    assert [line[1] for line in told[1:-1]] == [json.loads(line)["env_steps"] for line in metrics]
    played = first.published.evaluation
    summary = {"state": "done", "model": first.published.model, "final_return_mean": played.mean}
    assert told[-1] == ["finish", summary | {"final_return_sd": played.sd}]
    default = replace(config, train=replace(config.train, track=("tensorboard",)))
    trained(default, steps=900, resume=first.run)  # goes on with the tracker that it began with
    resumed = recorded(config, first.run)[len(told) :]
    assert resumed[0][-1] == told[-2][1]
    assert resumed[1][1] > told[-2][1]
    assert resumed[-1][0] == "finish"


def test_a_tracker_that_fails_is_left_out_with_one_warning(config, caplog):
    with caplog.at_level(logging.WARNING, "sparring"):
        done = trained(
            tracked(config, "test_trackers:Failing", "test_trackers:NeverBegun", "test_trackers:Recorder"), steps=600
        )
    assert done.state == "done"
    assert sorted(record.getMessage() for record in caplog.records) == [
        "tracking by test_trackers:Failing ends, the training goes on: no route to the server",
        "tracking by test_trackers:NeverBegun ends, the training goes on: ValueError",
    ]
    assert recorded(config, done.run)[-1][0] == "finish"


def test_a_run_that_breaks_is_told_as_failed(config):
    with pytest.raises(TrainingStopped):
        trained(
            tracked(config, "test_trackers:Recorder"),
            steps=20_000,
            settings=("learning_rate=1e30", "max_gradient_norm=1e30", "rollout_ticks=16"),
        )
    (run,) = (Path(config.data) / "runs").iterdir()
    assert recorded(config, run.name)[-1] == ["finish", {"state": "failed"}]


def test_an_unknown_tracker_and_a_missing_package_are_told_before_anything_starts(config, monkeypatch):
    with pytest.raises(ConfigError) as unknown:
        trained(tracked(config, "wandbb"), steps=600)
    assert str(unknown.value) == "--track: there is no tracker 'wandbb'. Did you mean 'wandb'?"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Missing) as missing:
        trained(tracked(config, "wandb"), steps=600)
    assert str(missing.value) == (
        "--track wandb: the package wandb is not installed. Install it: pip install 'sparring[wandb]'."
    )
    assert not (Path(config.data) / "runs").exists()


def spar(folder, *words):
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    quick = ["--set", "train.log_every_s=0", "--set", "registry.gate_episodes=2", "--data", "data", "--json"]
    command = [sys.executable, "-m", "sparring", "train", "cartpole", *words, *quick]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the tools about themselves
def test_wandb_and_mlflow_hold_one_run_with_its_metrics_also_after_a_resume(tmp_path):
    from mlflow import MlflowClient
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    first = spar(tmp_path, "--track", "wandb", "--track", "mlflow", "--steps", "2000")
    second = spar(tmp_path, "--resume", "--steps", "4000")
    assert first["run"] == second["run"]
    run = tmp_path / "data" / "runs" / first["run"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["env_steps"] for line in lines]

    found = {}
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (content := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                found.setdefault("steps", []).append(row["env_steps"])
            if record.HasField("run"):
                found.setdefault("runs", set()).add((record.run.run_id, record.run.project, tuple(record.run.tags)))
                keys = {item.key for item in record.run.config.update}
                assert {"ppo.learning_rate", "train.envs"} <= keys
            if record.HasField("summary"):
                found |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
    assert found["steps"] == steps
    assert found["runs"] == {(first["run"], "cartpole", ("game:cartpole", "algo:ppo", "seed:0"))}
    assert found["model"] == second["model"]

    client = MlflowClient(f"sqlite:///{tmp_path}/data/mlflow.db")
    experiment = client.get_experiment_by_name("cartpole")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    assert kept.data.tags["model"] == second["model"]
    assert {kept.data.tags[key] for key in ("game", "algo", "seed")} == {"cartpole", "ppo", "0"}
    settings = {row["key"]: str(row["value"]) for row in json.loads((run / "settings.json").read_text())}
    assert kept.data.params == settings
    assert [point.step for point in client.get_metric_history(kept.info.run_id, "loss")] == steps
    assert kept.data.metrics["final_return_mean"] == second["return_mean"]
