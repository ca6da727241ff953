"""The games that a model plays before it may become champion, as evidence for the promotion gate."""

from dataclasses import dataclass

from msgspec.structs import replace

from sparring.acting.evaluate import Evaluation, evaluate
from sparring.config import RegistryConfig
from sparring.games.catalogue import spec_of
from sparring.games.scripts import scripts_for
from sparring.games.spec import GameSpec
from sparring.registry.protocol import Evidence
from sparring.wire.model import Model

GATE_TICKS = 500_000  # that one model may play in the gate, if all its games last as long as they can
FEWEST = 10  # games that say anything


@dataclass(frozen=True, slots=True)
class GateGames:
    """How the model played, and the evidence for the gate, which compares it with the incumbent."""

    alone: Evaluation
    evidence: Evidence


def gate_episodes(spec: GameSpec, config: RegistryConfig) -> int:
    """`registry.gate_episodes`; unless it was set, fewer of long games: 200 of Atari's take an hour."""
    if config.gate_episodes != RegistryConfig().gate_episodes:
        return config.gate_episodes
    return min(config.gate_episodes, max(FEWEST, GATE_TICKS // spec.max_ticks))


def play_gate_games(model: Model, incumbent: Model | None, *, episodes: int, seed: int) -> GateGames:
    """`episodes` games on `seed`: the incumbent plays the same ones, or, where there are opponents, against it."""
    game = model.card.game
    rival = strongest(game)
    alone = evaluate(game, model, episodes=episodes, seed=seed, against=rival)
    against = None if rival is None else f"script:{rival}"
    said = Evidence(episodes=episodes, mean=alone.mean, sd=alone.sd, against=against)
    if incumbent is None:
        return GateGames(alone, said)
    if rival is None:
        theirs = evaluate(game, incumbent, episodes=episodes, seed=seed)
        beside = replace(said, incumbent=incumbent.id, incumbent_mean=theirs.mean, incumbent_sd=theirs.sd)
    else:
        met = evaluate(game, model, episodes=episodes, seed=seed, against=incumbent)
        beside = replace(said, incumbent=incumbent.id, wins=met.wins, draws=met.draws, losses=met.losses)
    return GateGames(alone, beside)


def strongest(game: str) -> str | None:
    """The script that a game's models are measured against, since against chance all soon look alike; None: alone."""
    return scripts_for(game)[-1] if len(spec_of(game).seats) > 1 else None
