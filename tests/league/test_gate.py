"""The gate: who is compared with whom, in which games, and what it says."""

import itertools
import math
import time

import numpy as np
import pytest
from msgspec.structs import replace

from sparring.acting.evaluate import evaluate, evaluate_beside, opening_decisions
from sparring.config import Config, load
from sparring.errors import Missing
from sparring.games.catalogue import spec_of
from sparring.league.gate import FEWEST, GateLimits, passed, play_gate_games, sentence, tries_before
from sparring.learn.plan import TrainRequest
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
from sparring.wire.ids import ModelId
from sparring.wire.model import Lineage

OLD = ModelId("0" * 64)
SMALL = GateLimits(64)


def test_long_games_are_measured_by_fewer_of_them_unless_it_is_set_how_many():
    def first(max_ticks, config):
        return GateLimits.from_config(config).first(replace(spec_of("cartpole"), max_ticks=max_ticks))

    assert [first(ticks, Config()) for ticks in (42, 500, 27_000, 1_000_000)] == [32, 32, 18, 10]
    assert GateLimits.from_config(load(None, ("registry.gate_episodes=300",))) == GateLimits(300, math.inf)


def test_the_first_champion_is_better_than_random_play(model):
    weak, good = model("cartpole", 2), model("cartpole", 3)
    returns = {one.id: evaluate("cartpole", one, episodes=20, seed=0).mean for one in (weak, good)}
    assert returns[weak.id] < 15 < 40 < returns[good.id]  # random play has some 22
    assert play_gate_games(weak, None, SMALL)[1].verdict == "worse"
    evidence = play_gate_games(good, None, SMALL)[1]
    assert passed(evidence)
    assert sentence(evidence).startswith("better than random play: it returns ")


def test_without_opponents_both_play_the_same_fresh_seeds(model):
    one, other = model("cartpole", 3), model("cartpole", 2)
    evidence = play_gate_games(one, other, SMALL)[1]
    again = play_gate_games(one, other, SMALL)[1]
    assert evidence.seed != again.seed
    assert evidence == play_gate_games(one, other, SMALL, seed=evidence.seed)[1]
    assert (evidence.incumbent, evidence.wins, evidence.verdict) == (other.id, None, "better")
    back = play_gate_games(other, one, SMALL, seed=evidence.seed)[1]
    assert (back.mean, back.incumbent_mean, back.verdict) == (evidence.incumbent_mean, evidence.mean, "worse")
    same = play_gate_games(one, one, SMALL)[1]
    assert (same.mean, same.verdict) == (same.incumbent_mean, "undecided")


def test_with_opponents_they_play_each_other_from_both_sides_of_distinct_openings(model):
    one, other = model("connect-four", 1), model("connect-four", 2)
    limits = GateLimits(64)  # one batch: who is better is found by another number of games than who is worse
    evidence = play_gate_games(one, other, limits)[1]
    games = evidence.wins + evidence.draws + evidence.losses
    assert games % 2 == 0
    assert 0.95 * games < evidence.distinct <= games
    back = play_gate_games(other, one, limits, seed=evidence.seed)[1]
    assert (back.wins, back.draws, back.losses) == (evidence.losses, evidence.draws, evidence.wins)
    assert back.elo_high == pytest.approx(-evidence.elo_low)
    itself = play_gate_games(one, one, limits)[1]
    assert itself.distinct <= games / 2  # each opening is one game, from both sides
    assert not passed(itself)


def test_openings_are_wide_where_the_game_is_long_enough():
    assert opening_decisions(spec_of("connect-four")) == 3
    assert opening_decisions(replace(spec_of("connect-four"), max_ticks=9)) == 1
    assert opening_decisions(replace(spec_of("connect-four"), max_ticks=7)) == 0  # it would be most of the game
    assert opening_decisions(replace(spec_of("duel"), max_ticks=1)) == 0
    assert opening_decisions(replace(spec_of("duel"), max_ticks=4)) == 1


def test_a_team_plays_with_itself_and_beside_the_other_half(model):
    one, other = model("spiel:tiny_hanabi", 1), model("spiel:tiny_hanabi", 2)
    assert evaluate("spiel:tiny_hanabi", one, episodes=8, seed=0, against=other).wins is None
    evidence = play_gate_games(one, other, SMALL)[1]
    assert (evidence.wins, evidence.against) == (None, None)
    assert evidence.incumbent_mean is not None
    mixed = evaluate_beside("spiel:tiny_hanabi", one, other, episodes=64, seed=evidence.seed)
    assert evidence.beside_incumbent == mixed.mean
    assert sentence(evidence).endswith(f"; {mixed.mean:.4g} with the champion in the other seats of its team")


def test_a_team_alone_plays_no_game_twice(model):
    played = evaluate("pz:simple_spread_v3", model("pz:simple_spread_v3", 1), episodes=12, seed=0)
    assert len(np.unique(played.digests)) == 12
    assert len(np.unique(played.returns)) == 12


def test_a_team_of_pettingzoo_is_promoted_where_it_is_better():
    spec = spec_of("pz:simple_spread_v3")
    network = default_network(spec.seats[0], hidden=())
    weights = {name: np.zeros_like(value) for name, value in Network(network, 0).weights().items()}
    for sign, left, right in ((1, 2, 1), (-1, 1, 2)):  # towards the mean of the landmarks, along each axis
        weights["logits/weight"][left, 4:10:2] = sign
        weights["logits/weight"][right + 2, 5:10:2] = -sign
    lineage = Lineage(algorithm="ppo", config={}, steps={})
    team = make_model(spec, network, weights, "categorical", lineage, 1)
    evidence = play_gate_games(team, None, GateLimits(256), seed=1)[1]
    assert (evidence.wins, evidence.verdict) == (None, "better")


def test_every_try_of_a_lineage_is_counted(model, tmp_path):
    registry = FileRegistry(tmp_path)
    first = model("cartpole", 1)
    second = model("cartpole", 2, parents=[first.id])
    for one in (first, second):
        registry.publish(one)
    assert tries_before(registry, first) == 0
    for tries in (1, 2):
        evidence = play_gate_games(first, None, GateLimits(10), tries=tries_before(registry, first))[1]
        assert evidence.tries == tries
        registry.save_evidence(first.id, evidence)
    assert tries_before(registry, second) == 2


def test_an_ancestor_that_was_never_tried_does_not_begin_the_count_again(model, tmp_path):
    registry = FileRegistry(tmp_path)
    first = model("cartpole", 1)
    forced = model("cartpole", 2, parents=[first.id])
    gone = model("cartpole", 3, parents=[first.id])  # never published
    last = model("cartpole", 4, parents=[forced.id, gone.id])
    for one in (first, forced, last):
        registry.publish(one)
    registry.save_evidence(first.id, Evidence(episodes=1, mean=0.0, sd=0.0, tries=7))
    assert tries_before(registry, last) == 7
    registry.save_evidence(forced.id, Evidence(episodes=0, mean=0.0, sd=0.0, by="operator"))
    assert tries_before(registry, last) == 7


def test_evidence_says_against_whom_the_mean_was_earned(model):
    one, other = model("connect-four", 1), model("connect-four", 2)
    met = play_gate_games(one, other, GateLimits(4))[1]
    assert (met.against, met.opponent) == ("script:tactical", "tactical")
    assert play_gate_games(model("cartpole", 1), None, GateLimits(4))[1].against is None


def beside(verdict, mean=480.0, theirs=475.5):
    return Evidence(episodes=40, mean=mean, sd=1.0, incumbent=OLD, incumbent_mean=theirs, verdict=verdict)


def against(verdict):
    counts = {"wins": 60, "draws": 3, "losses": 37, "distinct": 98, "elo_low": 12.2, "elo_high": 160.0}
    return Evidence(episodes=200, mean=0.0, sd=1.0, incumbent=OLD, verdict=verdict, **counts)


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (beside("better"), "better than the champion: it returns 480 beside 475.5 in 40 episodes on the same seeds"),
        (beside("worse"), "worse than the champion: it returns 480 beside 475.5 in 40 episodes on the same seeds"),
        (beside("undecided", math.nan), "its return is nan ± 1.0, which is not finite"),
        (
            against("not worse"),
            "not worse than the champion, and not shown to be better: "
            "+12 to +160 Elo in 100 games, 98 of them distinct (60 won, 3 drawn, 37 lost)",
        ),
        (
            against("not better"),
            "not better than the champion, or hardly: "
            "+12 to +160 Elo in 100 games, 98 of them distinct (60 won, 3 drawn, 37 lost)",
        ),
        (
            against("undecided"),
            "undecided whether it is better than the champion: "
            "+12 to +160 Elo in 100 games, 98 of them distinct (60 won, 3 drawn, 37 lost)",
        ),
    ],
)
def test_the_gate_says_what_it_found(evidence, said):
    assert sentence(evidence) == said
    assert passed(evidence) == said.startswith("better")


def test_at_the_deadline_only_episodes_before_the_first_unfinished_one_count(model, monkeypatch):
    one = model("cartpole", 1)
    whole = evaluate("cartpole", one, episodes=300, seed=0)
    for ticks in (3, 20, 30):
        clock = itertools.count()
        monkeypatch.setattr("sparring.acting.evaluate.time.monotonic", lambda clock=clock: next(clock))
        some = evaluate("cartpole", one, episodes=300, seed=0, deadline=ticks)
        monkeypatch.undo()
        assert len(some.returns) < 300
        assert (some.returns == whole.returns[: len(some.returns)]).all()


@pytest.mark.parametrize("game", ["cartpole", "connect-four"])
def test_a_gate_in_no_time_plays_nothing_and_says_so(model, game):
    one, other = model(game, 1), model(game, 2)
    with pytest.raises(Missing, match="0 of its 64 games ended in the time that was left"):
        play_gate_games(one, other, SMALL, deadline=time.monotonic())


@pytest.mark.slow
def test_minutes_include_the_games_of_the_gate(tmp_path):
    config = load(None, (f"data={tmp_path}", "registry.gate_episodes=1000000"))
    began = time.monotonic()
    result = train(TrainRequest("cartpole", "ppo"), TrainOptions(minutes=0.2), config, lambda progress: None)
    assert result.published.evaluation is not None
    assert FEWEST <= len(result.published.evaluation.returns) < 1_000_000
    assert np.isfinite(result.published.evaluation.mean)
    assert time.monotonic() - began < 90  # all games would take hours
