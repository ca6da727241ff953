"""Teams, and seats that end while others go on: what actors hand on, what is learned, evaluated and judged."""

import numpy as np
import pytest
from fading_game import ENDS

from sparring.acting.actor import Actor
from sparring.acting.evaluate import evaluate
from sparring.acting.opponents import SELF, Opponents
from sparring.games.catalogue import open_game, spec_of
from sparring.games.conformance import check_conformance
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED
from sparring.learn.actors.actor_spec import _scripts, actor_spec
from sparring.learn.algorithms import open_algorithm, settings_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.nets.numpy_forward import NumpyForward
from sparring.replay.table import Table

FADING = "fading_game:together"
ZOMBIES = "pz:knights_archers_zombies_v11(line_death=true,max_cycles=300)"


def actor_of(game_id, algo="ppo", n=2, past=0):
    algorithm, game = open_algorithm(algo), open_game(game_id, n)
    learner = algorithm.begin(game.spec, settings_of(algorithm, {"hidden_units": [8]}), 0)
    opponents = Opponents(learner.network, 1.0)
    for place in range(past):
        opponents.put(place, learner.weights())
    forward = NumpyForward(learner.network, learner.weights())
    return Actor(game, forward, algorithm.policy, np.random.default_rng(0), opponents), learner, algorithm


def test_a_game_whose_seats_end_one_after_another_keeps_the_protocol():
    for game in (FADING, ZOMBIES):
        assert check_conformance(lambda n, game=game: open_game(game, n), 4).broken == ()


def test_a_seat_that_ended_has_no_steps_until_the_next_game():
    actor, *_ = actor_of(FADING)
    seen = [[] for _ in range(actor.streams)]
    for ticks in (4, 7, 7):  # a rollout may end in the middle of a game, and hold the ends of several
        batch = actor.rollout(ticks)
        for stream in range(actor.streams):
            rows = np.flatnonzero(batch.mask[:, stream])
            assert rows.tolist() == list(range(len(rows)))  # padding is at the end
            clock = batch.observation["observation/clock"][rows, stream]
            seen[stream] += zip(clock[:, 0], batch.action[rows, stream], batch.reward[rows, stream],
                                batch.ending[rows, stream], strict=True)  # fmt: skip
    for stream, steps in enumerate(seen):
        seat = stream // 2
        games = np.split(np.arange(len(steps)), [i + 1 for i, step in enumerate(steps) if step[3] != RUNNING])
        assert len(games) == 3
        for rows in games[:2]:
            assert [steps[i][0] for i in rows] == list(range(ENDS[seat]))
            assert steps[rows[-1]][3] == (TRUNCATED if seat == 2 else TERMINATED)
        assert all(reward == action * (1 + seat) for _, action, reward, _ in steps)


def test_returns_of_a_game_have_each_seats_own_sum():
    actor, *_ = actor_of(FADING, n=1)
    batch = actor.rollout(9)
    assert actor.episodes == 1
    assert actor.ended().returns.tolist() == (batch.reward * batch.mask).sum(axis=0).tolist()


@pytest.mark.parametrize("algo", ["ppo", "impala", "a3c"])
def test_trajectories_with_ends_of_single_seats_are_learned(algo):
    actor, learner, algorithm = actor_of(FADING, algo)
    for ticks in (2, 3, 20):  # in the second rollout the streams of the first seat have no step at all
        update = algorithm.update(learner, actor.rollout(ticks))
        assert all(np.isfinite(value) for value in update.metrics.values())


def test_transitions_of_a_seat_never_cross_its_end():
    actor, *_ = actor_of(FADING, "dqn")
    table = Table(spec_of(FADING).seats[0], 500, streams=actor.streams, masks=False)
    for _ in range(60):
        table.insert(actor.step(epsilon=0.5))
    batch, _ = table.sample(400, np.random.default_rng(0), n_steps=1, discount=0.9)
    now, then = batch.observation["observation/clock"], batch.next_observation["observation/clock"]
    assert (then[:, 1:] == now[:, 1:]).all()  # the same seat
    goes_on = batch.ending != TERMINATED  # a table has nothing behind a true end
    assert (then[goes_on, 0] == now[goes_on, 0] + 1).all()
    last = now[:, 0] + 1 == now[:, 2]
    assert ((batch.ending != RUNNING) == last).all()
    assert ((batch.ending == TRUNCATED) == (last & (now[:, 1] == 2))).all()


def test_an_evaluation_counts_what_a_seat_earned_before_it_ended():
    _, learner, _ = actor_of(FADING)
    played = evaluate(FADING, NumpyForward(learner.network, learner.weights()), episodes=6, seed=0)
    assert played.ticks == 6 * max(ENDS)
    assert all(score in range(0, (1 + e % 3) * ENDS[e % 3] + 1, 1 + e % 3) for e, score in enumerate(played.returns))


def test_the_learner_plays_all_seats_of_a_team_against_past_selves():
    actor, *_ = actor_of("fading_game:pairs", n=16, past=1)
    who = actor._who.reshape(6, 16) == SELF
    assert (who[:3] == who[0]).all()
    assert (who[3:] == ~who[0]).all()
    assert 0 < who[0].sum() < 16


def test_a_team_alone_has_no_opponents(config):
    alone, rivals = (
        actor_spec(plan(TrainRequest(game), config), None, feeds="steps", ticks=1, slots=1)
        for game in (FADING, "fading_game:pairs")
    )
    assert (alone.past, _scripts(alone.spec)) == (0, [])
    assert rivals.past == config.train.opponents


@pytest.mark.parametrize(("algo", "topology"), [("ppo", "sync"), ("dqn", "single")])
def test_knights_and_archers_that_die_are_learned_and_judged(algo, topology, config):
    request = TrainRequest(ZOMBIES, algo, topology=topology, steps=600, envs=2, actors=1)
    found = train(request, TrainOptions(), config, lambda line: None)
    assert found.published.evaluation is not None
    assert found.published.evaluation.wins is None  # one team
    assert found.env_steps >= 600
