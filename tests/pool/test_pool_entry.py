"""An entry is one model, whole, or it is damaged: whatever becomes of its bytes, never another."""

import random

import pytest

from registry.small_models import small_model
from sparring.errors import ModelDamaged
from sparring.pool.cached_pool import pack, unpack


@pytest.mark.parametrize("private", [False, True])
def test_an_entry_with_any_byte_changed_is_damaged_and_never_another_model(private):
    model = small_model()
    entry = pack(model)
    assert unpack(model.id, entry, private=private) == model
    unchanged = 0
    for place in range(len(entry)):
        changed = bytearray(entry)
        changed[place] ^= 1 << place % 8
        try:
            assert unpack(model.id, bytes(changed), private=private) == model
            unchanged += 1
        except ModelDamaged:
            pass
    assert unchanged <= (0 if private else 5 * (1 + len(model.files)))  # checksums, where SHA-256 is what counts


@pytest.mark.parametrize("private", [False, True])
def test_an_entry_that_is_cut_or_longer_or_noise_is_damaged(private):
    model, draw = small_model(), random.Random(0)
    entry = pack(model)
    broken = [entry[:size] for size in range(len(entry))] + [entry + b"\0", b"\xff" * 100, b"\0" * 100]
    broken += [draw.randbytes(draw.randrange(200)) for _ in range(2000)]
    broken += [bytes((20, 0, 0, 0)) + draw.randbytes(60) for _ in range(2000)]
    for one in broken:
        with pytest.raises(ModelDamaged):
            unpack(model.id, one, private=private)


@pytest.mark.parametrize("private", [False, True])
def test_the_entry_of_another_model_is_damaged(private):
    model, other = small_model(0), small_model(1)
    with pytest.raises(ModelDamaged, match=f"of {other.id[:12]}"):
        unpack(model.id, pack(other), private=private)
    renamed = pack(other).replace(other.id.encode(), model.id.encode(), 1)
    with pytest.raises(ModelDamaged, match="its card is of format 1 or not" if private else "its card hashes to"):
        unpack(model.id, renamed, private=private)
