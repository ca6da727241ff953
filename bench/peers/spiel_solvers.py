"""OpenSpiel's own solvers on a game for so many seconds, one in each process: what they reach, as JSON.

    python bench/peers/spiel_solvers.py nfsp|psro|cfr+ GAME SECONDS SEED      # in the environment "open-spiel"

nfsp: neural fictitious self-play (Heinrich and Silver 2016) with the settings of OpenSpiel's Leduc example. psro:
policy space response oracles (Lanctot et al. 2017) with exact best responses and Nash mixtures. cfr+: tabular, over the
whole tree: the limit that no sampling network reaches.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python import policy, rl_environment
from open_spiel.python.algorithms import cfr, exploitability


def nfsp(game: Any, seconds: float, seed: int) -> tuple[Any, dict[str, float]]:
    """Two agents that learn a best response and an average policy each; the average policies are judged."""
    import torch
    from open_spiel.python.pytorch import nfsp as agents

    torch.manual_seed(seed)
    np.random.seed(seed)
    env = rl_environment.Environment(game)
    size, choices = env.observation_spec()["info_state"][0], env.action_spec()["num_actions"]
    settings = {
        "hidden_layers_sizes": [128],
        "reservoir_buffer_capacity": 2_000_000,
        "anticipatory_param": 0.1,
        "replay_buffer_capacity": 200_000,
        "epsilon_decay_duration": 1_000_000,
        "epsilon_start": 0.06,
        "epsilon_end": 0.001,
    }
    players = [agents.NFSP(p, size, choices, **settings) for p in range(2)]
    until, episodes = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step = env.reset()
        while not step.last():
            step = env.step([players[step.observations["current_player"]].step(step).action])
        for player in players:
            player.step(step)
        episodes += 1

    def chances(state: Any) -> dict[int, float]:
        player = state.current_player()
        legal = state.legal_actions(player)
        seen = {"info_state": [None, None], "legal_actions": [None, None], "current_player": player}
        seen["info_state"][player], seen["legal_actions"][player] = state.information_state_tensor(player), legal
        step = rl_environment.TimeStep(observations=seen, rewards=None, discounts=None, step_type=None)
        with players[player].temp_mode_as(agents.MODE.AVERAGE_POLICY):
            found = players[player].step(step, is_evaluation=True).probs
        return {action: float(found[action]) for action in legal}

    return policy.tabular_policy_from_callable(game, chances), {"episodes": episodes}


def psro(game: Any, seconds: float, seed: int) -> tuple[Any, dict[str, float]]:
    """Best responses, computed on the tree, to the Nash mixture of all before."""
    from open_spiel.python.algorithms import policy_aggregator
    from open_spiel.python.algorithms.psro_v2 import best_response_oracle, psro_v2

    np.random.seed(seed)
    oracle = best_response_oracle.BestResponseOracle(game=game, policy=None)
    first = [policy.TabularPolicy(game) for _ in range(2)]  # uniform
    solver = psro_v2.PSROSolver(
        game,
        oracle,
        initial_policies=first,
        sims_per_entry=1000,
        meta_strategy_method="nash",
        sample_from_marginals=True,
        training_strategy_selector="probabilistic",
    )
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        solver.iteration()
        rounds += 1
    joined = policy_aggregator.PolicyAggregator(game).aggregate(
        range(2), solver.get_policies(), solver.get_meta_strategies()
    )
    return joined, {"rounds": rounds}


def cfr_plus(game: Any, seconds: float, seed: int) -> tuple[Any, dict[str, float]]:
    """CFR+, which knows the whole tree."""
    solver = cfr.CFRPlusSolver(game)
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        solver.evaluate_and_update_policy()
        rounds += 1
    return solver.average_policy(), {"rounds": rounds}


SOLVERS = {"nfsp": nfsp, "psro": psro, "cfr+": cfr_plus}


def main() -> int:
    name, title, seconds, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    game = pyspiel.load_game(title)
    found, about = SOLVERS[name](game, seconds, seed)
    print(json.dumps({"exploitability": exploitability.exploitability(game, found), **about}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
