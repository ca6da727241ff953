"""Several learners, one gradient: ring-allreduce, and how the rest go on when one is lost.

Each learner plays and learns its own share. Before every step of the optimiser the gradients are averaged (gloo, NCCL
where they lie on a GPU), so all take the same step and have the same weights, bit for bit. One number more travels with
them: how many took part. A learner without minibatches left goes on with zeros, and takes the others' steps, until no
learner has any: shares may differ in size, and an update may end early anywhere.

With `share` below 1 each learner sends only that share of its gradient's entries, the largest; what it did not send it
adds to its next gradient, so that nothing is lost, only late (Deep Gradient Compression, Lin et al. 2018).

An update is complete when all have said so. A learner that dies closes its connections; the one that waits for it gets
an error, closes its own, and so on round the ring. A frozen one is given `deadline_s`. The rest then form the ring of
the next generation (topologies/allreduce.py).
"""

import importlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore
from torch.distributed import is_nccl_available

from sparring.errors import ConfigError, TrainingStopped
from sparring.games.spec import GameSpec
from sparring.learn.optim import Optimiser
from sparring.learn.protocol import Algorithm, Batch, Learner, Update

DEADLINE_S = 30.0  # that the slowest may play longer than the fastest, and that a frozen one is waited for
LOOPBACK = "127.0.0.1"
Found = TypeVar("Found")


class RingBroken(TrainingStopped):
    """A learner left in the middle of an update; the rest can form a new ring."""

    waited_s = 0.0  # for the learner that did not answer


class Meeting:
    """Where learners find each other: a table of addresses, kept by the first of them."""

    def __init__(self, host: str = LOOPBACK) -> None:
        listening = socket.create_server((host, 0))  # ours, because the store's own would listen to the whole world
        self.host, self.port = listening.getsockname()[:2]
        self.store = TCPStore(
            self.host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def meeting_host(url: str) -> str:
    """The address at which learners on that host's machines reach this process."""
    if url.startswith("local:"):
        return LOOPBACK
    return str(importlib.import_module("ray.util").get_node_ip_address())


def visit(host: str, port: int, deadline_s: float = DEADLINE_S) -> Store:
    """The table of another process's Meeting."""
    return _whole(lambda: TCPStore(host, port, is_master=False, timeout=timedelta(seconds=deadline_s)))


class RingAllReduce:
    """One generation of learners that average their gradients. `rank` 0 is the run's own process."""

    def __init__(
        self,
        store: Store,
        host: str,
        generation: int,
        seat: tuple[int, int],
        deadline_s: float,
        share: float = 1.0,
    ) -> None:
        self.rank, self.world = seat
        self._buffer = torch.empty(0)
        self._share, self._unsent = share, torch.empty(0)
        self.sent_bytes = 0  # by this learner, of gradients
        table = PrefixStore(f"generation/{generation}", store)
        table.set_timeout(timedelta(seconds=deadline_s))
        self._group: Any = _whole(lambda: _group(table, host, seat, deadline_s))

    def average(self, numbers: Tensor, parts: int = 1) -> bool:
        """Replace the numbers by their mean over the learners that have some (others give parts=0); False: none has."""
        if self._buffer.numel() != numbers.numel() + 1:
            self._buffer = torch.empty(numbers.numel() + 1, device=numbers.device)
        self._buffer[:-1].copy_(numbers)
        self._buffer[-1] = parts
        self._sum(self._buffer)
        if not self._buffer[-1]:
            return False
        torch.div(self._buffer[:-1], self._buffer[-1], out=numbers)
        return True

    def average_gradient(self, gradient: Tensor, parts: int = 1) -> bool:
        """As `average`; with a share below 1, of the largest entries of each learner's gradient and of what it has not
        sent yet."""
        if self._share >= 1:
            self.sent_bytes += 4 * (gradient.numel() + 1)
            return self.average(gradient, parts)
        if self._unsent.numel() != gradient.numel():
            self._unsent = torch.zeros_like(gradient)
        kept = max(1, round(self._share * gradient.numel()))
        mine = torch.zeros(2 * kept + 1, device=gradient.device)  # values, then places as bits, then whether it learns
        if parts:
            self._unsent += gradient
            places = self._unsent.abs().topk(kept).indices
            mine[:kept], mine[kept:-1] = self._unsent[places], places.to(torch.int32).view(torch.float32)
            self._unsent[places] = 0.0
        mine[-1] = parts
        self.sent_bytes += 4 * mine.numel()
        all_of_them = [torch.empty_like(mine) for _ in range(self.world)]
        group = self._open_group()
        _whole(lambda: group.allgather([all_of_them], [mine]).wait())
        took_part = sum(float(one[-1]) for one in all_of_them)
        if not took_part:
            return False
        gradient.zero_()
        for one in all_of_them:  # in the order of ranks: the same sums everywhere
            gradient.index_add_(0, one[kept:-1].view(torch.int32).long(), one[:kept])
        gradient /= took_part
        return True

    def settle(self, optimiser: Optimiser, max_norm: float) -> None:
        """Take the steps of those that still learn, until none does."""
        while self.average_gradient(optimiser.gradient.zero_(), parts=0):
            optimiser.step(max_norm)

    def agree(self, optimiser: Optimiser) -> None:
        """Return when all have settled, with the same weights.

        Sums may round otherwise on another kind of processor or with other threads; the weights of rank 0 then hold.
        """
        everything = optimiser.everything()
        seen = torch.zeros(self.world, dtype=torch.int64, device=everything[0].device)
        seen[self.rank] = sum(int(one.view(torch.int32).sum()) for one in everything)
        self._sum(seen)
        if len(set(seen.tolist())) > 1:
            for one in everything:
                if self.rank:
                    one.zero_()
                self._sum(one)

    def close(self) -> None:
        """Leave. Learners that wait for this one get an error, and leave, too."""
        self._group = None

    def _sum(self, values: Tensor) -> None:
        group = self._open_group()
        _whole(lambda: group.allreduce([values]).wait())

    def _open_group(self) -> Any:
        if self._group is None:
            raise _broken("this learner has left it")
        return self._group


def carrier(device: str, *, cuda: bool, nccl: bool) -> Literal["gloo", "nccl"]:
    """What carries gradients that lie on `device`: NCCL where that is a GPU, this machine has one (`cuda`), and this
    build of torch has it (`nccl`); else gloo."""
    return "nccl" if device == "cuda" and cuda and nccl else "gloo"


def _group(table: Store, host: str, seat: tuple[int, int], deadline_s: float) -> Any:
    rank, world = seat
    device = torch.get_default_device().type
    if carrier(device, cuda=torch.cuda.is_available(), nccl=is_nccl_available()) == "nccl":
        from torch._C._distributed_c10d import ProcessGroupNCCL  # builds without CUDA have none

        swift: Any = ProcessGroupNCCL.Options()
        swift._timeout = timedelta(seconds=deadline_s)
        return ProcessGroupNCCL(table, rank, world, swift)
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=_own_side(host))]
    options._timeout = timedelta(seconds=deadline_s)
    return ProcessGroupGloo(table, rank, world, options)


def _own_side(host: str) -> str:
    """This machine's address towards `host`: only there do we listen."""
    if host == LOOPBACK:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # nothing is sent
        return str(probe.getsockname()[0])


def _whole(act: Callable[[], Found]) -> Found:
    begun = time.monotonic()
    try:
        return act()
    except RuntimeError as error:  # all that torch.distributed says of a lost connection
        broken = _broken(str(error).splitlines()[0])
        broken.waited_s = time.monotonic() - begun
        raise broken from None


def _broken(why: str) -> RingBroken:
    return RingBroken(f"the ring of learners broke: {why}", where="learners", do="The rest go on from the last update")


class RingAlgorithm:
    """An algorithm whose updates are made together. Without a ring, or alone in it, it is the algorithm itself."""

    def __init__(self, own: Algorithm) -> None:
        self._own = own
        self.name, self.feeds, self.policy, self.settings = own.name, own.feeds, own.policy, own.settings
        self.joint = getattr(own, "joint", False)
        self.ring: RingAllReduce | None = None
        self.completed = 0  # updates of which this learner knows that all have made them

    def begin(self, game: GameSpec, config: Any, seed: int) -> Learner:
        learner = self._own.begin(game, config, seed)
        if not isinstance(getattr(learner, "optimiser", None), Optimiser) or self.feeds != "trajectories":
            do = "Use ppo, mappo or impala, or leave --learners out"
            raise ConfigError(f"{self.name} does not learn by several learners", where="--learners", do=do)
        return learner

    def update(self, learner: Learner, batch: Batch) -> Update:
        """One update of all together; RingBroken where one of them is lost, and the learner is then in between."""
        if self.ring is None or self.ring.world == 1:
            update = self._own.update(learner, batch)
        else:
            update = self._together(self.ring, learner, batch)
        self.completed = update.learner.updates
        return update

    def exploration(self, learner: Learner, env_steps: int) -> float:
        return self._own.exploration(learner, env_steps)

    def take(self, learner: Learner, state: bytes) -> None:
        """Go on from a state of another learner, or of before."""
        learner.load(state)
        self.completed = learner.updates

    def leave(self) -> None:
        """Out of the ring, if in one."""
        if self.ring is not None:
            self.ring.close()
        self.ring = None

    def _together(self, ring: RingAllReduce, learner: Any, batch: Batch) -> Update:
        learner.optimiser.average, learner.optimiser.average_gradient = ring.average, ring.average_gradient
        try:
            update = self._own.update(learner, batch)
            ring.settle(learner.optimiser, learner.config.max_gradient_norm)
            ring.agree(learner.optimiser)
        finally:
            learner.optimiser.average = learner.optimiser.average_gradient = None
            learner.optimiser.gradient.zero_()  # a broken step leaves its own
        sent = {"learners": float(ring.world), "gradient_bytes_sent": float(ring.sent_bytes)}
        return replace(update, metrics={**update.metrics, **sent})
