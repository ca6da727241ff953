"""A world model for games whose observations are vectors and whose actions are choices, all legal at all times.

Each model of the ensemble predicts, from observation and action, how every number changes, the reward and whether the
episode ends: a linear model for each action (least squares), and a small network for its residuals. Each leaves out
another fold of the episodes and is tested on it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from torch.nn import functional

from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.optim import Adam
from sparring.nets.forward import Forward
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import masked
from sparring.nets.torch_network import Network
from sparring.nets.torch_state import tensor
from sparring.wire.chunk import Array
from sparring.wire.network import Dense, Head, Input, NetworkSpec

LEAF = "observation/numbers"
GAMES = 400  # that a model plays in each fold
RIDGE = 1e-6  # per step, in units of the observations' spread
TRUST, TRUST_ENDS = 0.95, 0.5  # of the left-out steps so much must be explained before a world is trusted
SMALL = 1e-5  # in units of a number's spread: a smaller difference is none
BEYOND = 0.1  # of a number's range: further outside nothing is known


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """How many models of the dynamics are fitted, how long, and how wide they are."""

    folds: int = 3
    updates: int = 4000  # of each vector model
    batch_steps: int = 256
    learning_rate: float = 2e-3
    hidden_units: tuple[int, ...] = (64, 64)
    board_updates: int = 2000  # of each network of a board model, at most
    board_batch_steps: int = 128
    board_units: int = 32


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The recorded steps as columns."""

    seen: Array  # float64 [steps, numbers]
    action: Array  # [steps]
    change: Array  # float64 [steps, numbers + 1]: of each number, then the reward
    ended: Array  # bool [steps]
    known: Array  # bool [steps]: whether the change is known; it is not where a final observation was not recorded
    episode: Array  # [steps]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """One linear model for each action, on observations scaled to mean 0 and spread 1."""

    mean: Array
    spread: Array
    low: Array  # of the numbers ever seen, and a little beyond
    high: Array
    weight: Array  # [choices, numbers + 1 inputs, numbers + 1 outputs]
    residual: Array  # [numbers + 1]: root mean square of what it does not explain

    def scaled(self, seen: Array) -> Array:
        return np.asarray((seen - self.mean) / self.spread)

    def predict(self, scaled: Array, action: Array) -> Array:
        """[n, numbers + 1]: the changes and the reward."""
        inputs = np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1)
        out = np.empty((len(scaled), self.weight.shape[2]))
        for choice, weight in enumerate(self.weight):
            rows = action == choice
            out[rows] = inputs[rows] @ weight
        return out


@dataclass(frozen=True, slots=True)
class VectorWorld:
    """An ensemble of models of the dynamics. The shares say how much of the left-out steps is explained: 1 is all."""

    linear: LinearModel
    networks: tuple[Forward, ...]
    explained: float  # share of the variance, of the number or reward that is predicted worst
    ends: float  # share of the cross-entropy of which steps are the last

    @property
    def trusted(self) -> bool:
        """Whether models should be ranked by it. Errors in numbers add up with every step, those in ends do not."""
        return self.explained >= TRUST and self.ends >= TRUST_ENDS

    @property
    def note(self) -> str:
        return f"explains {self.explained:.1%} of unseen steps, {self.ends:.0%} of ends"

    def returns(
        self, records: RecordedEpisodes, forward: Forward, game: GameSpec, discount: float, rng: Generator
    ) -> Array:
        """Discounted returns [folds, games] of the greedy policy, from first observations of recorded games.

        Probabilities of an end are multiplied, not sampled. Outside the range of the recorded numbers nothing is known:
        from there on the game pays the least that it can.
        """
        first = rng.choice(records.first, min(GAMES, records.episodes), replace=False)
        start = _numbers(records.observation, game)[first]
        return np.stack([_returns(self.linear, one, start, forward, game, discount) for one in self.networks])


def vector_world(records: RecordedEpisodes, game: GameSpec, seed: int, config: WorldConfig) -> VectorWorld | None:
    """The world fitted to the records; None where observations or actions are not of that kind."""
    seat = game.seats[0]
    vectors = all(leaf.kind == "vector" for leaf in seat.observation) and records.legal is None
    if not vectors or seat.action.kind != "discrete":
        return None
    steps, choices = _steps(records, game), seat.action.choices[0]
    linear = _linear_model(steps, choices)
    networks, errors, baselines = [], [], []
    for fold in range(config.folds):
        own = steps.episode % config.folds != fold
        networks.append(_residual_network(steps, np.flatnonzero(own), linear, choices, (seed, fold), config))
        error, baseline = _errors(networks[-1], steps, np.flatnonzero(~own), linear)
        errors.append(error)
        baselines.append(baseline)
    least = np.square(SMALL * np.append(linear.spread, (1.0, 1.0)))
    shares = 1 - np.mean(errors, axis=0) / np.maximum(np.mean(baselines, axis=0), least)
    return VectorWorld(linear, tuple(networks), float(shares[:-1].min()), float(shares[-1]))


def _returns(
    linear: LinearModel, network: Forward, start: Array, forward: Forward, game: GameSpec, discount: float
) -> Array:
    low, high = game.seats[0].reward_bounds
    seen, earned = start.copy(), np.zeros(len(start))
    alive, lost = np.ones(len(start)), np.zeros(len(start), bool)
    for tick in range(game.max_ticks):
        action = masked(forward(_leaves(seen, game))["logits"], None).argmax(axis=1)
        change, end = _predict(linear, network, seen, action)
        reward = np.where(lost, min(low, 0.0), np.clip(change[:, -1], low, high))
        earned += discount**tick * alive * reward
        alive = np.where(lost, alive, alive * (1 - end))
        seen = np.where(lost[:, None], seen, seen + change[:, :-1])
        lost |= ((seen < linear.low) | (seen > linear.high)).any(axis=1)
        if (lost | (alive < 1e-3)).all() and low >= 0:
            break
    return earned


def _predict(linear: LinearModel, network: Forward, seen: Array, action: Array) -> tuple[Array, Array]:
    """The change of every number and the reward [n, numbers + 1], and the probability of an end [n]."""
    scaled, rows = linear.scaled(seen), np.arange(len(seen))
    out = network({LEAF: scaled.astype(np.float32)})
    residual = out["change"].reshape(len(seen), len(linear.weight), -1)[rows, action]
    with np.errstate(over="ignore"):  # exp of a large number is a probability of 0
        end = 1 / (1 + np.exp(-out["end"][rows, action].astype(np.float64)))
    return linear.predict(scaled, action) + residual * linear.residual, end


def _steps(records: RecordedEpisodes, game: GameSpec) -> RecordedSteps:
    seen = _numbers(records.observation, game)
    after = np.concatenate([seen, _numbers(records.final, game)])[records.following()]
    ended = np.zeros(records.steps, bool)
    ended[records.start[1:] - 1] = records.ending == TERMINATED
    return RecordedSteps(
        seen,
        records.action,
        np.concatenate([after - seen, records.reward[:, None]], axis=1).astype(np.float64),
        ended,
        ~(ended & (after == seen).all(axis=1)),  # the last observation stands in for a missing final one
        records.episode_of_step(),
    )


def _linear_model(steps: RecordedSteps, choices: int) -> LinearModel:
    mean, spread = steps.seen.mean(axis=0), np.maximum(steps.seen.std(axis=0), 1e-6)
    inputs = np.concatenate([(steps.seen - mean) / spread, np.ones((len(steps.seen), 1))], axis=1)
    weights = []
    for choice in range(choices):
        rows = (steps.action == choice) & steps.known
        x, y = inputs[rows], steps.change[rows]
        weights.append(np.linalg.solve(x.T @ x + (RIDGE * len(x) + RIDGE) * np.eye(x.shape[1]), x.T @ y))
    views = np.concatenate([steps.seen, steps.seen + steps.change[:, :-1]])
    low, high = views.min(axis=0), views.max(axis=0)
    beyond = BEYOND * (high - low) + spread.min()
    model = LinearModel(mean, spread, low - beyond, high + beyond, np.stack(weights), np.zeros(0))
    error = steps.change - model.predict(inputs[:, :-1], steps.action)
    rms = np.sqrt(np.square(error[steps.known]).mean(axis=0))
    return replace(model, residual=np.maximum(rms, SMALL * np.append(spread, 1.0)))


def _residual_network(
    steps: RecordedSteps, own: Array, linear: LinearModel, choices: int, seed: tuple[int, int], config: WorldConfig
) -> Forward:
    """A network for the linear model's residuals and the ends, fitted to the rows `own`."""
    outputs = steps.change.shape[1]
    spec = NetworkSpec(
        inputs=(Input(LEAF, (steps.seen.shape[1],)),),
        heads=(Head("change", choices * outputs), Head("end", choices)),
        trunk=tuple(Dense(units, "tanh") for units in config.hidden_units),
    )
    rng = np.random.default_rng([*seed, 0x30])
    network = Network(spec, int(rng.integers(2**31)))
    optimiser = Adam(network.parameters(), config.learning_rate)
    scaled = linear.scaled(steps.seen)
    residual = ((steps.change - linear.predict(scaled, steps.action)) / linear.residual).astype(np.float32)
    residual[~steps.known] = 0.0
    scaled, known, ended = scaled.astype(np.float32), steps.known.astype(np.float32), steps.ended.astype(np.float32)
    for update in range(config.updates):
        rows = own[rng.integers(0, len(own), config.batch_steps)]
        out = network({LEAF: tensor(scaled[rows])})
        action = tensor(steps.action[rows])[:, None]
        change = out["change"].reshape(len(rows), choices, outputs)
        change = change.gather(1, action[:, :, None].expand(-1, 1, outputs)).squeeze(1)
        error = (change - tensor(residual[rows])).square().mean(1) * tensor(known[rows])
        end = functional.binary_cross_entropy_with_logits(out["end"].gather(1, action).squeeze(1), tensor(ended[rows]))
        optimiser.learning_rate = config.learning_rate * max(1 - update / config.updates, 0.02)
        optimiser.descend(error.mean() + end, 10.0)
    return NumpyForward(spec, network.weights())


def _errors(network: Forward, steps: RecordedSteps, rows: Array, linear: LinearModel) -> tuple[Array, Array]:
    """On left-out rows: squared errors of each change and of the reward, then the cross-entropy of the ends
    [numbers + 2]; and the same of a prediction by the mean alone."""
    change, end = _predict(linear, network, steps.seen[rows], steps.action[rows])
    known, real, ended = steps.known[rows], steps.change[rows], steps.ended[rows]
    errors, baseline = np.square(change - real)[known].mean(axis=0), real[known].var(axis=0)
    rate = np.full(len(rows), ended.mean())
    return np.append(errors, _cross_entropy(end, ended)), np.append(baseline, _cross_entropy(rate, ended))


def _cross_entropy(chance: Array, happened: Array) -> float:
    right = np.where(happened, chance, 1 - chance)
    return float(-np.log(np.maximum(right, 1e-9)).mean())


def _numbers(observation: Mapping[str, Array], game: GameSpec) -> Array:
    """All leaves side by side, in the spec's order."""
    columns = [observation[leaf.name] for leaf in game.seats[0].observation]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1).astype(np.float64)


def _leaves(numbers: Array, game: GameSpec) -> dict[str, Array]:
    """The inverse of `_numbers`."""
    leaves = game.seats[0].observation
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(numbers.astype(np.float32), ends[:-1], axis=1)
    return {leaf.name: part.reshape(len(part), *leaf.shape) for leaf, part in zip(leaves, parts, strict=True)}
