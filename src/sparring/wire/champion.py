"""The champion: which model a game's clients run, as a manifest signed with Ed25519.

The counter never goes back (a rollback is a higher counter that names an older model), and the
expiry bounds how long a frozen server can pass for a live one.
"""

import base64
import hashlib
import json

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sparring.errors import ModelDamaged
from sparring.wire.ids import GameId, ModelId


class Champion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed. `seat` None means every seat; `previous` serves clients outside `rollout_share`."""

    game: GameId
    version: str
    seat: int | None
    model: ModelId
    spec: str
    counter: int
    issued_at_ms: int
    expires_at_ms: int
    previous: ModelId | None = None
    rollout_share: float = 1.0


read_champion = msgspec.json.Decoder(Champion).decode


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest's exact bytes (base64 of JSON), the key's name and its signature over those bytes."""

    payload: str
    key: str  # "ed25519:" + base64 of the 32 public bytes
    signature: str


def key_name(public: Ed25519PublicKey) -> str:
    """The text that `connect(trust=…)` takes."""
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return "ed25519:" + base64.b64encode(raw).decode()


def sign(message: msgspec.Struct, private: Ed25519PrivateKey) -> Signed:
    """The manifest, or another message of the registry, with its signature."""
    payload = msgspec.json.encode(message)
    signature = private.sign(payload)
    return Signed(_text(payload), key_name(private.public_key()), _text(signature))


def verify(signed: Signed, trust: str) -> Champion:
    """The manifest, once its signature by the key `trust` holds, and its counter is not below the least one that trust
    may name ("ed25519:KEY@COUNTER"); ModelDamaged otherwise."""
    least = trust.partition("@")[2]
    try:
        champion = read_champion(signed_payload(signed, trust))
        if champion.counter < int(least or 0):
            do = "An old manifest is being replayed, or connect(trust=…) is another game's"
            raise _bad(f"its counter {champion.counter} is below {least}, the least that is trusted", do)
        return champion
    except (ValueError, msgspec.DecodeError) as error:
        raise _bad(f"the manifest does not read: {error}", "Fetch it again") from None


def signed_payload(signed: Signed, trust: str) -> bytes:
    """What was signed, once its signature by the key of `trust` holds; ModelDamaged otherwise."""
    key = trust.partition("@")[0]
    if signed.key != key:
        raise _bad(f"signed by {signed.key}, not by the trusted {key}", "Check connect(trust=…)")
    try:
        payload = _raw(signed.payload)
        public = Ed25519PublicKey.from_public_bytes(_raw(key.removeprefix("ed25519:")))
        public.verify(_raw(signed.signature), payload)
    except InvalidSignature:
        raise _bad("the signature does not fit the manifest", "Fetch it again; if it persists, do not use it") from None
    except ValueError as error:
        raise _bad(f"the manifest does not read: {error}", "Fetch it again") from None
    return payload


def for_client(champion: Champion, client: str) -> ModelId:
    """The model that this client runs while a new one is rolled out by share of clients."""
    if champion.previous is None:
        return champion.model
    drawn = int.from_bytes(hashlib.sha256(f"{champion.model}/{client}".encode()).digest()[:8], "big") / 2.0**64
    return champion.model if drawn < champion.rollout_share else champion.previous


def canonical(value: object) -> bytes:
    """The one JSON text of `value` over which hashes are taken: sorted keys, no blanks."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _raw(text: str) -> bytes:
    raw = base64.b64decode(text, validate=True)
    if _text(raw) != text:  # base64 has several spellings of one value; a manifest has one
        raise ValueError("its base64 is not canonical")
    return raw


def _bad(wrong: str, do: str) -> ModelDamaged:
    return ModelDamaged(wrong, where="champion", do=do)
