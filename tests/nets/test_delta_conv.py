"""Convolutions that skip unchanged windows give what ordinary ones give, up to the rounding of sums."""

import contextlib

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparring.config import load
from sparring.games.catalogue import spec_of
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.topologies import build
from sparring.nets import delta_conv
from sparring.nets.delta_conv import (
    LazyConvolutions,
    Table,
    changed_windows,
    channels_last,
    first_layers,
    reference,
    windows_over,
)
from sparring.nets.torch_network import Network, default_network
from sparring.wire.network import Conv, Input, Layer

SCREEN = "observation/screen"


def scene(n: int, channels: int, height: int, width: int, spots: int = 1, seed: int = 0) -> Tensor:
    """Pictures of one background, on each of which a few small spots move."""
    rng = np.random.default_rng(seed)
    pictures = np.repeat(rng.integers(0, 256, (1, channels, height, width), dtype=np.uint8), n, axis=0)
    for picture in pictures:
        for _ in range(spots):
            y, x = rng.integers(0, height - 3), rng.integers(0, width - 3)
            picture[:, y : y + 3, x : x + 3] = rng.integers(0, 256)
    return torch.from_numpy(pictures)


def weights(layers: tuple[Conv, ...], channels: int) -> dict[str, tuple[Tensor, Tensor]]:
    made, draw = {}, torch.Generator().manual_seed(1)
    for i, layer in enumerate(layers):
        weight = torch.randn(layer.channels, channels, layer.kernel, layer.kernel, generator=draw) * 0.2
        weight = weight.contiguous(memory_format=torch.channels_last).requires_grad_()
        made[f"image/{i}"] = weight, torch.randn(layer.channels, generator=draw).requires_grad_()
        channels = layer.channels
    return made


def ordinary(layers: tuple[Conv, ...], leaf: Input, seen: Tensor, pairs: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    x = (seen.float() - leaf.shift) * leaf.scale
    for i, layer in enumerate(layers):
        x = functional.conv2d(x, *pairs[f"image/{i}"], layer.stride, layer.padding)
        x = torch.relu(x) if layer.activation == "relu" else torch.tanh(x)
    return x


def learned(module: torch.nn.Module, leaf: Input, seen: Tensor, *, skips: bool) -> list[Tensor]:
    """What a module makes of images, and its gradients."""

    def scaled() -> Tensor:
        return (seen.float() - leaf.shift) * leaf.scale

    lazy = LazyConvolutions(leaf, seen, scaled)
    with lazy if skips else contextlib.nullcontext():
        y = module(lazy.given if skips else scaled()).flatten(1)
    module.zero_grad()
    (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    return [y.detach(), *(value.grad for value in module.parameters() if value.grad is not None)]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which convolutions were computed as tables."""
    done: list[str] = []
    of_images, through = Table.of_images, Table.through
    monkeypatch.setattr(Table, "of_images", lambda *given: done.append("first") or of_images(*given))
    monkeypatch.setattr(Table, "through", lambda *given: done.append("next") or through(*given))
    return done


class Shared(torch.nn.Module):
    """Uses its images, and what its first convolution gives, more than once, in ways of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lines = Conv2d(4, 8, 8, 4), Conv2d(8, 4, 3), torch.nn.Linear(84, 1)

    def forward(self, x: Tensor) -> Tensor:
        assert (x.shape[0], x.dim(), x.dtype, len(x)) == (40, 4, torch.float32, 40)
        y = self.first(x)
        z = self.second(functional.relu(y, inplace=True))
        return torch.cat([z.flatten(1), y.mean((2, 3)), self.lines(x).flatten(1), (x[:, 0] * 2).flatten(1)], 1)


Conv2d, ReLU, Sequential = torch.nn.Conv2d, torch.nn.ReLU, torch.nn.Sequential
NEXT = (ReLU(), Conv2d(8, 4, 3))
MODULES = [
    (Sequential(Conv2d(4, 8, 8, 4), *NEXT), ["first", "next"]),
    (Sequential(Conv2d(4, 8, 8, 4), ReLU(inplace=True), Conv2d(8, 4, 4, 2), torch.nn.ELU()), ["first", "next"]),
    (Sequential(Conv2d(4, 8, 8, 4), torch.nn.MaxPool2d(2), Conv2d(8, 4, 3)), ["first"]),
    (Sequential(Conv2d(4, 8, 8, 4), ReLU(), Conv2d(8, 4, 3, padding=1)), ["first"]),
    (Sequential(Conv2d(4, 8, 8, 4, 2), *NEXT), []),  # padding
    (Sequential(Conv2d(4, 8, (8, 6), 4), *NEXT), []),
    (Sequential(Conv2d(4, 8, 8, 4, 0, 1, 2), *NEXT), []),  # groups
    (Sequential(torch.nn.AvgPool2d(2), Conv2d(4, 8, 8, 4), *NEXT), []),
    (Shared(), ["first", "next"]),
]


@pytest.mark.parametrize(("module", "skip"), MODULES)
def test_first_convolutions_of_a_module_skip_windows_where_they_can(
    module: torch.nn.Module, skip: list[str], tables: list[str]
) -> None:
    leaf, seen = Input("screen", (4, 84, 84), 10.0, 1 / 255, dtype="uint8", image=True), scene(40, 4, 84, 84)
    found, expected = (learned(module, leaf, seen, skips=one) for one in (True, False))
    assert tables == skip
    for mine, theirs in zip(found, expected, strict=True):  # sums of thousands of terms, up to 100, in another order
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-3 * max(1.0, float(theirs.abs().max())))


def test_images_that_were_changed_in_place_go_the_ordinary_way(tables: list[str]) -> None:
    seen, weight = scene(40, 4, 84, 84), torch.ones(8, 4, 8, 8)
    lazy = LazyConvolutions(Input("screen", (4, 84, 84), dtype="uint8", image=True), seen, seen.float)
    expected = functional.conv2d(-seen.float(), weight, stride=4)
    with lazy:
        lazy.given.neg_()
        for y in (
            functional.conv2d(lazy.given, weight, None, 4),
            functional.conv2d(input=lazy.given, weight=weight, stride=4),
        ):
            torch.testing.assert_close(y, expected)
    assert tables == []


SHAPES = [
    pytest.param((Conv(8, 8, 4), Conv(8, 4, 2)), (4, 84, 84), id="as in Atari"),
    pytest.param((Conv(8, 3, 2, activation="tanh"), Conv(4, 3, 1)), (3, 31, 45), id="windows that overlap by one"),
    pytest.param((Conv(8, 2, 3), Conv(4, 2, 2)), (1, 40, 29), id="windows with gaps"),
    pytest.param((Conv(8, 5, 1),), (2, 20, 33), id="one layer, every pixel"),
]


@pytest.mark.parametrize(("layers", "shape"), SHAPES)
def test_results_and_gradients_are_those_of_ordinary_convolutions(
    layers: tuple[Conv, ...], shape: tuple[int, int, int]
) -> None:
    leaf, seen = Input("screen", shape, 10.0, 1 / 255, dtype="uint8", image=True), scene(40, *shape)
    pairs = weights(layers, shape[0])
    parameters = [value for pair in pairs.values() for value in pair]
    x, done = first_layers(layers, leaf, seen, pairs.__getitem__)
    assert done == len(layers)
    expected = ordinary(layers, leaf, seen, pairs)
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    for mine, theirs in zip(
        torch.autograd.grad((x * towards).sum(), parameters),
        torch.autograd.grad((expected * towards).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def test_only_windows_that_differ_have_a_row_of_their_own() -> None:
    x = np.zeros((10, 84, 84, 4), np.uint8)
    x[4, 41, 41, 2] = 1  # one pixel of one frame: four windows of 8x8 every 4 see it
    windows = changed_windows(x, Conv(8, 8, 4), (20, 20))
    assert np.argwhere(windows.own[1:]).tolist() == [[3, 9, 9], [3, 9, 10], [3, 10, 9], [3, 10, 10]]
    assert np.argwhere(windows.row_of >= 400).tolist() == [[4, 9, 9], [4, 9, 10], [4, 10, 9], [4, 10, 10]]
    following = windows_over(windows.own, 4, 2, (9, 9))
    assert (following.row_of[4] >= 81).sum() == following.own[1:].sum() == 9
    np.testing.assert_array_equal(following.row_of[0], np.arange(81).reshape(9, 9))


def test_the_reference_is_what_most_pictures_show() -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 2), dtype=np.uint8)
    np.testing.assert_array_equal(reference(x), np.sort(x, axis=0)[2])


@pytest.mark.parametrize(
    ("layers", "seen"),
    [
        pytest.param((Conv(8, 8, 4),), scene(40, 4, 84, 84, spots=200), id="everything moves"),
        pytest.param((Conv(8, 8, 4),), scene(4, 4, 84, 84), id="few pictures"),
        pytest.param((Conv(8, 3, 1, padding=1),), scene(40, 4, 20, 20), id="padding"),
    ],
)
def test_pictures_go_the_ordinary_way_where_this_one_does_not_pay(layers: tuple[Layer, ...], seen: Tensor) -> None:
    leaf = Input("screen", tuple(seen.shape[1:]), dtype="uint8", image=True)

    def never(place: str) -> tuple[Tensor, Tensor]:
        raise AssertionError(place)

    assert first_layers(layers, leaf, seen, never)[1] == 0


def test_a_table_ends_where_most_windows_differ() -> None:
    layers, seen = (Conv(8, 8, 4), Conv(8, 4, 2), Conv(8, 9, 1)), scene(40, 4, 84, 84)
    pairs = weights(layers, 4)
    x, done = first_layers(layers, Input("screen", (4, 84, 84), dtype="uint8", image=True), seen, pairs.__getitem__)
    assert done == 2  # the third sees the whole picture, which nowhere stands still
    assert x.shape == (40, 8, 9, 9)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_off_means_ordinary_convolutions_and_both_agree() -> None:
    spec = spec_of("atari:Pong")
    net = Network(default_network(spec.seats[0], hidden=(32,), activation="relu", frame_stack=4), 3)
    seen = scene(40, 4, 84, 84, spots=2)
    image, params = net.spec.image, net._params
    leaf = next(leaf for leaf in net.spec.inputs if leaf.image)
    results = {}
    try:
        for on in (True, False):
            delta_conv.enable(on)
            assert bool(first_layers(image, leaf, seen, params)[1]) == on
            net.zero_grad()
            out = net({SCREEN: seen})
            (out["logits"].sum() + out["value"].sum()).backward()
            results[on] = [*out.values(), *(value.grad for value in net.parameters() if value.grad is not None)]
    finally:
        delta_conv.enable(True)
    for fast, ordinary_result in zip(results[True], results[False], strict=True):
        torch.testing.assert_close(fast, ordinary_result, rtol=1e-3, atol=1e-3)


def test_a_setting_switches_it_off_in_the_process_that_learns() -> None:
    config = load(None, ("train.delta_conv=false",))
    agreed = plan(TrainRequest("cartpole", "dqn", topology="single"), config)
    assert agreed.record()["delta_conv"] is False
    topology = build(agreed, None)
    try:
        assert not delta_conv._enabled
    finally:
        topology.close()
        delta_conv.enable(True)


@pytest.mark.parametrize("shape", [(5, 4, 12, 10), (3, 1, 7, 7), (2, 3, 8, 9)])
def test_transposing_puts_channels_last_and_changes_nothing(shape: tuple[int, ...]) -> None:
    planes = torch.randint(0, 256, shape, dtype=torch.uint8)
    made = channels_last(planes)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made, planes)
    assert torch.equal(channels_last(planes[:, :, 1:, :-1]), planes[:, :, 1:, :-1])
