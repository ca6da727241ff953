"""What is fitted before a model can be evaluated from records: the players' policy, and the model's values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sparring.games.protocol import TERMINATED
from sparring.games.spec import GameSpec
from sparring.learn.algorithms.bc import Bc, BcConfig
from sparring.learn.algorithms.feeds import one_seat, with_image_layers
from sparring.learn.offline.records import RecordedEpisodes
from sparring.learn.offline.vector_world import WorldConfig
from sparring.learn.optim import Adam
from sparring.learn.protocol import Batch
from sparring.nets.forward import Forward
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import log_softmax, masked
from sparring.nets.torch_network import Network, default_network
from sparring.nets.torch_state import tensor, tensors
from sparring.wire.chunk import Array
from sparring.wire.network import Head

ROWS = 4096  # of one forward pass


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How long and how wide the fits are."""

    updates: int = 4000  # of the fitted Q; a quarter of them regress on what the players went on to earn
    behaviour_updates: int = 1500
    batch_steps: int = 256
    target_every_updates: int = 25
    learning_rate: float = 1e-3
    hidden_units: tuple[int, ...] = (64, 64)
    image_layers: tuple[str, ...] = ("flat",)  # of games that show images; convolutions cost more than they bring here
    world: WorldConfig = field(default_factory=WorldConfig)


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """π of the model at every recorded observation: probabilities [steps, choices] and [episodes, choices]."""

    steps: Array
    final: Array


@dataclass(frozen=True, slots=True)
class FittedValues:
    """A fitted Q^π on the records: Q of the actions taken, V of the observations, V of the final observations."""

    q: Array  # [steps]
    v: Array  # [steps]
    v_final: Array  # [episodes]; 0 after a true end


def greedy_policy(forward: Forward, records: RecordedEpisodes) -> RecordedPolicy:
    """The model as `spar evaluate` plays it: its best legal action."""

    def probabilities(seen: Mapping[str, Array], legal: Array | None) -> Array:
        logits = masked(_outputs(forward, seen), legal)
        return np.asarray(np.eye(logits.shape[1])[logits.argmax(axis=1)])

    return RecordedPolicy(probabilities(records.observation, records.legal), probabilities(records.final, None))


def behaviour_logp(records: RecordedEpisodes, game: GameSpec, seed: int, config: FitConfig) -> Array:
    """log μ(a|s) of every step: as recorded, and by a clone of all the players where nothing was recorded."""
    missing = np.isnan(records.logp)
    if not missing.any():
        return records.logp
    algorithm, rng = Bc(), np.random.default_rng([seed, 0xBE])
    settings = BcConfig(hidden_units=config.hidden_units, image_layers=config.image_layers)
    learner = algorithm.begin(game, settings, seed)
    for _ in range(config.behaviour_updates):
        rows = rng.integers(0, records.steps, config.batch_steps)
        seen = {leaf: column[rows] for leaf, column in records.observation.items()}
        batch = Batch(
            observation=seen,
            action=records.action[rows],
            reward=records.reward[rows],
            ending=np.zeros(len(rows), np.uint8),
            next_observation=seen,  # not used
            legal=None if records.legal is None else records.legal[rows],
        )
        algorithm.update(learner, batch)
    outputs = _outputs(NumpyForward(learner.network, learner.weights()), records.observation)
    cloned = np.take_along_axis(log_softmax(masked(outputs, records.legal)), records.action[:, None], axis=1)[:, 0]
    return np.where(missing, cloned, records.logp)


def fitted_q(
    records: RecordedEpisodes, policy: RecordedPolicy, game: GameSpec, discount: float, seed: int, config: FitConfig
) -> FittedValues:
    """Fitted Q evaluation (Le et al. 2019): Q(s,a) ← r + γ Σ_a' π(a'|s') Q⁻(s',a'), a true end being worth nothing.

    It begins as a regression on the players' own discounted returns, so that a long game's values need not be carried
    back one step at a time, and fits them in units of those returns' spread. Targets are clipped to what the game can
    pay, so that a fit that feeds on its own errors does not diverge.
    """
    least, most = value_bounds(game, discount, records.pays_once)
    returns = records.returns(discount)
    scale, shift = max(float(returns.std()), 1e-3), float(returns.mean())
    seat, heads = one_seat(game, "fqe"), (Head("logits", policy.steps.shape[1]),)
    network = default_network(seat, hidden=config.hidden_units, activation="relu", heads=heads)
    spec = with_image_layers(network, config.image_layers)
    online, target = Network(spec, seed), Network(spec, seed)
    optimiser, rng = Adam(online.parameters(), config.learning_rate), np.random.default_rng([seed, 0xF0])
    seen = {leaf: np.concatenate([column, records.final[leaf]]) for leaf, column in records.observation.items()}
    chance = np.concatenate([policy.steps, policy.final]).astype(np.float32)
    following, goes_on = records.following(), records.goes_on()
    warm = config.updates // 4
    for update in range(config.updates):
        rows = rng.integers(0, records.steps, config.batch_steps)
        goal = tensor((returns[rows] - shift) / scale)
        if update >= warm:
            after = following[rows]
            with torch.no_grad():
                worth = (target(_rows(seen, after))["logits"] * tensor(chance[after])).sum(1) * scale + shift
                earned = tensor(records.reward[rows]) + discount * worth * tensor(goes_on[rows])
                goal = (earned.clamp(least, most) - shift) / scale
        action = tensor(records.action[rows]).unsqueeze(1)
        chosen = online(_rows(seen, rows))["logits"].gather(1, action).squeeze(1)
        optimiser.learning_rate = config.learning_rate * max(1 - update / config.updates, 0.1)
        optimiser.descend((goal - chosen).square().mean(), 10.0)
        if (update + 1) % config.target_every_updates == 0:
            target.load_state_dict(online.state_dict())
    values = np.clip(_outputs(NumpyForward(spec, online.weights()), seen) * scale + shift, least, most)
    v = (values * chance).sum(axis=1)
    q = np.take_along_axis(values[: records.steps], records.action[:, None], axis=1)[:, 0]
    return FittedValues(q, v[: records.steps], np.where(records.ending == TERMINATED, 0.0, v[records.steps :]))


def value_bounds(game: GameSpec, discount: float, pays_once: bool = False) -> tuple[float, float]:
    """The least and the most that a seat can earn in a whole game, discounted; `pays_once`: with its last step."""
    low, high = game.seats[0].reward_bounds
    if pays_once:
        return min(low, 0.0), max(high, 0.0)
    ticks = game.max_ticks
    worth = float(ticks) if discount == 1 else (1 - discount**ticks) / (1 - discount)
    return min(low, low * worth), max(high, high * worth)


def _rows(columns: Mapping[str, Array], rows: Array) -> dict[str, Tensor]:
    return tensors({leaf: column[rows] for leaf, column in columns.items()})


def _outputs(forward: Forward, seen: Mapping[str, Array]) -> Array:
    """The logits of many rows, a few thousand at a time."""
    count = len(next(iter(seen.values())))
    parts = [slice(first, first + ROWS) for first in range(0, count, ROWS)]
    return np.concatenate([forward({leaf: seen[leaf][part] for leaf in seen})["logits"] for part in parts])
