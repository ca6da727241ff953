"""Whole episodes of n games, played by scripts and cut into chunks.

`reward[t]` of a seat is all that it earned after its action t and before its next decision, or the
end: what comes while others move is added to the last step recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.games.cutter import cut
from sparring.games.protocol import TERMINATED, Game, View
from sparring.games.scripts import Script
from sparring.games.step_buffer import Behaviour, StepBuffer
from sparring.games.step_layout import layout_of
from sparring.wire.chunk import Array, Chunk, Source
from sparring.wire.ids import new_episode


@dataclass(slots=True)
class _Episode:
    """One running episode: its index in the list of seeds, and a buffer for each seat."""

    index: int
    seats: list[StepBuffer]


def play(
    game: Game, players: Sequence[Script], seeds: Sequence[int], rng: Generator, source: Source = "collect"
) -> list[list[Chunk]]:
    """One episode for each seed, in the order of the seeds: the chunks of all its seats. `players` has one per seat.

    ChunkRefused where the game shows what its spec does not allow.
    """
    layouts = [layout_of(game.spec, seat) for seat in range(len(players))]
    by = [Behaviour(f"script:{player.name}") for player in players]
    waiting = list(enumerate(seeds))[::-1]
    running: dict[int, _Episode] = {}
    done: list[list[Chunk]] = [[] for _ in seeds]
    rows = list(range(game.n))
    while running or waiting:
        starts, which = np.zeros(game.n, np.uint64), np.zeros(game.n, bool)
        for i in rows[: len(waiting)]:
            index, seed = waiting.pop()
            name = new_episode()
            running[i] = _Episode(index, [StepBuffer(one.header(name, source, seed=seed), one) for one in layouts])
            starts[i], which[i] = seed, True
        view = game.reset(starts, which)
        while running and not (over := [i for i in running if view.over[i]]):
            actions = [player.act(s, view.observation[s], view.legal[s], rng) for s, player in enumerate(players)]
            for i, episode in running.items():
                _write_decisions(view, i, actions, episode.seats, by)
            view = game.step(actions)
            for i, episode in running.items():
                _add_rewards(view, i, episode.seats)
        for i in over:
            episode = running.pop(i)
            done[episode.index] = _finish(view, i, episode.seats)
        rows = over
    return done


def _write_decisions(
    view: View, i: int, actions: Sequence[Array], seats: list[StepBuffer], by: list[Behaviour]
) -> None:
    for s in np.flatnonzero(view.to_act[i]).tolist():
        legal = view.legal[s]
        seen = {name: array[i] for name, array in view.observation[s].items()}
        mask = None if legal is None else legal[i]
        seats[s].write(seen, actions[s][i], 0.0, tick=int(view.tick[i]), legal=mask, by=by[s])


def _add_rewards(view: View, i: int, seats: list[StepBuffer]) -> None:
    for s in np.flatnonzero(view.reward[i]).tolist():
        if seats[s].steps:  # a seat that has not moved yet has no step to carry it
            seats[s].earn(float(view.reward[i, s]))


def _finish(view: View, i: int, seats: list[StepBuffer]) -> list[Chunk]:
    """The chunks of an episode that is over; a seat that never moved has none."""
    for s, buffer in enumerate(seats):
        final = {name: array[i] for name, array in view.observation[s].items()}
        buffer.end(final, terminated=bool(view.ending[i, s] == TERMINATED), outcome=float(view.outcome[i, s]))
    return [chunk for buffer in seats for chunk in cut(buffer, due=True)]
