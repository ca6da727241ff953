"""Games whose seats see or do different things: a learner, a network and a champion for each kind of seats."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as replace_field

from sparring.acting.evaluate import evaluate
from sparring.acting.players import Lineup, named
from sparring.config import NodesConfig
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game, spec_of
from sparring.games.conformance import check_conformance
from sparring.games.joint_view import ALIVE, JOINT, SEAT, STATE, JointView, joint_spec
from sparring.games.seat_kinds import SharedGames, kind_names, sides
from sparring.games.spec import vector
from sparring.league.gate import GateLimits, passed, play_gate_games, sentence
from sparring.learn.plan import NodesPlan, TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.sweeps.sweep import SweepCallbacks, sweep
from sparring.learn.topologies import build
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network, default_network
from sparring.registry import open_registry
from sparring.wire.champion import verify
from sparring.wire.model import Lineage

sys.path.insert(0, str(Path(__file__).parents[1] / "games"))
RIVALS, MATES, IN_TURNS, EARLY, UPHILL = (
    f"unequal_seats:{name}" for name in ("rivals", "mates", "in_turns", "early", "uphill")
)
SMALL = ("rollout_ticks=8", "minibatch_steps=32", "hidden_units=[16]")
QUICK = {
    "ppo": SMALL,
    "mappo": SMALL,
    "mmd": (*SMALL, "schedule=constant", "magnet_steps=256"),
    "impala": SMALL[::2],
    "a3c": SMALL[::2],
    "dqn": ("batch_steps=16", "hidden_units=[16]"),
}
SPEAKER = "pz:simple_speaker_listener_v4"
SEEN = "observation/seen"


def trained(config, game, algo="ppo", *, steps=64, settings=None, source="sim", **options):
    resumed = options.get("resume") is not None
    said = () if resumed else QUICK[algo] if settings is None else settings
    request = TrainRequest(game, algo, source=source, steps=steps, envs=None if resumed else 8, settings=said)
    return train(request, TrainOptions(**options), config, lambda line: None)


def published(done):
    return (done.published, *done.published.others)


def small(config):
    return replace(config, replay=replace(config.replay, min_steps=64, capacity_steps=2000, samples_per_insert=2.0))


@pytest.mark.parametrize("game", [RIVALS, MATES, IN_TURNS, EARLY, UPHILL])
def test_the_small_games_keep_the_rules_of_games(game):
    assert not check_conformance(lambda n: open_game(game, n), episodes=2).broken


def test_seats_are_of_one_kind_where_they_see_and_do_the_same():
    assert spec_of(RIVALS).kinds == ((0,), (1, 2))
    assert kind_names(spec_of(RIVALS)) == ("guide", "runner")
    assert spec_of("connect-four").kinds == ((0, 1),)
    assert sides(spec_of(RIVALS)) == ((0,), (1, 2))
    assert sides(spec_of(MATES)) == ((0, 1),)
    assert sides(spec_of("connect-four")) == ((0, 1),)


def test_parts_of_shared_games_show_their_own_seats_of_the_same_games():
    games = SharedGames(open_game(RIVALS, 3))
    seeds, all_of_them = np.arange(3, dtype=np.uint64), np.ones(3, bool)
    guide, runners = games.parts
    first, others = guide.reset(seeds, all_of_them), runners.reset(seeds + np.uint64(7), all_of_them)
    whole = open_game(RIVALS, 3).reset(seeds, all_of_them)
    assert np.array_equal(first.observation[0]["observation/seen"], whole.observation[0]["observation/seen"])
    for place in (0, 1):
        shown, meant = others.observation[place], whole.observation[1 + place]
        assert np.array_equal(shown["observation/seen"], meant["observation/seen"])
    right = [first.observation[0]["observation/seen"].argmax(1)]
    right.append(np.concatenate([one["observation/seen"].argmax(1) for one in others.observation]))
    assert games.step(right).reward.all()


def test_the_joint_view_has_the_own_kind_first_and_then_the_seats_of_other_kinds():
    game, whole = JointView(open_game(EARLY, 2)), open_game(EARLY, 2)
    assert not check_conformance(lambda n: JointView(open_game(EARLY, n)), episodes=2).broken
    for one in (game, whole):
        one.reset(np.arange(2, dtype=np.uint64), np.ones(2, bool))
    shown, plain = (one.step([np.zeros(2, np.int32)] * 3) for one in (game, whole))  # the first runner is gone
    guide, _, runner = (plain.observation[seat][SEEN] for seat in range(3))
    gone = np.zeros((2, 6), np.float32)
    others = [(gone, runner), (runner, guide), (gone, guide)]
    alive = [[1, 0, 1], [0, 1, 1], [1, 0, 1]]
    for seat, joint in enumerate(shown.observation):
        assert list(joint) == [leaf.name for leaf in game.spec.seats[seat].observation]
        assert list(joint) == [SEEN, JOINT + "1/seen", JOINT + "2/seen", ALIVE, SEAT]
        assert np.array_equal(joint[SEEN], plain.observation[seat][SEEN])
        for behind, expected in enumerate(others[seat], 1):
            assert np.array_equal(joint[f"{JOINT}{behind}/seen"], expected)
        assert joint[ALIVE].tolist() == [alive[seat]] * 2
        assert joint[SEAT].tolist() == [seat] * 2


def test_a_state_stands_for_the_others_of_all_kinds():
    game = open_game(RIVALS, 2)
    game.spec = replace_field(game.spec, state=vector("observation/whole", 3))
    game.state = lambda: np.ones((2, 3), np.float32)
    for joint in JointView(game).reset(np.zeros(2, np.uint64), np.ones(2, bool)).observation:
        assert list(joint) == [SEEN, STATE, ALIVE, SEAT]
        assert joint[STATE].tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("game", [RIVALS, "pz:simple_crypto_v3", "pz:simple_world_comm_v3"])
def test_the_joint_view_leaves_the_kinds_as_they_are(game):
    assert joint_spec(spec_of(game)).kinds == spec_of(game).kinds


def test_a_critic_of_each_kind_sees_the_whole_game_and_its_policy_what_its_seats_see(config):
    topology = build(plan(TrainRequest(RIVALS, "mappo", envs=2, settings=SMALL), config), None)
    seen = []
    for _, loop in topology.parts:
        assert [one.name for one in loop.learner.network.inputs] == [SEEN]
        critic = loop.learner.net.critic.spec
        seen.append([one.shape for one in critic.inputs if one.name not in (ALIVE, SEAT)])
    assert seen == [[(4,), (6,), (6,)], [(6,), (6,), (4,)]]
    topology.close()


def test_mappo_learns_a_speaker_and_a_listener_and_goes_on(config):
    config = replace(config, registry=replace(config.registry, gate_episodes=2))
    half = trained(config, SPEAKER, "mappo", steps=128)
    resumed = trained(config, SPEAKER, "mappo", steps=256, resume=half.run)
    assert (half.updates, resumed.updates) == (2, 4)
    assert [one.seats for one in published(resumed)] == [(0,), (1,)]
    with open_registry(config.registry_url) as registry:
        parents = [registry.card(one.model).lineage.parents for one in published(resumed)]
        assert parents == [(one.model,) for one in published(half)]
        both = named(",".join(one.model for one in published(resumed)), registry)
        assert evaluate(SPEAKER, both.player, episodes=2, seed=0).ticks == 50


def test_a_short_training_learns_both_kinds_and_each_becomes_champion_of_its_seats(config):
    config = replace(config, registry=replace(config.registry, gate_episodes=200))
    done = trained(config, RIVALS, steps=6000, settings=("rollout_ticks=32", "learning_rate=0.01", "hidden_units=[16]"))
    guide, runner = published(done)
    assert (guide.seats, runner.seats) == ((0,), (1, 2))
    assert guide.promoted, guide.verdict
    assert runner.promoted, runner.verdict
    assert guide.evaluation.mean > 3.5  # of 4; chance earns 4/3
    assert runner.evaluation.mean > 3.0  # of 4; chance earns 4/5
    with open_registry(config.registry_url) as registry:
        spec = spec_of(RIVALS)
        seats = [verify(registry.champion(spec.id, spec.version, seat), registry.trust) for seat in range(3)]
        assert [one.model for one in seats] == [guide.model, runner.model, runner.model]
        assert registry.champion(spec.id, spec.version) is None  # no model plays every seat
        card = registry.card(runner.model)
        assert (card.kind, card.spec) == ((1, 2), spec.hash)
        champions = named(f"champion:{RIVALS}", registry)
        assert isinstance(champions.player, Lineup)
        both = named(f"{guide.model},{runner.model[:12]}", registry)
        for player in (champions.player, both.player, registry.fetch(runner.model)):
            assert evaluate(RIVALS, player, episodes=12, seed=3).mean > 3.0
        with pytest.raises(ConfigError, match="both play seat 'guide'"):
            named(f"{guide.model},{guide.model}", registry)
    # The same weights again are not better than the champions, which they meet in the same seats.
    again = trained(config, RIVALS, steps=6000, resume=done.run)
    assert [one.promoted for one in published(again)] == [False, False]
    assert "on the same seeds" in again.published.verdict


def test_where_the_seat_decides_who_wins_the_same_seats_are_compared():
    spec = spec_of(UPHILL)
    network = default_network(spec.seats[0], hidden=())
    blind = {name: np.zeros_like(value) for name, value in Network(network, 0).weights().items()}
    sees = blind | {"logits/weight": np.eye(*blind["logits/weight"].shape, dtype=np.float32)}
    lineage = Lineage(algorithm="ppo", config={}, steps={})
    good, bad = (make_model(spec, network, weights, "categorical", lineage, 1) for weights in (sees, blind))
    limits = GateLimits(256)
    evidence = play_gate_games(good, bad, limits, seed=1)[1]
    assert evidence.wins == evidence.losses > 0
    assert evidence.verdict == "better"
    assert "the seat decided who won" in sentence(evidence)
    assert play_gate_games(bad, good, limits, seed=1)[1].verdict == "worse"
    assert not passed(play_gate_games(good, good, limits, seed=1)[1])


def test_mates_are_judged_together(config):
    done = trained(config, MATES, steps=3000, settings=("rollout_ticks=32", "learning_rate=0.01", "hidden_units=[16]"))
    guide, runner = published(done)
    assert guide.verdict == runner.verdict
    assert guide.evaluation.wins is None  # there are no opponents


@pytest.mark.parametrize("algo", ["ppo", "mappo", "mmd", "dqn"])
def test_a_resumed_run_learns_what_an_unbroken_one_does_bit_for_bit(algo, config):
    config = small(replace(config, registry=replace(config.registry, gate_episodes=2)))
    whole = trained(config, RIVALS, algo, steps=256)
    half = trained(config, RIVALS, algo, steps=128)
    resumed = trained(config, RIVALS, algo, steps=256, resume=half.run)
    assert (resumed.env_steps, resumed.updates) == (whole.env_steps, whole.updates)
    assert [one.weights for one in published(resumed)] == [one.weights for one in published(whole)]
    assert [one.weights for one in published(half)] != [one.weights for one in published(whole)]
    with open_registry(config.registry_url) as registry:
        parents = [registry.card(one.model).lineage.parents for one in published(resumed)]
        assert parents == [(one.model,) for one in published(half)]


@pytest.mark.parametrize(
    ("game", "algo"),
    [(IN_TURNS, "ppo"), (EARLY, "ppo"), (EARLY, "dqn"), (RIVALS, "impala"), (RIVALS, "a3c")]
    + [(game, algo) for game in (IN_TURNS, EARLY) for algo in ("mappo", "mmd")],
)
def test_kinds_learn_in_games_with_turns_or_seats_that_leave_and_by_other_algorithms(game, algo, config):
    topology = build(plan(TrainRequest(game, algo, envs=4, settings=QUICK[algo]), small(config)), None)
    for _ in range(8):
        iteration = topology.iterate()
    assert all(part.learner.updates for _, part in topology.parts)
    assert topology.env_steps
    assert {"guide/return_mean", "runner/return_mean"} <= iteration.metrics.keys()
    topology.close()


@pytest.mark.parametrize(("request_", "match"), [
    (TrainRequest(RIVALS, "rllib:PPO"), "rllib:PPO learns one network for all seats"),
    (TrainRequest(RIVALS, topology="sync"), "--topology sync learns one network"),
    (TrainRequest(RIVALS, learners=2), "average the gradients of one network"),
    (TrainRequest(RIVALS, on="ray://auto"), "in the learner's process"),
    (TrainRequest(RIVALS, league="file:///x#main/0"), "a league's members play all seats"),
    (TrainRequest(RIVALS, nodes=NodesPlan(NodesConfig(), "data", accept="127.0.0.1:0")), "nodes exchange one network"),
    (TrainRequest("cartpole", topology="kinds"), "all seats of cartpole are of one kind"),
])  # fmt: skip
def test_what_such_games_cannot_do_is_refused_before_work_starts(request_, match, config):
    with pytest.raises(ConfigError, match=match):
        plan(request_, config)


def test_past_selves_that_were_asked_for_are_refused(config):
    asked = config.layered({"train.opponents": 4}, "spar.toml", above=True)
    with pytest.raises(ConfigError, match=r"train\.opponents is 4"):
        plan(TrainRequest(RIVALS), asked)
    rows = {row.key: (row.value, row.origin) for row in plan(TrainRequest(RIVALS), config).explained}
    assert rows["topology"] == ("kinds", "game")
    assert rows["train.opponents"] == (0, "topology kinds")


def test_a_sweep_is_refused_since_a_trial_has_one_return(config):
    said = {"sweep": {"trials": 2}, "space": {"learning_rate": {"choices": [0.1, 0.2]}}}
    with pytest.raises(ConfigError, match="a trial has one return"):
        sweep(said, TrainRequest(RIVALS, settings=SMALL), config, SweepCallbacks(print, print))


def test_until_is_refused_since_no_one_return_is_meant(config):
    with pytest.raises(ConfigError, match="--until has one model"):
        trained(config, RIVALS, until=3.0)
