"""Networks that foretell what happens next on a board, from the lines that run through its cells.

Of a cell eight readings are taken: its row, its column and its diagonals, from either side, REACH cells far. One small
network reads them all, and their sum says whether a bit of the cell is the next to flip; of the bit that flipped last
it also says whether nothing flips any more, and with which outcome. Patterns are thus learned once for all places and
directions (as in n-tuple networks, Lucas 2008), of which a few thousand games show enough. A table, which begins as
what the records count, says what else depends on the place and on the action.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional

from sparring.learn.offline.worlds.protocol import WorldConfig
from sparring.learn.optim import Adam
from sparring.nets.torch_state import tensor
from sparring.wire.chunk import Array

REACH = 3  # cells of a line that are read on either side
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, -1), (-1, 0), (-1, -1), (-1, 1))
ROWS = 256  # of one forward pass
IMPOSSIBLE = -30.0  # log of the odds of what was never seen
LEARNED = 1e-3  # mean surprise below which there is nothing left to learn
LOOK_UPDATES = 100  # after which that is asked again


@dataclass(frozen=True, slots=True)
class Happenings:
    """Boards and what happened there next: rows of the same order."""

    bits: Array  # [rows, planes, height, width], before it
    last: Array  # the site (bit of the flat board) that flipped before it; -1 where none did
    action: Array  # 0 where something flipped already: all that is known of the action is on the board by then
    what: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # the site that flips, or sites + outcome
    step: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # of the records

    def of(self, rows: Array) -> "Happenings":
        return Happenings(self.bits[rows], self.last[rows], self.action[rows], self.what[rows], self.step[rows])


class Lines(nn.Module):
    """Logits [n, sites + outcomes] of what happens next."""

    def __init__(self, shape: tuple[int, ...], choices: int, outcomes: int, units: int, rng: Generator) -> None:
        super().__init__()
        self.planes, height, width = shape
        self.sites, self.cells = self.planes * height * width, height * width
        self.read = tensor(readings(height, width))
        self.first = nn.Linear((2 * REACH + 1) * (self.planes + 1), units)
        self.towards = nn.Parameter(torch.zeros(len(DIRECTIONS), units))
        self.second = nn.Linear(units, units)
        self.cell, self.flip = nn.Linear(units, units), nn.Linear(units, self.planes)
        self.end, self.outcome = nn.Linear(units + self.planes, units), nn.Linear(units, outcomes)
        self.table = nn.Parameter(torch.zeros(choices, self.sites + outcomes))
        draw = torch.Generator().manual_seed(int(rng.integers(2**31)))
        for layer in (self.first, self.second, self.cell, self.flip, self.end, self.outcome):
            nn.init.kaiming_normal_(layer.weight, generator=draw)
            nn.init.zeros_(layer.bias)

    def forward(self, bits: Tensor, last: Tensor, action: Tensor, possible: Tensor) -> Tensor:
        """`possible` [n, planes, cells] are the bits that may flip; the others are not looked at."""
        n = len(bits)
        flat = bits.reshape(n, self.planes, self.cells)
        board = torch.zeros(n, self.cells + 1, self.planes + 1)
        board[:, : self.cells, : self.planes] = flat.transpose(1, 2)
        board[:, self.cells, self.planes] = 1.0  # where a line has left the board
        row, cell = possible.any(1).nonzero(as_tuple=True)
        flips = self.flip(functional.relu(self.cell(self._seen(board, row, cell))))
        sites = torch.full((n, self.cells, self.planes), IMPOSSIBLE)
        sites = sites.index_put((row, cell), flips).transpose(1, 2)
        sites = torch.where(possible, sites, IMPOSSIBLE).reshape(n, -1)
        near = self._seen(board, torch.arange(n), last.clamp(min=0) % self.cells) * (last >= 0)[:, None]
        ends = functional.relu(self.end(torch.cat([near, flat.mean(2)], 1)))
        return torch.cat([sites, self.outcome(ends)], 1) + self.table[action]

    def _seen(self, board: Tensor, row: Tensor, cell: Tensor) -> Tensor:
        """What the lines through those cells show, [cells, units]."""
        lines = board[row[:, None], self.read[cell].flatten(1)]
        lines = lines.reshape(len(row), len(DIRECTIONS), self.first.in_features)
        each = functional.relu(self.second(functional.relu(self.first(lines) + self.towards)))
        return each.sum(1)


def readings(height: int, width: int) -> Array:
    """int64 [cells, directions, 2 REACH + 1]: the cells of each line through each cell; `cells` is off the board."""
    y, x = np.divmod(np.arange(height * width), width)
    steps = np.arange(-REACH, REACH + 1)
    ways = np.array(DIRECTIONS)
    rows = y[:, None, None] + ways[None, :, :1] * steps
    columns = x[:, None, None] + ways[None, :, 1:] * steps
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, rows * width + columns, height * width)


@dataclass(frozen=True, slots=True)
class Flips:
    """Where bits were ever seen to flip: by what the cell held, and each of the cells next to it."""

    beside: Array  # [cells, directions]: the cell next to it; `cells` is off the board
    seen: Array  # bool [planes, directions, contents of the cell, contents of the other, off the board last]

    @classmethod
    def of(cls, known: Happenings) -> "Flips":
        planes, height, width = known.bits.shape[1:]
        beside = readings(height, width)[:, :, REACH + 1]
        seen = np.zeros((planes, len(DIRECTIONS), 2**planes, 2**planes + 1), bool)
        rows = np.flatnonzero(known.what < planes * height * width)
        plane, cell = np.divmod(known.what[rows], height * width)
        held = _contents(known.bits[rows])
        at = np.arange(len(rows))[:, None]
        seen[plane[:, None], np.arange(len(DIRECTIONS)), held[at, cell[:, None]], held[at, beside[cell]]] = True
        return cls(beside, seen)

    def possible(self, bits: Array) -> Array:
        """bool [n, planes, cells]: whether a bit may flip, as far as each neighbour by itself can tell."""
        held = _contents(bits)
        own, others = held[:, :-1, None], held[:, self.beside]  # [n, cells, 1] and [n, cells, directions]
        ways = np.arange(len(DIRECTIONS))
        return np.stack([plane[ways, own, others].all(axis=2) for plane in self.seen], axis=1)


@dataclass(frozen=True, slots=True)
class Teller:
    """A network that has learned what happens next, and where it may."""

    network: Lines
    flips: Flips

    def drawn(self, asked: Happenings, rng: Generator) -> Array:
        """For every row the site that flips, or sites + the outcome."""
        chance = np.exp(self._log_chances(asked).astype(np.float64)).cumsum(axis=1)
        return np.asarray((chance < rng.random((len(chance), 1)) * chance[:, -1:]).sum(axis=1))

    def surprise(self, asked: Happenings) -> Array:
        """Four sums: −log of the chance of what happened, and what that is expected to be; and of the chance of its
        outcome or of none yet, and what that is for who knows nothing but how often each comes."""
        logs, rows, sites = self._log_chances(asked).astype(np.float64), np.arange(len(asked.what)), self.network.sites
        chance = np.exp(logs)
        closes = np.concatenate([chance[:, :sites].sum(axis=1, keepdims=True), chance[:, sites:]], axis=1)
        how = np.maximum(asked.what - sites + 1, 0)
        often = np.bincount(how, minlength=closes.shape[1])[how] / max(len(how), 1)
        told = np.maximum(closes[rows, how], np.exp(IMPOSSIBLE))
        return np.array(
            [-logs[rows, asked.what].sum(), -(chance * logs).sum(), -np.log(told).sum(), -np.log(often).sum()]
        )

    def _log_chances(self, asked: Happenings) -> Array:
        parts = [_at(asked, slice(first, first + ROWS)) for first in range(0, len(asked.action), ROWS)]
        with torch.no_grad():
            logs = [
                functional.log_softmax(_logits(self.network, part, self.flips.possible(part.bits)), 1) for part in parts
            ]
        outputs = self.network.table.shape[1]
        return torch.cat(logs).numpy() if logs else np.zeros((0, outputs), np.float32)


def teller(known: Happenings, size: tuple[int, int], rng: Generator, config: WorldConfig) -> Teller:
    """Learned from what happened; `size` is the number of choices and of outcomes."""
    network, flips = Lines(known.bits.shape[1:], *size, config.board_units, rng), Flips.of(known)
    with torch.no_grad():
        network.table.copy_(tensor(_counted(known, network.table.shape)))
    possible = flips.possible(known.bits)
    optimiser, lost = Adam(network.parameters(), config.learning_rate), 0.0
    for update in range(config.board_updates):
        rows = rng.integers(0, len(known.what), config.board_batch_steps)
        logits = _logits(network, known.of(rows), possible[rows])
        loss = functional.cross_entropy(logits, tensor(known.what[rows]))
        optimiser.learning_rate = config.learning_rate * max(1 - update / config.board_updates, 0.02)
        optimiser.descend(loss, 10.0)
        lost += float(loss.detach())
        if (update + 1) % LOOK_UPDATES == 0:
            if lost < LEARNED * LOOK_UPDATES:
                break
            lost = 0.0
    return Teller(network, flips)


def _counted(known: Happenings, shape: torch.Size) -> Array:
    """float32 [choices, sites + outcomes]: log of how often each happened with each action, and with any."""
    counts = np.zeros(shape)
    np.add.at(counts, (known.action, known.what), 1)
    usual = (counts.sum(axis=0) + 0.1) / (counts.sum() + 0.1 * shape[1])
    chance = (counts + usual) / (counts.sum(axis=1, keepdims=True) + 1)
    return np.asarray(np.log(chance), np.float32)


def _at(asked: Happenings, part: slice) -> Happenings:
    return Happenings(asked.bits[part], asked.last[part], asked.action[part])


def _logits(network: Lines, asked: Happenings, possible: Array) -> Tensor:
    bits = tensor(asked.bits.astype(np.float32))
    logits: Tensor = network(bits, tensor(asked.last), tensor(asked.action), tensor(possible))
    return logits


def _contents(bits: Array) -> Array:
    """int64 [n, cells + 1]: the bits of each cell as one number; of what is off the board the next one."""
    n, planes, height, width = bits.shape
    out = np.full((n, height * width + 1), 2**planes)
    flat = bits.reshape(n, planes, height * width).astype(np.int64)
    out[:, :-1] = (flat << np.arange(planes)[:, None]).sum(axis=1)
    return out


@dataclass(frozen=True, slots=True)
class LegalTeller:
    """What is legal as a line through the bits of a board."""

    weight: Array  # [sites + 1, choices]

    def likely(self, bits: Array) -> Array:
        return np.asarray(_with_one(bits) @ self.weight > 0.5)


def legal_teller(bits: Array, legal: Array) -> LegalTeller:
    """Least squares on 0 and 1."""
    x = _with_one(bits)
    return LegalTeller(np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ legal))


def _with_one(bits: Array) -> Array:
    flat = bits.reshape(len(bits), -1).astype(np.float64)
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
