"""The ladder of strengths: made of a league's members, even by games, signed, and used wherever a strength is."""

import json
import shutil
import subprocess
import sys
import time

import httpx
import msgspec
import numpy as np
import pytest
from columns_models import FOUR, columns_model
from websockets.sync.client import connect

import sparring
from serving import decided_together, decode_answer, serving
from sparring.cli import main
from sparring.errors import Missing, ModelDamaged, Refused
from sparring.games.catalogue import spec_of
from sparring.games.scripts import script
from sparring.league import strengths
from sparring.league.matches import MatchFile
from sparring.league.payoff import Match
from sparring.league.strengths import (
    LadderMaker,
    Place,
    Rated,
    first_places,
    make_strengths,
    models_of,
    moved,
    rating_against,
)
from sparring.nets.chooser import RANDOM_ACTOR, ActRequest
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import Signed, sign
from sparring.wire.ids import new_episode
from sparring.wire.messages import Hello, Observe, Problem, Start, encode
from sparring.wire.strengths import Strengths, StrengthStep, Style, verify_strengths

BOARD = np.zeros((2, 6, 7), np.uint8)


STACKER, EDGE = columns_model(3, 2, 4), columns_model(0)


def put_on_sale(data, *, issued_at_ms=1_000, shares=(0.0, 0.5, 1.0)):
    """Two models, the stacker as champion, and a ladder of three steps with a style of each model; its steps."""
    with open_registry(f"file://{data}/models") as registry:
        for model in (STACKER, EDGE):
            registry.publish(model)
        registry.promote(FOUR.id, STACKER.id, Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
        about = {"game": FOUR.id, "version": FOUR.version, "spec": FOUR.hash, "games": 10}
        steps = tuple(
            StrengthStep(elo=100.0 * k, low=100.0 * k - 9, high=100.0 * k + 9, model=EDGE.id, share=share)
            for k, share in enumerate(shares)
        )
        styles = tuple(
            Style(
                name=name,
                means=f"prefers the {name}",
                members=(model.id,),
                steps=tuple(msgspec.structs.replace(step, model=model.id) for step in steps),
            )
            for name, model in (("edges", EDGE), ("centre", STACKER))
        )
        registry.sell(Strengths(**about, issued_at_ms=issued_at_ms, steps=steps, styles=styles))
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


def test_a_ladder_up_to_a_stronger_model_ends_with_the_strongest_there_is():
    places = first_places([450.0], top=900.0)
    assert [place.share for place in places[3:]] == [pytest.approx(2 / 3), pytest.approx(8 / 9), *[1.0] * 5]


def test_a_rating_against_known_opponents_is_the_one_whose_points_were_expected():
    rating = rating_against([0.0, 200.0], 1_000 * (1 / (1 + 10**0.25) + 1 / (1 + 10**-0.25)), 1_000)
    assert rating.elo == pytest.approx(100.0, abs=0.5)
    assert rating.high - rating.low == pytest.approx(4 * 1.96 * 400 / np.log(10) / np.sqrt(2_000), rel=0.1)
    assert 500 < rating_against([0.0], 100, 100).elo < 2_000  # one who won all has a finite one


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


def test_models_of_the_centre_and_the_edges_become_two_styles_with_ladders_of_their_own(tmp_path, monkeypatch):
    for name in ("PAIR_GAMES", "LAST_PAIR_GAMES", "STYLE_GAMES", "LAST_STYLE_GAMES"):
        monkeypatch.setattr(strengths, name, 20)
    monkeypatch.setattr(strengths, "ROUNDS", 1)
    orders = {"edges": ((0, 6, 1), (6, 0, 5)), "centre": ((3, 2, 4), (3, 4, 2))}
    models = {name: [columns_model(*order) for order in both] for name, both in orders.items()}
    said = []
    with open_registry(f"file://{tmp_path}/models") as registry, MatchFile(tmp_path, FOUR.id) as file:
        for at, model in enumerate((*models["edges"], *models["centre"])):
            registry.publish(model)
            file.add(Match(f"m{at}", model.id, "script:random", 0, 70 + 3 * at, 0, 30 - 3 * at, 100, 1_000, ""))
        made = make_strengths(registry, tmp_path, FOUR, tell=said.append)
        assert verify_strengths(registry.sell(made), registry.trust, FOUR) == made
    assert {one.name for one in made.styles} == {"edges", "centre"}
    for style in made.styles:
        ids = {model.id for model in models[style.name]}
        assert set(style.members) == ids
        assert {step.model for step in style.steps} <= ids
        assert len(style.steps) == 10
        assert (style.steps[0].share, style.steps[-1].share) == (0.0, 1.0)
        assert made.step(0.3, style.name) == style.steps[3]
        assert any(style.means in sentence for sentence in said)


def test_models_that_play_alike_have_one_style_and_that_is_said(tmp_path, monkeypatch):
    for name in ("PAIR_GAMES", "LAST_PAIR_GAMES"):
        monkeypatch.setattr(strengths, name, 20)
    monkeypatch.setattr(strengths, "ROUNDS", 1)
    said = []
    with open_registry(f"file://{tmp_path}/models") as registry, MatchFile(tmp_path, FOUR.id) as file:
        for at in range(4):
            model = columns_model(3, 2, 4, *range(at))
            registry.publish(model)
            file.add(Match(f"m{at}", model.id, "script:random", 0, 80, 0, 20, 100, 1_000, ""))
        made = make_strengths(registry, tmp_path, FOUR, tell=said.append)
    assert made.styles == ()
    assert any(sentence.startswith("one style: ") for sentence in said)


def test_a_ladder_signed_before_there_were_styles_still_verifies(tmp_path):
    put_on_sale(tmp_path)
    with open_registry(f"file://{tmp_path}/models") as registry:
        trust = registry.trust
        now = verify_strengths(registry.strengths(FOUR.id, FOUR.version), trust, FOUR)
        before = {name: value for name, value in msgspec.to_builtins(now).items() if name != "styles"}
        signed = sign(before, registry._key.private())
    found = verify_strengths(signed, trust, FOUR)
    assert (found.steps, found.styles) == (now.steps, ())
    assert found.step(0.5) == now.step(0.5)
    with pytest.raises(Refused, match="there is no style 'edges'; no styles are sold"):
        found.step(0.5, "edges")


@pytest.mark.parametrize("won", [50, 20])
def test_a_model_that_is_no_better_than_random_play_is_not_sold(tmp_path, won):
    with open_registry(f"file://{tmp_path}/models") as registry, MatchFile(tmp_path, FOUR.id) as file:
        registry.publish(EDGE)
        file.add(Match("m", EDGE.id, "script:random", 0, won, 0, 100 - won, 100, 1_000, ""))
        with pytest.raises(Refused, match="is not rated above random play"):
            make_strengths(registry, tmp_path, FOUR)


def test_a_copied_registry_sells_the_same_ladder(tmp_path):
    put_on_sale(tmp_path / "here")
    assert main(["models", "copy", "--to", f"file://{tmp_path}/there/models", "--data", str(tmp_path / "here")]) == 0
    found = []
    for place in ("here", "there"):
        with open_registry(f"file://{tmp_path}/{place}/models") as registry:
            signed = registry.strengths(FOUR.id, FOUR.version)
            found.append(verify_strengths(signed, registry.trust, FOUR))
    assert found[0] == found[1]


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
    assert {acted(server, strength=0.5, style="centre")["model"] for _ in range(5)} == {STACKER.id}
    assert {acted(server, style="edges")["model"] for _ in range(3)} == {EDGE.id}  # at its best, in that way
    refused = acted(server, style="brave")["error"]
    assert refused["message"] == "there is no style 'brave'; the styles are edges, centre"
    assert (refused["field"], refused["limit"]) == ("style", ["edges", "centre"])
    signed = httpx.get(f"{server.url}/v1/games/connect-four/strengths").json()
    assert msgspec.convert(signed, Signed).key == server.trust
    assert httpx.get(f"{server.url}/v1/games/duel/strengths").status_code == 404


def test_callers_who_come_together_when_a_gateway_starts_all_get_their_style(tmp_path):
    put_on_sale(tmp_path)
    request = ActRequest({"observation/board": BOARD}, style="edges")
    assert {one.model for one in decided_together(tmp_path, FOUR, request)} == {EDGE.id}


def test_the_play_socket_acts_in_the_style_of_its_start(server):
    seen = {"observation/board": BOARD.ravel().tolist()}
    with connect(f"ws://127.0.0.1:{server.port}/v1/games/connect-four/play") as socket:

        def say(message):
            socket.send(encode(message, text=True))
            return decode_answer(socket.recv(timeout=30))

        say(Hello(1, FOUR.version))
        answers = []
        for style in ("edges", "centre", "brave"):
            episode = new_episode()
            socket.send(encode(Start(episode, strength=0.5, style=style, record=False), text=True))
            answers.append(say(Observe(episode, 0, seen, 0)))
    assert [one.model for one in answers[:2]] == [EDGE.id, STACKER.id]
    assert isinstance(answers[2], Problem)
    assert answers[2].field == "style"
    assert answers[2].message.startswith("there is no style 'brave'; the styles are edges, centre")


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


def test_a_client_that_holds_the_champion_alone_waits_for_its_step_too(server, tmp_path):
    options = {"folder": tmp_path, "trust": server.trust, "wait_for_model_s": 30.0}
    for strength, model in ((None, STACKER), (0.5, EDGE)):
        with sparring.connect(server.url, "connect-four", strength=strength, **options) as connection:
            assert connection.model == model.id


@pytest.mark.parametrize("act", ["local", "server"])
def test_the_client_acts_in_a_style_and_without_one_that_is_not_sold(server, tmp_path, act):
    options = {"folder": tmp_path, "trust": server.trust, "wait_for_model_s": 30.0, "act": act, "act_timeout_s": 30.0}
    for style, strength, model in (("edges", None, EDGE), ("centre", 0.5, STACKER), ("brave", None, STACKER)):
        with sparring.connect(server.url, "connect-four", style=style, strength=strength, **options) as connection:
            connection.wait_for_model(30)
            with connection.episode(0) as episode:
                episode.act(BOARD)
                assert episode._decision.actor == f"model:{model.id}"
            said = connection.statistics().last_problem
            assert ("there is no style 'brave'; the styles are edges, centre" in said) == (style == "brave")


def test_where_a_step_s_model_is_missing_random_moves_weaken_the_champion(tmp_path):
    put_on_sale(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "models" / EDGE.id)
    with serving(tmp_path / "data") as server:
        options = {"trust": server.trust, "wait_for_model_s": 30.0, "act_timeout_s": 30.0, "strength": np.float64(0.5)}
        for act in ("local", "server"):
            with sparring.connect(server.url, "connect-four", folder=tmp_path / act, act=act, **options) as connection:
                connection.wait_for_model(30)
                with connection.episode(0) as episode:
                    episode.act(BOARD)
                    assert episode._decision.actor == f"model:{STACKER.id}"
                    assert episode._decision.logp < 0
                said = connection.statistics().last_problem
                assert act == "server" or "Meanwhile random moves weaken the champion" in said


def test_the_command_shows_the_ladder_and_the_terminal_game_uses_it(server):
    def spar(*words, typed=""):
        command = [sys.executable, "-m", "sparring", *words, "--data", str(server.data), "--json"]
        return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)

    done = spar("models", "strengths", "connect-four", "--plot", str(server.data / "ladder.svg"))
    said = json.loads(done.stdout.splitlines()[-1])
    assert [one["share"] for one in said["steps"]] == [0.0, 0.5, 1.0]
    assert "50% of its own moves, else random ones" in done.stderr
    assert f"strength 1 is the champion, now {STACKER.id[:12]} and not step 2" in done.stderr
    assert (server.data / "ladder.svg").stat().st_size > 1_000
    assert "no ladder of strengths was made yet" in spar("models", "strengths", "duel").stdout
    assert [one["name"] for one in said["styles"]] == ["edges", "centre"]
    assert "prefers the edges" in done.stderr
    assert "there is no style 'brave'" in spar("models", "strengths", "connect-four", "--style", "brave").stdout
    drawn = server.data / "centre.svg"
    style = spar("models", "strengths", "connect-four", "--style", "centre", "--plot", str(drawn))
    assert "style centre: steps rated as the first ladder's are" in style.stderr
    assert STACKER.id[:6] in drawn.read_text()
    assert EDGE.id[:6] not in drawn.read_text()
    for words, opponent in (
        (("--strength", "0.5"), f"model:{EDGE.id}"),
        (("--style", "centre", "--strength", "0.5"), f"model:{STACKER.id}"),
        (("--strength", "0"), RANDOM_ACTOR),
    ):
        played = spar("play", "connect-four", *words, typed="q\n")
        assert json.loads(played.stdout.splitlines()[-1])["opponent"] == opponent
    unknown = spar("play", "connect-four", "--style", "brave", typed="q\n")
    assert "the styles are edges, centre" in unknown.stdout
