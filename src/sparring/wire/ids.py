"""Names of things, and the two rules that follow from an episode's name alone."""

import hashlib
import re
import secrets
import time
import uuid
from typing import NewType

GameId = NewType("GameId", str)
EpisodeId = NewType("EpisodeId", str)  # UUIDv7, canonical lower-case text
PlayerId = NewType("PlayerId", str)  # a pseudonym: 32 hex digits, never a name
ModelId = NewType("ModelId", str)  # SHA-256 of a model's manifest, 64 hex digits

AHEAD_MS = 86_400_000  # that an episode's time may be ahead

_PSEUDONYM = re.compile(r"[0-9a-f]{32}")
_ACTOR = re.compile(r"person|model:[0-9a-f]{64}|script:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_EPISODE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_episode(now_ms: int | None = None) -> EpisodeId:
    """A fresh UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits."""
    stamp = int(time.time() * 1000) if now_ms is None else now_ms
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return EpisodeId(str(uuid.UUID(int=value)))


def is_episode(text: str) -> bool:
    """Whether `text` is a canonical UUIDv7."""
    return _EPISODE.fullmatch(text) is not None


def is_pseudonym(text: str) -> bool:
    """Whether `text` has the form of a player's pseudonym, and so cannot be a name."""
    return _PSEUDONYM.fullmatch(text) is not None


def is_actor(text: str) -> bool:
    """Whether `text` says who chose a step's action: person, model:SHA-256 or script:NAME."""
    return _ACTOR.fullmatch(text) is not None


def opened_at_ms(episode: EpisodeId) -> int:
    """When the episode was opened, in Unix milliseconds, by the clock of the process that opened it."""
    return int(episode[:8] + episode[9:13], 16)


def misdated(episode: EpisodeId, now_ms: int, keep_ms: int) -> str:
    """Why an episode opened at such a time is not kept: over a day ahead of `now_ms`, or older than retention
    (`keep_ms`, 0 keeps all); "" where its time is good. Where its rows lie follows from that time, so it must be sane.
    """
    age_ms = now_ms - opened_at_ms(episode)
    if age_ms < -AHEAD_MS:
        return f"it was opened {-age_ms / 3_600_000:.1f} hours ahead of the clock here"
    if 0 < keep_ms < age_ms:
        return f"it was opened {age_ms / 86_400_000:.1f} days ago, and only {keep_ms / 86_400_000:g} are kept"
    return ""


def asked_for(episode: EpisodeId, sample_rate: float) -> bool:
    """Whether an episode opened under `sample_rate` is to be uploaded.

    The same answer everywhere and for every seat, so matches stay whole: the first 8 bytes of
    SHA-256 over the canonical text, as a fraction of 2^64.
    """
    digest = hashlib.sha256(episode.encode()).digest()
    return int.from_bytes(digest[:8], "big") < sample_rate * 2.0**64
