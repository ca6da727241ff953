"""Our games as environments of PettingZoo: every seat an agent. `sparring.make(game, api="pettingzoo")` opens them."""

from typing import Any

import numpy as np
import pettingzoo
from gymnasium import spaces

from sparring.api.environments import action_space, observation_space, row_of, shaped
from sparring.games.frame_stack import FrameStacks
from sparring.games.protocol import TERMINATED, TRUNCATED, Game, View
from sparring.wire.chunk import Array


class _Agents:
    """What both forms of PettingZoo share: one agent for each seat."""

    render_mode = None

    def __init__(self, game: Game) -> None:
        self._game, self._seats = game, {seat.name: place for place, seat in enumerate(game.spec.seats)}
        self.metadata = {"name": str(game.spec.id), "render_modes": [], "is_parallelizable": True}
        self.possible_agents = list(self._seats)
        self.agents: list[str] = []
        frames = game.spec.frame_stack
        self._stacks = {name: FrameStacks(game.spec.seats[at], frames, 1) for name, at in self._seats.items()}
        self._spaces = {
            seat.name: (observation_space(seat, frames, masked=True), action_space(seat.action))
            for seat in game.spec.seats
        }
        self._rng = np.random.default_rng()
        self._view: View

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    def render(self) -> None:
        """Our games are drawn in the browser (`spar play`), not here."""

    def close(self) -> None:
        """Nothing to close."""

    def _restart(self, seed: int | None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._view = self._game.reset(self._rng.integers(0, 2**63, 1, dtype=np.uint64), np.ones(1, bool))
        self.agents = list(self.possible_agents)
        for stacks in self._stacks.values():
            stacks.begin(np.ones(1, bool))

    def _actions(self, chosen: dict[str, Any]) -> list[Array]:
        actions = []
        for name, at in self._seats.items():
            leaf = self._game.spec.seats[at].action
            row = np.asarray(chosen.get(name, 0), leaf.dtype)
            actions.append(
                np.broadcast_to(row, leaf.shape)[None] if name not in chosen else row.reshape(1, *leaf.shape)
            )
        return actions

    def _seen(self, agent: str, *, keep: bool) -> Any:
        """The agent's observation; a mask beside it where its actions are choices, by PettingZoo's custom."""
        at = self._seats[agent]
        seat, stacks = self._game.spec.seats[at], self._stacks[agent]
        shown = self._view.observation[at]
        seen = row_of(shaped(stacks.push(shown) if keep else stacks.peek(shown), seat), 0)
        if not seat.action.choices:
            return seen
        mask = self._view.legal[at]
        legal = np.ones(seat.action.masks, np.int8) if mask is None else mask[0].astype(np.int8)
        return {"observation": seen, "action_mask": legal}

    def _ended(self, agent: str) -> tuple[bool, bool]:
        ending = self._view.ending[0, self._seats[agent]]
        return bool(ending == TERMINATED), bool(ending == TRUNCATED)


class TurnsEnv(_Agents, pettingzoo.AECEnv[str, Any, Any]):  # type: ignore[misc]
    """A game in which seats take turns."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._restart(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self._next()

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._seen(agent, keep=True)
        self._view = self._game.step(self._actions({agent: action}))
        for one in self.agents:
            self.rewards[one] = float(self._view.reward[0, self._seats[one]])
            self.terminations[one], self.truncations[one] = self._ended(one)
        self.agent_selection = self._next()
        self._accumulate_rewards()

    def observe(self, agent: str) -> Any:
        return self._seen(agent, keep=False)

    def _next(self) -> str:
        """The seat that is to act; once none is, each in turn takes its last, empty step."""
        to_act = [agent for agent in self.agents if self._view.to_act[0, self._seats[agent]]]
        return to_act[0] if to_act else self.agents[0]


class ParallelEnv(_Agents, pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """A game in which seats act at once."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self._restart(seed)
        return {agent: self._seen(agent, keep=True) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        self._view, live = self._game.step(self._actions(actions)), self.agents
        ended = {agent: self._ended(agent) for agent in live}
        self.agents = [agent for agent in live if not any(ended[agent])]
        return (
            {agent: self._seen(agent, keep=True) for agent in live},
            {agent: float(self._view.reward[0, self._seats[agent]]) for agent in live},
            {agent: ended[agent][0] for agent in live},
            {agent: ended[agent][1] for agent in live},
            {agent: {} for agent in live},
        )
