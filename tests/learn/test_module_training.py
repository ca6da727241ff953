"""Runs that learn with a user's torch module: each algorithm, actors without torch, resume, what comes of them."""

import json
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import sparring
from sparring.errors import ConfigError, Missing
from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.store import open_store
from user_modules import Mlp, Recurrent

QUICK = {"registry.gate_episodes": 2, "replay.min_steps": 200}


def train(tmp_path, algo, network, game="cartpole", steps=600, **more):
    more = {"config_set": QUICK, "promote": False, "progress": False} | more
    return sparring.train(game, algo, network=network, steps=steps, data=tmp_path / "data", **more)


@pytest.mark.parametrize(
    ("algo", "network", "game"),
    [
        ("ppo", "Lazy", "cartpole"),
        ("ppo", "Images", "connect-four"),
        ("ppo", "Recurrent", "cartpole"),
        ("dqn", "Mlp", "cartpole"),
        ("r2d2", "Recurrent", "cartpole"),
        ("sac", "Lazy", "gym:Pendulum-v1"),
    ],
)
def test_a_module_learns_in_this_process(tmp_path, algo, network, game):
    steps = 240 if algo == "sac" else 400  # of which the first 200 fill the table
    run = train(tmp_path, algo, f"user_modules:{network}", game, steps, topology="single")
    assert run.metrics["updates"][-1] > 0
    spec = run.model.spec.seats[0]
    seen = {leaf.name: np.zeros(leaf.stacked(run.model.spec.frame_stack), leaf.dtype) for leaf in spec.observation}
    run.model.predict(seen)
    assert sparring.evaluate(run.model, episodes=2).returns.shape == (2,)


def test_what_python_gives_is_a_class_a_function_or_a_module(tmp_path):
    class Local(Mlp):
        pass

    run = train(tmp_path, "ppo", Local)
    assert run.result.plan.settings.network == "python:Local"
    again = train(tmp_path, "ppo", Local, steps=1200, resume=True)
    assert (again.name, again.result.position >= 1200) == (run.name, True)
    assert train(tmp_path, "a3c", lambda inputs, outputs: Mlp(inputs, outputs)).result.plan.topology == "single"
    settings = {"network": Mlp((4,), {"logits": 2}), "n_steps": 1}
    assert train(tmp_path, "dqn", None, settings=settings).result.updates > 0
    assert train(tmp_path, "ppo", Mlp).result.plan.settings.network == "user_modules:Mlp"
    with pytest.raises(ConfigError, match="the network was given in this process, and hogwild learns in others"):
        train(tmp_path, "a3c", Local, topology="hogwild")


def test_a_network_given_by_another_program_is_asked_for_again(tmp_path):
    with pytest.raises(Missing, match=r"a Python program gave it. Give it again: sparring.train\(…, network=…\)"):
        train(tmp_path, "ppo", "python:Elsewhere")


def test_learned_weights_survive_resume_and_equal_seeds_learn_alike(tmp_path):
    fixed = {"settings": {"schedule_steps": 900}}  # not each run's own steps
    first, same = (train(tmp_path / str(i), "dqn", "user_modules:Mlp", seed=3, **fixed) for i in range(2))
    assert first.result.published.weights == same.result.published.weights
    resumed = train(tmp_path / "0", "dqn", "user_modules:Mlp", steps=900, resume=True)
    whole = train(tmp_path / "2", "dqn", "user_modules:Mlp", steps=900, seed=3, **fixed)
    assert resumed.result.published.weights == whole.result.published.weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "topology", "network"),
    [
        ("ppo", "sync", Recurrent),
        ("ppo", "allreduce", "user_modules:Mlp"),
        ("impala", "async", "user_modules:Lazy"),
        ("dqn", "apex", "user_modules:Lazy"),
        ("r2d2", "apex", "user_modules:Recurrent"),
        ("a3c", "hogwild", "user_modules:Mlp"),
        ("ppo", "central", "user_modules:Mlp"),
    ],
)
def test_actors_in_processes_without_torch_play_it(tmp_path, algo, topology, network):
    more = {"learners": 2} if topology == "allreduce" else {"actors": 2}
    run = train(tmp_path, algo, network, steps=3000, topology=topology, **more)
    assert run.result.updates > 0
    assert np.isfinite(run.metrics["loss"][-1])


@pytest.mark.parametrize("algo", ["bc", "cql", "iql"])
def test_records_are_learned_by_a_module(tmp_path, algo):
    data = f"sqlite:///{tmp_path}/data/experience.db"
    (tmp_path / "data").mkdir()
    with open_store(data) as store:
        balance = [script("cartpole", "balance")]
        for chunks in play(open_game("cartpole", 4), balance, [1, 2, 3, 4], np.random.default_rng(5), "play"):
            store.append(chunks)
    run = train(tmp_path, algo, "user_modules:Mlp", source="store", steps=2000)
    assert run.result.updates > 0
    with pytest.raises(ConfigError, match="it has a memory, and the algorithm carries none"):
        train(tmp_path, algo, "user_modules:Recurrent", source="store")


def test_a_memory_does_not_go_with_records_beside_a_rollout(tmp_path):
    with pytest.raises(ConfigError, match="do not record the state of a recurrent network"):
        train(tmp_path, "ppo", "user_modules:Recurrent", source="mix")


class Leaves(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-1, 1, (3,)), "goal": gymnasium.spaces.Discrete(4)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ticks = 0
        return {"place": np.zeros(3, np.float32), "goal": 1}, {}

    def step(self, action):
        self.ticks += 1
        return {"place": np.ones(3, np.float32), "goal": 2}, float(action), self.ticks == 5, False, {}


class OfLeaves(Mlp):
    def __init__(self, inputs, outputs):
        assert inputs == {"goal": (4,), "place": (3,)}
        super().__init__((7,), outputs)

    def forward(self, observation):
        return super().forward(torch.cat((observation["goal"], observation["place"]), 1))


def test_several_leaves_are_a_dict_and_choices_are_one_hot(tmp_path):
    run = train(tmp_path, "ppo", OfLeaves, Leaves)
    assert run.model.predict({"place": np.zeros(3), "goal": 3}) in (0, 1)


def test_running_statistics_are_refused_where_workers_share_parameters_alone(tmp_path):
    with pytest.raises(ConfigError, match=r"'body.2.running_mean' changes as it learns"):
        train(tmp_path, "a3c", "user_modules:Lazy", topology="hogwild")


def test_quantiles_need_layers_of_ours(tmp_path):
    with pytest.raises(ConfigError, match="quantiles need a linear head of ours"):
        train(tmp_path, "dqn", "user_modules:Mlp", settings={"quantiles": 4})


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "topology", "steps"), [("ppo", "single", 80_000), ("dqn", "single", 60_000)])
def test_cartpole_is_learned_with_a_module(tmp_path, algo, topology, steps):
    run = train(tmp_path, algo, Mlp, steps=steps, topology=topology, until=400, config_set={})
    assert run.return_mean >= 300


@pytest.mark.slow
def test_the_command_trains_exports_shows_and_plays_it_without_its_code(tmp_path):
    def spar(*words):
        command = [sys.executable, "-m", "sparring"]
        done = subprocess.run(
            [*command, *words, "--json", "--data", "data"], cwd=tmp_path, capture_output=True, timeout=300
        )
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr.decode()

    source = Path(__file__).parents[1] / "user_modules.py"
    (tmp_path / "mine.py").write_text(source.read_text())
    words = ("train", "cartpole", "--algo", "ppo", "--steps", "2000", "--set", "registry.gate_episodes=2")
    code, said, _ = spar(*words, "--algo-set", "network=mine:Lazy")
    assert code == 0
    code, refused, _ = spar(*words, "--algo-set", "network=mine:NotExported")
    assert (code, "torch cannot export it to ONNX" in refused["error"]) == (1, True)
    (tmp_path / "mine.py").unlink()
    assert spar("evaluate", said["model"], "--episodes", "2")[1]["episodes"] == 2
    assert spar("models", "verify", said["model"])[0] == 0
    card = spar("models", "show", said["model"])[1]["card"]
    assert card["network"]["module"]["graph"]
