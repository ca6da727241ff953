"""Our games as Gymnasium environments for RLlib's env runners: flat observations, RLlib's actions, and the games.

In a game with several seats the learner holds one of them, drawn for each episode; the others are played by the
learner's last weights, past weights and scripts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from sparring.acting.opponents import FIRST_SCRIPT, SELF, Opponents, PastSelves
from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, View
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import Leaf, SeatSpec
from sparring.learn.rllib.algorithm import RllibOffer
from sparring.nets.numpy_forward import NumpyForward
from sparring.nets.policies import bounds_of, squashed
from sparring.nets.user_code import open_policy
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights

if TYPE_CHECKING:
    from torch import Tensor

OPPONENT_EPSILON = 0.05  # of an opponent that would always do the same
NEARLY = 1.0 - 1e-6  # a recorded action at its bound has no finite raw number

Context = Mapping[str, Any]  # RLlib's EnvContext: what topology.py put in, and which runner this is


@dataclass(frozen=True, slots=True)
class FlatObservation:
    """What a seat sees as one row, since RLlib's parts agree best on a flat box: the leaves in the spec's order, then
    one number for each choice that says whether it is legal. uint8 where every leaf is, float32 otherwise."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # in stacks, where the spec says so
    masks: int  # choices whose legality ends the row; 0: all are always legal
    dtype: str

    @property
    def width(self) -> int:
        return sum(map(math.prod, self.shapes)) + self.masks

    @property
    def space(self) -> gymnasium.spaces.Box:
        low, high = (0, 255) if self.dtype == "uint8" else (-np.inf, np.inf)
        return gymnasium.spaces.Box(low, high, (self.width,), np.dtype(self.dtype).type)

    def flatten(self, seen: Mapping[str, Array], legal: Array | None) -> Array:
        """[n, width] from columns [n, *shape]; without `legal` every choice is."""
        n = len(seen[self.names[0]])
        rows = np.empty((n, self.width), self.dtype)
        at = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            rows[:, at : at + size] = seen[name].reshape(n, size)
            at += size
        if self.masks:
            rows[:, at:] = 1 if legal is None else legal
        return rows

    def unflatten(self, rows: "Tensor") -> tuple[dict[str, "Tensor"], "Tensor | None"]:
        """The leaves in rows [n, width], and bool [n, masks] of what is legal."""
        leaves, at = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            leaves[name] = rows[:, at : at + size].reshape(len(rows), *shape)
            at += size
        return leaves, (rows[:, -self.masks :] > 0 if self.masks else None)


def flat_observation_of(seat: SeatSpec, frame_stack: int, *, masks: bool) -> FlatObservation:
    """How a seat's leaves are flattened; `masks`: with what is legal."""
    small = all(leaf.dtype == "uint8" for leaf in seat.observation)
    return FlatObservation(
        names=tuple(leaf.name for leaf in seat.observation),
        shapes=tuple(leaf.stacked(frame_stack) for leaf in seat.observation),
        masks=seat.action.masks if masks else 0,
        dtype="uint8" if small else "float32",
    )


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """One seat's actions between RLlib and the game. Choices are the same in both; numbers are not.

    A policy of RLlib draws from a plain Gaussian, and the game gets the number squashed between its bounds, as our own
    policies do it: the mean is the same in both. RLlib's action critics squash by themselves, to −1 … 1.
    """

    leaf: Leaf
    squashes: bool  # RLlib gives −1 … 1 itself

    @property
    def space(self) -> gymnasium.Space[Any]:
        if self.leaf.choices:
            return gymnasium.spaces.Discrete(self.leaf.choices[0])
        limit = 1.0 if self.squashes else np.inf
        return gymnasium.spaces.Box(-limit, limit, (int(np.prod(self.leaf.shape)),), np.float32)

    def to_game(self, chosen: Array) -> Array:
        """[n, *shape] in the game's own units."""
        leaf, bounds = self.leaf, bounds_of(self.leaf)
        if leaf.choices:
            return chosen.astype(leaf.dtype)
        if self.squashes and bounds is not None:
            low, high = bounds
            done = np.clip(low + (high - low) * 0.5 * (chosen + 1.0), low, high)
        else:
            done = squashed(chosen, bounds)
        return np.asarray(done.reshape(len(chosen), *leaf.shape), leaf.dtype)

    def from_game(self, done: Array) -> Array:
        """What RLlib would have chosen for actions of the game [n, *shape]."""
        if self.leaf.choices:
            return done.astype(np.int64)
        flat, bounds = done.reshape(len(done), -1).astype(np.float32), bounds_of(self.leaf)
        if bounds is None:
            return flat
        low, high = bounds
        unit = np.clip(2.0 * (flat - low) / (high - low) - 1.0, -NEARLY, NEARLY)
        return np.asarray(unit if self.squashes else np.arctanh(unit), np.float32)


def action_space_of(leaf: Leaf, offer: RllibOffer) -> ActionSpace:
    """How the algorithm chooses such actions; ConfigError where RLlib would squash what has no bounds."""
    squashes = offer.kind == "soft" and not leaf.choices
    if squashes and bounds_of(leaf) is None:
        raise ConfigError(
            f"its actions have no bounds, and RLlib's {offer.name} squashes them between two",
            where="action",
            do="Give the spec low and high, or use rllib:PPO",
        )
    return ActionSpace(leaf, squashes)


class RllibGame(gymnasium.Env[Array, Any]):
    """One game, from the seat that the learner holds: another one in each episode, where there are several."""

    def __init__(self, context: Context) -> None:
        self._game = open_game(context["game"], 1)
        spec = self._game.spec
        self._observation: FlatObservation = context["observation"]
        self._actions: ActionSpace = context["actions"]
        self._clip: float = context["reward_clip"]
        self._worker = getattr(context, "worker_index", 0) or 0
        self.resumed_at = 0  # position of the run when it was resumed: a resumed run plays other games than before
        self._rng = np.random.default_rng([context["seed"], self._worker])
        self._stacks = [FrameStacks(seat, spec.frame_stack, 1) for seat in spec.seats]
        self._policy = open_policy(context["policy"], spec.seats[0].action)
        self._network: NetworkSpec = context["network"]
        self._scripts: list[Script] = [script_for(spec, name) for name in scripts_for(context["game"])]
        self._opponents = Opponents(
            self._network, context["opponent_share"], self._scripts[1:], context["script_share"]
        )
        self._past = PastSelves(context["opponents"], np.random.default_rng([context["seed"], self._worker, 4]))
        self._newest: NumpyForward | None = None  # the learner's last weights
        self._seat, self._opponent, self._return = 0, SELF, 0.0
        self._view: View | None = None
        self.observation_space, self.action_space = self._observation.space, self._actions.space

    def set_weights(self, weights: Weights, keep: bool) -> None:
        """Play against these weights from now on; `keep` them among the past weights, too."""
        self._newest = NumpyForward(self._network, weights)
        if keep and self._past.size:
            self._opponents.put(self._past.add(weights), weights)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng([seed, self._worker, self.resumed_at])
        self._opponent = int(self._opponents.draw(1, self._rng)[0])
        self._seat = int(self._rng.integers(len(self._game.spec.seats)))
        self._return = 0.0
        seeds = self._rng.integers(0, 2**64, 1, dtype=np.uint64)
        view = self._game.reset(seeds, np.ones(1, bool))
        for stacks in self._stacks:
            stacks.begin(np.ones(1, bool))
        self._play_others(view)
        return self._row(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self._view is not None
        view = self._game.step(self._moves(self._view, self._actions.to_game(np.asarray(action)[None])))
        reward = float(view.reward[0, self._seat]) + self._play_others(view)
        self._return += reward
        ending = int(self._view.ending[0, self._seat])
        info = {"return": self._return} if ending != RUNNING else {}
        clipped = float(np.clip(reward, -self._clip, self._clip)) if self._clip else reward
        return self._row(), clipped, ending == TERMINATED, ending == TRUNCATED, info

    def _play_others(self, view: View) -> float:
        """On to the learner's next decision, or its end: what it earns meanwhile."""
        earned = 0.0
        while not view.to_act[0, self._seat] and view.ending[0, self._seat] == RUNNING:
            view = self._game.step(self._moves(view, None))
            earned += float(view.reward[0, self._seat])
        self._view = view
        return earned

    def _row(self) -> Array:
        assert self._view is not None
        seen = self._stacks[self._seat].push(self._view.observation[self._seat])
        return np.asarray(self._observation.flatten(seen, self._view.legal[self._seat])[0])

    def _moves(self, view: View, own: Array | None) -> list[Array]:
        moves = []
        for seat, spec in enumerate(self._game.spec.seats):
            move = np.zeros((1, *spec.action.shape), spec.action.dtype)
            if view.to_act[0, seat]:
                move = own if seat == self._seat and own is not None else self._opponent_move(seat, view)
            moves.append(move)
        return moves

    def _opponent_move(self, seat: int, view: View) -> Array:
        seen, legal, rng = view.observation[seat], view.legal[seat], self._rng
        if self._opponent <= FIRST_SCRIPT:
            return self._opponents.scripts[FIRST_SCRIPT - self._opponent].act(seat, seen, legal, rng)
        forward = self._opponents.forwards[self._opponent] if self._opponent >= 0 else self._newest
        if forward is None:  # before the first update
            return self._scripts[0].act(seat, seen, legal, rng)
        return self._policy.explore(forward(self._stacks[seat].push(seen)), legal, rng, OPPONENT_EPSILON).action
