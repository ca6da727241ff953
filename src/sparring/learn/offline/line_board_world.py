"""A world model for board games in which straight lines of cells matter, such as Connect Four.

An observation is an image of a few values, taken as planes of bits. Between two decisions of a seat some bits flip (its
own stone, then the answers), one event after another in the order of the planes, until the seat decides again or the
game is over. Each event is sampled from a network that was fitted to the records. Rules, turns, opponents and legal
actions are not given: they are learned as well.

What is specific to such games is the network's shape (`EventModel`): around each cell it reads the row, the column and
both diagonals, from either side, REACH cells far. The same small network reads all eight, and their sum says whether a
bit of the cell flips next; for the bit that flipped last it also says whether nothing flips any more, and with which
outcome. So a pattern is learned once for all places and directions (as in n-tuple networks, Lucas 2008): a few
thousand games are enough. A table, which begins as the records' counts, adds what depends on the place and the action.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional

from sparring.games.spec import GameSpec, Leaf
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.vector_world import WorldConfig
from sparring.learn.optim import Adam
from sparring.nets.forward import Forward
from sparring.nets.policies import masked
from sparring.nets.torch_state import tensor
from sparring.wire.chunk import Array

REACH = 3  # cells of a line that are read on either side
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, -1), (-1, 0), (-1, -1), (-1, 1))
MOST_VALUES, MOST_CELLS = 4, 400
MOST_FLIPS = 4  # of one step
MOST_OUTCOMES = 8  # different rewards, with an end or without
GAMES = 1000  # that a model plays in each fold
TRUST, TRUST_LEGAL = 0.9, 0.99  # of the left-out steps so much must be predicted before a world is trusted
EXCESS = 0.1  # by which their cross-entropy may exceed the one that the models expect
ROWS = 256  # of one forward pass
IMPOSSIBLE = -30.0  # logit of what was never seen
LEARNED = 1e-3  # mean loss below which there is nothing left to learn
CHECK_UPDATES = 100  # after which that is checked


@dataclass(frozen=True, slots=True)
class BoardKind:
    """The size of the boards, and the possible outcomes of a step."""

    leaf: Leaf
    values: Array  # that cells take
    outcomes: Array  # [outcomes, 2]: reward, and 1 where the game is over
    choices: int

    def bits(self, image: Array) -> Array:
        """uint8 [n, planes, height, width]: a plane for each value but the first, of each channel."""
        return np.concatenate([image == value for value in self.values[1:]], axis=1).astype(np.uint8)

    def image(self, bits: Array) -> Array:
        """The observation that has these bits."""
        out = np.full((len(bits), *self.leaf.shape), self.values[0], self.leaf.dtype)
        for value, planes in zip(self.values[1:], np.split(bits, len(self.values) - 1, axis=1), strict=True):
            out[planes > 0] = value
        return out


@dataclass(frozen=True, slots=True)
class BoardEvents:
    """Boards and the event that came next, as columns. A site is a bit of the flat board."""

    bits: Array  # [rows, planes, height, width], before it
    last: Array  # the site that flipped before it; -1 where none did
    action: Array  # 0 where something flipped already: the board shows the action by then
    event: Array  # the site that flips, or sites + outcome
    step: Array  # of the records

    def of(self, rows: Array | slice) -> "BoardEvents":
        return BoardEvents(self.bits[rows], self.last[rows], self.action[rows], self.event[rows], self.step[rows])


def line_cells(height: int, width: int) -> Array:
    """int64 [cells, directions, 2 REACH + 1]: the cells of each line through each cell; `cells` is off the board."""
    y, x = np.divmod(np.arange(height * width), width)
    steps, ways = np.arange(-REACH, REACH + 1), np.array(DIRECTIONS)
    rows = y[:, None, None] + ways[None, :, :1] * steps
    columns = x[:, None, None] + ways[None, :, 1:] * steps
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(inside, rows * width + columns, height * width)


@dataclass(frozen=True, slots=True)
class FlipRules:
    """Where bits were ever seen to flip: by the content of the cell and of each of its neighbours."""

    neighbour: Array  # [cells, directions]; `cells` is off the board
    seen: Array  # bool [planes, directions, content of the cell, content of the neighbour, off the board last]

    @classmethod
    def of(cls, known: BoardEvents) -> "FlipRules":
        planes, height, width = known.bits.shape[1:]
        neighbour = line_cells(height, width)[:, :, REACH + 1]
        seen = np.zeros((planes, len(DIRECTIONS), 2**planes, 2**planes + 1), bool)
        rows = np.flatnonzero(known.event < planes * height * width)
        plane, cell = np.divmod(known.event[rows], height * width)
        content, at = _contents(known.bits[rows]), np.arange(len(rows))[:, None]
        ways = np.arange(len(DIRECTIONS))
        seen[plane[:, None], ways, content[at, cell[:, None]], content[at, neighbour[cell]]] = True
        return cls(neighbour, seen)

    def possible(self, bits: Array) -> Array:
        """bool [n, planes, cells]: whether a bit may flip, as far as each neighbour by itself can tell."""
        content = _contents(bits)
        own, others = content[:, :-1, None], content[:, self.neighbour]  # [n, cells, 1] and [n, cells, directions]
        ways = np.arange(len(DIRECTIONS))
        return np.stack([plane[ways, own, others].all(axis=2) for plane in self.seen], axis=1)


def _contents(bits: Array) -> Array:
    """int64 [n, cells + 1]: the bits of each cell as one number; the last is that of cells off the board."""
    n, planes, height, width = bits.shape
    out = np.full((n, height * width + 1), 2**planes)
    flat = bits.reshape(n, planes, height * width).astype(np.int64)
    out[:, :-1] = (flat << np.arange(planes)[:, None]).sum(axis=1)
    return out


class EventModel(nn.Module):
    """The distribution of the next event, by a network of lines that is fitted to events."""

    def __init__(self, known: BoardEvents, choices: int, outcomes: int, rng: Generator, config: WorldConfig) -> None:
        super().__init__()
        self.planes, height, width = known.bits.shape[1:]
        self.sites, self.cells, units = self.planes * height * width, height * width, config.board_units
        self.lines, self.rules = tensor(line_cells(height, width)), FlipRules.of(known)
        self.first = nn.Linear((2 * REACH + 1) * (self.planes + 1), units)
        self.direction = nn.Parameter(torch.zeros(len(DIRECTIONS), units))
        self.second = nn.Linear(units, units)
        self.cell, self.flip = nn.Linear(units, units), nn.Linear(units, self.planes)
        self.end, self.outcome = nn.Linear(units + self.planes, units), nn.Linear(units, outcomes)
        self.table = nn.Parameter(tensor(_log_frequencies(known, choices, self.sites + outcomes)))
        draw = torch.Generator().manual_seed(int(rng.integers(2**31)))
        for layer in (self.first, self.second, self.cell, self.flip, self.end, self.outcome):
            nn.init.kaiming_normal_(layer.weight, generator=draw)
            nn.init.zeros_(layer.bias)
        self._fit(known, rng, config)

    def _fit(self, known: BoardEvents, rng: Generator, config: WorldConfig) -> None:
        possible = self.rules.possible(known.bits)
        optimiser, losses = Adam(self.parameters(), config.learning_rate), 0.0
        for update in range(config.board_updates):
            rows = rng.integers(0, len(known.event), config.board_batch_steps)
            loss = functional.cross_entropy(self(known.of(rows), possible[rows]), tensor(known.event[rows]))
            optimiser.learning_rate = config.learning_rate * max(1 - update / config.board_updates, 0.02)
            optimiser.descend(loss, 10.0)
            losses += float(loss.detach())
            if (update + 1) % CHECK_UPDATES == 0:
                if losses < LEARNED * CHECK_UPDATES:
                    break
                losses = 0.0

    def forward(self, boards: BoardEvents, possible: Array) -> Tensor:
        """Logits [n, sites + outcomes]. `possible` [n, planes, cells] may flip; other bits are not evaluated."""
        n, last, may_flip = len(boards.bits), tensor(boards.last), tensor(possible)
        flat = tensor(boards.bits.astype(np.float32)).reshape(n, self.planes, self.cells)
        board = torch.zeros(n, self.cells + 1, self.planes + 1)
        board[:, : self.cells, : self.planes] = flat.transpose(1, 2)
        board[:, self.cells, self.planes] = 1.0  # off the board
        row, cell = may_flip.any(1).nonzero(as_tuple=True)
        flips = self.flip(functional.relu(self.cell(self._features(board, row, cell))))
        sites = torch.full((n, self.cells, self.planes), IMPOSSIBLE)
        sites = sites.index_put((row, cell), flips).transpose(1, 2)
        sites = torch.where(may_flip, sites, IMPOSSIBLE).reshape(n, -1)
        near = self._features(board, torch.arange(n), last.clamp(min=0) % self.cells) * (last >= 0)[:, None]
        ends = functional.relu(self.end(torch.cat([near, flat.mean(2)], 1)))
        return torch.cat([sites, self.outcome(ends)], 1) + self.table[tensor(boards.action)]

    def _features(self, board: Tensor, row: Tensor, cell: Tensor) -> Tensor:
        """[cells, units] of the lines through those cells."""
        lines = board[row[:, None], self.lines[cell].flatten(1)]
        lines = lines.reshape(len(row), len(DIRECTIONS), self.first.in_features)
        return functional.relu(self.second(functional.relu(self.first(lines) + self.direction))).sum(1)

    def sample(self, boards: BoardEvents, rng: Generator) -> Array:
        """For every row the site that flips, or sites + the outcome."""
        chance = np.exp(self._log_chances(boards)).cumsum(axis=1)
        return np.asarray((chance < rng.random((len(chance), 1)) * chance[:, -1:]).sum(axis=1))

    def cross_entropies(self, known: BoardEvents) -> Array:
        """Four sums: the cross-entropy of the events, and its expectation under this model; that of their outcomes
        (or none yet), and of a prediction by how often each outcome comes."""
        logs, rows, sites = self._log_chances(known), np.arange(len(known.event)), self.sites
        chance = np.exp(logs)
        outcomes = np.concatenate([chance[:, :sites].sum(axis=1, keepdims=True), chance[:, sites:]], axis=1)
        outcome = np.maximum(known.event - sites + 1, 0)
        often = np.bincount(outcome, minlength=outcomes.shape[1])[outcome] / max(len(outcome), 1)
        given = np.maximum(outcomes[rows, outcome], np.exp(IMPOSSIBLE))
        return -np.array(
            [logs[rows, known.event].sum(), (chance * logs).sum(), np.log(given).sum(), np.log(often).sum()]
        )

    def _log_chances(self, boards: BoardEvents) -> Array:
        logs = [torch.zeros(0, self.table.shape[1])]
        with torch.no_grad():
            for first in range(0, len(boards.action), ROWS):
                part = boards.of(slice(first, first + ROWS))
                logs.append(functional.log_softmax(self(part, self.rules.possible(part.bits)), 1))
        return torch.cat(logs).numpy().astype(np.float64)


def _log_frequencies(known: BoardEvents, choices: int, events: int) -> Array:
    """float32 [choices, sites + outcomes]: log of how often each event followed each action, smoothed by any."""
    counts = np.zeros((choices, events))
    np.add.at(counts, (known.action, known.event), 1)
    usual = (counts.sum(axis=0) + 0.1) / (counts.sum() + 0.1 * events)
    chance = (counts + usual) / (counts.sum(axis=1, keepdims=True) + 1)
    return np.asarray(np.log(chance), np.float32)


@dataclass(frozen=True, slots=True)
class BoardModel:
    """The game, fitted to all folds of the episodes but one: models of the first, second … event, and what is legal."""

    kind: BoardKind
    events: tuple[EventModel, ...]
    legal_weight: Array | None  # [sites + 1, choices]: least squares of legality on the bits and 1

    def step(self, bits: Array, action: Array, rng: Generator) -> tuple[Array, Array, Array]:
        """Sampled for every row: the bits at the next decision, the reward, and whether the game is over."""
        bits, n, sites = bits.copy(), len(bits), bits[0].size
        outcome, last, left = np.zeros(n, np.int64), np.full(n, -1), np.arange(n)
        for k, model in enumerate(self.events):
            boards = BoardEvents(bits[left], last[left], action[left] if k == 0 else 0 * left, left, left)
            event = model.sample(boards, rng)
            outcome[left] = event - sites  # below 0: something flips, and more may follow
            left, event = left[event < sites], event[event < sites]
            bits.reshape(n, -1)[left, event] ^= 1
            last[left] = event
        reward, over = self.kind.outcomes[outcome].T
        return bits, reward, over > 0

    def legal(self, bits: Array) -> Array | None:
        """The legal actions; all of them where none seems to be."""
        if self.legal_weight is None:
            return None
        legal = _with_one(bits) @ self.legal_weight > 0.5
        return np.asarray(legal | ~legal.any(axis=1, keepdims=True))

    def returns(self, start: Array, forward: Forward, game: GameSpec, discount: float, rng: Generator) -> Array:
        """Discounted returns of games from these bits."""
        bits, earned, left = start.copy(), np.zeros(len(start)), np.arange(len(start))
        for tick in range(game.max_ticks):
            seen = bits[left]
            logits = forward({self.kind.leaf.name: self.kind.image(seen)})["logits"]
            action = masked(logits, self.legal(seen)).argmax(axis=1)
            bits[left], reward, over = self.step(seen, action, rng)
            earned[left] += discount**tick * reward
            left = left[~over]
            if not len(left):
                break
        return earned


@dataclass(frozen=True, slots=True)
class LineBoardWorld:
    """An ensemble of models of the game. The shares say how much of the left-out steps is predicted: 1 is all."""

    models: tuple[BoardModel, ...]
    outcomes: float  # share of the cross-entropy of rewards and ends, given the board
    legal: float  # share of the observations
    entropy_ratio: float  # cross-entropy of all events over its expectation under the models

    @property
    def trusted(self) -> bool:
        """Whether models should be ranked by it. Answers may be random, but the models must know how random:
        overfitted ones expect a lower cross-entropy than they have."""
        return self.outcomes >= TRUST and self.legal >= TRUST_LEGAL and self.entropy_ratio <= 1 + EXCESS

    @property
    def note(self) -> str:
        return (
            f"predicts {self.outcomes:.0%} of unseen outcomes, {self.legal:.1%} of what is legal; "
            f"{self.entropy_ratio:.2f} of the expected cross-entropy"
        )

    def returns(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """Discounted returns [folds, games] of the greedy policy, from first observations; every event is sampled."""
        first = rng.choice(records.first, min(GAMES, records.episodes), replace=False)
        kind = self.models[0].kind
        start = kind.bits(records.observation[kind.leaf.name][first])
        return np.stack([model.returns(start, forward, game, discount, rng) for model in self.models])


def line_board_world(
    records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig
) -> LineBoardWorld | None:
    """The world fitted to the records; None where the game shows no small board."""
    kind = _kind(records, game)
    stages = None if kind is None else _stages(records, kind)
    if kind is None or stages is None:
        return None
    boards, legal = kind.bits(records.observation[kind.leaf.name]), records.legal
    fold_of = records.episode_of_step() % config.folds
    models, tests = [], []
    for fold in range(config.folds):
        own, unseen = fold_of != fold, fold_of == fold
        events = []
        for k, stage in enumerate(stages):
            known, rng = stage.of(np.flatnonzero(own[stage.step])), np.random.default_rng([seed, fold, k, 0x30])
            events.append(EventModel(known, 1 if k else kind.choices, len(kind.outcomes), rng, config))
        weight = None if legal is None else _least_squares(boards[own], legal[own])
        model = BoardModel(kind, tuple(events), weight)
        models.append(model)
        guess = model.legal(boards[unseen])
        right = 1.0 if guess is None or legal is None else float((guess == legal[unseen]).all(axis=1).mean())
        left_out = [stage.of(np.flatnonzero(unseen[stage.step])) for stage in stages]
        sums = sum(one.cross_entropies(known) for one, known in zip(events, left_out, strict=True))
        entropy, expected, of_outcomes, baseline = np.maximum(sums, 1e-9)
        tests.append((1 - of_outcomes / baseline, right, entropy / expected))
    return LineBoardWorld(tuple(models), *(float(share) for share in np.mean(tests, axis=0)))


def _kind(records: RecordedEpisodes, game: GameSpec) -> BoardKind | None:
    seat = game.seats[0]
    leaf = seat.observation[0]
    if len(seat.observation) != 1 or leaf.kind != "image" or len(leaf.shape) != 3 or seat.action.kind != "discrete":
        return None
    if leaf.low is None or leaf.high is None or not np.issubdtype(np.dtype(leaf.dtype), np.integer):
        return None
    values = np.arange(leaf.low, leaf.high + 1)
    outcomes = np.unique(_outcomes(records), axis=0)
    small = 2 <= len(values) <= MOST_VALUES and leaf.shape[1] * leaf.shape[2] <= MOST_CELLS
    few = len(outcomes) <= MOST_OUTCOMES
    return BoardKind(leaf, values, outcomes, seat.action.choices[0]) if small and few else None


def _outcomes(records: RecordedEpisodes) -> Array:
    """[steps, 2]: the reward, and 1 where the game is over."""
    return np.stack([records.reward, ~records.goes_on()], axis=1)


def _stages(records: RecordedEpisodes, kind: BoardKind) -> list[BoardEvents] | None:
    """The first, second … event of every step; None where more bits flip at once than in a board game."""
    bits = kind.bits(records.observation[kind.leaf.name])
    after = np.concatenate([bits, kind.bits(records.final[kind.leaf.name])])[records.following()]
    flips = (bits != after).reshape(records.steps, -1)
    counts = flips.sum(axis=1)
    if counts.max() > MOST_FLIPS:
        return None
    step, site = np.nonzero(flips)
    order = np.zeros((records.steps, MOST_FLIPS + 1), np.int64)
    order[step, np.arange(len(step)) - (counts.cumsum() - counts)[step]] = site
    outcome = (_outcomes(records)[:, None] == kind.outcomes).all(axis=2).argmax(axis=1)
    known = records.goes_on() | (counts > 0)  # the last observation stands in for a missing final one
    stages = []
    for k in range(int(counts.max()) + 1):
        rows = np.flatnonzero(known & (counts >= k))
        going = counts[rows] > k
        event = np.where(going, order[rows, k], flips.shape[1] + outcome[rows])
        last = order[rows, k - 1] if k else np.full(len(rows), -1)
        stages.append(BoardEvents(bits[rows], last, records.action[rows] * (k == 0), event, rows))
        bits.reshape(records.steps, -1)[rows[going], event[going]] ^= 1
    return stages


def _least_squares(bits: Array, legal: Array) -> Array:
    x = _with_one(bits)
    return np.linalg.solve(x.T @ x + 1e-3 * np.eye(x.shape[1]), x.T @ legal)


def _with_one(bits: Array) -> Array:
    flat = bits.reshape(len(bits), -1).astype(np.float64)
    return np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
