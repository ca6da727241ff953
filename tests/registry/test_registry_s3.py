"""The registry in a bucket: damage, lost answers, many writers, keys, large files, and who may download."""

import datetime
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import msgspec
import pytest
from buckets import BUCKET, through
from small_models import small_model
from toll import toll

from sparring.errors import ConfigError, Missing, ModelDamaged
from sparring.registry import open_registry
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
from sparring.registry.s3.bucket import Address, Bucket
from sparring.registry.s3.registry import S3Registry
from sparring.wire.champion import verify
from sparring.wire.ids import GameId
from sparring.wire.model import ONNX, WEIGHTS

pytestmark = pytest.mark.servers
GAME = GameId("cartpole")
EVIDENCE = Evidence(episodes=200, mean=480.0, sd=20.0)
LARGE = {WEIGHTS: os.urandom(20 << 20), ONNX: b"onnx"}


@pytest.fixture
def registry(bucket_url):
    with open_registry(bucket_url) as opened:
        yield opened


def test_a_model_without_its_card_is_not_there_and_is_published_whole_later(registry, objects):
    model = small_model()
    registry.publish(model)
    objects.delete(f"models/{model.id}/card.json")
    objects.put(f"models/{model.id}/{WEIGHTS}", b"by a stranger")
    assert registry.ids() == [] == registry.models(GAME)
    with pytest.raises(Missing):
        registry.fetch(model.id)
    registry.publish(model)
    assert registry.fetch(model.id) == model


def test_damaged_truncated_swapped_and_lost_files_are_noticed_and_mended(registry, objects):
    model, other = small_model(1), small_model(2)
    for item in (model, other):
        registry.publish(item)
    key = f"models/{model.id}/{WEIGHTS}"
    whole = objects.get(key)
    for content in (whole[:-1], b"", whole + b"\0", other.files[WEIGHTS]):
        objects.put(key, content)
        for take in (lambda: registry.fetch(model.id), lambda: registry.file(model.id, WEIGHTS)):
            with pytest.raises(ModelDamaged):
                take()
        registry.publish(model)
        assert registry.fetch(model.id) == model
    objects.delete(key)
    with pytest.raises(ModelDamaged, match=r"its weights\.safetensors is gone"):
        registry.fetch(model.id)
    registry.publish(model)
    objects.put(f"models/{model.id}/card.json", objects.get(f"models/{other.id}/card.json"))
    with pytest.raises(ModelDamaged, match="its card hashes to"):
        registry.fetch(model.id)
    registry.publish(model)
    assert registry.fetch(model.id) == model


def test_every_flipped_byte_of_the_newest_entry_is_noticed_and_a_promotion_mends_it(bucket_url, registry, objects):
    for number in (1, 2):
        registry.publish(small_model(number))
        registry.promote(GAME, small_model(number).id, EVIDENCE)
    newest = objects.keys("champions/")[0]
    assert newest == "champions/cartpole/999999999997-000002.json"
    content = bytearray(objects.get(newest))
    accepted = 0
    with open_registry(bucket_url) as late:
        for place in range(0, len(content), 5):
            content[place] ^= 1 << place % 8
            objects.put(newest, bytes(content))
            try:
                late.champion(GAME, "1")
                accepted += 1
            except ModelDamaged:
                pass
            content[place] ^= 1 << place % 8
    assert accepted == 0
    objects.put(newest, b"\0" * len(content))
    with open_registry(bucket_url) as late:
        assert [listed.champion for listed in late.models(GAME)] == [False, False]
        assert verify(late.promote(GAME, small_model(1).id, EVIDENCE), late.trust).counter == 3
    with open_registry(bucket_url) as late:
        assert verify(late.champion(GAME, "1"), late.trust).model == small_model(1).id


def test_an_entry_in_another_place_is_refused_and_a_strange_object_is_passed_over(bucket_url, registry, objects):
    registry.publish(small_model())
    signed = registry.promote(GAME, small_model().id, EVIDENCE)
    objects.put("champions/cartpole/000-notes.txt", b"mine")
    with open_registry(bucket_url) as late:
        assert late.champion(GAME, "1") == signed
    (entry,) = [key for key in objects.keys("champions/") if key.endswith(".json")]
    objects.put("champions/cartpole/999999999990-000009.json", objects.get(entry))  # fast-forward
    objects.put("champions/duel/999999999998-000001.json", objects.get(entry))  # mix-and-match
    for game in (GAME, GameId("duel")):
        with open_registry(bucket_url) as late, pytest.raises(ModelDamaged, match="it is the entry 1 of cartpole"):
            late.champion(game, "1")


def test_an_answer_that_was_lost_is_not_taken_for_anothers_work(bucket_url, s3_server):
    lost = set()

    def once(number, verb, path):
        if verb == "PUT" and path not in lost:
            lost.add(path)
            return True
        return False

    with toll(s3_server.endpoint, after=once) as way, open_registry(through(bucket_url, way.endpoint)) as registry:
        registry.publish(small_model(1))
        signed = registry.promote(GAME, small_model(1).id, EVIDENCE)
        assert verify(signed, registry.trust).counter == 1
        assert len(lost) >= 5
    with open_registry(bucket_url) as registry:
        assert registry.fetch(small_model(1).id) == small_model(1)
        assert [entry.champion.counter for entry in registry.history(GAME, "1")] == [1]


PROMOTER = """
import sys
from small_models import small_model
from sparring.registry import open_registry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import verify
with open_registry(sys.argv[1]) as registry:
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
        registry.publish(small_model(number))
        signed = registry.promote("cartpole", small_model(number).id, Evidence(episodes=1, mean=1.0, sd=0.0))
        print(verify(signed, registry.trust).counter, flush=True)
"""


def test_racing_promoters_lose_nothing_and_no_reader_sees_a_counter_fall(bucket_url):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    each = 15
    with open_registry(bucket_url) as registry:
        registry.publish(small_model(0))
        registry.promote(GAME, small_model(0).id, EVIDENCE)
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", PROMOTER, bucket_url, str(first), str(each)],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first in (1_000, 2_000, 3_000)
        ]
        last = 0
        try:
            while any(writer.poll() is None for writer in writers):
                champion = verify(registry.champion(GAME, "1"), registry.trust)
                assert champion.counter >= last
                last = champion.counter
                assert registry.fetch(champion.model).id == champion.model
        finally:
            said = [list(map(int, writer.communicate()[0].split())) for writer in writers]
        assert [len(counters) for counters in said] == [each] * 3
        assert sorted(counter for counters in said for counter in counters) == list(range(2, 2 + 3 * each))
        assert all(counters == sorted(counters) for counters in said)
        assert [entry.champion.counter for entry in registry.history(GAME, "1")] == list(range(1, 2 + 3 * each))
        assert len(registry.models(GAME)) == 1 + 3 * each


def test_a_champion_is_re_signed_once_by_the_first_that_asks(bucket_url):
    now_s = [1_700_000_000.0]
    registries = [S3Registry(bucket_url, champion_days=7.0, clock=lambda: now_s[0]) for _ in range(4)]
    try:
        registries[0].publish(small_model())
        first = registries[0].promote(GAME, small_model().id, EVIDENCE)
        assert {one.champion(GAME, "1").payload for one in registries} == {first.payload}
        now_s[0] += 4 * 86_400
        answers = []
        threads = [threading.Thread(target=lambda o=one: answers.append(o.champion(GAME, "1"))) for one in registries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {verify(signed, registries[0].trust).counter for signed in answers} == {2}
        assert [entry.kind for entry in registries[0].history(GAME, "1")] == ["promotion", "re-sign"]
    finally:
        for one in registries:
            one.__exit__(None, None, None)


def test_the_private_key_is_never_in_the_bucket_and_a_machine_without_it_reads_all_the_same(
    bucket_url, registry, objects, tmp_path
):
    registry.publish(small_model())
    signed = registry.promote(GAME, small_model().id, EVIDENCE)
    everything = b"".join(objects.get(key) for key in objects.keys(""))
    assert b"PRIVATE" not in everything
    assert objects.get("trust").decode() == registry.trust
    without = bucket_url.partition("&key=")[0]
    for elsewhere in (without, f"{without}&key={tmp_path}/none/signing.key"):
        with open_registry(elsewhere) as reader:
            assert reader.trust == registry.trust
            assert reader.champion(GAME, "1") == signed
            assert reader.models(GAME)[0].champion
            with pytest.raises(Missing, match="the key that signs champions here"):
                reader.promote(GAME, small_model().id, EVIDENCE)
    assert not (tmp_path / "none").exists()
    with S3Registry(without, clock=lambda: 4e9) as late, pytest.raises(Missing):  # long expired, and nobody signs it
        late.champion(GAME, "1")


def test_two_machines_cannot_sign_with_two_keys(bucket_url, tmp_path):
    without = bucket_url.partition("&key=")[0]
    barrier, names, refused = threading.Barrier(4), [], []

    def open_and_ask(number):
        with open_registry(f"{without}&key={tmp_path}/machine-{number}/signing.key") as mine:
            barrier.wait()
            try:
                names.append(mine.trust)
                mine.publish(small_model())
                mine.promote(GAME, small_model().id, EVIDENCE)
            except (ConfigError, Missing) as error:
                refused.append(str(error))

    threads = [threading.Thread(target=open_and_ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 1
    assert len(refused) == 3
    assert len(list(tmp_path.glob("machine-*/signing.key"))) == 1
    other = tmp_path / "other"
    assert FileRegistry(other).trust  # a true key, of another registry
    with (
        open_registry(f"{without}&key={other}/signing.key") as late,
        pytest.raises(ConfigError, match=r"are signed by ed25519:\S+, and this key is ed25519:"),
    ):
        late.promote(GAME, small_model().id, EVIDENCE)


def test_a_large_model_travels_in_parts_and_what_a_killed_one_left_is_taken_back(registry, s3_client, objects):
    model = small_model(files=LARGE)
    at = {"Bucket": BUCKET, "Key": f"{objects.prefix}models/{model.id}/{WEIGHTS}"}
    left = s3_client.create_multipart_upload(**at)
    s3_client.upload_part(**at, PartNumber=1, UploadId=left["UploadId"], Body=b"half")
    registry.publish(model)
    assert registry.fetch(model.id) == model
    uploads = {"Bucket": BUCKET, "Prefix": objects.prefix}
    assert len(s3_client.list_multipart_uploads(**uploads).get("Uploads", ())) == 1  # it may be another's, at work
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    registry._bucket.abandon_uploads("models/", now_s + 2 * 86_400)
    assert s3_client.list_multipart_uploads(**uploads).get("Uploads", []) == []
    assert not registry._bucket.put_new(f"models/{model.id}/{WEIGHTS}", os.urandom(20 << 20))  # also in parts
    assert registry.fetch(model.id) == model


def test_a_signed_address_serves_a_file_to_anyone_for_a_while_and_the_bare_one_to_nobody(registry):
    registry.publish(small_model())
    link = registry.link(small_model().id, ONNX)
    assert httpx.get(link).content == small_model().files[ONNX]
    assert httpx.get(link.partition("?")[0]).status_code == 403
    assert httpx.get(link.replace(ONNX, WEIGHTS)).status_code == 403
    with pytest.raises(Missing):
        registry.link(small_model().id, "../../trust")
    with pytest.raises(Missing):
        registry.link(small_model(7).id, ONNX)


def test_models_are_public_only_while_they_are_shared_and_nothing_else_ever_is(bucket_url, registry, s3_server):
    registry.publish(small_model())
    registry.promote(GAME, small_model().id, EVIDENCE)
    with pytest.raises(ConfigError, match="Add public=1"):
        registry.share(True)
    with open_registry(f"{bucket_url}&public=1") as public:
        link = public.link(small_model().id, ONNX)
        assert "?" not in link
        assert httpx.get(link).status_code == 403
        public.share(True)
        assert httpx.get(link).content == small_model().files[ONNX]
        root = f"{s3_server.endpoint}/{BUCKET}/{Address.read(bucket_url).prefix}"
        for key in ("trust", f"evidence/{small_model().id}.json", "champions/cartpole/999999999998-000001.json"):
            assert httpx.get(root + key).status_code == 403
        public.share(False)
        assert httpx.get(link).status_code == 403


def test_a_statement_of_somebody_else_in_the_policy_stays(bucket_url, s3_client):
    theirs = {
        "Sid": "Theirs",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:GetObject",
        "Resource": f"arn:aws:s3:::{BUCKET}/theirs/*",
    }
    s3_client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [theirs]}))
    with open_registry(f"{bucket_url}&public=1") as public:
        for yes, count in ((True, 2), (True, 2), (False, 1)):
            public.share(yes)
            said = json.loads(s3_client.get_bucket_policy(Bucket=BUCKET)["Policy"])["Statement"]
            assert len(said) == count
            assert "Theirs" in {statement["Sid"] for statement in said}
    s3_client.delete_bucket_policy(Bucket=BUCKET)


def test_a_layout_of_the_future_is_not_written_to(registry, objects):
    objects.put("format.json", b'{"format":2}')
    with pytest.raises(ConfigError, match="Upgrade Sparring"):
        registry.publish(small_model())


def test_evidence_is_read_again_only_where_it_changed(bucket_url, s3_server):
    with open_registry(bucket_url) as writer, toll(s3_server.endpoint) as way:
        for number in range(3):
            writer.publish(small_model(number))
            writer.save_evidence(small_model(number).id, EVIDENCE)
        with open_registry(through(bucket_url, way.endpoint)) as reader:
            assert len(reader.models(GAME)) == 3
            way.seen.clear()
            writer.save_evidence(small_model(1).id, msgspec.structs.replace(EVIDENCE, mean=7.0))
            assert [item.evidence.mean for item in reader.models(GAME)] == [480.0, 7.0, 480.0]
            read = [path for verb, path in way.seen if verb == "GET" and "list-type" not in path]
            assert len(read) == 1


def test_a_champion_is_told_from_memory_for_as_long_as_it_may_be(bucket_url, s3_server):
    with open_registry(bucket_url) as writer, toll(s3_server.endpoint) as way:
        writer.publish(small_model())
        signed = writer.promote(GAME, small_model().id, EVIDENCE)
        aged = through(bucket_url, way.endpoint).replace("fresh_s=0", "fresh_s=60")
        with open_registry(aged) as reader:
            assert reader.champion(GAME, "1") == signed
            way.seen.clear()
            for seat in (None, 0, 0, None):
                assert reader.champion(GAME, "1", seat) == signed
            assert way.seen == []


def test_what_is_strange_is_logged_and_left_out(registry, objects, caplog):
    registry.publish(small_model())
    registry.save_evidence(small_model().id, EVIDENCE)
    objects.put(f"evidence/{small_model().id}.json", b"{}")
    objects.put(f"models/{small_model(1).id}/card.json", b"{}")
    with caplog.at_level(logging.WARNING):
        assert [item.evidence for item in registry.models(GAME)] == [None]
    assert small_model(1).id[:12] in caplog.text


def test_parts_of_a_bucket_are_read_in_the_order_of_their_names(bucket_url):
    bucket = Bucket(Address.read(bucket_url))
    for number in (3, 1, 2):
        bucket.put(f"x/{number}", b"%d" % number)
    assert [entry.key for entry in bucket.list("x/")] == ["x/1", "x/2", "x/3"]
    assert [entry.key for entry in bucket.list("x/", limit=2)] == ["x/1", "x/2"]
    with pytest.raises(ModelDamaged, match="larger than 0 bytes"):
        bucket.get("x/1", 0)
    bucket.close()
