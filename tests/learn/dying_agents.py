"""An environment of PettingZoo whose agents leave one after another, each with rewards that tell who earned them when:
pz:dying_agents:dying_v0, all at once, and pz:dying_agents:dying_turns_v0, one after another."""

import gymnasium
import numpy as np
import pettingzoo
from pettingzoo.utils import parallel_to_aec

DIES, CUT, LASTS = 2, 4, 6  # the tick after which each of the three is gone; the second is cut short
ENDS = {"scout_0": DIES, "scout_1": CUT, "tank_0": LASTS}


def earned(place, tick):
    """By the agent at that place for its action before that tick."""
    return 10 * (place + 1) + tick


class Dying(pettingzoo.ParallelEnv):
    def __init__(self, unequal=False, lingers=False, render_mode=None):
        """`unequal`: the tank sees and does more. `lingers`: it goes on to tell of who is gone."""
        self._unequal, self._lingers, self.render_mode = unequal, lingers, render_mode
        self.metadata, self.possible_agents = {"name": "dying_v0", "render_modes": []}, list(ENDS)

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 100, (3 if self._unequal and agent == "tank_0" else 2,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3 if self._unequal and agent == "tank_0" else 2)

    def reset(self, seed=None, options=None):
        self._tick, self.agents = 0, list(self.possible_agents)
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self._tick += 1
        told = self.possible_agents if self._lingers else self.agents
        reward = {agent: earned(self.possible_agents.index(agent), self._tick) for agent in told}
        ended = {agent: self._tick >= ENDS[agent] for agent in told}
        self.agents = [agent for agent in self.agents if not ended[agent]]
        died = {agent: ended[agent] and agent != "scout_1" for agent in told}
        cut = {agent: ended[agent] and agent == "scout_1" for agent in told}
        return self._seen(told), reward, died, cut, {agent: {} for agent in told}

    def _seen(self, agents):
        return {
            agent: np.array([self._tick, 1 + self.possible_agents.index(agent), 9], np.float32)[
                : self.observation_space(agent).shape[0]
            ]
            for agent in agents
        }


pettingzoo.register("parallel", "dying_v0", entry_point=Dying)
pettingzoo.register("aec", "dying_turns_v0", entry_point=lambda **given: parallel_to_aec(Dying(**given)))
