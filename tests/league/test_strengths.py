"""The ladder of strengths: made of a league's members, even by games, signed, and used wherever a strength is."""

import json
import subprocess
import sys
import time

import httpx
import msgspec
import numpy as np
import pytest

import sparring
from serving import serving
from sparring.errors import Missing, ModelDamaged
from sparring.games.catalogue import spec_of
from sparring.games.scripts import script
from sparring.league import strengths
from sparring.league.matches import MatchFile
from sparring.league.payoff import Match
from sparring.league.strengths import LadderMaker, Place, Rated, first_places, make_strengths, models_of, moved
from sparring.nets.chooser import RANDOM_ACTOR
from sparring.nets.model_files import make_model
from sparring.nets.shapes import parameters
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Signed
from sparring.wire.model import Lineage
from sparring.wire.network import Head, Input, NetworkSpec
from sparring.wire.strengths import Strengths, StrengthStep, verify_strengths

FOUR = spec_of("connect-four")
BOARD = np.zeros((2, 6, 7), np.uint8)


def columns_model(*order):
    """Prefers the columns of `order`, whatever it sees."""
    board = Input("observation/board", (2, 6, 7), dtype="uint8")
    network = NetworkSpec((board,), (Head("logits", 7), Head("value", 1)), ())
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    weights["logits/bias"][list(order)] = np.arange(len(order), 0, -1)
    lineage = Lineage(algorithm="test", config={}, steps={})
    return make_model(FOUR, network, weights, "categorical", lineage, 1_790_000_000_000 + order[0])


STACKER, EDGE = columns_model(3, 2, 4), columns_model(0)


def put_on_sale(data, *, issued_at_ms=1_000, shares=(0.0, 0.5, 1.0)):
    """Two models, the stacker as champion, and a ladder of three steps; its steps."""
    with open_registry(f"file://{data}/models") as registry:
        for model in (STACKER, EDGE):
            registry.publish(model)
        registry.promote(FOUR.id, STACKER.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
        about = {"game": FOUR.id, "version": FOUR.version, "spec": FOUR.hash, "games": 10}
        steps = tuple(
            StrengthStep(elo=100.0 * k, low=100.0 * k - 9, high=100.0 * k + 9, model=EDGE.id, share=share)
            for k, share in enumerate(shares)
        )
        registry.sell(Strengths(**about, issued_at_ms=issued_at_ms, steps=steps))
    return steps


def test_a_ladder_is_made_of_models_that_rise_by_half_a_step_at_least():
    members = [
        Rated(name, elo) for name, elo in (("a", 20), ("b", 100), ("c", 120), ("d", 500), ("e", 870), ("f", 950))
    ]
    assert [one.member for one in models_of(members, "f")] == ["b", "d", "e", "f"]
    assert [one.member for one in models_of(members, "d")] == ["b", "d"]  # the champion is the strongest that is sold


def test_steps_begin_as_the_weakest_model_that_is_strong_enough_with_random_moves():
    places = first_places([300.0, 900.0])
    assert (places[0], places[3], places[9]) == (Place(0, 0.0), Place(0, 1.0), Place(1, 1.0))
    assert [place.model for place in places] == [0] * 4 + [1] * 6
    assert places[1].share == pytest.approx(1 / 3)


def test_a_step_that_is_too_weak_gets_more_of_its_models_moves_or_the_next_model():
    elos = [300.0, 900.0]
    assert moved(Place(0, 0.5), 100.0, 150.0, elos).share == pytest.approx(0.65)
    assert moved(Place(0, 0.5), 200.0, 150.0, elos).share == pytest.approx(0.425)
    stronger = moved(Place(0, 1.0), 200.0, 400.0, elos)
    assert (stronger.model, stronger.share < 1.0) == (1, True)
    assert moved(Place(1, 1.0), 800.0, 900.0, elos) == Place(1, 1.0)


class Tactical:
    """The script as a network: its move has the largest logit. Far stronger than random play, so steps can be told
    apart by few games."""

    spec = STACKER.card.network

    def __init__(self):
        self._script, self._rng = script("connect-four", "tactical"), np.random.default_rng(0)

    def __call__(self, observation, state=None):
        boards = observation["observation/board"]
        open_columns = (boards[:, :, 0].sum(axis=1) == 0) | (boards[:, :, 0].sum(axis=(1, 2)) == 7)[:, None]
        return {"logits": np.eye(7)[self._script.act(0, observation, open_columns, self._rng)]}


@pytest.mark.slow
def test_measured_steps_rise_one_by_one_and_none_is_a_whole_step_off(monkeypatch):
    monkeypatch.setattr(strengths, "PAIR_GAMES", 600)
    places, ratings, games = LadderMaker(FOUR, [Tactical()], [600.0]).made()
    elos = [one.elo for one in ratings]
    assert (np.diff(elos) > 0).all()
    gap = elos[-1] / 9
    assert max(abs(elo - k * gap) for k, elo in enumerate(elos)) < gap
    assert (np.diff([place.share for place in places]) > 0).all()
    assert games >= 2_000 * 17


def test_a_league_makes_a_signed_ladder_from_random_play_to_its_champion(tmp_path, monkeypatch):
    monkeypatch.setattr(strengths, "PAIR_GAMES", 20)
    monkeypatch.setattr(strengths, "LAST_PAIR_GAMES", 20)
    put_on_sale(tmp_path)
    with MatchFile(tmp_path, FOUR.id) as file:
        file.add(Match("m", STACKER.id, "script:random", 0, 80, 0, 20, 100, 1_000, ""))
    with open_registry(f"file://{tmp_path}/models") as registry:
        made = make_strengths(registry, tmp_path, FOUR)
        signed = registry.sell(made)
        assert verify_strengths(signed, registry.trust, FOUR) == made
    assert len(made.steps) == 10
    assert (made.steps[0].share, made.steps[-1].share, made.steps[-1].model) == (0.0, 1.0, STACKER.id)
    assert (made.step(0.0), made.step(0.3), made.step(1.0)) == (made.steps[0], made.steps[3], made.steps[9])


def test_without_a_league_there_is_nothing_to_sell(tmp_path):
    with open_registry(f"file://{tmp_path}/models") as registry, pytest.raises(Missing, match="no member of a league"):
        make_strengths(registry, tmp_path, FOUR)


def test_a_ladder_that_was_changed_or_is_another_games_is_refused(tmp_path):
    put_on_sale(tmp_path)
    with open_registry(f"file://{tmp_path}/models") as registry:
        signed, trust = registry.strengths(FOUR.id, FOUR.version), registry.trust
    raw = bytearray(signed.payload.encode())
    raw[40] ^= 1
    for wrong in (Signed(raw.decode(), signed.key, signed.signature), msgspec.structs.replace(signed, key="ed25519:x")):
        with pytest.raises(ModelDamaged):
            verify_strengths(wrong, trust, FOUR)
    with pytest.raises(ModelDamaged, match="they are of connect-four"):
        verify_strengths(signed, trust, spec_of("duel"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("ladder") / "data"
    with serving(data) as running:
        put_on_sale(data)
        yield running


def acted(server, **more):
    body = {"observation": {"board": BOARD.tolist()}, **more}
    return httpx.post(f"{server.url}/v1/games/connect-four/act", json=body, timeout=30).json()


def test_the_gateway_acts_by_the_ladder_and_names_who_moved(server):
    deadline = time.monotonic() + 60
    while acted(server)["model"] != STACKER.id:
        assert time.monotonic() < deadline
    weak = [acted(server, strength=0.5) for _ in range(30)]
    assert {one["model"] for one in weak} == {EDGE.id}
    own, other = np.log(0.5 + 0.5 / 7), np.log(0.5 / 7)
    for one in weak:
        assert one["logp"] == pytest.approx(own if one["action"] == 0 else other, abs=1e-5)
    assert {acted(server, strength=0.1)["model"] for _ in range(5)} == {None}  # step 0: nobody's moves
    assert acted(server, strength=1.0)["model"] == STACKER.id
    assert {acted(server, strength=0.0, model=STACKER.id)["model"] for _ in range(3)} == {STACKER.id}
    signed = httpx.get(f"{server.url}/v1/games/connect-four/strengths").json()
    assert msgspec.convert(signed, Signed).key == server.trust
    assert httpx.get(f"{server.url}/v1/games/duel/strengths").status_code == 404


def test_the_client_acts_by_the_ladder_also_when_it_starts_without_the_gateway(server, tmp_path):
    options = {"folder": tmp_path, "strength": 0.5, "trust": server.trust, "wait_for_model_s": 30.0}
    with sparring.connect(server.url, "connect-four", **options) as connection:
        assert connection.wait_for_model(30) == EDGE.id
        with connection.episode(0) as episode:
            action = episode.act(BOARD)
            assert episode._decision.actor == f"model:{EDGE.id}"
            assert episode._decision.logp == pytest.approx(np.log(0.5 + 0.5 / 7) if action == 0 else np.log(0.5 / 7))
    assert list(tmp_path.rglob("*-strengths.json"))
    with sparring.connect(server.url, "connect-four", **(options | {"strength": 0.0})) as connection:
        connection.wait_for_model(30)
        episode = connection.episode(0)
        episode.act(BOARD)
        assert episode._decision.actor == RANDOM_ACTOR


def test_the_command_shows_the_ladder_and_the_terminal_game_uses_it(server):
    def spar(*words, typed=""):
        command = [sys.executable, "-m", "sparring", *words, "--data", str(server.data), "--json"]
        return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)

    done = spar("models", "strengths", "connect-four", "--plot", str(server.data / "ladder.svg"))
    said = json.loads(done.stdout.splitlines()[-1])
    assert [one["share"] for one in said["steps"]] == [0.0, 0.5, 1.0]
    assert "50% of its own moves, else random ones" in done.stderr
    assert (server.data / "ladder.svg").stat().st_size > 1_000
    assert "no ladder of strengths was made yet" in spar("models", "strengths", "duel").stdout
    played = spar("play", "connect-four", "--strength", "0.5", typed="q\n")
    assert json.loads(played.stdout.splitlines()[-1])["opponent"] == f"model:{EDGE.id}"
