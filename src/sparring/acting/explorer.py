"""What an actor's streams do where the network says `out`: its policy's choice with exploration, checked.

With `repeat` what is explored lasts for a time of heavy tail: an action (εz-greedy, Dabney et al. 2021), or the noise
of a box (Eberhard et al. 2023). Walks of single random actions stay near their start; these cross a game whose rewards
are far.
"""

import math

import numpy as np
from numpy.random import Generator

from sparring.games.game_state import no_legal_action
from sparring.games.protocol import Columns
from sparring.games.spec import GameSpec
from sparring.nets.policies import Choice, GaussianPolicy, Policy, checked_choice
from sparring.wire.chunk import Array
from sparring.wire.tree import Tree

MOST_REPEATS = 64  # decisions; P(n) ~ 1/n: every scale of time is tried alike
MEAN_REPEATS = (MOST_REPEATS - 1) / math.log(MOST_REPEATS)


class Explorer:
    """Chooses for the streams of one actor."""

    def __init__(self, policy: Policy, game: GameSpec, streams: int, rng: Generator, *, repeat: bool) -> None:
        self._policy, self._game, self._streams, self._rng = policy, game, streams, rng
        action = game.seats[0].action
        self._choices, self._rows = action.masks, np.arange(streams)
        # With `repeat`, what each stream repeats (an action, or the noise of a box), and for how many more decisions.
        width, kind = (1, np.int64) if action.choices else (math.prod(action.shape), np.float32)
        self._held = np.zeros((width + 1, streams), kind) if repeat else None

    def begin(self, streams: Array) -> None:
        """Those streams (bool [streams]) begin an episode, and repeat nothing."""
        if self._held is not None:
            self._held[:, streams] = 0

    def choose(self, out: Columns, legal: Array | None, epsilon: float | Array) -> Choice:
        """Of some streams; nothing is repeated."""
        with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is legal
            choice = self._policy.explore(out, legal, self._rng, epsilon)
        choice = checked_choice(self._policy, choice, len(next(iter(out.values()))))
        if legal is not None and not math.isfinite(choice.logp @ choice.logp) and not legal.any(axis=1).all():
            raise no_legal_action(self._game)
        return choice

    def choose_all(self, out: Columns, legal: Array | None, epsilon: float | Array) -> Choice:
        """Of every stream, with repeats."""
        held = self._held
        if held is None:
            return self.choose(out, legal, epsilon)
        if isinstance(self._policy, GaussianPolicy):
            return self._policy.with_noise(out, self._repeated_noise(held))
        epsilon = epsilon / (epsilon + MEAN_REPEATS * (1 - epsilon))  # the share of decisions that explore: fewer begin
        return self._repeated(held, self.choose(out, legal, epsilon), legal, epsilon)

    def save(self) -> Tree:
        return self._held

    def load(self, state: Tree) -> None:
        self._held = None if state is None else state.copy()

    def _repeated(self, held: Array, choice: Choice, legal: Array | None, epsilon: float | Array) -> Choice:
        """The choice, with what was explored repeated. Actions are discrete, and chosen by "greedy"."""
        choices = self._choices if legal is None else legal.sum(axis=1)
        going = held[1] > 0
        if legal is not None:
            going &= legal[self._rows, held[0]].astype(bool)
        with np.errstate(divide="ignore"):
            explored = choice.logp <= np.log(np.asarray(epsilon) / choices) + 1e-4  # drawn, and not the best
        action = np.where(going, held[0], choice.action).astype(choice.action.dtype)
        held[1] = np.where(going, held[1] - 1, np.where(explored, self._repeats() - 1, 0))
        held[0] = action
        return Choice(action, np.where(going, np.float32(0), choice.logp))

    def _repeated_noise(self, held: Array) -> Array:
        """Standard normal numbers [streams, numbers], each repeated: noise that changes at each decision cancels out
        before a slow game has noticed it."""
        noise = self._rng.standard_normal((len(held) - 1, self._streams), np.float32)
        fresh = held[-1] == 0
        held[-1] = np.where(fresh, self._repeats(), held[-1]) - 1
        held[:-1] = np.where(fresh, noise, held[:-1])
        return held[:-1].T

    def _repeats(self) -> Array:
        """For how many decisions each stream would repeat what it begins now."""
        return np.exp(self._rng.uniform(0.0, math.log(MOST_REPEATS), self._streams)).astype(np.int64)
