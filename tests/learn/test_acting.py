"""Actors with boxes and memories: the densities are true, and what is remembered is what a learner unrolls."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from aim_game import HIGH, LOW, MAX_TICKS, Aim

from sparring.acting.actor import Actor
from sparring.acting.evaluate import evaluate
from sparring.acting.opponents import SELF, Opponents
from sparring.errors import TrainingStopped
from sparring.games.catalogue import open_game
from sparring.games.protocol import RUNNING, TRUNCATED
from sparring.games.spec import Leaf
from sparring.nets import policies
from sparring.nets.distributions import distribution
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import bounds_of, draw, log_density
from sparring.nets.torch_network import Network, default_network
from sparring.wire.network import Gru, Lstm
from sparring.wire.tree import pack, unpack

BOUNDED = Leaf(name="action", kind="box", shape=(3,), low=-2.0, high=0.5)
FREE = Leaf(name="action", kind="box", shape=(3,))


def stirred(network, seed=0, size=0.3):
    """Weights far enough from the first ones that states and values differ between rows."""
    rng = np.random.default_rng(seed)
    net = Network(network, seed)
    net.set_weights({n: (w + rng.normal(0, size, w.shape)).astype(np.float32) for n, w in net.weights().items()})
    return net


def actor_of(game, policy, memory=None, seed=0, partners=None, **settings):
    network = default_network(game.spec.seats[0], hidden=(16,), memory=memory, separate_value=True)
    net = stirred(network)
    forward = NumpyForward(network, net.weights())
    partners = partners or Opponents(network, 0.0)
    return Actor(game, forward, policy, np.random.default_rng(seed), partners, **settings), net


def tensors(columns):
    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}


@pytest.mark.parametrize("action", [BOUNDED, FREE], ids=["bounded", "free"])
def test_what_numpy_draws_has_the_density_that_torch_says(action):
    rng, twin = np.random.default_rng(0), distribution(action)
    mean, log_std = (rng.normal(0, 1.5, (500, 3)).astype(np.float32) for _ in range(2))
    choice = draw(mean, log_std, bounds_of(action), rng.standard_normal(mean.shape, np.float32))
    out = {"mean": torch.from_numpy(mean), "log_std": torch.from_numpy(log_std)}
    said = twin.logp(out, torch.from_numpy(choice.action), None).numpy()
    # Near a bound an action's own float32 no longer says how near; the actor's number is the exact one.
    inside = np.ones(500, bool)
    if action.low is not None:
        share = (choice.action - action.low) / (action.high - action.low)
        inside = ((share > 1e-3) & (share < 1 - 1e-3)).all(1)
        assert (choice.action >= action.low).all()
        assert (choice.action <= action.high).all()
    assert inside.sum() > 200
    np.testing.assert_allclose(choice.logp[inside], said[inside], atol=2e-2)
    drawn, logp = twin.draw(out, torch.Generator().manual_seed(0))
    back = twin.logp(out, drawn, None)
    assert torch.isfinite(logp).all()
    assert (back - logp).abs().median() < 1e-4


@pytest.mark.parametrize("bounds", [(-2.0, 0.5), (-1.0, 1.0), None])
@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.3, -1.0), (-0.7, 0.5), (0.2, 9.0), (0.1, -9.0)])
def test_a_density_integrates_to_one(bounds, mean, log_std):
    """Also where the network's log_std lies beyond what any policy keeps."""
    raw = np.linspace(-60, 60, 200_001)
    ones = np.ones((len(raw), 1))
    density = np.exp(log_density(raw[:, None], mean * ones, log_std * ones, bounds).astype(np.float64))
    done = raw if bounds is None else bounds[0] + (bounds[1] - bounds[0]) * 0.5 * (np.tanh(raw) + 1)
    # Beyond |raw| of about 18 a double cannot be nearer to the bound: what a wide Gaussian has there is not seen.
    assert abs(np.trapezoid(density, done) - 1) < (1e-2 if bounds and log_std > 2 else 2e-3)


def test_a_box_is_played_in_its_own_shape_and_units_with_the_probability_that_the_learner_finds():
    actor, net = actor_of(Aim(16), "gaussian")
    actor.use(NumpyForward(net.spec, net.weights()), 7)
    batch = actor.rollout(40)
    assert batch.action.shape == (40, 16, 2, 1)
    assert LOW <= batch.action.min() < -1.5 < 0.5 < batch.action.max() <= HIGH
    out = net.unroll(tensors(batch.observation))
    said = distribution(Aim.spec.seats[0].action).logp(out, torch.from_numpy(batch.action), None)
    assert np.median(np.abs(said.detach().numpy() - batch.behaviour_logp)) < 1e-3
    assert (batch.version == 7).all()
    assert batch.state is None
    steps = actor.step()
    assert steps.action.shape == (16, 2, 1)
    assert steps.version == 7


def unrolled(net, batch):
    """What the learner's network says of every step, from the stored state, with the resets inside."""
    starts = np.zeros(batch.ending.shape, bool)
    starts[1:] = batch.ending[:-1] != RUNNING
    with torch.no_grad():
        return net.unroll(tensors(batch.observation), torch.from_numpy(batch.state), torch.from_numpy(starts))


def agree(net, batch, out):
    """Values and log-probabilities of the learner's unrolling are those of the actor's steps."""
    kept = batch.mask
    np.testing.assert_allclose(out["value"].numpy()[kept], batch.value[kept], atol=1e-4)
    legal = None if batch.legal is None else torch.from_numpy(batch.legal)
    logits = out["logits"] if legal is None else out["logits"].masked_fill(~legal, -1e9)
    action = torch.from_numpy(batch.action).long().unsqueeze(-1)
    logp = torch.log_softmax(logits, -1).gather(-1, action).squeeze(-1).numpy()
    np.testing.assert_allclose(logp[kept], batch.behaviour_logp[kept], atol=1e-4)


@pytest.mark.parametrize("memory", [Gru(6), Lstm(5)])
def test_the_actors_memory_is_what_the_learner_unrolls_from_the_stored_state(memory):
    actor, net = actor_of(open_game("cartpole", 8), "categorical", memory)
    last = np.zeros((8, 2 * (6 if isinstance(memory, Gru) else 10)), np.float32)
    for _ in range(4):
        batch = actor.rollout(50)
        assert (batch.state == last).all(), "a rollout begins where the one before ended"
        out = unrolled(net, batch)
        agree(net, batch, out)
        over = batch.ending[-1] != RUNNING
        wanted = np.where(over[:, None], 0, out["state"].numpy())
        np.testing.assert_allclose(batch.next_state, wanted, atol=1e-5)
        assert (batch.next_state[over] == 0).all()
        last = batch.next_state.copy()
    assert np.abs(last).max() > 0.1
    assert actor.episodes > 8, "there were resets inside"


@pytest.mark.parametrize("game", ["connect-four", "duel"])
@pytest.mark.parametrize("met", ["itself", "others"])
def test_each_seat_remembers_for_itself_whoever_sits_in_the_others(game, met):
    from sparring.games.scripts import script, scripts_for

    games = open_game(game, 6)
    network = default_network(games.spec.seats[0], hidden=(16,), memory=Gru(6), separate_value=True)
    scripts = [script(game, scripts_for(game)[-1])] if met == "others" else []
    partners = Opponents(network, 0.4, scripts, 0.4 if scripts else 0.0)
    if met == "others":
        for place, seed in enumerate((1, 2)):
            partners.put(place, stirred(network, seed).weights())
    actor, net = actor_of(games, "categorical", Gru(6), partners=partners)
    for _ in range(4):
        batch = actor.rollout(60)
        agree(net, batch, unrolled(net, batch))
        # A bootstrap values what is seen next with what is remembered then.
        with torch.no_grad():
            value = net(tensors(batch.next_observation), torch.from_numpy(batch.next_state))["value"].numpy()
        waiting = actor._open.begun & (actor._who == SELF)
        np.testing.assert_allclose(value[waiting], actor._open.value[waiting], atol=1e-4)


class Told:
    """A network that notes the states it is given and gives."""

    def __init__(self, forward):
        self.forward, self.spec, self.given, self.left = forward, forward.spec, [], []

    def __call__(self, observation, state=None):
        out = self.forward(observation, state)
        self.given.append(state.copy())
        self.left.append(out["state"].copy())
        return out


def test_a_past_self_is_given_back_its_own_memory_and_an_empty_one_in_a_new_game():
    game = open_game("connect-four", 1)
    network = default_network(game.spec.seats[0], hidden=(16,), memory=Gru(6))
    partners = Opponents(network, 1.0)
    partners.put(0, stirred(network, 3).weights())
    told = partners.forwards[0] = Told(partners.forwards[0])
    network = default_network(game.spec.seats[0], hidden=(16,), memory=Gru(6))
    forward = NumpyForward(network, stirred(network).weights())
    actor = Actor(game, forward, "categorical", np.random.default_rng(0), partners)
    for _ in range(200):
        actor.step()
    fresh = 0
    for given, left in zip(told.given[1:], told.left[:-1], strict=True):
        fresh += not given.any()
        assert not given.any() or (given == left).all()
    assert not told.given[0].any()
    assert actor.episodes - 1 <= fresh + 1 <= actor.episodes + 1


@pytest.mark.parametrize("memory", [None, Gru(6)])
def test_where_an_episode_is_cut_its_value_is_that_of_the_memory_after_its_last_step(memory):
    actor, net = actor_of(Aim(16), "gaussian", memory)
    forward, seen = NumpyForward(net.spec, net.weights()), 0
    for _ in range(30):
        steps = actor.step()
        if len(steps.final):
            before = None if memory is None else steps.state[steps.final]
            last = {name: column[steps.final] for name, column in steps.observation.items()}
            after = forward(last, before).get("state")
            assert (steps.final_state is None) == (memory is None)
            if memory is not None:
                np.testing.assert_allclose(steps.final_state, after, atol=1e-6)
            cut = steps.ending[steps.final] == TRUNCATED
            value = forward(dict(steps.final_observation), after)["value"]
            told = actor._truncation_value(steps)
            if cut.any():
                np.testing.assert_allclose(told[steps.final], value * cut, atol=1e-6)
                seen += int(cut.sum())
    assert seen > 5


@pytest.mark.parametrize(("game", "policy"), [("cartpole", "categorical"), ("duel", "greedy"), ("aim", "gaussian")])
def test_an_actor_that_remembers_goes_into_bytes_in_mid_episode(game, policy):
    def made(seed):
        games = Aim(5) if game == "aim" else open_game(game, 5)
        network = default_network(games.spec.seats[0], hidden=(16,), memory=Lstm(5), separate_value=True)
        partners = Opponents(network, 0.5)
        if game == "duel":
            partners.put(0, stirred(network, 4).weights())
        return actor_of(games, policy, Lstm(5), seed, partners, reward_clip=0.5)[0]

    first, second = made(0), made(9)
    first.rollout(13)
    second.load(unpack(pack(first.save())))
    one, two = first.rollout(30), second.rollout(30)
    assert one.state.any()
    for name in ("action", "reward", "ending", "behaviour_logp", "value", "mask", "state", "next_state"):
        assert (getattr(one, name) == getattr(two, name)).all(), name
    assert pack(first.save()) == pack(second.save())


def test_rewards_are_handed_on_within_the_clip_and_returns_are_told_as_earned():
    plain, _ = actor_of(Aim(16), "gaussian")
    clipped, _ = actor_of(Aim(16), "gaussian", reward_clip=0.25)
    one, two = plain.rollout(60), clipped.rollout(60)
    assert one.reward.min() < -1
    assert (two.reward == np.clip(one.reward, -0.25, 0.25)).all()
    assert (plain.ended().returns == clipped.ended().returns).all()
    assert clipped.step().reward.min() >= -0.25


def test_each_stream_explores_by_its_own_chance():
    actor, net = actor_of(open_game("cartpole", 4), "greedy")
    forward, epsilon = NumpyForward(net.spec, net.weights()), np.array([0.0, 0.2, 0.6, 1.0])
    strayed, logps = np.zeros(4), []
    for _ in range(1_200):
        steps = actor.step(epsilon)
        top = forward(dict(steps.observation))["logits"].argmax(1)
        strayed += steps.action != top
        logps.append(np.where(steps.action == top, 1 - epsilon / 2, epsilon / 2))
        np.testing.assert_allclose(np.exp(steps.behaviour_logp), logps[-1], atol=1e-6)
    np.testing.assert_allclose(strayed / 1_200, epsilon / 2, atol=0.04)


def test_each_seat_explores_by_its_own_chance_where_they_take_turns():
    actor, net = actor_of(open_game("connect-four", 4), "greedy")
    forward, strayed, made = NumpyForward(net.spec, net.weights()), np.zeros(8), np.zeros(8)
    epsilon = np.repeat([0.0, 1.0], 4)  # of the first and the second seat
    for _ in range(300):
        steps = actor.step(epsilon)
        logits = np.where(steps.legal, forward(dict(steps.observation))["logits"], -np.inf)
        strayed[steps.stream] += steps.action != logits.argmax(1)
        made[steps.stream] += 1
    assert strayed[:4].sum() == 0
    assert 0.7 < strayed[4:].sum() / made[4:].sum() < 0.95


class Pausing(Aim):
    """In every third tick half of the games ask nobody."""

    def _view(self, reward):
        view = super()._view(reward)
        paused = (np.arange(self.n) % 2 == 0) & (self._tick % 3 == 1)
        return replace(view, to_act=view.to_act & ~paused[:, None])


def test_steps_once_handed_on_are_never_written_again():
    actor, _ = actor_of(Pausing(6), "gaussian", Gru(4))
    kept = []
    for _ in range(40):
        steps = actor.step()
        columns = (*steps.observation.values(), steps.action, steps.reward, steps.behaviour_logp, steps.value)
        columns = (*columns, steps.ending, steps.state, *steps.final_observation.values())
        kept.append((columns, [column.copy() for column in columns]))
    assert len({len(columns[1]) for columns, _ in kept}) > 1, "all at once, and only some"
    for columns, copies in kept:
        assert all((column == copy).all() for column, copy in zip(columns, copies, strict=True))


class Broken(Aim):
    def step(self, actions):
        view = super().step(actions)
        return replace(view, reward=np.where(self._tick[:, None] == 3, np.nan, view.reward))


def test_a_reward_that_is_no_number_is_said_at_once():
    actor, _ = actor_of(Broken(2), "gaussian")
    with pytest.raises(TrainingStopped) as caught:
        actor.rollout(9)
    assert str(caught.value) == (
        "game aim_game:aim: it gave seat 'archer' the reward nan at tick 2 of an episode. "
        "Correct the game: a reward is a finite number."
    )


def test_an_evaluation_does_the_mean_in_the_games_own_units():
    network = default_network(Aim.spec.seats[0], hidden=())
    weights = {name: np.zeros_like(value) for name, value in Network(network, 0).weights().items()}
    wanted = np.array([0.4, -1.2], np.float32)
    weights["mean/bias"] = np.arctanh(2 * (wanted - LOW) / (HIGH - LOW) - 1).astype(np.float32)
    played = evaluate("aim_game:aim", NumpyForward(network, weights), episodes=20, seed=3)
    game, possible = Aim(7), np.zeros(7)  # a game has one of seven beginnings
    game.reset(np.arange(7, dtype=np.uint64), np.ones(7, bool))
    for _ in range(MAX_TICKS):
        possible += game.step([np.tile(wanted[:, None], (7, 1, 1))]).reward[:, 0]
    assert np.abs(played.returns[:, None] - possible).min(axis=1).max() < 1e-3
    assert len(np.unique(played.returns.round(3))) > 3


def test_samples_follow_their_probabilities_and_never_the_illegal():
    rng = np.random.default_rng(0)
    logits = np.tile(np.array([0.0, 1.0, -2.0, 5.0], np.float32), (40_000, 1))
    legal = np.tile(np.array([True, True, True, False]), (40_000, 1))
    choice = policies.sample(logits, legal, rng)
    wanted = np.exp(policies.log_softmax(policies.masked(logits[:1], legal[:1])))[0]
    np.testing.assert_allclose(np.bincount(choice.action, minlength=4) / 40_000, wanted, atol=0.01)
    np.testing.assert_allclose(np.exp(choice.logp), wanted[choice.action], rtol=1e-5)
    assert choice.action.dtype == np.int32
    assert choice.logp.dtype == np.float32
