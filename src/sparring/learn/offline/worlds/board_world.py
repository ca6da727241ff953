"""A game of boards learned from its records: what a move does, how the others answer, and who has won.

A view is an image of a few values, taken as planes of bits. Between two decisions of a seat some bits flip (its own
stone, then the answers), one after another in the order of the planes, until it is asked again or the game is over.
Each of these happenings is drawn from what a network foretells of it (`lines.py`). Nothing is known of turns,
opponents or rules but what the records show, and what is legal is learned as well.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.games.spec import GameSpec, Leaf
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.worlds.line_networks import Happenings, LegalTeller, Teller, legal_teller, teller
from sparring.learn.offline.worlds.protocol import WorldConfig
from sparring.nets.forward import Forward
from sparring.nets.policies import masked
from sparring.wire.chunk import Array

MOST_VALUES, MOST_CELLS = 4, 400
MOST_FLIPS = 4  # of one step
MOST_OUTCOMES = 8  # different rewards, with an end or without
TRIALS = 1000  # games that a model plays with each learner; wins and losses say little each, and are quickly played
WELL, WELL_LEGAL = 0.9, 0.99  # of steps that were left out, so much has to be foretold before a world is trusted
CALM = 0.1  # and their surprise may exceed what the learners themselves expect by this share


@dataclass(frozen=True, slots=True)
class Kind:
    """Of what size boards are, and what may come of a step."""

    leaf: Leaf
    values: Array  # that cells take
    outcomes: Array  # [outcomes, 2]: reward, and 1 where the game is over
    choices: int

    def bits(self, image: Array) -> Array:
        """uint8 [n, planes, height, width]: a plane for each value but the first, of each channel."""
        return np.concatenate([image == value for value in self.values[1:]], axis=1).astype(np.uint8)

    def image(self, bits: Array) -> Array:
        """The view that has these bits."""
        out = np.full((len(bits), *self.leaf.shape), self.values[0], self.leaf.dtype)
        for value, planes in zip(self.values[1:], np.split(bits, len(self.values) - 1, axis=1), strict=True):
            out[planes > 0] = value
        return out


@dataclass(frozen=True, slots=True)
class Learner:
    """The game as one share of the episodes shows it: what happens first, second … and what is legal."""

    kind: Kind
    stages: tuple[Teller, ...]
    legal: LegalTeller | None

    def stepped(self, bits: Array, action: Array, rng: Generator) -> tuple[Array, Array, Array]:
        """Drawn for every row: the bits at the next decision, the reward, and whether the game is over."""
        bits, n = bits.copy(), len(bits)
        outcome, last, left = np.zeros(n, np.int64), np.full(n, -1), np.arange(n)
        for k, stage in enumerate(self.stages):
            what = stage.drawn(Happenings(bits[left], last[left], action[left] if k == 0 else 0 * left), rng)
            sites = bits[0].size
            outcome[left] = what - sites  # below 0: something flips, and more may follow
            left, what = left[what < sites], what[what < sites]
            bits.reshape(n, -1)[left, what] ^= 1
            last[left] = what
        reward, over = self.kind.outcomes[outcome].T
        return bits, reward, over > 0

    def allowed(self, bits: Array) -> Array | None:
        """What is legal there, all of it where nothing seems to be."""
        if self.legal is None:
            return None
        legal = self.legal.likely(bits)
        return np.asarray(legal | ~legal.any(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class BoardWorld:
    """Learners of the game, and how much of what they had not seen they foretell: 1 is all of it."""

    learners: tuple[Learner, ...]
    outcomes: float  # share of the surprise at rewards and ends, the board being seen
    legal: float  # share of the views
    surprise: float  # at all that happened, over what the learners expect it to be

    @property
    def trusted(self) -> bool:
        """Whether models are to be ranked by it. Answers may be drawn by chance, but a learner has to know how much
        of them is chance: one that has learned its records by heart is more surprised than it expects."""
        return self.outcomes >= WELL and self.legal >= WELL_LEGAL and self.surprise <= 1 + CALM

    @property
    def note(self) -> str:
        return (
            f"foretells {self.outcomes:.0%} of unseen outcomes, {self.legal:.1%} of what is legal; "
            f"{self.surprise:.2f} of the surprise it expects"
        )

    def played(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """See World. Every answer is drawn."""
        first = rng.choice(records.first, min(TRIALS, records.episodes), replace=False)
        kind = self.learners[0].kind
        start = kind.bits(records.observation[kind.leaf.name][first])
        return np.stack([_returns(one, start, forward, game, discount, rng) for one in self.learners])


def board_world(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig) -> BoardWorld | None:
    """The game as the records show it; None where it is not of that kind, or too few episodes are known."""
    kind = _kind(records, game)
    if kind is None or records.episodes < 2 * config.learners:
        return None
    stages = _stages(records, kind)
    if stages is None:
        return None
    views = kind.bits(records.observation[kind.leaf.name])
    episode = np.repeat(np.arange(records.episodes), np.diff(records.start))
    learners, tests = [], []
    for fold in range(config.learners):
        own = episode % config.learners != fold
        learner = _learned(records, kind, stages, views, own, (seed, fold), config)
        learners.append(learner)
        tests.append(_tested(learner, records, stages, views, ~own))
    return BoardWorld(tuple(learners), *(float(share) for share in np.mean(tests, axis=0)))


def _kind(records: RecordedEpisodes, game: GameSpec) -> Kind | None:
    seat = game.seats[0]
    leaf = seat.observation[0]
    if len(seat.observation) != 1 or leaf.kind != "image" or len(leaf.shape) != 3 or seat.action.kind != "discrete":
        return None
    if leaf.low is None or leaf.high is None or not np.issubdtype(np.dtype(leaf.dtype), np.integer):
        return None
    values = np.arange(leaf.low, leaf.high + 1)
    outcomes = np.unique(_outcomes(records), axis=0)
    small = 2 <= len(values) <= MOST_VALUES and leaf.shape[1] * leaf.shape[2] <= MOST_CELLS
    return Kind(leaf, values, outcomes, seat.action.choices[0]) if small and len(outcomes) <= MOST_OUTCOMES else None


def _outcomes(records: RecordedEpisodes) -> Array:
    """[steps, 2]: the reward, and 1 where the game is over."""
    return np.stack([records.reward, ~records.goes_on()], axis=1)


def _stages(records: RecordedEpisodes, kind: Kind) -> list[Happenings] | None:
    """What happened first, second … in every step; None where more flips at once than a board game would."""
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
    known = records.goes_on() | (counts > 0)  # the last view stands in for a final one that is missing
    stages = []
    for k in range(int(counts.max()) + 1):
        rows = np.flatnonzero(known & (counts >= k))
        going = counts[rows] > k
        what = np.where(going, order[rows, k], flips.shape[1] + outcome[rows])
        last = order[rows, k - 1] if k else np.full(len(rows), -1)
        stages.append(Happenings(bits[rows], last, records.action[rows] * (k == 0), what, rows))
        bits.reshape(records.steps, -1)[rows[going], what[going]] ^= 1
    return stages


def _learned(
    records: RecordedEpisodes,
    kind: Kind,
    stages: list[Happenings],
    views: Array,
    own: Array,
    seed: tuple[int, int],
    config: WorldConfig,
) -> Learner:
    """One learner of the steps `own`."""
    told = []
    for k, stage in enumerate(stages):
        size, rng = (1 if k else kind.choices, len(kind.outcomes)), np.random.default_rng([*seed, k, 0x30])
        told.append(teller(stage.of(np.flatnonzero(own[stage.step])), size, rng, config))
    legal = None
    if records.legal is not None:
        legal = legal_teller(views[own], records.legal[own])
    return Learner(kind, tuple(told), legal)


def _tested(
    learner: Learner, records: RecordedEpisodes, stages: list[Happenings], views: Array, unseen: Array
) -> tuple[float, float, float]:
    """Shares of unseen outcomes and masks that are foretold, and the surprise over what was expected of it."""
    legal, right = learner.allowed(views[unseen]), 1.0
    if legal is not None and records.legal is not None:
        right = float((legal == records.legal[unseen]).all(axis=1).mean())
    sums = sum(
        told.surprise(stage.of(np.flatnonzero(unseen[stage.step])))
        for stage, told in zip(stages, learner.stages, strict=True)
    )
    surprise, expected, at_outcomes, usual = np.maximum(sums, 1e-9)
    return 1 - at_outcomes / usual, right, surprise / expected


def _returns(
    learner: Learner, start: Array, forward: Forward, game: GameSpec, discount: float, rng: Generator
) -> Array:
    bits, earned, left = start.copy(), np.zeros(len(start)), np.arange(len(start))
    for tick in range(game.max_ticks):
        seen = bits[left]
        logits = forward({learner.kind.leaf.name: learner.kind.image(seen)})["logits"]
        action = masked(logits, learner.allowed(seen)).argmax(axis=1)
        bits[left], reward, over = learner.stepped(seen, action, rng)
        earned[left] += discount**tick * reward
        left = left[~over]
        if not len(left):
            break
    return earned
