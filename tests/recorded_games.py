"""Recorded games of Connect Four between a person and a bot, for a store: `from recorded_games import sat`."""

from derived import EPOCH_MS, chunks_of, player_of
from sparring.games.catalogue import spec_of

SPEC = spec_of("connect-four")
MODEL = "ab" * 32


def sat(number, outcome, *, client=0, bot=f"model:{MODEL}", seat=0, **header):
    """The chunks of one game between a person and a bot; `outcome` is the person's."""
    chunks = []
    for at in (0, 1):
        person = at == seat
        score = None if outcome is None else outcome if person else 0.0 - outcome
        told = {
            "game": SPEC.id, "version": SPEC.version, "spec": SPEC.hash, "seat": at, "outcome": score,
            "actor": "person" if person else bot, "player": player_of(client) if person else None,
            "received_at_ms": EPOCH_MS + number * 1000, **header,
        }  # fmt: skip
        chunks += chunks_of(7, client, number, steps=2, chunk_steps=2, **told)
    return chunks
