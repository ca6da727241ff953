"""What more actors bring: steps per second with one and two actor processes, and on paper with any number of cores.

    spar bench scaling [--quick]

Measured in turns, each in a process of its own: CartPole and Pong, PPO in step ("sync") and IMPALA without waiting
("async"). Then the CPU time of each part of a step, alone on one thread: the game, acting (with stacking frames and
choosing), copying into the ring, learning; and how fast memory is copied. From these the page docs/scaling.md says
where more cores stop helping: n actors on n cores beside a learner on its own give at most
min(n / (game + acting + copying), 1 / learning, memory / bytes of a step).
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench import ledger

RUNS = {
    "CartPole, ppo, sync": ("cartpole", "ppo", "sync"),
    "CartPole, impala, async": ("cartpole", "impala", "async"),
    "Pong, ppo, sync": ("atari:Pong", "ppo", "sync"),
    "Pong, impala, async": ("atari:Pong", "impala", "async"),
}
ACTORS = (1, 2)
ON_PAPER = (1, 2, 4, 8, 16, 32, 64, 128)
WARM_UPDATES = 2
LEAST_UPDATES = 2  # that are counted, however long they take
COPIES = 3  # of a step's bytes: into the ring, out of it for learning, and once as floats


def learn(game: str, algorithm: str, topology: str, actors: int, seconds: float) -> dict[str, float]:
    """Steps learned from, from the end of one update to that of another, and the seconds between them."""
    import torch

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    agreed = plan(TrainRequest(game, algorithm, topology=topology, actors=actors), Config())
    topology = build(agreed, None)
    if not topology.learner.network.image:
        torch.set_num_threads(1)
    steps, counted, begun, last = 0, 0, 0.0, 0.0
    try:
        while counted < LEAST_UPDATES or last - begun < seconds:
            turn = topology.iterate()
            if turn.update is None or turn.batch is None:
                continue
            last = time.perf_counter()
            if topology.learner.updates <= WARM_UPDATES:
                begun = last
            else:
                steps, counted = steps + turn.batch.reward.size, counted + 1
        return {"steps": steps, "seconds": last - begun}
    finally:
        topology.close()


def costs(game: str, algorithm: str, repeats: int) -> dict[str, float]:
    """CPU microseconds of one step in each part, on one thread, and its bytes in a rollout."""
    import torch

    from sparring.acting.actor import Actor
    from sparring.acting.opponents import Opponents
    from sparring.config import Config
    from sparring.games.catalogue import open_game
    from sparring.learn.plan import TrainRequest, plan
    from sparring.nets.forward import forward_without_torch

    torch.set_num_threads(1)
    agreed = plan(TrainRequest(game, algorithm, topology="single"), Config())
    learner = agreed.algorithm.begin(agreed.spec, agreed.settings, 0)
    rng, games = np.random.default_rng(0), open_game(game, agreed.envs)
    ticks, opponents = agreed.settings.rollout_ticks, Opponents(learner.network, 0.0)
    actor = Actor(games, forward_without_torch(learner.network, learner.weights()), agreed.policy, rng, opponents)
    batch = actor.rollout(ticks)
    steps = batch.reward.size
    playing = _cpu_us(lambda: actor.rollout(ticks), repeats) / steps
    stepping = _game_us(open_game(game, agreed.envs), rng, ticks * repeats) / agreed.envs
    columns = [*batch.observation.values(), batch.action, batch.reward, batch.ending, batch.value, batch.behaviour_logp]
    held = [column for column in columns if column is not None]
    places = [np.zeros_like(column) for column in held]

    def copy() -> None:
        for place, column in zip(places, held, strict=True):
            place[:] = column

    copying = _cpu_us(copy, repeats) / steps
    learning = _cpu_us(lambda: agreed.algorithm.update(learner, batch), repeats) / steps
    return {
        "game": stepping,
        "acting": max(playing - stepping - copying, 0.0),
        "copying": copying,
        "learning": learning,
        "bytes": sum(column.nbytes for column in held) / steps,
    }


def rate_limited(game: str, repeats: int) -> dict[str, float]:
    """How many samples a second DQN learns on one thread, and so how many steps the rate limiter lets in."""
    import torch

    from sparring.config import Config
    from sparring.learn.plan import TrainRequest, plan
    from sparring.learn.topologies import build

    torch.set_num_threads(1)
    agreed = plan(TrainRequest(game, "dqn", topology="single", envs=8), Config())
    topology = build(agreed, None)
    while topology.learner.updates < WARM_UPDATES:
        turn = topology.iterate()
    assert turn.batch is not None
    batch = turn.batch
    took = _cpu_us(lambda: agreed.algorithm.update(topology.learner, batch), 10 * repeats) / agreed.settings.batch_steps
    ratio = agreed.replay.samples_per_insert
    return {"samples_per_s": 1e6 / took, "samples_per_insert": ratio, "steps_per_s": 1e6 / took / ratio}


def on_paper(cost: dict[str, float], memory_bytes_per_s: float) -> list[dict[str, Any]]:
    """What n actors come to, and what ends it."""
    actor = 1e6 / (cost["game"] + cost["acting"] + cost["copying"])
    limits = {"learner": 1e6 / cost["learning"], "memory": memory_bytes_per_s / (COPIES * cost["bytes"])}
    rows = []
    for n in ON_PAPER:
        rates = {"actors": n * actor, **limits}
        end = min(rates, key=lambda name: rates[name])
        rows.append({"actors": n, "steps_per_s": round(rates[end]), "limit": end})
    return rows


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The benchmark's JSON; `args.quick` measures shorter and each once."""
    rounds, seconds, repeats = (1, 4.0, 1) if args.quick else (3, 8.0, 5)
    rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in ACTORS} for name in RUNS}
    for _ in range(rounds):
        for name, words in RUNS.items():
            for n in ACTORS:
                told = _apart(["learn", *words, str(n), str(seconds)])
                rates[name][n].append(told["steps"] / told["seconds"])
    memory = _apart(["memory"])["bytes_per_s"]
    cases, paper = [], {}
    for name, (game, algorithm, _) in RUNS.items():
        cost = _apart(["costs", game, algorithm, str(repeats)])
        medians = {n: statistics.median(rates[name][n]) for n in ACTORS}
        paper[name] = {"cost_us": cost, "rows": on_paper(cost, memory)}
        cases.append(
            ledger.case(
                f"{name}, 2 actors (1 actor: {medians[1]:,.0f})",
                round(medians[2]),
                "steps/s",
                spread=(round(min(rates[name][2])), round(max(rates[name][2]))),
                one_actor=round(medians[1]),
                cost_us=cost,
                on_paper=paper[name]["rows"],
            )
        )
        _say(name, cost, paper[name]["rows"])
    limits = {game: _apart(["rate_limited", game, str(repeats)]) for game in ("cartpole",)}
    return ledger.result("scaling", cases, memory_bytes_per_s=memory, rate_limits=limits)


def _say(name: str, cost: dict[str, float], rows: list[dict[str, Any]]) -> None:
    parts = ", ".join(f"{part} {cost[part]:.1f}" for part in ("game", "acting", "copying", "learning"))
    print(f"{name}: µs a step: {parts}; {cost['bytes']:,.0f} bytes", file=sys.stderr)
    for row in rows:
        print(f"  {row['actors']:4} actors {row['steps_per_s']:10,} steps/s, by the {row['limit']}", file=sys.stderr)


def _apart(words: list[str]) -> dict[str, float]:
    """What this file says in a process of its own."""
    command = [sys.executable, "-m", "bench.scaling", *words]
    said = subprocess.run(command, cwd=ledger.ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    told: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return told


def _cpu_us(call: Callable[[], object], repeats: int) -> float:
    call()
    took = []
    for _ in range(repeats):
        begun = time.process_time()
        call()
        took.append(time.process_time() - begun)
    return 1e6 * statistics.median(took)


def _game_us(games: Any, rng: np.random.Generator, ticks: int) -> float:
    """Of one tick of all games."""
    view = games.reset(rng.integers(0, 2**63, games.n, dtype=np.uint64), np.ones(games.n, bool))
    choices = games.spec.seats[0].action.choices[0]
    begun = time.process_time()
    for _ in range(ticks):
        view = games.step([rng.integers(0, choices, games.n, dtype=np.int32)])
        if view.over.any():
            view = games.reset(rng.integers(0, 2**63, games.n, dtype=np.uint64), view.over)
    return 1e6 * (time.process_time() - begun) / ticks


def _memory() -> dict[str, float]:
    """Bytes a second that one core copies, far beyond its caches."""
    source = np.ones(1 << 28, np.uint8)
    place = np.zeros_like(source)
    return {"bytes_per_s": len(source) / (_cpu_us(lambda: place.__setitem__(slice(None), source), 5) / 1e6)}


def _main(what: str, *words: str) -> dict[str, float]:
    if what == "learn":
        game, algorithm, topology, actors, seconds = words
        return learn(game, algorithm, topology, int(actors), float(seconds))
    if what == "costs":
        return costs(words[0], words[1], int(words[2]))
    return rate_limited(words[0], int(words[1])) if what == "rate_limited" else _memory()


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:])))
