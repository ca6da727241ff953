"""Whole episodes of n games, played by scripts and cut into chunks.

`reward[t]` of a seat is all that it earned after its action t and before its next decision, or the
end: what comes while others move is added to the last step recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator

from sparring.games.protocol import TERMINATED, Columns, Game, View
from sparring.games.scripts import Script
from sparring.games.spec import GameSpec
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_HEADER_BYTES, MAX_STEPS, Array, Chunk, Header, Source
from sparring.wire.ids import new_episode


@dataclass(slots=True)
class _Seat:
    """What one seat of one episode has seen and done so far."""

    observation: list[Columns] = field(default_factory=list)
    action: list[Array] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    tick: list[int] = field(default_factory=list)
    legal: list[Array] = field(default_factory=list)

    def columns(self, part: slice) -> dict[str, Array]:
        """Those steps as a chunk's columns."""
        rows = self.observation[part]
        columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        columns["action"] = np.stack(self.action[part])
        columns["reward"] = np.array(self.reward[part], np.float32)
        columns["tick"] = np.array(self.tick[part], np.int64)
        if self.legal:
            columns["legal"] = np.stack(self.legal[part]).astype(np.uint8)
        return columns


@dataclass(slots=True)
class _Episode:
    """One episode on its way, in slot `row` of the n games."""

    place: int  # in the list of seeds
    seed: int
    seats: list[_Seat]


def play(
    game: Game, players: Sequence[Script], seeds: Sequence[int], rng: Generator, source: Source = "collect"
) -> list[list[Chunk]]:
    """One episode for each seed, in the order of the seeds: the chunks of all its seats. `players` has one per seat."""
    waiting = [_Episode(place, seed, [_Seat() for _ in players]) for place, seed in enumerate(seeds)][::-1]
    running: dict[int, _Episode] = {}
    done: list[list[Chunk]] = [[] for _ in seeds]
    names = [f"script:{player.name}" for player in players]
    fresh = list(range(game.n))
    while running or waiting:
        view = _begin(game, fresh, running, waiting)
        while running and not (over := [i for i in running if view.over[i]]):
            actions = [player.act(s, view.observation[s], view.legal[s], rng) for s, player in enumerate(players)]
            _note_decisions(view, actions, running)
            view = game.step(actions)
            _note_rewards(view, running)
        for i in over:
            episode = running.pop(i)
            done[episode.place] = _chunks(game.spec, view, i, episode, names, source)
        fresh = over
    return done


def _begin(game: Game, rows: list[int], running: dict[int, _Episode], waiting: list[_Episode]) -> View:
    seeds, which = np.zeros(game.n, np.uint64), np.zeros(game.n, bool)
    for i in rows[: len(waiting)]:
        running[i] = waiting.pop()
        seeds[i], which[i] = running[i].seed, True
    return game.reset(seeds, which)


def _note_decisions(view: View, actions: Sequence[Array], running: dict[int, _Episode]) -> None:
    for i, episode in running.items():
        for s in np.flatnonzero(view.to_act[i]).tolist():
            seat, legal = episode.seats[s], view.legal[s]
            seat.observation.append({name: array[i] for name, array in view.observation[s].items()})
            seat.action.append(actions[s][i])
            seat.reward.append(0.0)
            seat.tick.append(int(view.tick[i]))
            if legal is not None:
                seat.legal.append(legal[i])


def _note_rewards(view: View, running: dict[int, _Episode]) -> None:
    for i, episode in running.items():
        for s in np.flatnonzero(view.reward[i]):
            if episode.seats[s].reward:  # a seat that has not moved yet has no step to carry it
                episode.seats[s].reward[-1] += float(view.reward[i, s])


def _chunks(spec: GameSpec, view: View, i: int, episode: _Episode, names: list[str], source: Source) -> list[Chunk]:
    """The chunks of an episode that is over; a seat that never moved has none."""
    name, chunks = new_episode(), []
    for s, seat in enumerate(episode.seats):
        most = _steps_in_a_chunk(seat)
        for first in range(0, len(seat.action), most):
            columns = seat.columns(slice(first, first + most))
            steps = len(columns["action"])
            last = first + steps == len(seat.action)
            if last:
                columns |= {f"final_{leaf}": array[i] for leaf, array in view.observation[s].items()}
            terminated = view.ending[i, s] == TERMINATED
            header = Header(
                game=spec.id,
                version=spec.version,
                spec=spec.hash,
                episode=name,
                seat=s,
                first_step=first,
                steps=steps,
                actor=names[s],
                source=source,
                ending="running" if not last else "terminated" if terminated else "truncated",
                outcome=float(view.outcome[i, s]) if last else None,
                seed=episode.seed,
            )
            chunks.append(Chunk(header, columns))
    return chunks


def _steps_in_a_chunk(seat: _Seat) -> int:
    """As many as fit even if nothing could be compressed, so that large images make short chunks."""
    if not seat.action:
        return MAX_STEPS
    step_bytes = sum(array.nbytes for array in seat.columns(slice(0, 1)).values())
    return max(1, min(MAX_STEPS, (MAX_ENCODED_BYTES - MAX_HEADER_BYTES) // step_bytes - 1))  # one for the final view
