"""What every pool must do; a backend is added to the fixture `place` and nowhere else."""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pool_places import MODEL_BYTES, InProcess, large_model
from pool_reader import verdict

from registry.small_models import small_model
from sparring.errors import ConfigError, Missing, ModelDamaged, Refused
from sparring.pool import open_pool
from sparring.wire.ids import ModelId
from sparring.wire.model import WEIGHTS, Model

THREE_MODELS = 3 * MODEL_BYTES + 150_000
READERS, ROUNDS = 8, 80
IDLE_S = 2.1  # Redis remembers to the second when a value was last used


def test_what_was_put_is_got_bit_for_bit(place):
    odd = small_model(7, files={"empty": b"", "all-bytes": bytes(range(256)), WEIGHTS: b"card.json"})
    models = [large_model(0), large_model(1), small_model(2), odd]
    with place.open(place.url()) as pool:
        for model in models * 2:  # again is harmless
            pool.put(model)
        assert [pool.get(model.id) for model in models] == models
        assert pool.ids() == sorted(model.id for model in models)


def test_a_model_that_was_dropped_is_missing_and_dropping_again_is_harmless(place):
    kept, dropped = large_model(0), large_model(1)
    with place.open(place.url()) as pool:
        pool.put(kept)
        pool.put(dropped)
        for _ in range(2):
            pool.drop(dropped.id)
        with pytest.raises(
            Missing, match=r"it is not in the pool at .*, or no longer\. Put it again, or open the pool"
        ):
            pool.get(dropped.id)
        assert pool.get(kept.id) == kept
        assert pool.ids() == [kept.id]


def test_text_that_is_no_id_is_missing(place):
    with place.open(place.url()) as pool:
        for text in ("", "../../etc/passwd", "*", "A" * 64):
            with pytest.raises(Missing, match="is not a model's id"):
                pool.get(ModelId(text))


def test_a_model_that_is_not_what_its_card_says_is_not_taken(place):
    model = small_model()
    with place.open(place.url()) as pool:
        for files in ({**model.files, WEIGHTS: b"other"}, {WEIGHTS: model.files[WEIGHTS]}):
            with pytest.raises(ModelDamaged):
                pool.put(Model(model.card, files))
        assert pool.ids() == []


def test_the_longest_unused_model_goes_first_and_comes_back_from_the_registry(place, registry):
    models = [large_model(number) for number in range(4)]
    for model in models:
        registry.publish(model)
    url = place.url(max_bytes=THREE_MODELS)
    with place.open(url) as pool:
        for model in models[:3]:
            pool.put(model)
        time.sleep(IDLE_S)
        assert [pool.get(models[0].id), pool.get(models[2].id)] == [models[0], models[2]]
        pool.put(models[3])
        assert pool.ids() == sorted(models[number].id for number in (0, 2, 3))
        with pytest.raises(Missing):
            pool.get(models[1].id)
    with place.open(url, registry) as pool:
        assert pool.get(models[1].id) == models[1]
        assert models[1].id in pool.ids()


def test_a_model_larger_than_the_pool_is_refused_and_read_from_the_registry(place, registry):
    model = large_model(0)
    registry.publish(model)
    with place.open(place.url(max_bytes=1000), registry) as pool:
        with pytest.raises(Refused, match=r"bytes, and .* 1,000\. Raise max_bytes in \[league\] pool_url"):
            pool.put(model)
        assert pool.get(model.id) == model
        assert pool.ids() == []


def test_where_the_registry_has_it_damaged_or_not_at_all_its_own_error_says_so(place, registry, tmp_path):
    model = small_model()
    with place.open(place.url(), registry) as pool:
        with pytest.raises(Missing, match="there is no such model here"):
            pool.get(model.id)
        registry.publish(model)
        (tmp_path / "models" / model.id / WEIGHTS).write_bytes(b"damaged")
        with pytest.raises(ModelDamaged, match=r"weights.safetensors hashes to"):
            pool.get(model.id)
        assert pool.ids() == []


def hashes(models):
    return {
        model.id: {name: hashlib.sha256(content).hexdigest() for name, content in model.files.items()}
        for model in models
    }


def replace_and_evict(pool, models, rounds):
    """Three of six fit: each put evicts one that some reader may be reading."""
    draw = random.Random(0)
    for number in range(rounds):
        pool.put(draw.choice(models))
        if number % 10 == 0:
            pool.drop(draw.choice(models).id)


def test_eight_readers_beside_a_writer_get_the_very_model_or_a_typed_error(place, registry, registry_url, tmp_path):
    models = [large_model(number) for number in range(6)]
    for model in models:
        registry.publish(model)
    url, wanted = place.url(max_bytes=THREE_MODELS), hashes(models)
    if isinstance(place, InProcess):  # its readers are threads
        seen = threads_that_read(place.open(url), models, wanted)
    else:
        seen = processes_that_read(place, url, registry_url, models, tmp_path / "stop")
        assert not any("Missing" in one for one in seen[1::2])  # which have a registry
    assert all(one["right"] for one in seen)
    assert set().union(*seen) <= {"right", "Missing"}


def threads_that_read(pool, models, wanted):
    stop = threading.Event()

    def read():
        seen, draw = Counter(), random.Random()
        while not stop.is_set():
            model_id = draw.choice(list(wanted))
            seen[verdict(pool, model_id, wanted[model_id])] += 1
        return seen

    with ThreadPoolExecutor(READERS) as readers:
        reading = [readers.submit(read) for _ in range(READERS)]
        replace_and_evict(pool, models, ROUNDS)
        stop.set()
        return [one.result() for one in reading]


def processes_that_read(place, url, registry_url, models, stop):
    readers = []
    for number in range(READERS):
        words = [sys.executable, str(Path(__file__).with_name("pool_reader.py")), url]
        words += [registry_url if number % 2 else "", str(stop)]
        environment = os.environ | place.environment
        readers.append(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
    try:
        for reader in readers:
            reader.stdin.write(json.dumps(hashes(models)))
            reader.stdin.close()
        assert [reader.stdout.readline() for reader in readers] == ["ready\n"] * READERS
        with place.open(url) as pool:
            replace_and_evict(pool, models, ROUNDS)
        stop.touch()
        said = [json.loads(reader.stdout.readline()) for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            reader.stdout.close()
    return said


def test_a_model_that_was_read_once_is_not_read_again_by_the_same_process(service_place, registry):
    model, other = large_model(0), large_model(1)
    url = service_place.url().replace("cache_bytes=0", f"cache_bytes={MODEL_BYTES + 1000}")
    with service_place.open(url) as writer, service_place.open(url) as reader:
        writer.put(model)
        writer.put(other)
        read = reader.get(model.id)
        writer.drop(model.id)
        assert reader.get(model.id) is read
        assert reader.get(other.id) == other  # only one of them has room
        with pytest.raises(Missing):
            reader.get(model.id)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("s3://models", "[league] pool_url: no pool speaks 's3://models'. Use one of memory://, redis://, rediss://."),
        ("memory://a/b", "[league] pool_url: 'memory://a/b' is not memory:// or memory://NAME"),
        ("memory://?max_byte=1", "unknown or repeated option 'max_byte' in it. Did you mean max_bytes?"),
        ("redis://", "[league] pool_url: 'redis://' is not redis://HOST:PORT/DATABASE. Write it so."),
        ("redis://host:99999/0", "names no port. Use 1 to 65535."),
        ("redis://host/0?prefix=a*", "prefix='a*' in it. Give up to 80 letters, digits, '.', '_', ':' and '-'."),
        ("redis://:secret@host/0", "a URL is no place for credentials. Set REDIS_USERNAME and REDIS_PASSWORD in the"),
    ],
)
def test_a_url_that_names_no_pool_is_refused_with_what_to_write(url, sentence):
    with pytest.raises(ConfigError) as caught:
        open_pool(url)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
