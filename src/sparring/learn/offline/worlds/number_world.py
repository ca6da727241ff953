"""A game of numbers learned from its records: how they change, what it pays, and when it ends.

For games whose views are numbers and whose actions are choices, all of them legal at all times. Each of several
learners foretells, from what is seen and done, how every number changes, the reward and whether the game ends: a
line for each action (least squares), and a small network for what the line misses. Each leaves out another share of
the episodes, and is tested on those.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from torch.nn import functional

from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.worlds.protocol import WorldConfig
from sparring.learn.optim import Adam
from sparring.nets.forward import Forward
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import masked
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor
from sparring.wire.chunk import Array
from sparring.wire.network import Dense, Head, Input, NetworkSpec

SEEN = "observation/numbers"
TRIALS = 400  # games that a model plays with each learner
RIDGE = 1e-6  # per step, in units of the views' spread
WELL, WELL_ENDS = 0.95, 0.5  # of steps that were left out, so much has to be explained before a world is trusted
SMALL = 1e-5  # in units of a number's spread: what differs by less is the same
BEYOND = 0.1  # of a number's range: so far outside it nothing is known


@dataclass(frozen=True, slots=True)
class Steps:
    """What the records say of single steps: rows of the same order."""

    seen: Array  # float64 [steps, numbers]
    action: Array  # [steps]
    change: Array  # float64 [steps, numbers + 1]: of each number, then the reward
    ended: Array  # bool [steps]
    known: Array  # bool [steps]: whether the change of the numbers is; not where a final view was never recorded
    episode: Array  # [steps]


@dataclass(frozen=True, slots=True)
class Frame:
    """The units of the records: views have mean 0 and spread 1 in them, and each action has its line."""

    mean: Array
    spread: Array
    low: Array  # of the numbers ever seen, and a little beyond
    high: Array
    line: Array  # [choices, numbers + 1 inputs, numbers + 1 outputs]
    missed: Array  # [numbers + 1]: size of what the line misses

    def scaled(self, seen: Array) -> Array:
        return np.asarray((seen - self.mean) / self.spread)

    def along(self, scaled: Array, action: Array) -> Array:
        """What the action's line foretells."""
        inputs = np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1)
        out = np.empty((len(scaled), self.line.shape[2]))
        for choice, line in enumerate(self.line):
            rows = action == choice
            out[rows] = inputs[rows] @ line
        return out


@dataclass(frozen=True, slots=True)
class NumberWorld:
    """Learners of the game, and how much of what they had not seen they explain: 1 is all of it."""

    frame: Frame
    learners: tuple[Forward, ...]
    explained: float  # share of the variance; of the numbers and the reward that which is foretold worst
    ends: float  # share of the surprise at which steps are the last

    @property
    def trusted(self) -> bool:
        """Whether models are to be ranked by it. Errors in numbers add up with every step, those in ends do not."""
        return self.explained >= WELL and self.ends >= WELL_ENDS

    @property
    def note(self) -> str:
        return f"explains {self.explained:.1%} of unseen steps, {self.ends:.0%} of ends"

    def played(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """See World. Chances of an end are multiplied, not drawn. Where no number was ever as large, or as small,
        nothing is known: from there on the game pays the least that it can."""
        first = rng.choice(records.first, min(TRIALS, records.episodes), replace=False)
        start = _numbers(records.observation, game)[first]
        return np.stack([_returns(self.frame, one, start, forward, game, discount) for one in self.learners])


def number_world(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig) -> NumberWorld | None:
    """The game as the records show it; None where its views, actions or number of episodes are not of that kind."""
    leaves = game.seats[0].observation
    plain = all(leaf.kind == "vector" for leaf in leaves) and records.legal is None
    if not plain or game.seats[0].action.kind != "discrete" or records.episodes < 2 * config.learners:
        return None
    steps, choices = _steps(records, game), game.seats[0].action.choices[0]
    frame = _frame(steps, choices)
    learners, misses, usual = [], [], []
    for fold in range(config.learners):
        own = steps.episode % config.learners != fold
        learner = _learned(steps, np.flatnonzero(own), frame, choices, (seed, fold), config)
        learners.append(learner)
        missed, most = _missed(learner, steps, np.flatnonzero(~own), frame)
        misses.append(missed)
        usual.append(most)
    least = np.square(SMALL * np.append(frame.spread, (1.0, 1.0)))
    shares = 1 - np.mean(misses, axis=0) / np.maximum(np.mean(usual, axis=0), least)
    return NumberWorld(frame, tuple(learners), float(shares[:-1].min()), float(shares[-1]))


def _returns(
    frame: Frame, learner: Forward, start: Array, forward: Forward, game: GameSpec, discount: float
) -> Array:
    low, high = game.seats[0].reward_bounds
    seen, earned = start.copy(), np.zeros(len(start))
    alive, lost = np.ones(len(start)), np.zeros(len(start), bool)
    for tick in range(game.max_ticks):
        action = masked(forward(_leaves(seen, game))["logits"], None).argmax(axis=1)
        change, end = foretold(frame, learner, seen, action)
        reward = np.where(lost, min(low, 0.0), np.clip(change[:, -1], low, high))
        earned += discount**tick * alive * reward
        alive = np.where(lost, alive, alive * (1 - end))
        seen = np.where(lost[:, None], seen, seen + change[:, :-1])
        lost |= ((seen < frame.low) | (seen > frame.high)).any(axis=1)
        if (lost | (alive < 1e-3)).all() and low >= 0:
            break
    return earned


def foretold(frame: Frame, learner: Forward, seen: Array, action: Array) -> tuple[Array, Array]:
    """The change of every number and the reward [n, numbers + 1], and the chance of an end [n]."""
    scaled = frame.scaled(seen)
    out = learner({SEEN: scaled.astype(np.float32)})
    rows = np.arange(len(seen))
    beside = out["change"].reshape(len(seen), len(frame.line), -1)[rows, action]
    with np.errstate(over="ignore"):  # exp of a large number is a chance of 0
        end = 1 / (1 + np.exp(-out["end"][rows, action].astype(np.float64)))
    return frame.along(scaled, action) + beside * frame.missed, end


def _steps(records: RecordedEpisodes, game: GameSpec) -> Steps:
    seen = _numbers(records.observation, game)
    views = np.concatenate([seen, _numbers(records.final, game)])
    after = views[records.following()]
    lengths = np.diff(records.start)
    ended = np.zeros(records.steps, bool)
    ended[records.start[1:] - 1] = records.ending == TERMINATED
    return Steps(
        seen,
        records.action,
        np.concatenate([after - seen, records.reward[:, None]], axis=1).astype(np.float64),
        ended,
        ~(ended & (after == seen).all(axis=1)),  # the last view stands in for a final one that is missing
        np.repeat(np.arange(records.episodes), lengths),
    )


def _frame(steps: Steps, choices: int) -> Frame:
    views = np.concatenate([steps.seen, steps.seen + steps.change[:, :-1]])
    spread = np.maximum(steps.seen.std(axis=0), 1e-6)
    mean = steps.seen.mean(axis=0)
    inputs = np.concatenate([(steps.seen - mean) / spread, np.ones((len(steps.seen), 1))], axis=1)
    lines = []
    for choice in range(choices):
        rows = (steps.action == choice) & steps.known
        x, y = inputs[rows], steps.change[rows]
        lines.append(np.linalg.solve(x.T @ x + (RIDGE * len(x) + RIDGE) * np.eye(x.shape[1]), x.T @ y))
    low, high = views.min(axis=0), views.max(axis=0)
    beyond = BEYOND * (high - low) + spread.min()
    bare = Frame(mean, spread, low - beyond, high + beyond, np.stack(lines), np.zeros(0))
    wrong = steps.change - bare.along(inputs[:, :-1], steps.action)
    missed = np.maximum(np.sqrt(np.square(wrong[steps.known]).mean(axis=0)), SMALL * np.append(spread, 1.0))
    return Frame(bare.mean, bare.spread, bare.low, bare.high, bare.line, missed)


def _learned(
    steps: Steps, own: Array, frame: Frame, choices: int, seed: tuple[int, int], config: WorldConfig
) -> Forward:
    """One learner of the rows `own`."""
    outputs = steps.change.shape[1]
    spec = NetworkSpec(
        inputs=(Input(SEEN, (steps.seen.shape[1],)),),
        heads=(Head("change", choices * outputs), Head("end", choices)),
        trunk=tuple(Dense(units, "tanh") for units in config.hidden_units),
    )
    rng = np.random.default_rng([*seed, 0x30])
    network = Network(spec, int(rng.integers(2**31)))
    optimiser = Adam(network.parameters(), config.learning_rate)
    scaled = frame.scaled(steps.seen)
    beside = ((steps.change - frame.along(scaled, steps.action)) / frame.missed).astype(np.float32)
    beside[~steps.known] = 0.0
    scaled, known, ended = scaled.astype(np.float32), steps.known.astype(np.float32), steps.ended.astype(np.float32)
    for update in range(config.updates):
        rows = own[rng.integers(0, len(own), config.batch_steps)]
        out = network({SEEN: tensor(scaled[rows])})
        action = tensor(steps.action[rows])[:, None]
        change = out["change"].reshape(len(rows), choices, outputs)
        change = change.gather(1, action[:, :, None].expand(-1, 1, outputs)).squeeze(1)
        wrong = (change - tensor(beside[rows])).square().mean(1) * tensor(known[rows])
        end = functional.binary_cross_entropy_with_logits(out["end"].gather(1, action).squeeze(1), tensor(ended[rows]))
        optimiser.learning_rate = config.learning_rate * max(1 - update / config.updates, 0.02)
        optimiser.descend(wrong.mean() + end, 10.0)
    return NumpyForward(spec, network.weights())


def _missed(learner: Forward, steps: Steps, rows: Array, frame: Frame) -> tuple[Array, Array]:
    """Of rows that it has not learned: squared errors of each change and of the reward, and the surprise at ends
    [numbers + 2]; and how large they are for who foretells nothing but the mean."""
    change, end = foretold(frame, learner, steps.seen[rows], steps.action[rows])
    known, real = steps.known[rows], steps.change[rows]
    errors = np.square(change - real)[known].mean(axis=0)
    usual = real[known].var(axis=0)
    rate = steps.ended[rows].mean()
    ends = (_surprise(end, steps.ended[rows]), _surprise(np.full(len(rows), rate), steps.ended[rows]))
    return np.append(errors, ends[0]), np.append(usual, ends[1])


def _surprise(chance: Array, happened: Array) -> float:
    """Mean −log of the chance that was given to what happened."""
    right = np.where(happened, chance, 1 - chance)
    return float(-np.log(np.maximum(right, 1e-9)).mean())


def _numbers(observation: Mapping[str, Array], game: GameSpec) -> Array:
    """All leaves side by side, in the spec's order."""
    columns = [observation[leaf.name] for leaf in game.seats[0].observation]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1).astype(np.float64)


def _leaves(numbers: Array, game: GameSpec) -> dict[str, Array]:
    """The leaves of such rows again."""
    leaves = game.seats[0].observation
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(numbers.astype(np.float32), ends[:-1], axis=1)
    return {leaf.name: part.reshape(len(part), *leaf.shape) for leaf, part in zip(leaves, parts, strict=True)}
