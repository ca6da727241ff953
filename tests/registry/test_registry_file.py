"""The folder registry under damage, odd clocks, links and readers at work."""

import contextlib
import errno
import logging
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from small_models import NETWORK, small_model

from sparring.errors import ConfigError, Missing, ModelDamaged, SparringError, StoreFailed
from sparring.games.spec import GameSpec, SeatSpec, discrete, vector
from sparring.nets.model_files import make_model
from sparring.nets.torch_network import Network
from sparring.registry import file
from sparring.registry.champions import rollback_target
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
from sparring.wire.champion import canonical, verify
from sparring.wire.ids import GameId
from sparring.wire.model import ONNX, WEIGHTS, Lineage

GAME = GameId("cartpole")
EVIDENCE = Evidence(episodes=200, mean=480.0, sd=20.0)
ROLLBACK = Evidence(episodes=200, mean=480.0, sd=20.0, by="rollback")
DAY_S = 86_400.0


class Clock:
    def __init__(self, now_s=1_700_000_000.0):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


def real_model():
    seat = SeatSpec(name="a", observation=(vector("observation/x", 4),), action=discrete(2), reward_bounds=(0.0, 1.0))
    game = GameSpec(id=GAME, turns="simultaneous", seats=(seat,), max_ticks=9)
    lineage = Lineage(algorithm="ppo", config={}, steps={})
    return make_model(game, NETWORK, Network(NETWORK, 0).weights(), "categorical", lineage, 1)


def test_every_flipped_byte_of_a_model_is_noticed(root):
    registry, model = FileRegistry(root), real_model()
    registry.publish(model)
    accepted = flips = 0
    for name in ("card.json", WEIGHTS, ONNX):
        path = root / model.id / name
        content = bytearray(path.read_bytes())
        for place in range(len(content)):
            content[place] ^= 1 << place % 8
            path.write_bytes(content)
            flips += 1
            for take in (lambda: registry.fetch(model.id), lambda name=name: registry.file(model.id, name)):
                try:
                    take()
                    accepted += 1
                except ModelDamaged:
                    pass
            content[place] ^= 1 << place % 8
        path.write_bytes(content)
    assert flips > 2_000
    assert accepted == 0
    assert registry.fetch(model.id) == model


def test_every_flipped_byte_of_a_champion_is_noticed_and_a_promotion_mends_it(root):
    registry, model = FileRegistry(root), small_model()
    registry.publish(model)
    signed = registry.promote(GAME, model.id, EVIDENCE)
    (path,) = root.glob("champions/*/*.json")
    content = bytearray(path.read_bytes())
    accepted = 0
    for place in range(len(content)):
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            FileRegistry(root).champion(GAME, "1")
            accepted += 1
        except ModelDamaged:
            pass
        content[place] ^= 1 << place % 8
    assert accepted == 0
    assert registry.champion(GAME, "1") == signed  # who had verified it goes on serving it
    path.write_bytes(b"\0" * len(content))
    late = FileRegistry(root)
    assert [listed.champion for listed in late.models(GAME)] == [False]
    assert verify(late.promote(GAME, model.id, EVIDENCE), late.trust).counter == 2
    assert FileRegistry(root).champion(GAME, "1") is not None


def test_truncated_swapped_and_lost_files_are_noticed(root):
    registry, model, other = FileRegistry(root), small_model(1), small_model(2)
    for item in (model, other):
        registry.publish(item)
    weights = root / model.id / WEIGHTS
    whole = weights.read_bytes()
    for content in (whole[:-1], b"", whole + b"\0", b"\0" * len(whole), other.files[WEIGHTS]):
        weights.write_bytes(content)
        with pytest.raises(ModelDamaged):
            registry.fetch(model.id)
    weights.unlink()
    with pytest.raises(ModelDamaged, match=r"its weights\.safetensors is gone"):
        registry.fetch(model.id)
    (root / model.id / "card.json").write_bytes((root / other.id / "card.json").read_bytes())
    with pytest.raises(ModelDamaged, match="its card hashes to"):
        registry.fetch(model.id)
    assert registry.fetch(other.id) == other


def test_publishing_over_a_damaged_model_mends_it(root):
    registry, model = FileRegistry(root), small_model()
    registry.publish(model)
    (root / model.id / WEIGHTS).write_bytes(b"damaged")
    registry.publish(model)
    assert registry.fetch(model.id) == model
    assert registry.ids() == [model.id]


def test_a_damaged_card_is_left_out_of_the_list_and_said(root, caplog):
    registry = FileRegistry(root)
    for number in (1, 2):
        registry.publish(small_model(number))
    (root / small_model(1).id / "card.json").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING):
        assert [item.card.id for item in FileRegistry(root).models(GAME)] == [small_model(2).id]
    assert small_model(1).id[:12] in caplog.text


def test_links_are_not_followed(root, tmp_path):
    registry, model, other = FileRegistry(root), small_model(1), small_model(2)
    for item in (model, other):
        registry.publish(item)
    elsewhere = tmp_path / "elsewhere"
    (root / model.id).rename(elsewhere)
    (root / model.id).symlink_to(elsewhere)
    with pytest.raises(ModelDamaged, match="is not a plain file in a plain folder"):
        registry.fetch(model.id)
    weights = root / other.id / WEIGHTS
    weights.rename(tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    with pytest.raises(ModelDamaged, match="is not a plain file"):
        registry.fetch(other.id)
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(ModelDamaged, match="is not a plain file"):
        registry.fetch(other.id)


def test_a_process_without_file_handles_does_not_take_a_whole_model_for_damaged(root):
    registry, model = FileRegistry(root), small_model()
    registry.publish(model)
    held = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(root, os.O_RDONLY))
        with pytest.raises(StoreFailed, match="it could not be opened: Too many open files"):
            registry.fetch(model.id)
        with pytest.raises(StoreFailed):
            registry.publish(model)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert registry.fetch(model.id) == model
    assert registry.ids() == [model.id]


FIRST_CARDS = """
import sys, threading
from pathlib import Path
from sparring.registry.registry import read_card
sys.setswitchinterval(1e-6)
text, together = Path(sys.argv[1]).read_bytes(), threading.Barrier(8)
def read():
    together.wait()
    read_card(text, sys.argv[2])
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_threads_that_are_the_first_to_read_cards_do_not_crash_the_process(root):
    model = small_model()
    FileRegistry(root).publish(model)
    for _ in range(5):  # 31 of 40 processes crashed in msgspec
        words = [sys.executable, "-c", FIRST_CARDS, str(root / model.id / "card.json"), model.id]
        assert subprocess.run(words, check=False, timeout=120).returncode == 0


def test_a_champion_is_re_signed_in_the_second_half_of_its_life(root):
    clock = Clock()
    registry = FileRegistry(root, champion_days=7.0, clock=clock)
    registry.publish(small_model())
    first = registry.promote(GAME, small_model().id, EVIDENCE)
    clock.now_s += 3.4 * DAY_S
    assert registry.champion(GAME, "1") == first
    clock.now_s += 0.2 * DAY_S
    second = registry.champion(GAME, "1")
    old, new = verify(first, registry.trust), verify(second, registry.trust)
    assert (new.model, new.counter) == (old.model, old.counter + 1)
    assert new.expires_at_ms == new.issued_at_ms + int(7 * DAY_S * 1000) > old.expires_at_ms
    assert FileRegistry(root, clock=clock).champion(GAME, "1") == second  # once, not by each who asks
    clock.now_s += 365 * DAY_S
    late = verify(registry.champion(GAME, "1"), registry.trust)
    assert late.expires_at_ms > clock.now_s * 1000
    clock.now_s -= 365 * DAY_S  # a clock set back prolongs nothing and loses nothing
    assert verify(registry.champion(GAME, "1"), registry.trust) == late
    assert [entry.kind for entry in registry.history(GAME, "1")] == ["promotion", "re-sign", "re-sign"]
    assert {entry.evidence for entry in registry.history(GAME, "1")} == {EVIDENCE}


def test_a_champion_that_cannot_be_re_signed_is_served_until_it_expires(root, monkeypatch):
    clock = Clock()
    registry = FileRegistry(root, champion_days=1.0, clock=clock)
    registry.publish(small_model())
    signed = registry.promote(GAME, small_model().id, EVIDENCE)

    def read_only(path, content, mode):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(file, "create_file", read_only)
    clock.now_s += 0.9 * DAY_S
    assert registry.champion(GAME, "1") == signed
    clock.now_s += 0.2 * DAY_S
    with pytest.raises(SparringError, match="the disk would not keep it: Read-only file system"):
        registry.champion(GAME, "1")


def test_a_second_rollback_goes_further_back(root):
    registry = FileRegistry(root)
    models = [small_model(number) for number in (1, 2, 3)]
    for model in models:
        registry.publish(model)
        registry.promote(GAME, model.id, EVIDENCE)
    seen = []
    while target := rollback_target(registry.history(GAME, "1")):
        seen.append(target)
        registry.promote(GAME, target, ROLLBACK)
    assert seen == [models[1].id, models[0].id]
    registry.promote(GAME, models[2].id, EVIDENCE)
    assert rollback_target(registry.history(GAME, "1")) == models[0].id
    assert rollback_target([]) is None


def test_the_signing_key_is_its_owners_and_never_replaced_in_silence(root):
    registry = FileRegistry(root)
    key = root / "signing.key"
    assert not key.exists()
    trust = registry.trust
    assert trust.startswith("ed25519:")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert FileRegistry(root).trust == trust
    registry.publish(small_model())
    registry.promote(GAME, small_model().id, EVIDENCE)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read the signing key"):
        _ = FileRegistry(root).trust
    pem = key.read_bytes()
    key.unlink()
    late = FileRegistry(root)
    assert late.trust == trust
    assert late.champion(GAME, "1") is not None  # without the key it still reads, and signs nothing
    with pytest.raises(Missing, match=r"the key that signs champions here \(ed25519:.*\) is not on this machine"):
        late.promote(GAME, small_model().id, EVIDENCE)
    (root / "trust").rename(root / "lost")
    with pytest.raises(Missing, match="the key that signs champions here is not on this machine"):
        FileRegistry(root).champion(GAME, "1")
    assert not key.exists()
    (root / "lost").rename(root / "trust")
    key.write_bytes(pem[:40])
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="it is not an Ed25519 key in PEM"):
        FileRegistry(root).champion(GAME, "1")


def test_another_key_does_not_pass_for_the_one_that_signed(root, tmp_path):
    registry, stranger = FileRegistry(root), FileRegistry(tmp_path / "other")
    registry.publish(small_model())
    registry.promote(GAME, small_model().id, EVIDENCE)
    assert stranger.trust != registry.trust
    (tmp_path / "other" / "signing.key").replace(root / "signing.key")
    with pytest.raises(ConfigError, match=r"are signed by ed25519:\S+, and this key is ed25519:"):
        FileRegistry(root).champion(GAME, "1")
    (root / "trust").write_text(stranger.trust)
    with pytest.raises(ModelDamaged, match="it is not signed by ed25519:"):
        FileRegistry(root).champion(GAME, "1")


def test_an_entry_in_another_place_or_under_another_number_is_refused(root):
    registry = FileRegistry(root)
    registry.publish(small_model())
    registry.promote(GAME, small_model().id, EVIDENCE)
    (path,) = root.glob("champions/*/*.json")
    content = path.read_bytes()
    (path.parent / "999999999990-000009.json").write_bytes(content)  # fast-forward
    with pytest.raises(ModelDamaged, match="it is the entry 1 of cartpole"):
        FileRegistry(root).champion(GAME, "1")
    other = root / "champions" / "duel"
    other.mkdir(parents=True)
    (other / path.name).write_bytes(content)  # mix-and-match
    with pytest.raises(ModelDamaged, match="it is the entry 1 of cartpole"):
        FileRegistry(root).champion(GameId("duel"), "1")


def test_what_a_killed_writer_left_is_swept_after_a_day(root):
    FileRegistry(root).publish(small_model())
    left = root / ".tmp-1-aa"
    left.mkdir()
    (left / "card.json").write_bytes(b"half")
    now_s = left.stat().st_mtime
    FileRegistry(root, clock=Clock(now_s + 60))
    assert left.exists()
    FileRegistry(root, clock=Clock(now_s + 2 * DAY_S))
    assert not left.exists()
    assert FileRegistry(root).ids() == [small_model().id]


def test_a_thousand_models_are_listed_and_a_new_one_is_seen_at_once(root):
    registry = FileRegistry(root)
    for model in map(small_model, range(1_000)):  # not by publish: five thousand fsyncs are not what is tried here
        (root / model.id).mkdir()
        for name, content in {"card.json": canonical(model.card), **model.files}.items():
            (root / model.id / name).write_bytes(content)
    registry.promote(GAME, small_model(500).id, EVIDENCE)
    listed = FileRegistry(root).models(GAME)
    assert [item.card.lineage.steps["selfplay"] for item in listed] == list(range(1_000))
    assert len(registry.models(GAME)) == 1_000
    FileRegistry(root).publish(small_model(1_000))
    assert len(registry.models(GAME)) == 1_001


WRITER = """
import sys
from pathlib import Path
from small_models import small_model
from sparring.registry.file import FileRegistry
from sparring.registry.protocol import Evidence
registry = FileRegistry(Path(sys.argv[1]))
evidence = Evidence(episodes=1, mean=1.0, sd=0.0)
for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
    registry.publish(small_model(number))
    registry.promote("cartpole", small_model(number).id, evidence)
print("done")
"""


def start_writer(root, first, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(first), str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_readers_see_the_old_or_the_new_while_two_processes_publish_and_promote(root):
    registry = FileRegistry(root)
    registry.publish(small_model(0))
    registry.promote(GAME, small_model(0).id, EVIDENCE)
    writers = [start_writer(root, 1_000, 60), start_writer(root, 2_000, 60)]
    reads = last = 0
    try:
        while reads < 1_000 or any(writer.poll() is None for writer in writers):
            champion = verify(registry.champion(GAME, "1"), registry.trust)
            assert champion.counter >= last
            last = champion.counter
            assert registry.fetch(champion.model).id == champion.model
            if reads % 50 == 0:
                for listed in registry.models(GAME):
                    assert registry.fetch(listed.card.id).card == listed.card
            reads += 1
    finally:
        out = [writer.communicate()[0] for writer in writers]
    assert out == ["done\n", "done\n"]
    assert [entry.champion.counter for entry in registry.history(GAME, "1")] == list(range(1, 122))
    assert len(registry.models(GAME)) == 121


def test_evidence_names_the_opponent():
    evidence = msgspec.structs.replace(EVIDENCE, against="script:tactical")
    assert msgspec.json.decode(canonical(evidence), type=Evidence) == evidence
    assert (evidence.opponent, EVIDENCE.opponent) == ("tactical", "")
