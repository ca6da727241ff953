"""Runs: what they write, that they resume bit for bit, and that nothing can leave half a checkpoint."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from sparring.errors import ConfigError, Missing, TrainingStopped
from sparring.learn.algorithms import ALGORITHMS
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.folder import RunFolder
from sparring.learn.runs.train import TrainOptions, train
from sparring.registry import open_registry
from sparring.wire.champion import verify
from sparring.wire.model import WEIGHTS
from sparring.wire.tree import unpack

QUICK = {
    "ppo": (
        "rollout_ticks=16",
        "hidden_units=[16]",
        "minibatch_steps=128",
        "schedule_steps=3000",
        'image_layers=["flat"]',
    ),
    "dqn": ("hidden_units=[16]", "batch_steps=32", "schedule_steps=3000", 'image_layers=["flat"]'),
}


def trained(
    config, game="cartpole", algo="ppo", *, steps=None, shown=None, settings=None, seed=0, source="sim", **options
):
    resumed = options.get("resume") is not None
    request = TrainRequest(
        game,
        algo,
        seed=seed,
        steps=steps,
        source=source,
        envs=None if resumed else 8,
        settings=() if resumed else QUICK[algo] if settings is None else settings,
    )
    shown = [] if shown is None else shown
    return train(request, TrainOptions(**options), config, shown.append)


def weights_of(config, model):
    with open_registry(config.registry_url) as registry:
        return registry.file(model, WEIGHTS)


def small(config):
    return replace(config, replay=replace(config.replay, min_steps=200, capacity_steps=2000, samples_per_insert=2.0))


@pytest.mark.parametrize(("game", "algo"), [
    ("cartpole", "ppo"),
    pytest.param("cartpole", "dqn", marks=pytest.mark.slow),
    pytest.param("connect-four", "ppo", marks=pytest.mark.slow),
    pytest.param("duel", "dqn", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_resumed_run_learns_what_an_unbroken_one_does_bit_for_bit(game, algo, config, tmp_path, monkeypatch):
    monkeypatch.setattr("sparring.acting.opponents.PAST_EVERY_STEPS", 500)
    config = small(replace(config, registry=replace(config.registry, gate_episodes=2)))
    unbroken = trained(config, game, algo, steps=3000)
    broken = replace(config, data=str(tmp_path / "broken"))
    first = trained(broken, game, algo, steps=1300)
    second = trained(broken, game, algo, steps=2000, resume="")
    third = trained(broken, game, algo, steps=3000, resume=first.run)
    assert first.run == second.run == third.run
    assert (third.env_steps, third.updates) == (unbroken.env_steps, unbroken.updates)
    assert weights_of(broken, third.published.model) == weights_of(config, unbroken.published.model)
    assert weights_of(broken, first.published.model) != weights_of(broken, third.published.model)


def test_a_run_writes_what_the_dashboard_reads(config):
    shown = []
    quick = replace(config, train=replace(config.train, log_every_s=0.0, publish_every_s=0.2, checkpoint_every_s=0.1))
    result = trained(quick, steps=3000, shown=shown, argv=("spar", "train"))
    run = RunFolder.find(quick_runs(quick), "cartpole", "ppo")
    assert run.name == result.run
    about = run.about
    assert (about["game"], about["algo"], about["seed"], about["argv"]) == ("cartpole", "ppo", 0, ["spar", "train"])
    assert about["config"]["settings"]["rollout_ticks"] == 16
    assert {"torch", "numpy", "python"} <= set(about["versions"])
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "done"
    assert status["model"] == result.published.model
    assert status["pid"] == os.getpid()
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {"seconds", "env_steps", "updates", "steps_per_s", "episodes", "return_mean", "return_sd", "loss"} <= set(
        rows[-1]
    )
    assert rows[-1]["env_steps"] == result.env_steps >= 3000
    assert {row["staleness_updates"] for row in rows} == {0}
    assert shown[-1].done_share == 1.0
    assert shown[0].seconds_left > 0


def quick_runs(config):
    from pathlib import Path

    return Path(config.data) / "runs"


def test_a_models_lineage_says_how_to_make_it_again(config):
    result = trained(config, steps=1000, seed=5)
    again = trained(config, steps=2000, resume="")
    with open_registry(config.registry_url) as registry:
        lineage = registry.fetch(result.published.model).card.lineage
        assert (lineage.algorithm, lineage.seed, lineage.run) == ("ppo", 5, result.run)
        assert lineage.config["rollout_ticks"] == 16
        assert lineage.steps == {"selfplay": result.env_steps}
        assert lineage.store_until_ms is None
        assert lineage.parents == ()
        child = registry.fetch(again.published.model).card.lineage
        assert child.parents == (result.published.model,)
        assert child.seed == 5


def test_the_better_model_is_champion_and_a_worse_one_does_not_replace_it(config):
    config = replace(config, registry=replace(config.registry, gate_episodes=100))
    good = trained(config, steps=12_000, settings=(), until=150.0)
    bad = trained(config, steps=100, settings=("learning_rate=0.0", "rollout_ticks=8"), seed=9)
    kept_back = trained(config, steps=100, settings=(), seed=1, promote=False)
    assert good.published.promoted
    assert not bad.published.promoted
    assert "worse than the champion" in bad.published.verdict
    assert not kept_back.published.promoted
    assert kept_back.published.verdict == "not promoted, as asked"
    assert kept_back.published.evaluation.mean > 0
    with open_registry(config.registry_url) as registry:
        signed = registry.champion("cartpole", "1")
        assert verify(signed, registry.trust).model == good.published.model
        assert len(registry.models("cartpole")) == 3
        assert all(listed.evidence is not None for listed in registry.models("cartpole"))
        measured = registry.evidence(kept_back.published.model)
        assert (measured.verdict, measured.tries, measured.incumbent) == ("", 0, None), "the gate played no games"


@pytest.mark.slow
def test_until_ends_a_run_as_soon_as_its_greedy_episodes_earn_that_much(config):
    result = trained(config, steps=200_000, settings=(), until=100.0)
    assert result.env_steps < 60_000
    assert result.published.evaluation.mean > 60


def test_a_target_that_is_no_number_is_refused(config):
    with pytest.raises(ConfigError) as error:
        trained(config, steps=1000, until=float("nan"))
    assert str(error.value) == "spar train: --until nan. Give a return that can be reached."


def test_the_same_seed_publishes_the_same_weights_under_another_name(config):
    first, second = (trained(config, steps=500, seed=3).published for _ in range(2))
    assert first.weights == second.weights
    assert first.model != second.model
    assert first.weights == hashlib.sha256(weights_of(config, first.model)).hexdigest()


def test_minutes_end_a_run(config):
    result = trained(config, steps=10**9, minutes=0.01)
    assert result.state == "done"
    assert result.env_steps < 10**9


def test_a_number_that_is_none_stops_the_run_and_keeps_the_batch(config):
    with pytest.raises(TrainingStopped, match="is no finite number after update"):
        trained(config, steps=50_000, settings=("learning_rate=1e30", "max_gradient_norm=1e30"))
    run = RunFolder.find(quick_runs(config), "cartpole", "ppo")
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "failed"
    assert "broken_batch" in status["message"]
    batch = unpack((run.folder / "broken_batch").read_bytes())
    assert batch["reward"].dtype == np.float32
    assert set(batch["observation"]) == {"observation/state"}
    with open_registry(config.registry_url) as registry:
        assert registry.models("cartpole") == []


def test_a_damaged_checkpoint_is_refused_and_a_missing_one_too(config):
    result = trained(config, steps=200)
    run = RunFolder.find(quick_runs(config), "cartpole", "ppo")
    state = run.folder / "checkpoint" / "state"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    with pytest.raises(TrainingStopped, match="its checkpoint is damaged"):
        trained(config, steps=400, resume=result.run)
    state.unlink()
    with pytest.raises(TrainingStopped, match="it was stopped before its first checkpoint"):
        trained(config, steps=400, resume=result.run)


CHECKPOINTS = """
import sys
from pathlib import Path
import numpy as np
from sparring.learn.runs.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
number = run.restore()["number"] if (run.folder / "checkpoint" / "state").exists() else 0
while True:
    number += 1
    run.checkpoint({"number": number, "numbers": np.full(300_000, number)})
    run.finish_checkpoint()
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_checkpoint_survives_kill_9_at_any_moment(config):
    run = RunFolder.create(quick_runs(config), plan(TrainRequest("cartpole"), config), [])
    rng, said = np.random.default_rng(0), 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", CHECKPOINTS, str(run.folder)], stdout=subprocess.PIPE, text=True
        )
        first = child.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.05)))
        child.kill()
        rest = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        child.wait()
        child.stdout.close()
        said = int((rest or [first])[-1])
        state = run.restore()
        assert state["number"] >= said  # what was said to be kept is kept,
        assert (state["numbers"] == state["number"]).all()  # and what is there is whole
    assert said > 8
    assert [path.name for path in (run.folder / "checkpoint").iterdir()] == ["state"]


@pytest.mark.slow
def test_a_training_killed_with_kill_9_goes_on_and_one_told_to_stop_stops_in_good_order(config):
    words = ["--data", config.data, "--set", "train.checkpoint_every_s=0.05", "--set", "registry.gate_episodes=5"]
    command = [sys.executable, "-m", "sparring", "train", "cartpole", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [*command, "--steps", "1000000"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
    )
    try:
        state = wait_for_checkpoint(config, child)
    finally:
        child.kill()
        child.wait()
    assert state.stat().st_size > 0
    before = RunFolder.find(quick_runs(config), "cartpole", "ppo").restore()["topology"]["actors"]["actor"]["env_steps"]
    child = subprocess.Popen(
        [*command, "--resume", "--steps", "1000000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    child.stderr.readline()  # its first line of progress
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=120)
    said = json.loads(out.splitlines()[-1])
    assert child.returncode == 0
    assert said["state"] == "stopped"
    assert said["env_steps"] > before
    assert len(list(quick_runs(config).iterdir())) == 1


def test_a_run_folder_of_an_older_format_is_refused_with_what_to_do(config):
    name = trained(config, steps=200).run
    path = quick_runs(config) / name / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    for resume in ("", name):
        with pytest.raises(TrainingStopped, match=r"its format is 2, and 4 is read here.*or start a new run"):
            trained(config, steps=400, resume=resume)


def wait_for_checkpoint(config, child):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert child.poll() is None
        found = list(quick_runs(config).glob("*/checkpoint/state"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no checkpoint in two minutes")


WRONG = [
    (TrainRequest("cartpol"), Missing, "game 'cartpol': there is no such game. Did you mean 'cartpole'?"),
    (TrainRequest("cartpole", "pppo"), Missing, "--algo: there is no algorithm 'pppo'. Did you mean 'ppo'?"),
    (
        TrainRequest("cartpole", "muzero"),
        Missing,
        "--algo: there is no algorithm 'muzero'. "
        f"Choose one of {', '.join(ALGORITHMS)}, rllib:NAME, or give module:name.",
    ),
    (TrainRequest("cartpole", "json:loads"), ConfigError, "'json:loads' has no begin, update, exploration"),
    (TrainRequest("cartpole", "nowhere:Dqn"), Missing, "algorithm 'nowhere:Dqn': there is no module 'nowhere'."),
    (TrainRequest("cartpole", settings=("clap=1",)), ConfigError, "[ppo]: unknown key 'clap'. Did you mean 'clip'?"),
    (
        TrainRequest("cartpole", settings=("clip",)),
        ConfigError,
        "--algo-set: 'clip' has no value. Write --algo-set key=value.",
    ),
    (
        TrainRequest("cartpole", settings=("clip=wide",)),
        ConfigError,
        "[ppo]: clip = 'wide' should be float, not str. Correct the value.",
    ),
    (
        TrainRequest("cartpole", settings=("activation=gelu",)),
        ConfigError,
        "[ppo]: activation = 'gelu'. Use one of 'relu', 'tanh', 'none'.",
    ),
    (TrainRequest("cartpole", settings=("hidden_units=[1.5]",)), ConfigError, "Write a list of whole numbers."),
    (TrainRequest("cartpole", settings=("epochs=0",)), ConfigError, "epochs = 0, discount = 0.98. Count from 1"),
    (TrainRequest("cartpole", "dqn", settings=("n_steps=0",)), ConfigError, "[dqn]: n_steps = 0"),
    (TrainRequest("cartpole", source="mox"), ConfigError, "--from: there is no source 'mox'. Did you mean 'mix'?"),
    (TrainRequest("cartpole", topology="singel"), Missing, "there is no topology 'singel'. Did you mean 'single'?"),
    (
        TrainRequest("cartpole", topology="offline"),
        ConfigError,
        "--topology: --topology offline does not go with --from sim. Leave it out: single suits.",
    ),
    (
        TrainRequest("cartpole", source="store"),
        ConfigError,
        "--from store: ppo learns only from what it has just played itself, and the store holds what others played. "
        "Use `spar train cartpole --algo dqn --from store`, or `--from mix` with ppo.",
    ),
    (TrainRequest("cartpole", "impala", source="store"), ConfigError, "--from store`, or `--from mix` with ppo."),
    (TrainRequest("cartpole", steps=0), ConfigError, "spar train: --envs 16, --steps 0. Count both from 1."),
    (TrainRequest("cartpole", envs=0), ConfigError, "spar train: --envs 0, --steps None. Count both from 1."),
    (TrainRequest("cartpole", seed=-1), ConfigError, "spar train: --seed -1. Count seeds from 0, in 63 bits."),
    (
        TrainRequest("cartpole", settings=("learning_rate=-1.0",)),
        ConfigError,
        "[ppo]: learning_rate = -1. Let it be 0 or more.",
    ),
    (
        TrainRequest("cartpole", "sac", settings=("learning_rate=nan",)),
        ConfigError,
        "[sac]: learning_rate = nan. Let it be 0 or more.",
    ),
    (
        TrainRequest("cartpole", "dqn", settings=("epsilon_last=2.0",)),
        ConfigError,
        "[dqn]: epsilon_last = 2. Let it be between 0 and 1.",
    ),
]


@pytest.mark.parametrize(("asked", "kind", "sentence"), WRONG, ids=[sentence[:40] for *_, sentence in WRONG])
def test_a_wrong_request_is_refused_with_what_to_do(asked, kind, sentence, config):
    with pytest.raises(kind) as error:
        plan(asked, config)
    assert sentence in str(error.value)


def test_wrong_ways_to_resume_are_refused(config):
    with pytest.raises(Missing, match="no run of cartpole with ppo is there"):
        trained(config, resume="")
    trained(config, steps=200)
    with pytest.raises(Missing, match="there is no run 'yesterday'"):
        trained(config, resume="yesterday")
    with pytest.raises(ConfigError, match="a resumed run keeps its settings"):
        train(TrainRequest("cartpole", settings=("clip=0.1",)), TrainOptions(resume=""), config, lambda progress: None)
    name = RunFolder.find(quick_runs(config), "cartpole", "ppo").name
    with pytest.raises(Missing, match="it is a run of cartpole"):
        train(TrainRequest("duel"), TrainOptions(resume=name), config, lambda progress: None)
    with pytest.raises(ConfigError, match="--minutes 0"):
        trained(config, minutes=0.0)


def test_a_preset_replaces_defaults_but_never_what_the_user_set(config):
    preset = plan(TrainRequest("cartpole", "dqn"), config)
    assert preset.replay.samples_per_insert == 24.0
    mine = replace(config, replay=replace(config.replay, samples_per_insert=5.0), train=replace(config.train, envs=3))
    assert plan(TrainRequest("cartpole", "dqn"), mine).replay.samples_per_insert == 5.0
    assert plan(TrainRequest("connect-four"), mine).envs == 3
    assert plan(TrainRequest("connect-four"), config).envs == 128
    assert plan(TrainRequest("connect-four", settings=("clip=0.1",)), config).settings.clip == 0.1
