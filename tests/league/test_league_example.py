"""The example of a league of one's own, run as its README says, in games where self-play alone runs in circles."""

import json
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from sparring.config import Config
from sparring.games.catalogue import spec_of
from sparring.league.matches import MatchFile
from sparring.league.payoff import Payoff
from sparring.league.ratings import nash_mixture
from sparring.league.rounds import Member, play_match
from sparring.league.state import LeagueState
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets.forward import forward_without_torch
from sparring.nets.model_files import read_weights
from sparring.registry.file import FileRegistry

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-league"
SETTINGS = ("hidden_units=[16]", "learning_rate=0.01", "entropy_coefficient=0.1", "rollout_ticks=16", "epochs=2")
GAMES = pytest.mark.parametrize(("game", "strategies"), [("cyclic:rock_paper_scissors", 3), ("cyclic:seven", 7)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the example, in which this process finds its game, too."""
    shutil.copytree(EXAMPLE, tmp_path / "own-league")
    monkeypatch.chdir(tmp_path / "own-league")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return tmp_path / "own-league"


def chances(network, weights):
    """How often the policy plays each strategy."""
    logits = forward_without_torch(network, weights)({"observation/nothing": np.zeros((1, 1), np.float32)})["logits"][0]
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


@pytest.mark.slow
@pytest.mark.timeout(300)
@GAMES
def test_self_play_alone_runs_in_circles(folder, game, strategies):
    alone = Config().layered({"train.opponents": 0, "train.script_share": 0.0}, "test", above=True)
    topology = build(plan(TrainRequest(game, settings=(*SETTINGS, "stop_at_kl=0.0"), seed=1), alone), None)
    played = []
    for number in range(300):
        topology.iterate()
        if number % 3 == 0:
            played.append(chances(topology.learner.network, topology.learner.weights()))
    topology.close()
    favourites = np.argmax(played, axis=1)
    assert len(set(favourites.tolist())) >= 3
    assert (np.diff(favourites) != 0).sum() >= 4  # it leaves one for the next, again and again,
    apart = np.abs(np.array(played[20:]) - 1 / strategies).max(axis=1)
    assert np.median(apart) > 0.25  # and is far from Nash all the while


@pytest.mark.slow
@pytest.mark.timeout(900)
@GAMES
def test_the_leagues_mixture_is_nash(folder, game, strategies):
    for _ in range(4):  # on a busy machine a minute may be too short for every strategy to be found
        command = [sys.executable, "-m", "sparring", "league", game, "--for", "60s", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["game"] == game
        if (found := mixture(folder / "data", game, strategies)).min() > 0:
            break
    assert np.abs(found - 1 / strategies).max() <= 0.05
    board = json.loads((folder / "scoreboard.json").read_text())  # the studio's own service ran beside
    assert {one["name"] for one in board["learners"]} == {"main-0", "main-exploiter-0"}


def mixture(data, game, strategies):
    """How often the Nash mixture of the league's members plays each strategy."""
    spec, registry = spec_of(game), FileRegistry(data / "models")
    with LeagueState(data, spec.id) as state:
        names = [one.name for one in state.members() if not one.retired and one.role != "script"]
    models = {name: registry.fetch(name) for name in names}
    with MatchFile(data, spec.id) as file:
        games = Payoff.of(names, file.all()).games
        for one, other in combinations(range(len(names)), 2):
            if not games[one, other]:  # the evaluator was about to
                pair = [Member(names[at], models[names[at]]) for at in (one, other)]
                file.add(play_match(game, *pair, 2))
        share = nash_mixture(Payoff.of(names, file.all()).win_rates)
    best = [int(chances(model.card.network, read_weights(model)).argmax()) for model in models.values()]
    return np.bincount(best, weights=share, minlength=strategies)
