"""Our games as Gymnasium's, as RLlib's env runners want them.

A game with one seat is stepped as a vector, n at once. In one with several the learner holds one of them, drawn anew
for each episode, and partners hold the rest: itself as of the last update, past selves and scripts.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from sparring.acting.opponents import FIRST_SCRIPT, SELF, Opponents, PastSelves
from sparring.games.catalogue import open_game
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import RUNNING, TERMINATED, TRUNCATED, Columns, View
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.learn.rllib.actions import Actions
from sparring.learn.rllib.flat_observation import Packing
from sparring.nets import policies
from sparring.nets.numpy_forward import NumpyForward
from sparring.wire.chunk import Array
from sparring.wire.network import NetworkSpec, Weights

PARTNER_EPSILON = 0.05  # of a partner that would always do the same

# `sitting` of both kinds is how far the run was when it was taken up again: no sitting plays an earlier one's games.
Context = Mapping[str, Any]  # RLlib's EnvContext: what configuration.py put in, and which runner this is


def row_space(packing: Packing) -> gymnasium.spaces.Box:
    """What RLlib is told that a seat sees."""
    low, high = (0, 255) if packing.dtype == "uint8" else (-np.inf, np.inf)
    return gymnasium.spaces.Box(low, high, (packing.width,), np.dtype(packing.dtype).type)


class GameVector(VectorEnv[Any, Any, Any]):
    """n games of one seat. A game that is over starts anew at the next step, whose action goes nowhere."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (as Gymnasium has it)

    def __init__(self, context: Context) -> None:
        n = self.num_envs = context["num_envs"]
        self._game = open_game(context["game"], n)
        self._packing: Packing = context["packing"]
        self._actions: Actions = context["actions"]
        self._clip: float = context["reward_clip"]
        self._stacks = FrameStacks(self._game.spec.seats[0], self._game.spec.frame_stack, n)
        self._worker, self.sitting = getattr(context, "worker_index", 0) or 0, 0
        self._rng = np.random.default_rng([context["seed"], self._worker])
        self._over = np.ones(n, bool)
        self._earned = np.zeros(n, np.float32)
        self.single_observation_space = row_space(self._packing)
        self.single_action_space = self._actions.space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, n)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, n)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng([seed, self._worker, self.sitting])
        return self._rows(self._begun(np.ones(self.num_envs, bool))), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        fresh = self._over
        view = self._game.step([self._actions.to_game(np.asarray(actions))])
        reward, ending = view.reward[:, 0], view.ending[:, 0]
        if fresh.any():  # they stood still; what they show now is an episode's first view
            view = self._begun(fresh)
            reward, ending = np.where(fresh, 0.0, reward), np.where(fresh, RUNNING, ending)
        self._over = ending != RUNNING
        infos = self._returns(reward)
        reward = np.clip(reward, -self._clip, self._clip) if self._clip else reward
        return self._rows(view), reward.astype(np.float32), ending == TERMINATED, ending == TRUNCATED, infos

    def _begun(self, which: Array) -> View:
        seeds = self._rng.integers(0, 2**64, self.num_envs, dtype=np.uint64)
        self._stacks.begin(which)
        self._earned[which] = 0.0
        self._over = np.where(which, False, self._over)
        return self._game.reset(seeds, which)

    def _returns(self, reward: Array) -> dict[str, Any]:
        """What each game that is over came to, whatever the learner was told."""
        self._earned += reward
        return {"earned": self._earned.copy(), "_earned": self._over.copy()} if self._over.any() else {}

    def _rows(self, view: View) -> Array:
        return self._packing.packed(self._stacks.push(view.observation[0]), view.legal[0])


class SeatAmongOthers(gymnasium.Env[Array, Any]):
    """One game with several seats, from the seat that the learner holds."""

    def __init__(self, context: Context) -> None:
        self._game = open_game(context["game"], 1)
        self._packing: Packing = context["packing"]
        self._actions: Actions = context["actions"]
        self._clip: float = context["reward_clip"]
        spec = self._game.spec
        self._worker, self.sitting = getattr(context, "worker_index", 0) or 0, 0
        self._rng = np.random.default_rng([context["seed"], self._worker])
        self._policy = policies.BUILT_IN[context["policy"]](spec.seats[0].action)
        self._network: NetworkSpec = context["network"]
        self._scripts: list[Script] = [script_for(spec, name) for name in scripts_for(context["game"])]
        self._partners = Opponents(self._network, context["opponent_share"], self._scripts[1:], context["script_share"])
        self._past = PastSelves(context["opponents"], np.random.default_rng([context["seed"], self._worker, 4]))
        self._self: NumpyForward | None = None  # as of the last update
        self._stacks = [FrameStacks(seat, spec.frame_stack, 1) for seat in spec.seats]
        self._seat, self._met, self._earned = 0, SELF, 0.0
        self._view: View | None = None
        self.observation_space, self.action_space = row_space(self._packing), self._actions.space

    def hand(self, weights: Weights, keep: bool) -> None:
        """Meet these weights from now on; `keep` them among the past selves, too."""
        self._self = NumpyForward(self._network, weights)
        if keep and self._past.size:
            self._partners.put(self._past.add(weights), weights)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None:  # each game of a vector is given its own
            self._rng = np.random.default_rng([seed, self._worker, self.sitting])
        self._met = int(self._partners.draw(1, self._rng)[0])
        self._seat = int(self._rng.integers(len(self._game.spec.seats)))
        self._earned = 0.0
        seeds = self._rng.integers(0, 2**64, 1, dtype=np.uint64)
        self._view = self._game.reset(seeds, np.ones(1, bool))
        for stacks in self._stacks:
            stacks.begin(np.ones(1, bool))
        view, _ = self._others_move(self._view)
        return self._row(view), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self._view is not None
        chosen = self._actions.to_game(np.asarray(action)[None])
        view = self._game.step(self._moves(self._view, chosen))
        reward = float(view.reward[0, self._seat])
        view, more = self._others_move(view)
        reward += more
        self._earned += reward
        ending = int(view.ending[0, self._seat])
        info = {"earned": self._earned} if ending != RUNNING else {}
        reward = float(np.clip(reward, -self._clip, self._clip)) if self._clip else reward
        return self._row(view), reward, ending == TERMINATED, ending == TRUNCATED, info

    def _others_move(self, view: View) -> tuple[View, float]:
        """On to the learner's next decision, or its end; with what it earned meanwhile."""
        earned = 0.0
        while not view.to_act[0, self._seat] and view.ending[0, self._seat] == RUNNING:
            view = self._game.step(self._moves(view, None))
            earned += float(view.reward[0, self._seat])
        self._view = view
        return view, earned

    def _moves(self, view: View, own: Array | None) -> list[Array]:
        moves = []
        for seat, spec in enumerate(self._game.spec.seats):
            move = np.zeros((1, *spec.action.shape), spec.action.dtype)
            if view.to_act[0, seat]:
                move = own if seat == self._seat and own is not None else self._partner(seat, view)
            moves.append(move)
        return moves

    def _partner(self, seat: int, view: View) -> Array:
        seen, legal = view.observation[seat], view.legal[seat]
        if self._met <= FIRST_SCRIPT:
            return self._partners.scripts[FIRST_SCRIPT - self._met].act(seat, seen, legal, self._rng)
        forward = self._partners.forwards[self._met] if self._met >= 0 else self._self
        if forward is None:  # nobody has learned anything yet
            return self._scripts[0].act(seat, seen, legal, self._rng)
        return self._policy.explore(forward(self._stacks[seat].push(seen)), legal, self._rng, PARTNER_EPSILON).action

    def _row(self, view: View) -> Array:
        seen: Columns = self._stacks[self._seat].push(view.observation[self._seat])
        row: Array = self._packing.packed(seen, view.legal[self._seat])[0]
        return row
