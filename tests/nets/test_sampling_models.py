"""A model of a game with hidden information samples, wherever it acts; any other takes its best action."""

import msgspec
import numpy as np
import pytest

import sparring
from serving import serving
from sparring.acting.evaluate import evaluate, games_at_once
from sparring.games.catalogue import open_game, spec_of
from sparring.games.spec import GameSpec
from sparring.league import strengths
from sparring.league.matches import MatchFile
from sparring.league.payoff import Match
from sparring.nets.chooser import ActRequest, Chooser
from sparring.nets.model_files import make_model
from sparring.nets.policies import choose, nearly_best
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_network
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import canonical
from sparring.wire.model import Card, Lineage

KUHN = "spiel:kuhn_poker"


def model_of(game, policy="categorical", bias=(0.0, 1.0)):
    """It passes and bets with the probabilities of `bias`, whatever it sees."""
    spec = game if isinstance(game, GameSpec) else spec_of(game)
    network = default_network(spec.seats[0], hidden=(8,))
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    head = next(name for name, value in weights.items() if name.startswith("logits") and value.shape == (len(bias),))
    weights[head][:] = bias
    return make_model(spec, network, weights, policy, Lineage(algorithm="ppo", config={}, steps={}), 0)


def test_the_card_says_that_a_model_of_hidden_information_samples():
    assert spec_of(KUHN).hidden_information
    assert model_of(KUHN).card.samples
    assert not model_of(KUHN, policy="greedy").card.samples  # its logits are values
    assert not model_of("cartpole").card.samples
    assert spec_of("pz:rps_v2").hidden_information
    alone = msgspec.structs.replace(spec_of(KUHN), seats=spec_of(KUHN).seats[:1])
    assert not model_of(alone).card.samples  # a team without rivals


def test_a_card_without_the_field_keeps_its_id():
    card = model_of("cartpole").card
    assert b"acts" not in canonical(card)
    assert msgspec.json.decode(canonical(card), type=Card).id == card.id


def test_what_is_hidden_is_not_part_of_the_spec_s_hash():
    spec = spec_of(KUHN)
    assert msgspec.structs.replace(spec, hidden_information=False).hash == spec.hash


def shares(actions):
    return np.bincount(actions, minlength=2) / len(actions)


def test_client_and_gateway_choose_by_the_probabilities_and_say_them():
    chooser, seat, rng = Chooser(model_of(KUHN)), spec_of(KUHN).seats[0], np.random.default_rng(0)
    seen = {leaf.name: np.zeros(leaf.shape, leaf.dtype) for leaf in seat.observation}
    drawn = chooser.decide_batch([(seat, ActRequest(seen))] * 4000, rng)
    expected = np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum()
    np.testing.assert_allclose(shares([one.action for one in drawn]), expected, atol=0.03)
    np.testing.assert_allclose({one.action: np.exp(one.logp) for one in drawn}[1], expected[1], atol=1e-6)


def test_strength_mixes_the_probabilities_with_chance():
    action, logits, rng = spec_of(KUHN).seats[0].action, np.tile([[0.0, 3.0]], (4000, 1)), np.random.default_rng(0)
    choice = choose(action, logits, None, rng, 0.5, samples=True)
    expected = 0.5 * np.exp([0.0, 3.0]) / np.exp([0.0, 3.0]).sum() + 0.25
    np.testing.assert_allclose(shares(choice.action), expected, atol=0.03)
    np.testing.assert_allclose(np.exp(choice.logp), expected[choice.action], atol=1e-6)
    legal = np.tile([[True, False]], (4000, 1))
    assert not choose(action, logits, legal, rng, 0.5, samples=True).action.any()


def test_an_evaluation_plays_what_the_card_says_the_same_for_the_same_seed():
    always, often = model_of(KUHN, policy="greedy"), model_of(KUHN)
    ones = [evaluate(KUHN, model, episodes=512, seed=3, against=always) for model in (always, often, often)]
    assert len(np.unique(ones[0].returns)) < len(np.unique(ones[1].returns))  # it passes now and then
    np.testing.assert_array_equal(ones[1].digests, ones[2].digests)
    assert len(np.unique(ones[0].digests)) == 6  # always the same moves: six deals of two cards among three
    assert games_at_once(KUHN, often, always) == 64  # its chance is drawn in the order of these games


def test_a_ladder_of_strengths_is_measured_with_the_moves_that_are_played(tmp_path, monkeypatch):
    monkeypatch.setattr(strengths, "ROUNDS", 1)
    monkeypatch.setattr(strengths, "PAIR_GAMES", 20)
    monkeypatch.setattr(strengths, "LAST_PAIR_GAMES", 1_000)
    even = model_of(KUHN, bias=(0.01, 0.0))  # as good as random play; who always passes wins one game in four
    with open_registry(f"file://{tmp_path}/models") as registry, MatchFile(tmp_path, KUHN) as file:
        registry.publish(even)
        file.add(Match("m", even.id, "script:random", 0, 60, 0, 40, 100, 1_000, ""))
        made = strengths.make_strengths(registry, tmp_path, spec_of(KUHN))
    assert abs(made.steps[-1].elo) < 60


def test_python_draws_unless_it_is_told_otherwise(tmp_path):
    with open_registry(f"file://{tmp_path}/models") as registry:
        found = registry.publish(model_of(KUHN))
    model = sparring.load(found, data=tmp_path)
    seen = np.zeros((2000, *spec_of(KUHN).seats[0].observation[0].shape), np.float32)
    assert 0.6 < model.predict(seen).mean() < 0.85
    assert model.predict(seen, deterministic=True).all()


def test_a_person_s_opponent_on_the_server_samples(tmp_path):
    with open_registry(f"file://{tmp_path}/models") as registry:
        registry.promote(KUHN, registry.publish(model_of(KUHN)), Evidence(episodes=1, mean=0.0, sd=0.0, by="operator"))
    game = open_game(KUHN, 1)
    view = game.reset(np.zeros(1, np.uint64), np.ones(1, bool))
    seen = {name: column[0] for name, column in view.observation[0].items()}
    with serving(tmp_path, "--set", f'games=["{KUHN}"]') as server:
        connection = sparring.connect(server.url, game=KUHN, player="ann", act="server", folder=tmp_path / "ann")
        with connection, connection.episode() as episode:
            done = [episode.act(seen, legal=view.legal[0][0]) for _ in range(40)]
    assert {0, 1} == set(done)


@pytest.mark.parametrize("samples", [False, True])
def test_legal_actions_alone_are_drawn(samples):
    action, rng = spec_of("connect-four").seats[0].action, np.random.default_rng(1)
    logits, legal = rng.normal(0, 3, (500, 7)), rng.random((500, 7)) < 0.4
    legal[:, 3] = True
    done = choose(action, logits, legal, rng, samples=samples).action
    assert legal[np.arange(500), done].all()


def test_at_full_strength_moves_that_are_nearly_as_good_are_taken_too():
    rng, seat = np.random.default_rng(2), spec_of("connect-four").seats[0]
    board = {"observation/board": np.zeros(seat.observation[0].shape, np.uint8)}
    model = model_of("connect-four", bias=(0.0, 2.0, 1.95, 0.0, 0.0, 1.5, 0.0))

    def drawn(**asked):
        decisions = Chooser(model).decide_batch([(seat, ActRequest(board, **asked))] * 400, rng)
        return {one.action: np.exp(one.logp) for one in decisions}

    assert drawn() == {1: 1.0}  # as it is judged
    found = drawn(vary=True)
    assert set(found) == {1, 2}  # 2 is 0.95 as likely, 5 only 0.61
    assert found[1] == pytest.approx(1 / (1 + np.exp(-0.05)), abs=1e-5)
    assert found[1] + found[2] == pytest.approx(1.0, abs=1e-5)
    assert set(drawn(vary=True, strength=1.0)) == {1, 2}
    assert set(drawn(vary=True, legal=np.arange(7) != 2)) == {1}
    assert len(drawn(vary=True, strength=0.2)) == 7  # a weaker one draws by chance anyhow


def test_of_values_those_within_a_tenth_of_the_best_are_nearly_as_good():
    values = np.array([[0.5, 0.46, 0.44, -2.0], [-1.0, -1.05, -1.2, -9.0]])
    near = np.isfinite(nearly_best(values, None, values=True))
    np.testing.assert_array_equal(near, [[True, True, False, False], [True, True, False, False]])


def test_only_games_with_rivals_vary():
    assert spec_of("connect-four").has_rivals
    assert not spec_of("cartpole").has_rivals
