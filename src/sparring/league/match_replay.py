"""A stored match, played again from its seed: whether the same members do the same again, and every move of a game."""

from dataclasses import dataclass, replace

import numpy as np

from sparring.acting.evaluate import GameMoves, evaluate_with_moves
from sparring.errors import ConfigError
from sparring.league.payoff import Match
from sparring.league.rounds import Member, match_digest
from sparring.registry.registry import Registry
from sparring.wire.chunk import Array
from sparring.wire.ids import ModelId

MAX_GAMES = 1_024  # of a match that is played again: some seconds, and memory for every move
COMPARED = ("wins", "draws", "losses", "distinct", "digest")


@dataclass(frozen=True, slots=True)
class MatchReplay:
    """A match as it was stored and as it went again, with the moves of each game."""

    stored: Match
    again: Match
    moves: list[GameMoves]
    beaten: Array  # float64 [games]: of the first member, the share of opponents that did worse; an equal one is half

    def differences(self) -> list[str]:
        """What went otherwise, in words; nothing where the match is the same."""
        return [
            f"{name} was {was}, now {now}"
            for name in COMPARED
            if (was := getattr(self.stored, name)) != (now := getattr(self.again, name))
        ]


def replay_match(game: str, match: Match, registry: Registry) -> MatchReplay:
    """Play the match again; Missing where a member's model is gone."""
    if match.games > MAX_GAMES:
        do = f"Matches of up to {MAX_GAMES} games are played again"
        raise ConfigError(f"it has {match.games} games", where=f"match {match.id}", do=do)
    first, second = (member_named(name, registry) for name in (match.first, match.second))
    played, moves = evaluate_with_moves(game, first.player, second.player, episodes=match.games, seed=match.seed)
    assert played.digests is not None
    assert played.beaten is not None
    again = replace(
        match,
        wins=played.wins or 0,
        draws=played.draws or 0,
        losses=played.losses or 0,
        distinct=len(np.unique(played.digests)),
        digest=match_digest(played.digests),
    )
    return MatchReplay(match, again, moves, played.beaten)


def member_named(name: str, registry: Registry) -> Member:
    """The script or model of that name."""
    kind, _, script = name.partition(":")
    return Member(name, script if kind == "script" else registry.fetch(ModelId(name)))
