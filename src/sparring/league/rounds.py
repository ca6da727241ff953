"""Rated play among frozen members: a game's champions, its newest models and its scripts, without learning.

In a round every member plays one match against an opponent drawn by how open the result is (PFSP, "variance"); members
that have not met count as even. A match is a batch of games from both sides of fresh openings.
"""

import hashlib
import secrets
import shlex
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from sparring.acting.evaluate import evaluate
from sparring.errors import ConfigError
from sparring.games.catalogue import spec_of
from sparring.games.scripts import scripts_for
from sparring.games.spec import GameSpec
from sparring.league.matches import MatchFile
from sparring.league.matchmaking import draw_opponent
from sparring.league.payoff import Match, Payoff
from sparring.registry.registry import Registry
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId
from sparring.wire.model import Model


@dataclass(frozen=True, slots=True)
class Member:
    """A player of the league: "script:NAME", or a model by its id."""

    name: str
    player: Model | str


def members_of(game: str, registry: Registry, models: int) -> list[Member]:
    """The game's scripts, and its `models` newest models that fit its spec, champions of the past first among them."""
    spec = check_game(game)
    found = [Member(f"script:{name}", name) for name in scripts_for(game)]
    return found + [Member(one, registry.fetch(one)) for one in known_models(registry, spec, models)]


def check_game(game: str) -> GameSpec:
    """The spec of a game that a league can be played in."""
    spec = spec_of(game)
    if not spec.has_rivals:
        wrong, do = f"{game} has no opponents", "Compare returns: `spar models list`, `spar evaluate`"
        raise ConfigError(wrong, where="spar league", do=do)
    if len(spec.kinds) > 1:
        wrong = f"the seats of {game} are of {len(spec.kinds)} kinds, and a league's members play all seats"
        raise ConfigError(wrong, where="spar league", do=f"Train its kinds together: `spar train {shlex.quote(game)}`")
    return spec


def known_models(registry: Registry, spec: GameSpec, most: int) -> list[ModelId]:
    """The registry's models that fit the spec, champions of the past first, then the newest; `most` of them."""
    champions = [entry.champion.model for entry in reversed(registry.history(spec.id, spec.version))]
    newest = [listed.card.id for listed in reversed(registry.models(spec.id)) if listed.card.spec == spec.hash]
    return [one for one in dict.fromkeys([*champions, *newest]) if one in newest][:most]


def play_match(game: str, first: Member, second: Member, games: int, seed: int | None = None) -> Match:
    """Games between the two, an even number, on fresh openings; `seed` repeats those of an earlier match."""
    seed = secrets.randbits(48) if seed is None else seed
    played = evaluate(game, first.player, episodes=games + games % 2, seed=seed, against=second.player)
    assert played.digests is not None
    distinct = len(np.unique(played.digests))
    counts = (played.wins or 0, played.draws or 0, played.losses or 0)
    about = (distinct, int(time.time() * 1000), match_digest(played.digests))
    return Match(uuid.uuid4().hex, first.name, second.name, seed, *counts, *about)


def match_digest(digests: Array) -> str:
    """A match's digest, from those of its games in their order: the same moves in every game give the same."""
    return hashlib.sha256(digests.astype("<u8").tobytes()).hexdigest()[:32]


def next_pairs(members: Sequence[str], matches: Sequence[Match], rng: Generator) -> list[tuple[int, int]]:
    """The matches of the next round: (member, opponent) for every member, in random order."""
    rates = Payoff.of(members, matches).win_rates
    return [(int(one), draw_opponent(int(one), rates, "variance", rng)) for one in rng.permutation(len(members))]


def play_round(game: str, members: Sequence[Member], file: MatchFile, games: int, rng: Generator) -> "Sequence[Match]":
    """One round; each match is on disk before the next begins."""
    played = []
    for one, other in next_pairs([member.name for member in members], file.all(), rng):
        played.append(play_match(game, members[one], members[other], games))
        file.add(played[-1])
    return played
