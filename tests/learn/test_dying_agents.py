"""Agents of PettingZoo that leave while others go on: who earned what when, in views, records, trajectories and in
what MAPPO's critic sees."""

import numpy as np
import pytest
from dying_agents import ENDS, earned

from sparring.acting.evaluate import evaluate
from sparring.games.catalogue import open_game
from sparring.games.conformance import check_conformance
from sparring.games.joint_view import ALIVE, JOINT, SEAT
from sparring.games.protocol import ENDINGS, TERMINATED, TRUNCATED
from sparring.games.scripts import play, script_for
from sparring.learn.plan import TrainRequest, plan
from sparring.learn.runs.train import TrainOptions, train
from sparring.learn.topologies import build
from sparring.registry import open_registry

DYING = "pz:dying_agents:dying_v0"
LINGERING = "pz:dying_agents:dying_v0(lingers=true)"
IN_TURNS = "pz:dying_agents:dying_turns_v0"
UNEQUAL = "pz:dying_agents:dying_v0(teams=scout/tank,unequal=true)"
LASTING = list(ENDS.values())
LAST = [TERMINATED, TRUNCATED, TERMINATED]
RETURNS = [sum(earned(place, tick) for tick in range(1, last + 1)) for place, last in enumerate(LASTING)]
SEEN = "observation/state"


@pytest.mark.parametrize("game_id", [DYING, LINGERING, IN_TURNS, UNEQUAL])
def test_records_have_what_each_agent_earned_until_it_left(game_id):
    assert check_conformance(lambda n: open_game(game_id, n), 4).broken == ()
    game = open_game(game_id, 2)
    scripts = [script_for(game.spec, "random")] * 3
    for chunks in play(game, scripts, range(4), np.random.default_rng(0)):
        for place, (chunk, last) in enumerate(zip(chunks, LASTING, strict=True)):
            columns = chunk.columns
            assert columns["reward"].tolist() == [earned(place, tick) for tick in range(1, last + 1)]
            assert columns[SEEN][:, 0].tolist() == list(range(last))
            assert chunk.header.ending == ENDINGS[LAST[place]]
            assert columns[f"final_{SEEN}"][:2].tolist() == [last, 1 + place]
            assert chunk.header.outcome == RETURNS[place]


def test_the_critic_sees_zeros_in_the_place_of_who_is_gone(config):
    request = TrainRequest(DYING, "mappo", envs=2, topology="single", settings=("rollout_ticks=12", "hidden_units=[8]"))
    topology = build(plan(request, config), None)
    batch = topology.actors.take_all().batch
    for stream in range(6):
        place, steps = stream // 2, 2 * LASTING[stream // 2]
        assert batch.mask[:, stream].sum() == steps  # two games
        for row in range(steps):
            tick = row % LASTING[place]
            seen = {name: leaf[row, stream].tolist() for name, leaf in batch.observation.items()}
            others = [(place + behind) % 3 for behind in range(3)]
            # Who is cut short is still there in the view at which it was cut, because that is valued.
            there = [tick < LASTING[other] + (LAST[other] == TRUNCATED) for other in others]
            assert seen[ALIVE] == there
            assert seen[SEAT] == place
            assert seen[SEEN] == [tick, 1 + place]
            for behind in (1, 2):
                shown = [tick, 1 + others[behind]] if there[behind] else [0, 0]
                assert seen[f"{JOINT}{behind}/state"] == shown
            assert batch.reward[row, stream] == earned(place, tick + 1)
            assert batch.ending[row, stream] == (LAST[place] if tick + 1 == LASTING[place] else 0)
    topology.close()


@pytest.mark.parametrize(("game_id", "algo"), [(DYING, "mappo"), (LINGERING, "ppo"), (UNEQUAL, "ppo")])
def test_an_evaluation_counts_what_each_agent_earned_until_it_left(game_id, algo, config):
    request = TrainRequest(game_id, algo, envs=2, steps=60, settings=("rollout_ticks=12",))
    found = train(request, TrainOptions(promote=False), config, lambda line: None)
    with open_registry(config.registry_url, champion_days=7, rollout_share=1.0) as registry:
        model = registry.fetch(found.published.model)
    places = model.card.kind or range(3)
    assert evaluate(game_id, model, episodes=6, seed=0).returns.tolist() == [
        RETURNS[places[episode % len(places)]] for episode in range(6)
    ]
