"""Mock players: they play whole episodes of a game through the real client, as games in the field would.

A table is one game with a player for each seat, who change places after every episode. A player has one skill:
random, script (the game's own), or model (the newest champion, which errs now and then so as to explore).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator, SeedSequence

from sparring.client.connection import Connection
from sparring.client.episode import Episode
from sparring.errors import ConfigError
from sparring.games.protocol import TERMINATED, Columns, Game, View
from sparring.games.scripts import Script, script_for, scripts_for
from sparring.games.spec import GameSpec
from sparring.wire.chunk import Array

SKILLS = ("random", "script", "model")


@dataclass(frozen=True, slots=True)
class MockPlayer:
    """A connection and a way to choose; `script` is None for one who asks the model."""

    connection: Connection
    script: Script | None

    @property
    def actor(self) -> str:
        return "person" if self.script is None else f"script:{self.script.name}"

    def choose(self, episode: Episode, seen: Columns, legal: Array | None, rng: Generator) -> tuple[Any, float | None]:
        """The action for one row, and its log-probability where the player's way of choosing is known."""
        if self.script is None:
            row = None if legal is None else legal[0]
            return episode.act({name: array[0] for name, array in seen.items()}, row), None
        action = self.script.act(episode.seat, seen, legal, rng)[0]
        leaf = self.script.spec.seats[episode.seat].action
        if self.script.name != "random" or leaf.kind != "discrete":
            return action, None
        return action, -float(np.log(leaf.choices[0] if legal is None else legal[0].sum()))


def script_of(skill: str, spec: GameSpec) -> Script | None:
    """The script behind a skill; None for "model"."""
    if skill not in SKILLS:
        raise ConfigError(f"there is no skill {skill!r}", where="--skills", do=f"Use some of {', '.join(SKILLS)}")
    if skill == "model":
        return None
    names = scripts_for(spec.id)
    return script_for(spec, "random" if skill == "random" else names[min(1, len(names) - 1)])


def seed_of(seed: int, number: int) -> int:
    """The seed of the episode of that number: the same for all players, so that it can be run again."""
    return int(SeedSequence([seed, number]).generate_state(1, np.uint64)[0])


def play(game: Game, players: Sequence[MockPlayer], number: int, seed: int) -> int:
    """One whole episode, recorded for every seat; the number of decisions. Players change places with `number`."""
    seats = len(game.spec.seats)
    seated = [players[(seat + number) % len(players)] for seat in range(seats)]
    start, rng = seed_of(seed, number), np.random.default_rng([seed, number])
    view = game.reset(np.array([start], np.uint64), np.ones(1, bool))
    episodes = _opened(seated, start)
    while not view.over[0]:
        actions = [np.zeros((1, *spec.action.shape), spec.action.dtype) for spec in game.spec.seats]
        for seat in np.flatnonzero(view.to_act[0]).tolist():
            actions[seat][0] = _decide(seated[seat], episodes[seat], view, rng)
        view = game.step(actions)
        for seat in np.flatnonzero(view.reward[0]).tolist():
            if episodes[seat].steps:  # a seat that has not moved yet has no step to carry it
                episodes[seat].earn(float(view.reward[0, seat]))
    for seat, episode in enumerate(episodes):
        final = {name: array[0] for name, array in view.observation[seat].items()}
        terminated = bool(view.ending[0, seat] == TERMINATED)
        episode.end(final, terminated=terminated, outcome=float(view.outcome[0, seat]))
    return sum(episode.steps for episode in episodes)


def _opened(seated: Sequence[MockPlayer], seed: int) -> list[Episode]:
    first = seated[0].connection.episode(0, seed=seed, actor=seated[0].actor, source="collect")
    others = [
        player.connection.episode(
            seat, episode=first.id, seed=seed, actor=player.actor, source="collect", sample_rate=first.sample_rate
        )
        for seat, player in enumerate(seated[1:], 1)
    ]
    return [first, *others]


def _decide(player: MockPlayer, episode: Episode, view: View, rng: Generator) -> Any:
    seat = episode.seat
    legal = view.legal[seat]
    action, logp = player.choose(episode, view.observation[seat], legal, rng)
    seen = {name: array[0] for name, array in view.observation[seat].items()}
    mask = None if legal is None else legal[0]
    episode.record(seen, action, 0.0, tick=int(view.tick[0]), legal=mask, logp=logp)
    return action
