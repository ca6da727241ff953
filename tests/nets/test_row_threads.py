"""Threads that share the rows of images: the numbers are those of one thread, and the same in every run."""

import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring.games.catalogue import spec_of
from sparring.learn.optim import THREADED_FROM, Adam
from sparring.nets.row_threads import set_thread_count, split_rows, thread_count
from sparring.nets.torch_network import Network, default_network

PONG = spec_of("atari:Pong")
SCREEN = "observation/screen"


def images(n: int) -> dict[str, Tensor]:
    return {SCREEN: torch.from_numpy(np.random.default_rng(0).integers(0, 256, (n, 4, 84, 84), dtype=np.uint8))}


def learned(count: int) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """What a network acts on, what it says while it learns, and its gradients, with so many threads."""
    set_thread_count(count)
    net = Network(default_network(PONG.seats[0], hidden=(32,), activation="relu", frame_stack=4), 3)
    seen = net.arranged(images(40))
    with torch.inference_mode():
        acted = net(seen)
    out = net.at(seen, torch.arange(40).flip(0))
    (out["logits"].square().sum() + out["value"].square().sum()).backward()
    gradients = {name: value.grad for name, value in net.named_parameters() if value.grad is not None}
    return acted, {name: head.detach() for name, head in out.items()}, gradients


@pytest.mark.parametrize("count", [2, 3])
def test_threads_that_share_rows_find_what_one_finds(count: int) -> None:
    alone, several = learned(1), learned(count)
    for wanted, given in zip(alone, several, strict=True):
        assert given.keys() == wanted.keys()
        for name, numbers in wanted.items():
            # A number at the edge of a ReLU may fall to its other side: far from all of them, and never far off.
            assert (given[name] - numbers).norm() <= 5e-3 * numbers.norm(), name
    for name, head in alone[1].items():
        torch.testing.assert_close(several[1][name], head, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(several[0][name], head.flip(0), rtol=1e-4, atol=1e-5)


def test_shared_rows_give_the_same_bits_in_every_run() -> None:
    for one, other in zip(learned(3), learned(3), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_torch_was_given_is_taken_over_and_given_back() -> None:
    torch.set_num_threads(2)
    assert thread_count() == 2
    assert torch.get_num_threads() == 1
    learned(2)
    assert any(thread.name.startswith("rows") for thread in threading.enumerate())
    set_thread_count(1)
    assert not any(thread.name.startswith("rows") for thread in threading.enumerate())


def test_every_row_is_in_one_part_and_few_rows_are_not_shared() -> None:
    set_thread_count(2)
    for rows in (0, 1, 7, 8, 255, 256, 1000):
        parts = split_rows(rows)
        assert [row for part in parts for row in range(rows)[part]] == list(range(rows))
        assert max(len(range(rows)[part]) for part in parts) <= 128
    assert len(split_rows(7)) == 1


def test_threads_share_a_step_of_adam_without_changing_a_number() -> None:
    after = []
    for count in (1, 3):
        set_thread_count(count)
        value = torch.nn.Parameter(torch.linspace(-1, 1, THREADED_FROM + 5))
        adam = Adam([value], 1e-2)
        for _ in range(3):
            norm = adam.descend((value**2).sum(), 1e9)
        after.append((value.detach().clone(), norm))
    assert torch.equal(after[0][0], after[1][0])
    torch.testing.assert_close(after[0][1], after[1][1], rtol=1e-5, atol=0.0)
