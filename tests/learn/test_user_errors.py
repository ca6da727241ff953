"""What a user's own network, algorithm, policy or environment raises is told as theirs, with their file and line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sparring
from sparring.cli import main
from sparring.config import Config
from sparring.errors import UserCodeError
from sparring.learn import plan as plans
from sparring.learn.actors.actor_process import ActorService
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.weights import WeightsSnapshot
from sparring.learn.plan import TrainRequest
from sparring.services.errors import encode_error, error_of
from sparring.user_code import user_error

CODE = """
import gymnasium
import numpy as np
from torch import nn

from sparring.learn.algorithms.ppo import Ppo


class Network(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(inputs[0], units) for name, units in outputs.items()})

    def forward(self, observation):
        if self.training:
            observation @ observation  # torch says that the shapes do not fit
        return {name: head(observation) for name, head in self.heads.items()}


class Algorithm(Ppo):
    def update(self, learner, batch):
        return self.settings["clip"]


class Policy:
    deployed = "categorical"

    def __init__(self, action):
        pass

    def explore(self, out, legal, rng, epsilon):
        return {}["temperature"]


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1 / 0, False, False, {}


class Stuck(Env):
    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {"action_mask": np.ones(2, np.int8)}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {"action_mask": np.zeros(2, np.int8)}


gymnasium.register(f"{__name__}-v0", Env)
"""
LINES = {line.strip(): number for number, line in enumerate(CODE.splitlines(), 1)}
KINDS = {
    "network": (("cartpole", "--algo-set", "network={}:Network"), "observation @ observation", "RuntimeError"),
    "algorithm": (("cartpole", "--algo", "{}:Algorithm"), 'return self.settings["clip"]', "TypeError"),
    "policy": (("cartpole", "--set", "train.policy={}:Policy"), 'return {}["temperature"]', "KeyError"),
    "environment": (("gym:{0}:{0}-v0",), "1 / 0", "ZeroDivisionError"),
}


@pytest.fixture
def mine(tmp_path, monkeypatch, request):
    """The user's module, under a name that no other test has."""
    name = f"mine_{request.node.name.partition('[')[2].rstrip(']') or 'code'}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_users_code_names_their_file_and_line(kind, mine, capsys):
    words, line, error = KINDS[kind]
    number = next(number for text, number in LINES.items() if line in text)
    code = main(["train", *(word.format(mine) for word in words), "--steps", "2000", "--data", "data", "--json"])
    said = capsys.readouterr()
    assert code == 1
    assert f"spar: your {kind} {mine}.py:{number}, in " in said.err
    assert f'{mine}.py", line {number}, in ' in said.err  # the traceback, from their first line on
    assert "runs/train.py" not in said.err
    assert "fault in Sparring" not in said.err
    told = json.loads(said.out.splitlines()[-1])
    assert told["where"].startswith(f"your {kind} {mine}.py:{number}")
    assert told["error"].startswith(error)
    (status,) = Path("data/runs").glob("*/status.json")
    assert json.loads(status.read_text())["state"] == "failed"


def test_from_python_the_users_own_exception_arrives(mine, tmp_path):
    module = __import__(mine)
    with pytest.raises(ZeroDivisionError):
        sparring.train(module.Env, steps=500, data=tmp_path / "data", progress=False)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_mask_that_allows_nothing_is_told_in_one_sentence(mine, algo, tmp_path):
    module = __import__(mine)
    with pytest.raises(UserCodeError, match="it offers no legal action to a seat that is to act"):
        sparring.train(module.Stuck, algo=algo, steps=500, data=tmp_path / "data", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["sync", "hogwild"])
def test_an_error_in_another_process_names_their_file_and_line(mine, topology, tmp_path):
    algo = "a3c" if topology == "hogwild" else "ppo"
    number = next(number for text, number in LINES.items() if "1 / 0" in text)
    command = [
        sys.executable,
        "-m",
        "sparring",
        "train",
        f"gym:{mine}:{mine}-v0",
        "--algo",
        algo,
        "--topology",
        topology,
    ]
    done = subprocess.run([*command, "--actors", "1", "--steps", "9000"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert f"your environment {mine}.py:{number}, in step: ZeroDivisionError" in done.stderr


def raised(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def test_a_service_tells_it_to_its_caller(mine):
    plan = plans.plan(TrainRequest(f"gym:{mine}:{mine}-v0", "ppo", envs=1), Config())
    learner = plan.algorithm.begin(plan.spec, plan.settings, 0)
    service = ActorService(actor_spec(plan, learner.network, feeds="rollouts", ticks=4, slots=1).encode())
    service._runner.use(WeightsSnapshot(0, learner.weights(), 0.0), NoPastSelves())
    try:
        told = raised(lambda: service.play(0))
    finally:
        service.close()
    arrived = error_of(encode_error(told, "service actor"))
    assert isinstance(arrived, UserCodeError)
    assert str(arrived).startswith(f"your environment {mine}.py:")
    assert "1 / 0" in arrived.story


class NoPastSelves:
    def new_past_selves(self, snapshot):
        return {}


def test_an_error_of_ours_stays_ours_though_a_users_program_called_us():
    assert user_error(raised(lambda: sparring.connect(object(), game=3))) is None
