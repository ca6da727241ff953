"""The rows of a network that sees images, shared out among threads that each pass their part through all layers.

torch's own threads share each operation instead and meet after every one. They wait for each other by spinning, for
milliseconds beyond the last, in the way of a game's own threads; and what a large batch leaves between its layers is
given back to the system and asked for again each time (docs/decisions/0173-threads-share-rows.md).
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MOST_ROWS = 128  # of a part: larger ones leave memory that the allocator returns to the system
LEAST_ROWS = 16  # of a part: fewer are not worth a thread

Outputs = dict[str, Tensor]
T = TypeVar("T")
Pass = Callable[[], Outputs]


def shares(rows: int) -> list[slice]:
    """So many rows in parts, as many for each of the threads that torch was given; one where threads do not pay."""
    threads = granted()
    parts = min(threads * -(-rows // (threads * MOST_ROWS)), rows // LEAST_ROWS) if threads > 1 else 1
    bounds = [rows * part // max(parts, 1) for part in range(max(parts, 1) + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def shared(passes: list[Pass], module: nn.Module) -> Outputs:
    """What the parts' passes give, one behind the other; `module` holds the parameters that they use.

    The result depends on how many parts there are, and on nothing that threads do: a seed still says all.
    """
    if len(passes) == 1:
        return passes[0]()
    learned = [value for value in module.parameters() if value.requires_grad]
    if torch.is_grad_enabled() and learned:
        names: list[str] = []  # filled by the pass
        joined = _Joined.apply(passes, names, *learned)
        return dict(zip(names, joined, strict=True))
    inference = torch.is_inference_mode_enabled()
    outs = together([partial(_ungraded, one, inference) for one in passes])
    return {name: torch.cat([out[name] for out in outs]) for name in outs[0]}


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What each call gives, in their order. This thread makes calls too; none may count on another's end."""
    if len(calls) == 1:
        return [calls[0]()]
    others = [_threads.pool().submit(call) for call in calls[1:]]
    return [calls[0](), *(other.result() for other in others)]


def granted() -> int:
    """How many threads there are to share rows. Torch itself keeps one from now on, so that its others do not spin."""
    if (given := torch.get_num_threads()) > 1:
        grant(given)
    return _threads.granted


def grant(threads: int) -> None:
    """From now on so many threads share rows, the calling one among them, which alone is torch's."""
    torch.set_num_threads(1)
    if threads != _threads.granted:
        _threads.close()
        _threads.granted = threads


@dataclass(slots=True)
class _Threads:
    """Those of this process that share rows."""

    granted: int = 1
    process: int = 0  # whose the pool is: one that was forked has none of its parent's threads
    held: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        if self.held is None or self.process != os.getpid():
            one = partial(torch.set_num_threads, 1)
            self.held, self.process = ThreadPoolExecutor(self.granted - 1, "rows", initializer=one), os.getpid()
        return self.held

    def close(self) -> None:
        if self.held is not None and self.process == os.getpid():
            self.held.shutdown()
        self.held = None


_threads = _Threads()


class _Joined(torch.autograd.Function):
    """The parts' outputs one behind the other; their gradients are added up in the parts' order."""

    @staticmethod
    def forward(ctx: Any, passes: list[Pass], names: list[str], *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.outs, ctx.learned = together([partial(_graded, one) for one in passes]), learned
        names += list(ctx.outs[0])
        return tuple(torch.cat([out[name].detach() for out in ctx.outs]) for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        outs = [tuple(out.values()) for out in ctx.outs]
        sizes = [len(out[0]) for out in outs]
        parts = zip(*(gradient.split(sizes) for gradient in gradients), strict=True)  # type: ignore[no-untyped-call]
        calls = [
            partial(torch.autograd.grad, out, ctx.learned, part, allow_unused=True)
            for out, part in zip(outs, parts, strict=True)
        ]
        ctx.outs = None
        first, *others = together(calls)
        for other in others:
            for mine, given in zip(first, other, strict=True):
                if mine is not None:
                    mine += given
        return None, None, *first


def _graded(passed: Pass) -> Outputs:
    with torch.enable_grad():
        return passed()


def _ungraded(passed: Pass, inference: bool) -> Outputs:
    with torch.inference_mode(inference), torch.no_grad():
        return passed()
