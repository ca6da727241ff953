"""An actor in a league, with the real service on a host: it meets who it is told to, and hands every result over."""

import os
import sqlite3
import time
from contextlib import closing, contextmanager

import pytest

from sparring.acting.opponents import SELF
from sparring.errors import Unreachable
from sparring.games.catalogue import spec_of
from sparring.hosts.local import LocalHost
from sparring.hosts.protocol import Resources
from sparring.league.opponents import LeagueOpponents
from sparring.league.service import LeagueService
from sparring.learn.actors.actor_spec import ActorSpec
from sparring.nets.torch_network import Network, default_network
from sparring.pool.memory import serve_pool
from sparring.registry.file import FileRegistry

GAME = "connect-four"


@pytest.fixture
def league(tmp_path, monkeypatch):
    """A league's service and pool in processes of their own, which this process finds as an actor's does."""
    given = {"game": GAME, "data": str(tmp_path), "league": {}, "registry_url": f"file://{tmp_path}/models"}
    with LocalHost() as host:
        serve_pool(host, "memory://")
        (handle,) = host.start(LeagueService, "league", 1, Resources(), {**given, "pool_url": "memory://"})
        monkeypatch.setenv("SPARRING_DISCOVERY", host.discovery)
        yield handle


@contextmanager
def playing():
    spec = spec_of(GAME)
    network = default_network(spec.seats[0], hidden=(8,))
    given = {"game": GAME, "spec": spec, "network": network, "policy": "categorical", "envs": 16, "seed": 1}
    actor_spec = ActorSpec(**given, feeds="rollouts", ticks=8, slots=1, league=address("main-0/0"))
    actor, opponents = actor_spec.open_actor(Network(network, 0).weights())
    with closing(opponents):
        yield actor, opponents


def address(learner):
    return f"{os.environ['SPARRING_DISCOVERY']}#{learner}"


@contextmanager
def exploiter():
    spec = spec_of(GAME)
    network = default_network(spec.seats[0], hidden=(8,))
    with closing(LeagueOpponents(spec, network, address("main-exploiter-0/0"))) as opponents:
        yield opponents


def counted(folder):
    with closing(sqlite3.connect(folder / "league" / "connect-four.db")) as file:
        query = "SELECT opponent, SUM(wins), SUM(draws), SUM(losses) FROM results GROUP BY opponent"
        return {name: counts for name, *counts in file.execute(query)}


def test_every_game_against_a_member_is_counted_once_for_the_one_who_was_met(league, model, tmp_path):
    won = met = 0
    with playing() as (actor, _):
        for _ in range(300):
            actor.step()
            ended = actor.ended()
            met += int(ended.against_others.sum())
            won += int((ended.returns[ended.against_others] > 0).sum())
    found = counted(tmp_path)  # closing hands the last ones over
    assert met > 100
    assert sum(sum(counts) for counts in found.values()) == met
    assert sum(counts[0] for counts in found.values()) == won
    assert set(found) == {"script:random", "script:tactical"}
    wins, _, losses = found["script:tactical"]
    assert losses > wins  # of a network that has learned nothing


def test_a_result_that_was_not_acknowledged_is_sent_again_under_its_id(league, tmp_path):
    with playing() as (_, opponents):
        opponents._closing.set()  # its thread ends: this test exchanges itself
        opponents._thread.join()
        for _ in range(2):  # the second time as if the answer had been lost
            opponents._sending = [["one", "script:random", 1, 0, 0]]
            opponents._exchange()
    assert counted(tmp_path)["script:random"] == [1, 0, 0]


def test_a_learners_newer_weights_take_the_place_of_its_older_ones(league, model, tmp_path):
    registry = FileRegistry(tmp_path / "models")
    first, second = (registry.publish(model(GAME, seed)) for seed in (1, 2))
    league.ask("offer", "main-0", 0, first, 1).result(60)
    with exploiter() as opponents:
        assert opponents._codes.tolist() == [0]  # the main agent, and nobody else
        before = opponents.forwards[0]
        league.ask("offer", "main-0", 0, second, 2).result(60)
        until = time.monotonic() + 60
        while opponents.forwards[0] is before:
            assert time.monotonic() < until, "the newer weights arrive"
            time.sleep(0.05)
        assert len(opponents.forwards) == 1


def test_a_model_of_another_game_is_left_out_with_a_sentence(league, model, tmp_path, caplog):
    other = FileRegistry(tmp_path / "models").publish(model("duel", 1))
    league.ask("offer", "main-0", 0, other, 1).result(60)
    with exploiter() as opponents:
        assert opponents._codes.tolist() == [SELF]
        assert "it was made for spec" in caplog.text


def test_an_actor_says_when_no_league_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARRING_DISCOVERY", f"local://{tmp_path}")
    monkeypatch.setattr("sparring.league.opponents.FIRST_S", 0.1)
    with pytest.raises(Unreachable), exploiter():
        pass
