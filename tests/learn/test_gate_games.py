"""The gate's games: beside the incumbent where one plays alone, against it where two do."""

import numpy as np
from msgspec.structs import replace as with_fields

from sparring.acting.gate_games import gate_episodes, play_gate_games
from sparring.config import RegistryConfig
from sparring.games.catalogue import spec_of
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry.champions.gate import passes
from sparring.wire.model import Lineage


def model(game, seed):
    spec = spec_of(game)
    network = default_network(spec.seats[0], hidden=(8,))
    lineage = Lineage(algorithm="dqn", config={}, steps={})
    return make_model(spec, network, Network(network, seed).weights(), "greedy", lineage, seed)


def test_long_games_are_measured_by_fewer_of_them_unless_somebody_says_how_many():
    def games(max_ticks, config):
        return gate_episodes(with_fields(spec_of("cartpole"), max_ticks=max_ticks), config)

    assert [games(ticks, RegistryConfig()) for ticks in (42, 500, 27_000, 1_000_000)] == [200, 200, 18, 10]
    assert games(27_000, RegistryConfig(gate_episodes=300)) == 300


def test_the_first_model_is_judged_alone():
    for game in ("cartpole", "connect-four"):
        evidence = play_gate_games(model(game, 1), None, episodes=6, seed=0).evidence
        assert (evidence.episodes, evidence.incumbent, evidence.wins) == (6, None, None)
        assert np.isfinite(evidence.mean)
        assert passes(evidence).passed


def test_alone_both_play_the_same_seeds():
    one, other = model("cartpole", 1), model("cartpole", 2)
    evidence = play_gate_games(one, other, episodes=6, seed=0).evidence
    back = play_gate_games(other, one, episodes=6, seed=0).evidence
    assert (evidence.mean, evidence.incumbent_mean) == (back.incumbent_mean, back.mean)
    assert (evidence.incumbent, evidence.wins) == (other.id, None)
    assert play_gate_games(one, one, episodes=6, seed=0).evidence.incumbent_mean == evidence.mean


def test_with_opponents_they_play_each_other():
    one, other = model("connect-four", 1), model("connect-four", 2)
    evidence = play_gate_games(one, other, episodes=8, seed=0).evidence
    assert evidence.wins + evidence.draws + evidence.losses == 8
    assert (evidence.incumbent, evidence.incumbent_mean) == (other.id, None)
    back = play_gate_games(other, one, episodes=8, seed=0).evidence
    assert (back.wins, back.draws, back.losses) == (evidence.losses, evidence.draws, evidence.wins)


def test_evidence_says_against_whom_the_mean_was_earned():
    one, other = model("connect-four", 1), model("connect-four", 2)
    assert play_gate_games(one, None, episodes=2, seed=0).evidence.against == "script:tactical"
    met = play_gate_games(one, other, episodes=2, seed=0).evidence
    assert (met.against, met.opponent) == ("script:tactical", "tactical")
    assert play_gate_games(model("cartpole", 1), None, episodes=2, seed=0).evidence.against is None
