"""Seats of several kinds against a real gateway: each acts with the champion of its own, and its records are learned by
its kind alone."""

import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import sparring
from serving import inside
from sparring.cli import main
from sparring.client.mock_players import MockPlayer, play, script_of
from sparring.config import load
from sparring.errors import ConfigError, Missing, Refused
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.store import open_store
from sparring.store.protocol import Query
from sparring.wire.champion import verify
from sparring.wire.model import Lineage
from sparring.wire.network import Head, Input, NetworkSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "games"))
GAME = "unequal_seats:rivals"
SPEC = spec_of(GAME)


def knows_its_cue(seats, made_at_ms=1):
    """A model that does what it is shown, as a network without layers."""
    seat = SPEC.seats[seats[0]]
    size, choices = seat.observation[0].shape[0], seat.action.choices[0]
    network = NetworkSpec((Input("observation/seen", (size,)),), (Head("logits", choices),), ())
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    weights["logits/weight"][:] = np.eye(*weights["logits/weight"].shape)
    lineage = Lineage(algorithm="ppo", config={}, steps={})
    return make_model(SPEC, network, weights, "categorical", lineage, made_at_ms, seats)


@pytest.fixture
def models(tmp_path):
    """Champions of the guide and the runners in the registry of the gateway's folder."""
    made = [knows_its_cue(seats) for seats in SPEC.kinds]
    with open_registry(f"file://{tmp_path}/data/models") as registry:
        for model in made:
            registry.publish(model)
            registry.promote(SPEC.id, model.id, Evidence(episodes=10, mean=4.0, sd=0.0))
    return made


def shown(seat, cue):
    seen = np.zeros(SPEC.seats[seat].observation[0].shape, np.float32)
    seen[cue] = 1.0
    return seen


def test_each_seat_acts_with_the_champion_of_its_kind(models, tmp_path, connect):
    guide, runner = models
    with inside(tmp_path / "data", (GAME,)) as server:
        local = connect(server.url, GAME, trust=server.trust, wait_for_model_s=60.0, timeout_s=30.0)
        asked = connect(server.url, GAME, act="server", act_timeout_s=30.0, timeout_s=30.0)
        for connection in (local, asked):
            for seat, cues in ((0, 3), (1, 5), (2, 5)):
                with connection.episode(seat) as episode:
                    for cue in range(cues):
                        assert episode.act(shown(seat, cue)) == cue
                        episode.record(shown(seat, cue), cue, 1.0)
            connection.close(60.0)
        address = f"{server.url}/v1/games/{GAME}"
        answers = [httpx.get(f"{address}/champion", params={"seat": seat}) for seat in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        of_all = httpx.get(f"{address}/champion")  # no model plays every seat
        assert (of_all.status_code, of_all.json()["error"]["do"]) == (404, "Send seat=0 to 2")
        said = {"seat": 0, "model": runner.id, "observation": {"seen": shown(0, 1).tolist()}}
        refused = httpx.post(f"{address}/act", json=said)
        assert refused.status_code == 422, refused.text
        assert "the model plays other seats" in refused.text
    with open_store(f"sqlite:///{tmp_path}/data/experience.db") as store:
        actors = {(chunk.header.seat, chunk.header.actor) for chunk in store.read(Query(SPEC.id))}
    assert actors == {(0, f"model:{guide.id}"), (1, f"model:{runner.id}"), (2, f"model:{runner.id}")}


def test_records_of_each_kind_are_learned_by_its_own_learner(tmp_path):
    data = tmp_path / "data"
    with inside(data, (GAME,)) as server:
        script = script_of("random", SPEC)
        with sparring.connect(server.url, GAME, "a", folder=tmp_path / "client", close_timeout_s=60.0) as connection:
            players = [MockPlayer(connection, script)] * 3
            game = open_game(GAME, 1)
            for number in range(8):
                play(game, players, number, 0)
    config = load(None, (f"data={data}", "registry.gate_episodes=10"))
    request = TrainRequest(GAME, "bc", source="store", steps=256, settings=("batch_steps=32", "hidden_units=[8]"))
    done = train(request, TrainOptions(), config, lambda line: None)
    with open_registry(config.registry_url) as registry:
        lineages = [registry.card(one.model).lineage for one in (done.published, *done.published.others)]
    assert [one.steps for one in lineages] == [{"collect": 8 * 4}, {"collect": 8 * 4 * 2}]


def test_python_programs_load_the_champion_of_a_seat(models, tmp_path):
    guide, runner = models
    data = tmp_path / "data"
    assert sparring.load(f"champion:{GAME}", data=data).id == guide.id
    model = sparring.load(f"champion:{GAME}", data=data, seat=2)
    assert model.id == runner.id
    assert [model.predict(shown(2, cue), seat=2) for cue in range(5)] == list(range(5))
    assert model.predict(shown(1, 4)) == 4  # its first seat
    with pytest.raises(ConfigError, match="It plays 1, 2"):
        model.predict(shown(0, 1), seat=0)
    with pytest.raises(Refused, match="its seats"):
        model.predict(shown(1, 1), search_ms=5.0)
    played = sparring.evaluate(f"{guide.id},{runner.id}", 6, data=data)
    assert played.mean == 4.0
    assert sparring.evaluate(f"champion:{GAME}", 6, against="random", data=data).mean == 4.0
    env = sparring.make(GAME, api="pettingzoo")
    seen, _ = env.reset(seed=1)
    assert [seen[agent]["observation"].shape for agent in env.agents] == [(4,), (6,), (6,)]
    models_of = {"guide": sparring.load(guide.id, data=data), "runner_0": model, "runner_1": model}
    chosen = {agent: models_of[agent].predict(seen[agent]["observation"]) for agent in env.agents}
    assert set(env.step(chosen)[1].values()) == {1.0}
    one = sparring.make(GAME, seat=1, opponent=f"champion:{GAME}", data=data)
    assert one.reset(seed=0)[0].shape == (6,)
    assert one.step(0)[1] in (0.0, 1.0)


def test_strengths_and_leagues_of_such_games_are_refused(models, tmp_path):
    from sparring.league.rounds import members_of
    from sparring.league.strengths import make_strengths

    with open_registry(f"file://{tmp_path}/data/models") as registry:
        with pytest.raises(Refused, match="several kinds"):
            make_strengths(registry, tmp_path / "data", SPEC)
        with pytest.raises(ConfigError, match="a league's members play all seats"):
            members_of(GAME, registry, 3)
        with pytest.raises(Refused, match="does not play seat 0"):
            registry.promote(SPEC.id, models[1].id, Evidence(episodes=1, mean=0.0, sd=0.0), 0)


def champions_in(folder):
    with open_registry(f"file://{folder}/models") as registry:
        return [verify(registry.champion(SPEC.id, SPEC.version, seat), registry.trust).model for seat in range(3)]


def test_operators_promote_roll_back_and_copy_champions_by_kind(models, tmp_path, capsys):
    def spar(*words):
        code = main(["models", *words, "--json", "--data", str(tmp_path / "data")])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    guide, runner = models
    other = knows_its_cue((1, 2), 2)
    with open_registry(f"file://{tmp_path}/data/models") as registry:
        registry.publish(other)
    code, said = spar("promote", other.id, "--episodes", "16")
    assert code == 1, said  # it plays as its champion does
    assert "not" in said["error"] or "undecided" in said["error"]
    assert spar("promote", other.id, "--force-reason", "a test")[0] == 0
    assert champions_in(tmp_path / "data") == [guide.id, other.id, other.id]
    assert spar("copy", "--to", f"file://{tmp_path}/copy/models")[0] == 0
    assert champions_in(tmp_path / "copy") == [guide.id, other.id, other.id]
    code, said = spar("rollback", GAME)
    assert (code, said["from"]) == (0, other.id)
    assert champions_in(tmp_path / "data") == [guide.id, runner.id, runner.id]
    code, said = spar("verify")
    assert code == 0
    assert said["champions"][0]["records"] == 3 + 2 + 2


def test_a_seat_without_a_champion_says_so(tmp_path):
    with open_registry(f"file://{tmp_path}/data/models") as registry:
        model = knows_its_cue((0,))
        registry.publish(model)
        registry.promote(SPEC.id, model.id, Evidence(episodes=10, mean=4.0, sd=0.0))
    with pytest.raises(Missing, match="seat 'runner_0' of unequal_seats:rivals has no champion yet"):
        sparring.load(f"champion:{GAME}", data=tmp_path / "data", seat=1)
