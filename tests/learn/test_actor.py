"""The actor: what it hands on is what happened, off by nothing."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from sparring.acting.actor import Actor
from sparring.acting.opponents import SELF, Opponents, PastSelves
from sparring.games import cartpole
from sparring.games.catalogue import open_game
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.nets.numpy_forward import NumpyForward
from sparring.replay.table import Table
from sparring.wire.tree import pack, unpack


def actor_for(game_id, n=8, algo="ppo", seed=0, past=0, share=0.5):
    algorithm, game = open_algorithm(algo), open_game(game_id, n)
    learner = algorithm.begin(game.spec, settings_of(algorithm, {"image_layers": ["flat"], "hidden_units": [16]}), seed)
    selves = Opponents(learner.network, share)
    for place in range(past):
        selves.put(place, learner.weights())
    forward = NumpyForward(learner.network, learner.weights())
    return Actor(game, forward, algorithm.policy, np.random.default_rng(seed), selves)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_every_stored_cartpole_transition_is_one_tick_of_the_physics(algo):
    actor = actor_for("cartpole", algo=algo)
    table = Table(cartpole.SPEC.seats[0], 5000, streams=actor.streams, masks=actor.masks)
    for _ in range(400):
        table.insert(actor.step(epsilon=0.5))
    batch, _ = table.sample(3000, np.random.default_rng(0), n_steps=1, discount=0.99)
    goes_on = batch.ending != TERMINATED
    force = np.where(batch.action == 1, cartpole.FORCE, -cartpole.FORCE)
    moved = cartpole._moved(batch.observation["observation/state"].astype(np.float64), force)
    assert goes_on.sum() > 2000
    assert np.allclose(moved[goes_on], batch.next_observation["observation/state"][goes_on], atol=1e-5)
    fallen = (np.abs(moved[:, 0]) > cartpole.MAX_POSITION) | (np.abs(moved[:, 2]) > cartpole.MAX_ANGLE)
    assert (fallen == ~goes_on).all()
    assert (batch.reward == 1.0).all()


def streams_of(actor, ticks):
    """Every stream's steps in order, as (observation, action, reward, ending, legal, value)."""
    told = defaultdict(list)
    for _ in range(ticks):
        steps = actor.step()
        for row, stream in enumerate(steps.stream):
            legal = None if steps.legal is None else steps.legal[row]
            board = next(iter(steps.observation.values()))[row]
            told[int(stream)].append(
                (board, int(steps.action[row]), float(steps.reward[row]), int(steps.ending[row]), legal)
            )
    return told


def test_the_losers_last_step_carries_its_loss_and_the_winners_its_win():
    actor = actor_for("connect-four", n=8)
    told = streams_of(actor, 400)
    for game in range(8):
        first, second = told[game], told[8 + game]
        ends = [[step[2] for step in seat if step[3] == TERMINATED] for seat in (first, second)]
        assert len(ends[0]) == len(ends[1]) > 3
        assert all(a == -b for a, b in zip(*ends, strict=True))
        assert {abs(a) for a in ends[0]} <= {0.0, 1.0}
        assert any(abs(a) == 1.0 for a in ends[0])
        for board, action, reward, ending, legal in (*first, *second):
            assert legal[action]
            assert reward == 0.0 or ending == TERMINATED
            assert int(board[1].sum()) - int(board[0].sum()) in (0, 1)  # it is this seat's turn


def test_between_two_decisions_both_players_put_one_stone():
    actor = actor_for("connect-four", n=8)
    for steps in streams_of(actor, 300).values():
        for (board, action, _, ending, _), (after, *_) in pairwise(steps):
            if ending == RUNNING:
                put = after.astype(int) - board
                assert put[0].sum() == put[1].sum() == 1
                assert put[0][:, action].sum() == 1
            else:
                assert after.sum() <= 1


def test_only_what_the_learning_policy_did_is_handed_on():
    actor = actor_for("connect-four", n=32, past=2, share=0.6)
    counts = []
    for _ in range(100):
        steps = actor.step()
        assert (actor._who[steps.stream] == SELF).all() or (steps.ending != RUNNING).any()
        counts.append(len(steps))
    episodes = actor.ended()
    assert 0.3 < episodes.against_others.mean() < 0.7  # a past self's seat is not counted, so less than the share
    assert np.mean(counts) < 31


def test_a_rollout_has_each_streams_steps_from_the_top_and_padding_below():
    actor = actor_for("connect-four", n=4)
    batch = actor.rollout(30)
    assert batch.mask.shape == (batch.reward.shape[0], 8)
    assert 14 <= len(batch.mask) <= 17
    assert (np.diff(batch.mask.astype(int), axis=0) <= 0).all()
    assert (batch.reward[~batch.mask] == 0).all()
    assert (batch.behaviour_logp[batch.mask] <= 0).all()
    # What a stream sees next follows its last step by one stone of each, or is a new game.
    for stream in range(8):
        last = batch.mask[:, stream].sum() - 1
        before = batch.observation["observation/board"][last, stream].sum()
        after = batch.next_observation["observation/board"][stream].sum()
        if batch.ending[last, stream] == RUNNING:
            assert after == before + 2
        else:
            assert after <= 1


def test_a_cut_episode_carries_the_value_of_where_it_was_cut():
    actor = actor_for("chain_game:chain", n=16)
    seen = 0
    for _ in range(10):
        batch = actor.rollout(40)
        cut = batch.ending == TRUNCATED
        seen += cut.sum()
        assert (batch.truncation_value[~cut] == 0).all()
        assert (batch.truncation_value[cut] != 0).all()
    assert seen > 0


@pytest.mark.parametrize("game", ["cartpole", "connect-four", "duel"])
def test_an_actor_goes_into_bytes_and_plays_on_as_if_nothing_had_happened(game):
    past = 0 if game == "cartpole" else 2
    first = actor_for(game, n=4, past=past)
    first.rollout(37)
    state = unpack(pack(first.save()))
    second = actor_for(game, n=4, seed=5, past=past)
    second.use(first._forward)
    second._opponents.forwards[:] = first._opponents.forwards  # the learner has those
    second.load(state)
    one, two = first.rollout(50), second.rollout(50)
    for name in ("action", "reward", "ending", "behaviour_logp", "value", "mask"):
        assert (getattr(one, name) == getattr(two, name)).all(), name
    assert pack(first.save()) == pack(second.save())


def test_past_selves_are_kept_up_to_their_number():
    actor = actor_for("duel", n=2)
    selves, past = Opponents(actor._forward.spec, 1.0), PastSelves(3, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    weights = actor_weights(actor)
    for _ in range(5):
        selves.put(past.add(weights), weights)
    assert len(selves.forwards) == 3
    assert set(selves.draw(100, rng).tolist()) == {0, 1, 2}
    assert (Opponents(actor._forward.spec, 1.0).draw(5, rng) == SELF).all()


def actor_weights(actor):
    from sparring.nets.torch_network import Network

    return Network(actor._forward.spec, 0).weights()


def test_a_share_of_games_is_met_by_the_games_scripts():
    from sparring.acting.opponents import FIRST_SCRIPT
    from sparring.games.scripts import script

    first, game = actor_for("connect-four"), open_game("connect-four", 64)
    partners = Opponents(first._forward.spec, 0.0, [script("connect-four", "tactical")], 0.5)
    actor = Actor(game, first._forward, "categorical", np.random.default_rng(0), partners)
    for _ in range(200):
        steps = actor.step()
        assert (actor._who[steps.stream] == SELF).all() or (steps.ending != RUNNING).any()
    met = actor._who.reshape(2, -1)
    assert 0.3 < (met == FIRST_SCRIPT).any(axis=0).mean() < 0.7
    assert ((met == SELF).any(axis=0)).all(), "one seat of every game is the learner's"
    ended = actor.ended()
    # A fresh policy plays at random, which the script beats nearly always and itself half of the time.
    assert ended.returns[ended.against_others].mean() < -0.7
    assert abs(ended.returns[~ended.against_others].mean()) < 1e-6
