"""MAPPO: the joint view that its critic sees, the values of what was cut short, and runs from start to champion."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from dying_agents import CUT
from fading_game import ENDS
from msgspec.structs import replace as replace_field

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.cartpole import CartPole
from sparring.games.catalogue import open_game, spec_of
from sparring.games.conformance import check_conformance
from sparring.games.joint_view import ALIVE, JOINT, SEAT, STATE, JointView, joint_spec
from sparring.games.protocol import TERMINATED, TRUNCATED
from sparring.games.spec import vector
from sparring.learn.actors.actor_spec import actor_spec
from sparring.learn.actors.experience import played
from sparring.learn.algorithms.mappo import with_values
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.nets.model_files import read_weights
from sparring.registry import open_registry

FADING = "fading_game:together"
CLOCK = "observation/clock"


def stepped(game, ticks):
    view = game.reset(np.zeros(game.n, np.uint64), np.ones(game.n, bool))
    for _ in range(ticks):
        view = game.step([np.ones(game.n, np.int32)] * len(game.spec.seats))
    return view


def test_the_joint_view_has_what_every_seat_sees_and_who_is_left():
    game = JointView(open_game(FADING, 2))
    assert check_conformance(lambda n: JointView(open_game(FADING, n)), 3).broken == ()
    view = stepped(game, 4)  # the first seat ended at tick 3
    for seat in range(3):
        seen = view.observation[seat]
        assert seen[SEAT].tolist() == [seat, seat]
        assert seen[ALIVE].tolist() == [[[0, 1, 1], [1, 1, 0], [1, 0, 1]][seat]] * 2
        for behind in (1, 2):
            other = (seat + behind) % 3
            found = view.observation[other][CLOCK] if other else np.zeros((2, 3))
            assert np.array_equal(seen[JOINT + f"{behind}/clock"], found)


def test_a_seat_that_is_cut_short_is_there_in_the_last_view_and_not_later():
    game = JointView(open_game(FADING, 1))
    view = stepped(game, max(ENDS))
    assert view.observation[2][ALIVE].tolist() == [[1, 0, 0]]
    assert view.observation[0][JOINT + "2/clock"][0, 0] == max(ENDS)


def test_another_game_that_begins_changes_nothing_of_what_this_one_shows():
    game = JointView(open_game("pz:dying_agents:dying_v0", 2))
    view = stepped(game, CUT)  # the second seat is cut short in this view, and still there
    again = game.reset(np.zeros(2, np.uint64), np.array([True, False]))
    for seen, same in zip(view.observation, again.observation, strict=True):
        assert all(np.array_equal(seen[name][1], same[name][1]) for name in seen)
    last = game.step([np.ones(2, np.int32)] * 3).observation[2]
    assert last[ALIVE].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert last[JOINT + "2/state"].tolist() == [[1, 2], [0, 0]]


def test_the_joint_view_of_a_game_is_saved_with_it():
    game, other = JointView(open_game(FADING, 2)), JointView(open_game(FADING, 2))
    stepped(game, 4)
    other.restore(game.save())
    views = [one.step([np.ones(2, np.int32)] * 3) for one in (game, other)]
    for first, second in zip(views[0].observation, views[1].observation, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_where_the_game_shows_its_state_that_is_the_joint_view():
    spec = spec_of("pz:knights_archers_zombies_v11")
    assert spec.state.shape == (26, 4)
    assert replace_field(spec, state=None).hash == spec.hash  # models do not depend on it
    names = [leaf.name for leaf in joint_spec(spec).seats[0].observation]
    assert names == ["observation/state", STATE, ALIVE, SEAT]
    game = JointView(open_game(spec.id, 2))
    view = game.reset(np.array([1, 2], np.uint64), np.ones(2, bool))
    assert view.observation[0][STATE].shape == (2, 26, 4)
    assert view.observation[0][STATE].any()
    assert spec_of("pz:simple_spread_v3").state is None  # MPE's would be what all see


def test_walkers_that_fall_leave_the_joint_view():
    game = JointView(open_game("pz:multiwalker_v9(terminate_on_fall=false)", 1))
    assert game.spec.state is None
    view, rng = game.reset(np.zeros(1, np.uint64), np.ones(1, bool)), np.random.default_rng(0)
    while not (view.ending == TERMINATED).any():
        view = game.step([rng.uniform(-1, 1, (1, 4)).astype(np.float32)] * 3)
    assert np.array_equal(view.observation[0][ALIVE], view.ending != TERMINATED)


def test_a_state_that_the_game_does_not_show_is_refused():
    game = CartPole(1)
    game.spec = replace_field(game.spec, state=vector("observation/whole", 4))
    with pytest.raises(ConfigError, match="its spec has a state, and it does not show one"):
        JointView(game)


def mappo(config, game=FADING, **more):
    request = TrainRequest(game, "mappo", envs=2, settings=("rollout_ticks=12", "hidden_units=[8]"), **more)
    return plan(request, config)


def test_the_network_that_acts_has_no_value_and_sees_its_seat_alone(config):
    topology = build(mappo(config, topology="single"), None)
    network = topology.learner.network
    assert [leaf.name for leaf in network.inputs] == [CLOCK]
    assert [head.name for head in network.heads] == ["logits"]
    assert not any("value" in name for name in topology.learner.weights())
    critic = [leaf.name for leaf in topology.learner.net.critic.spec.inputs]
    assert critic == [CLOCK, *(f"{JOINT}{seat}/clock" for seat in (1, 2)), ALIVE, SEAT]
    topology.close()


def test_steps_that_were_cut_short_are_valued_by_the_critic_at_the_view_behind_them(config):
    topology = build(mappo(config, topology="single"), None)
    batch = topology.actors.take_all().batch
    cut = (batch.ending == TRUNCATED) & batch.mask
    assert cut.sum() == 2  # the last seat of both games
    behind = {name: leaf[cut] for name, leaf in batch.final_observation.items()}
    assert (behind[CLOCK][:, 0] == max(ENDS)).all()
    assert (batch.observation[CLOCK][cut][:, 0] == max(ENDS) - 1).all()
    critic = topology.learner.net.critic
    valued = with_values(topology.learner.net, batch)
    with torch.no_grad():
        expected = critic({name: torch.from_numpy(leaf) for name, leaf in behind.items()})["value"].numpy()
        first = {name: torch.from_numpy(leaf[0]) for name, leaf in batch.observation.items()}
        assert np.allclose(valued.value[0], critic(first)["value"].numpy(), atol=1e-6)
    assert np.allclose(valued.truncation_value[cut], expected, atol=1e-6)
    assert not valued.truncation_value[~cut].any()
    assert not valued.value[~batch.mask].any()
    assert (batch.ending == TERMINATED).any()
    topology.close()


def test_the_view_behind_a_cut_travels_through_a_ring(config):
    spec = actor_spec(
        mappo(config),
        build(mappo(config, topology="single"), None).learner.network,
        feeds="rollouts",
        ticks=12,
        slots=1,
        synchronous=True,
    )
    weights = build(mappo(config, topology="single"), None).learner.weights()
    ring, (actor, _), (same, _) = spec.open_ring(), spec.open_actor(weights), spec.open_actor(weights)
    for _ in range(3):  # slots are used again
        ring.play(actor, 0, 0.0)
        there, here = played(ring.take_columns()).batch, same.rollout(12)
        cut = (here.ending == TRUNCATED) & here.mask
        assert cut.any()
        for name, leaf in here.final_observation.items():
            assert np.array_equal(leaf[cut], there.final_observation[name][cut])
    ring.close()


def test_what_is_lost_of_a_game_that_is_broken_off_is_valued_at_its_last_view(config):
    topology = build(mappo(config, topology="single"), None)
    actor = topology.actors.newest()
    rollout = actor.open_rollout(4, None)
    for _ in range(2):
        actor.write(rollout, actor._step(0.0))
    rollout.cut(*actor.break_off(np.array([True, False])))
    batch = actor.close_rollout(rollout)
    assert (batch.ending[1] == TRUNCATED).tolist() == [True, False] * 3
    assert np.array_equal(batch.final_observation[CLOCK][1, ::2], batch.observation[CLOCK][1, ::2])
    topology.close()


def test_a_league_knows_its_actors_by_the_games_own_spec(config):
    spec = actor_spec(mappo(config), build(mappo(config), None).learner.network, feeds="rollouts", ticks=12, slots=1)
    assert spec.spec.hash == spec_of(FADING).hash  # what members' models have to fit
    assert spec.open_games().spec == spec.played != spec.spec


def test_it_starts_from_a_policy_of_its_own_kind(config):
    request = TrainRequest(FADING, "mappo", envs=2, steps=24, settings=("rollout_ticks=12",))
    found = train(request, TrainOptions(), config, lambda line: None)
    with open_registry(config.registry_url, champion_days=7, rollout_share=1.0) as registry:
        model = registry.fetch(found.published.model)
    learner = build(plan(TrainRequest(FADING, "mappo", seed=5), config), None).learner
    learner.start_from(model)
    weights = read_weights(model)
    assert all(np.array_equal(value, weights[name]) for name, value in learner.weights().items())
    with pytest.raises(ConfigError, match="other inputs, layers or heads"):
        build(plan(TrainRequest(FADING, "ppo"), config), None).learner.start_from(model)


def test_records_of_the_store_are_refused_since_they_have_no_joint_view(config):
    with pytest.raises(ConfigError, match="mappo learns only from what it has just played itself"):
        plan(TrainRequest(FADING, "mappo", source="mix"), config)
    with pytest.raises(ConfigError, match=r"`spar train 'pz:simple_spread_v3\(identity=true\)' --algo ppo"):
        plan(TrainRequest("pz:simple_spread_v3(identity=true)", "mappo", source="mix"), config)  # as a shell takes it


@pytest.mark.parametrize("memory", ["", "gru:8"])
def test_a_run_resumes_bit_for_bit_and_its_team_is_judged(memory, config):
    more = (f"memory={memory}",) if memory else ()
    request = TrainRequest(
        FADING, "mappo", envs=2, steps=240, topology="sync", actors=2, settings=("rollout_ticks=12", *more)
    )
    whole = train(request, TrainOptions(), config, lambda line: None)
    half = train(replace(request, steps=120), TrainOptions(), config, lambda line: None)
    resumed = train(
        replace(request, settings=(), envs=None, actors=None),
        TrainOptions(resume=half.run),
        config,
        lambda line: None,
    )
    assert resumed.published.weights == whole.published.weights
    assert whole.published.evaluation.wins is None
    with open_registry(config.registry_url, champion_days=7, rollout_share=1.0) as registry:
        model = registry.fetch(whole.published.model)
    assert set(model.files) == {"weights.safetensors", "model.onnx"}
    assert evaluate(FADING, model, episodes=3, seed=0).ticks == 3 * max(ENDS)


def test_several_learners_and_inference_in_one_place_feed_it_too(config):
    for more in ({"topology": "allreduce", "learners": 2}, {"topology": "central", "actors": 1}, {"topology": "async"}):
        request = TrainRequest(FADING, "mappo", envs=2, steps=240, settings=("rollout_ticks=12",), **more)
        found = train(request, TrainOptions(promote=False), config, lambda line: None)
        assert found.updates >= 2
