"""The rows of a batch of images, split among threads that each run their part through all layers.

torch's own threads split each operation instead and meet after every one. They wait for each other by spinning, for
milliseconds beyond the last operation, and slow down the game's own threads; and the memory that a large batch needs
between its layers is returned to the system and requested again each time (docs/performance.md).
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MAX_ROWS = 128  # of a part: larger ones leave memory that the allocator returns to the system
MIN_ROWS = 16  # of a part: fewer are not worth a thread

Outputs = dict[str, Tensor]
T = TypeVar("T")
Pass = Callable[[], Outputs]


def split_rows(rows: int) -> list[slice]:
    """The rows in parts, equally many for each thread; one part where threads do not pay."""
    threads = thread_count()
    parts = min(threads * -(-rows // (threads * MAX_ROWS)), rows // MIN_ROWS) if threads > 1 else 1
    return split(rows, max(parts, 1))


def split(size: int, parts: int) -> list[slice]:
    """range(size) in so many parts of nearly equal length."""
    return [slice(*pair) for pair in pairwise(size * part // parts for part in range(parts + 1))]


def run_parts(passes: Sequence[Pass], module: nn.Module) -> Outputs:
    """The outputs of forward passes over parts of a batch, concatenated; `module` holds the parameters that they use.

    The result depends on the number of parts and not on the order in which threads run: equal seeds give equal bits.
    """
    if len(passes) == 1:
        return passes[0]()
    learned = [value for value in module.parameters() if value.requires_grad]
    if torch.is_grad_enabled() and learned:
        names: list[str] = []  # filled by the pass
        outs = _ConcatenatedParts.apply(passes, names, *learned)
        return dict(zip(names, outs, strict=True))
    inference = torch.is_inference_mode_enabled()
    outs = run_all([partial(_without_grad, one, inference) for one in passes])
    return {name: torch.cat([out[name] for out in outs]) for name in outs[0]}


def run_all(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all calls, in order. The calling thread takes part; no call may wait for another's end."""
    if len(calls) == 1:
        return [calls[0]()]
    others = [_threads.pool().submit(call) for call in calls[1:]]
    return [calls[0](), *(other.result() for other in others)]


def thread_count() -> int:
    """How many threads share rows. Torch itself keeps one from now on, so that its other threads do not spin."""
    if (given := torch.get_num_threads()) > 1:
        set_thread_count(given)
    return _threads.count


def set_thread_count(threads: int) -> None:
    """From now on so many threads share rows, the calling one among them; torch itself uses one."""
    torch.set_num_threads(1)
    if threads != _threads.count:
        _threads.close()
        _threads.count = threads


class _Threads:
    """The threads of this process that share rows."""

    count = 1
    _process = 0  # that started the pool: a forked process has none of its parent's threads
    _pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            one = partial(torch.set_num_threads, 1)
            self._pool, self._process = ThreadPoolExecutor(self.count - 1, "rows", initializer=one), os.getpid()
        return self._pool

    def close(self) -> None:
        if self._pool is not None and self._process == os.getpid():
            self._pool.shutdown()
        self._pool = None


_threads = _Threads()


class _ConcatenatedParts(torch.autograd.Function):
    """The parts' outputs concatenated; gradients are added up in the parts' order."""

    @staticmethod
    def forward(ctx: Any, passes: Sequence[Pass], names: list[str], *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.outs, ctx.learned = run_all([partial(_with_grad, one) for one in passes]), learned
        names += list(ctx.outs[0])
        return tuple(torch.cat([out[name].detach() for out in ctx.outs]) for name in names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        outs = [tuple(out.values()) for out in ctx.outs]
        sizes = [len(out[0]) for out in outs]
        parts = zip(*(gradient.split(sizes) for gradient in gradients), strict=True)  # type: ignore[no-untyped-call]
        grad = partial(torch.autograd.grad, allow_unused=True)
        calls = [partial(grad, out, ctx.learned, part) for out, part in zip(outs, parts, strict=True)]
        ctx.outs = None
        first, *others = run_all(calls)
        for other in others:
            for total, one in zip(first, other, strict=True):
                if total is not None:
                    total += one
        return None, None, *first


def _with_grad(forward: Pass) -> Outputs:
    with torch.enable_grad():
        return forward()


def _without_grad(forward: Pass, inference: bool) -> Outputs:
    with torch.inference_mode(inference), torch.no_grad():
        return forward()
