"""What an actor meets and tries: repeated random actions, random rivals; and how often an algorithm learns."""

from itertools import pairwise

import numpy as np

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.config import Config
from sparring.games.catalogue import open_game, spec_of
from sparring.learn.actors.actor_spec import _scripts, actor_spec
from sparring.learn.plan import TrainRequest, plan
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import CategoricalPolicy, log_density
from sparring.nets.shapes import parameters
from sparring.nets.torch_network import default_network

GAME = spec_of("cartpole")
NETWORK = default_network(GAME.seats[0])


def actor(repeat: bool, game_id: str = "cartpole", policy: str = "greedy") -> Actor:
    game = open_game(game_id, 32)
    network = default_network(game.spec.seats[0])
    weights = {name: np.zeros(shape, np.float32) for name, shape in parameters(network).items()}
    forward, rng = NumpyForward(network, weights), np.random.default_rng(1)
    return Actor(game, forward, policy, rng, Opponents(network, 0.0), repeat=repeat)


def repeats(one: Actor, epsilon: float, ticks: int = 100) -> float:
    """How often a stream does what it did at its decision before, while its episode goes on."""
    steps = [one.step(epsilon) for _ in range(ticks)]
    pairs = [(a.action == b.action)[a.ending == 0] for a, b in pairwise(steps)]
    return float(np.concatenate(pairs).mean())


def test_epsilon_is_the_share_of_decisions_that_explore() -> None:
    one = actor(repeat=True, game_id="gym:MountainCar-v0")
    others = np.concatenate([one.step(0.3).action for _ in range(400)]) != 0  # two of three; 0 is the best
    assert 0.15 < others.mean() < 0.3


def test_a_policy_that_samples_draws_a_share_of_its_choices_by_chance_alone() -> None:
    scores = np.repeat(np.array([[9.0, 0.0, 0.0]], np.float32), 4000, axis=0)
    rates = np.repeat([0.0, 0.3], 2000)  # one for each row
    policy = CategoricalPolicy(spec_of("gym:Acrobot-v1").seats[0].action)
    chosen = policy.explore({"logits": scores}, None, np.random.default_rng(2), rates)
    others = chosen.action != 0
    assert others[:2000].mean() < 0.01
    assert 0.16 < others[2000:].mean() < 0.24  # two of three
    drawn = np.exp(chosen.logp[2000:][others[2000:]])
    np.testing.assert_allclose(drawn, 0.1, atol=1e-3)  # the probability includes the chance


def test_the_noise_of_a_box_is_repeated_and_stays_standard_normal() -> None:
    one = actor(repeat=True, game_id="gym:Pendulum-v1", policy="gaussian")
    steps = [one.step() for _ in range(190)]
    noise = np.arctanh(np.stack([step.action[:, 0] for step in steps]) / 2.0)  # of which the mean is 0, the deviation 1
    assert 0.85 < (np.abs(np.diff(noise, axis=0)) < 1e-3).mean() < 0.97
    assert abs(noise.mean()) < 0.2
    assert 0.85 < noise.std() < 1.15
    zero = np.zeros((32, 1), np.float32)
    np.testing.assert_allclose(
        steps[5].behaviour_logp, log_density(noise[5][:, None], zero, zero, (-2.0, 2.0)), atol=1e-2
    )


def test_explored_actions_are_repeated_and_the_others_are_the_best() -> None:
    assert 0.45 < repeats(actor(repeat=False), 1.0) < 0.55
    assert repeats(actor(repeat=True), 1.0) > 0.6
    greedy = actor(repeat=True)
    assert {int(choice) for _ in range(20) for choice in greedy.step(0.0).action} == {0}  # the first of equal values


def test_what_is_repeated_ends_with_the_episode_and_survives_a_checkpoint() -> None:
    first, second = actor(repeat=True), actor(repeat=True)
    for _ in range(30):
        first.step(0.5)
    second.load(first.save())
    for _ in range(30):
        assert np.array_equal(first.step(0.5).action, second.step(0.5).action)


def test_rivals_who_take_turns_meet_a_random_player_where_there_is_no_other_script() -> None:
    names = {game: [one.name for one in _scripts(spec_of(game))] for game in ("spiel:tic_tac_toe", "connect-four")}
    assert names["spiel:tic_tac_toe"] == ["random"]
    assert names["connect-four"]
    assert "random" not in names["connect-four"]
    partners = spec_of("spiel:hanabi")
    assert [seat.team for seat in partners.seats] == [0, 0]
    assert not _scripts(partners)
    assert not _scripts(GAME)


def test_defaults_depend_on_the_kind_of_actions() -> None:
    box, choices, own = (
        plan(TrainRequest(game, "ppo"), Config()) for game in ("gym:BipedalWalker-v3", "gym:Taxi-v3", "gym:Pendulum-v1")
    )
    assert (box.settings.learning_rate, box.settings.entropy_coefficient) == (3e-4, 0.0)
    assert (choices.settings.learning_rate, choices.settings.entropy_coefficient) == (1e-3, 0.01)
    assert own.settings.learning_rate == 1e-3  # a row of the game's own
    rivals, partners = (plan(TrainRequest(game, "ppo"), Config()) for game in ("spiel:tic_tac_toe", "spiel:hanabi"))
    assert (rivals.settings.entropy_coefficient, partners.settings.entropy_coefficient) == (0.05, 0.01)
    said = plan(TrainRequest("gym:BipedalWalker-v3", "ppo", settings=("learning_rate=0.01",)), Config())
    assert said.settings.learning_rate == 0.01


def test_an_algorithm_says_how_often_it_wants_to_learn_and_the_user_has_the_last_word() -> None:
    by_default = plan(TrainRequest("gym:MountainCarContinuous-v0", "sac"), Config())
    assert by_default.replay.samples_per_insert == by_default.settings.batch_steps
    asked = Config().layered({"replay.samples_per_insert": 4.0}, "a test", above=True)
    assert plan(TrainRequest("gym:MountainCarContinuous-v0", "sac"), asked).replay.samples_per_insert == 4.0
    assert plan(TrainRequest("gym:MountainCar-v0", "dqn"), Config()).replay.samples_per_insert == 32.0
    preset, own = (plan(TrainRequest(game, "dqn"), Config()) for game in ("cartpole", "gym:MountainCar-v0"))
    assert [actor_spec(one, NETWORK, feeds="steps", ticks=1, slots=1).repeat for one in (preset, own)] == [False, True]
