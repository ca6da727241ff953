"""Which manifests a client follows: decided without I/O, remembered on disk."""

import subprocess
import sys

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparring.client.models import ChampionFile, HeldChampion, accepted
from sparring.errors import ModelDamaged
from sparring.games.catalogue import spec_of
from sparring.wire.champion import Champion, Signed, key_name, sign

GAME = spec_of("cartpole")
PRIVATE, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUST = key_name(PRIVATE.public_key())
NOW_MS = 1_750_000_000_000


def manifest(counter=5, *, private=PRIVATE, **changes):
    fields = {
        "game": GAME.id,
        "version": GAME.version,
        "seat": None,
        "model": "a" * 64,
        "spec": GAME.hash,
        "counter": counter,
        "issued_at_ms": NOW_MS,
        "expires_at_ms": NOW_MS + 1000,
    }
    return sign(Champion(**(fields | changes)), private)


def held(signed, counter=5):
    return HeldChampion(key=signed.key, counter=counter, signed=signed)


def judge(signed, before=None, trust=TRUST, seat=0, now_ms=NOW_MS):
    return accepted(signed, before, trust, game=GAME, seat=seat, now_ms=now_ms)


def test_a_signed_manifest_for_this_game_is_followed():
    assert judge(manifest()).counter == 5
    assert judge(manifest(seat=0)).seat == 0
    assert judge(manifest(), held(manifest())).counter == 5
    assert judge(manifest(6, model="b" * 64), held(manifest())).model == "b" * 64


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (manifest(4), "its counter 4 is behind 5"),
        (manifest(5, model="b" * 64), "two manifests with counter 5"),
        (manifest(6, expires_at_ms=NOW_MS), "expired 0.0 hours ago"),
        (manifest(6, private=OTHER), "not by the trusted"),
        (manifest(6, game="duel"), "it is for duel"),
        (manifest(6, version="2"), "it is for cartpole 2"),
        (manifest(6, seat=1), "seat 1, not for"),
        (manifest(6, spec="c" * 64), "its spec cccccccccccc is not"),
    ],
)
def test_anything_else_is_refused_with_the_reason(signed, reason):
    with pytest.raises(ModelDamaged, match=reason):
        judge(signed, held(manifest()))


def test_an_edited_manifest_is_refused_at_every_byte():
    signed = manifest()
    for name in ("payload", "signature"):
        text = getattr(signed, name)
        for at in range(len(text)):
            edited = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
            changed = msgspec.structs.replace(signed, **{name: edited})
            try:
                judge(changed)
            except ModelDamaged:
                continue
            # The last base64 digit before the padding holds bits that mean nothing: same bytes, same manifest.
            assert text[at + 1 :].strip("=") == ""


def test_a_fresh_client_refuses_what_is_older_than_the_counter_in_trust():
    assert judge(manifest(5), trust=f"{TRUST}@5").counter == 5
    assert judge(manifest(4)).counter == 4
    with pytest.raises(ModelDamaged, match="its counter 4 is below 5, the least that is trusted"):
        judge(manifest(4), trust=f"{TRUST}@5")
    with pytest.raises(ModelDamaged, match="not by the trusted"):
        judge(manifest(6, private=OTHER), trust=f"{TRUST}@5")


def test_without_trust_the_first_key_is_pinned_and_another_refused(tmp_path):
    memory = ChampionFile(tmp_path / "champion" / "1-0.json")
    assert memory.read() is None
    memory.accept(manifest(), None, game=GAME, seat=0, now_ms=NOW_MS)
    assert memory.read().key == TRUST
    with pytest.raises(ModelDamaged, match="not by the trusted"):
        memory.accept(manifest(6, private=OTHER), None, game=GAME, seat=0, now_ms=NOW_MS)
    assert memory.read().counter == 5


def test_given_trust_outranks_a_pinned_key_and_the_counter_still_never_goes_back(tmp_path):
    memory = ChampionFile(tmp_path / "1-0.json")
    memory.accept(manifest(5, private=OTHER), None, game=GAME, seat=0, now_ms=NOW_MS)
    with pytest.raises(ModelDamaged, match="behind 5"):
        memory.accept(manifest(4), TRUST, game=GAME, seat=0, now_ms=NOW_MS)
    memory.accept(manifest(6), TRUST, game=GAME, seat=0, now_ms=NOW_MS)
    assert memory.read().key == TRUST


def test_the_counter_survives_a_restart_and_a_damaged_memory_is_not_taken_for_none(tmp_path):
    path = tmp_path / "1-0.json"
    ChampionFile(path).accept(manifest(7), TRUST, game=GAME, seat=0, now_ms=NOW_MS)
    with pytest.raises(ModelDamaged, match="behind 7"):
        ChampionFile(path).accept(manifest(6), TRUST, game=GAME, seat=0, now_ms=NOW_MS)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelDamaged, match="Remove it to pin the gateway's key again"):
        ChampionFile(path).accept(manifest(6), TRUST, game=GAME, seat=0, now_ms=NOW_MS)


def test_processes_that_share_the_memory_never_take_its_counter_back(tmp_path):
    """Four processes keep 25 manifests each, mixed; the file only rises and ends at the highest."""
    path = tmp_path / "1-0.json"
    signed = [manifest(counter) for counter in range(1, 101)]
    code = (
        "import sys, msgspec; from pathlib import Path\n"
        "from sparring.client.models import ChampionFile; from sparring.errors import ModelDamaged\n"
        "from sparring.games.catalogue import spec_of; from sparring.wire.champion import Signed\n"
        "memory, kept = ChampionFile(Path(sys.argv[1])), []\n"
        "for signed in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Signed]):\n"
        "    try: kept.append(memory.accept(signed, None, game=spec_of('cartpole'), seat=0, now_ms=0).counter)\n"
        "    except ModelDamaged: continue\n"
        "    assert memory.read().counter >= kept[-1]\n"
        "assert kept == sorted(kept)\n"
    )
    children = []
    for part in range(4):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE)
        child.stdin.write(msgspec.json.encode(signed[part::4]))
        child.stdin.close()
        children.append(child)
    assert [child.wait() for child in children] == [0] * 4
    assert ChampionFile(path).read().counter == 100


def test_a_manifest_travels_as_json_and_back():
    signed = manifest()
    assert msgspec.json.decode(msgspec.json.encode(signed), type=Signed) == signed
