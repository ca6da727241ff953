"""Signed manifests: what verifies, and everything that does not."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.errors import ModelDamaged
from sparring.wire.champion import Champion, Signed, for_client, key_name, sign, verify
from sparring.wire.ids import GameId, ModelId

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUST = key_name(KEY.public_key())
CHAMPION = Champion(
    game=GameId("duel"), version="1", seat=None, model=ModelId("aa" * 32), spec="bb" * 32, counter=3,
    issued_at_ms=1, expires_at_ms=2, previous=ModelId("cc" * 32), rollout_share=0.25,
)  # fmt: skip


def test_a_signed_manifest_verifies_with_the_key_that_signed_it() -> None:
    assert verify(sign(CHAMPION, KEY), TRUST) == CHAMPION


def test_a_signature_by_another_key_is_refused() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    forged = sign(CHAMPION, other)
    for signed in (forged, Signed(forged.payload, TRUST, forged.signature)):
        with pytest.raises(ModelDamaged):
            verify(signed, TRUST)


def test_every_flipped_character_of_a_manifest_is_refused() -> None:
    good = sign(CHAMPION, KEY)
    for name in ("payload", "signature"):
        text = getattr(good, name)
        for at in range(len(text)):
            flipped = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
            with pytest.raises(ModelDamaged):
                verify(msgspec.structs.replace(good, **{name: flipped}), TRUST)


def test_a_share_of_clients_gets_the_new_champion_and_always_the_same_ones() -> None:
    clients = [f"client-{i}" for i in range(4_000)]
    new = {c for c in clients if for_client(CHAMPION, c) == CHAMPION.model}
    assert abs(len(new) / 4_000 - 0.25) < 0.03
    wider = msgspec.structs.replace(CHAMPION, rollout_share=0.5)
    assert new < {c for c in clients if for_client(wider, c) == CHAMPION.model}
