"""Stacks of frames: as the spec's leaves say, never across episodes, the same where one plays and where one learns."""

import numpy as np
import pytest

from sparring.acting.actor import Actor
from sparring.acting.opponents import Opponents
from sparring.acting.players import NetworkPlayer
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import TERMINATED, TRUNCATED, Columns, View
from sparring.games.spec import GameSpec, Leaf, SeatSpec, discrete, vector
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.torch_network import Network, default_network
from sparring.replay.table import Table
from sparring.wire.ids import GameId

STACK = 3
PICTURE = Leaf(name="observation/picture", kind="image", shape=(2, 1, 1), dtype="uint8")
CLOCK = vector("observation/clock", 1)
SEAT = SeatSpec(name="player", observation=(PICTURE, CLOCK), action=discrete(2), reward_bounds=(0.0, 1.0))
SPEC = GameSpec(id=GameId("clocks"), turns="simultaneous", seats=(SEAT,), max_ticks=9, frame_stack=STACK)
LENGTHS = (4, 7)


class Clocks:
    """Game i shows 100 · episode + tick and lasts LENGTHS[i] ticks; the first ends, the second is cut short."""

    spec, n = SPEC, 2

    def __init__(self) -> None:
        self.episode, self.tick = np.full(2, -1), np.zeros(2, np.int64)

    def reset(self, seeds: np.ndarray, which: np.ndarray) -> View:
        self.episode[which] += 1
        self.tick[which] = 0
        return self.view(0.0)

    def step(self, actions: object) -> View:
        self.tick += 1
        return self.view(1.0)

    def view(self, reward: float) -> View:
        over = self.tick == LENGTHS
        shown = 100 * self.episode + self.tick
        picture = np.stack((shown, shown), axis=1).astype(np.uint8)[:, :, None, None]
        ending = np.where(over, (TERMINATED, TRUNCATED), 0).astype(np.uint8)[:, None]
        clock = shown.astype(np.float32)[:, None]
        return View(
            to_act=~over[:, None],
            observation=({PICTURE.name: picture, CLOCK.name: clock},),
            legal=(None,),
            reward=np.full((2, 1), reward, np.float32),
            ending=ending,
            outcome=np.zeros((2, 1), np.float32),
            tick=self.tick.copy(),
        )

    def save(self) -> bytes:
        raise NotImplementedError

    def restore(self, state: bytes) -> None:
        raise NotImplementedError


def expected(clock: np.ndarray) -> np.ndarray:
    """[…, STACK, 1]: the stack that ends in each clock, by arithmetic alone."""
    start = clock // 100 * 100
    return np.stack([np.maximum(start, clock - back) for back in range(STACK - 1, -1, -1)], axis=-1)[..., None]


def frames(*values: int) -> Columns:
    shown = np.array(values)
    picture = np.stack((shown, shown), axis=1).astype(np.uint8)[:, :, None, None]
    return {PICTURE.name: picture, CLOCK.name: shown.astype(np.float32)[:, None]}


def actor() -> Actor:
    network = default_network(SEAT, hidden=(8,), frame_stack=STACK)
    forward = NumpyForward(network, Network(network, 0).weights())
    return Actor(Clocks(), forward, "categorical", np.random.default_rng(0), Opponents(network, 0.0))


def test_stacks_have_the_shape_that_the_leaf_says_and_begin_with_their_first_frame() -> None:
    stacks = FrameStacks(SEAT, STACK, 2)
    first = stacks.push(frames(5, 6))
    assert {name: stack.shape for name, stack in first.items()} == {
        leaf.name: (2, *leaf.stacked(STACK)) for leaf in SEAT.observation
    }
    assert first[CLOCK.name][:, :, 0].tolist() == [[5, 5, 5], [6, 6, 6]]
    second = stacks.push(frames(7, 8))
    assert second[CLOCK.name][:, :, 0].tolist() == [[5, 5, 7], [6, 6, 8]]
    assert second[PICTURE.name][0, :, 0, 0].tolist() == [5, 5, 5, 5, 7, 7]  # frames side by side, channels within
    assert (stacks.newest(second)[PICTURE.name] == frames(7, 8)[PICTURE.name]).all()
    assert first[CLOCK.name][:, :, 0].tolist() == [[5, 5, 5], [6, 6, 6]]  # what was given stays


def test_only_the_streams_that_are_named_take_a_frame_or_begin_anew() -> None:
    stacks = FrameStacks(SEAT, STACK, 3)
    stacks.push(frames(1, 2, 3))
    assert stacks.push(frames(4), np.array([1]))[CLOCK.name][0, :, 0].tolist() == [2, 2, 4]
    assert stacks.peek(frames(9), np.array([1]))[CLOCK.name][0, :, 0].tolist() == [2, 4, 9]
    stacks.begin(np.array([False, False, True]))
    assert stacks.push(frames(5, 6, 7))[CLOCK.name][:, :, 0].tolist() == [[1, 1, 5], [2, 4, 6], [7, 7, 7]]


def test_a_stack_of_one_is_the_frame_itself() -> None:
    seen = frames(1, 2)
    assert FrameStacks(SEAT, 1, 2).push(seen) is seen


def test_stacks_go_on_where_they_were_saved() -> None:
    stacks, other = FrameStacks(SEAT, STACK, 2), FrameStacks(SEAT, STACK, 2)
    stacks.push(frames(1, 2))
    saved = stacks.save()
    stacks.push(frames(3, 4))
    other.load(saved)
    assert other.push(frames(3, 4))[CLOCK.name][:, :, 0].tolist() == [[1, 1, 3], [2, 2, 4]]


def test_a_rollout_holds_stacks_that_never_cross_episodes() -> None:
    batch = actor().rollout(30)
    clock = batch.observation[CLOCK.name]
    assert clock.shape == (30, 2, STACK, 1)
    assert (clock == expected(clock[:, :, -1, 0])).all()
    assert len(np.unique(clock[:, 0] // 100)) > 5  # many episodes went by
    after = batch.next_observation[CLOCK.name]
    assert (after == expected(after[:, -1, 0])).all()


@pytest.mark.slow
def test_replay_stores_single_frames_and_gives_the_stacks_that_the_policy_saw() -> None:
    player = actor()
    table = Table(SEAT, 200, streams=2, masks=False, frame_stack=STACK)
    for _ in range(40):
        steps = player.step()
        assert steps.observation[CLOCK.name].shape == (len(steps), 1)
        assert steps.final_observation[PICTURE.name].shape[1:] == PICTURE.shape if len(steps.final) else True
        table.insert(steps)
    batch, _ = table.sample(500, np.random.default_rng(0), n_steps=1, discount=1.0)
    for seen in (batch.observation, batch.next_observation):
        assert (seen[CLOCK.name] == expected(seen[CLOCK.name][:, -1, 0])).all()
    cut = batch.ending == TRUNCATED
    assert cut.any()
    assert (batch.next_observation[CLOCK.name][cut, -1, 0] % 100 == LENGTHS[1]).all()  # the last frame, not a new one


@pytest.mark.parametrize("begins", [True, False])
def test_a_judged_network_sees_stacks_too(begins: bool) -> None:
    network = default_network(SEAT, hidden=(8,), frame_stack=STACK)
    judged = NetworkPlayer(NumpyForward(network, Network(network, 0).weights()), SPEC, 2)
    rng = np.random.default_rng(0)
    for shown, fresh in ((1, True), (2, begins)):
        judged.act(0, np.array([1]), np.array([fresh]), frames(shown), None, rng)
    seen = judged._stacks[0].peek(frames(3), np.array([1]))
    assert seen[CLOCK.name][0, :, 0].tolist() == ([2, 2, 3] if begins else [1, 2, 3])
