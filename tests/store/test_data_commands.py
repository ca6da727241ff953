"""`spar data`, `spar replay`, `spar backup` and `spar restore`, as a person calls them."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from derived import GAME, chunks_of, differences, player_of
from sparring.cli import main
from sparring.cli.backup import MANIFEST, pack, unpack
from sparring.config import Config
from sparring.errors import Refused
from sparring.games.catalogue import open_game
from sparring.games.scripts import play, script
from sparring.gateway.credentials import Secrets, open_identity
from sparring.store import open_store
from sparring.store.exchange import parquet
from sparring.store.protocol import Query
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a few episodes of CartPole."""
    folder = tmp_path / "data"
    with open_store(f"sqlite:///{folder}/experience.db") as store:
        for client in range(3):
            store.append([chunk for episode in range(4) for chunk in chunks_of(1, client, episode)])
    return folder


def spar(capsys: pytest.CaptureFixture[str], data: Path, *words: object) -> tuple[int, Any]:
    """Exit code and --json object of one command."""
    code = main([*map(str, words), "--data", str(data), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_stats_and_quality_say_what_there_is(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert main(["data", "stats", "--data", str(data)]) == 0
    assert "cartpole" in capsys.readouterr().out
    code, found = spar(capsys, data, "data", "quality", "cartpole", "--version", "1")
    assert (code, found["episodes"], found["steps"]) == (0, 12, 1200)
    code, found = spar(capsys, data, "data", "quality", "cartpole", "--since", "7d")
    assert found["steps"] == 0  # they were received in 2025


def test_a_folder_without_experience_says_how_to_get_some(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = spar(capsys, tmp_path / "none", "data", "stats")
    assert (code, found["error"]) == (1, "nothing was recorded yet")
    assert not (tmp_path / "none").exists()


def test_export_and_import_carry_everything_over(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "out.parquet", tmp_path / "other"
    assert spar(capsys, data, "data", "export", "cartpole", "--to", file)[1]["steps"] == 1200
    assert spar(capsys, other, "data", "import", file)[1]["verdicts"] == {"new": 36}
    assert spar(capsys, other, "data", "import", file)[1]["verdicts"] == {"had": 36}
    _, found = spar(capsys, data, "data", "export", "cartpole", "--minari", tmp_path / "sets")
    assert (found["dataset"], found["episodes"]) == ("sparring/cartpole-v0", 12)
    words = ("data", "import", "cartpole", "--minari", tmp_path / "sets", "--dataset", found["dataset"])
    assert spar(capsys, other, *words)[1]["verdicts"] == {"new": 12}


def test_one_seat_is_exported_and_imported_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    played = play(open_game("duel"), [script("duel", "random")] * 2, [1], np.random.default_rng(0))[0]
    with open_store(f"sqlite:///{tmp_path}/a/experience.db") as store:
        store.append(played)
    steps = [sum(chunk.header.steps for chunk in played if chunk.header.seat == seat) for seat in (0, 1)]
    both, one, words = tmp_path / "both.parquet", tmp_path / "one.parquet", ("data", "export", "duel")
    assert spar(capsys, tmp_path / "a", *words, "--to", both)[1]["steps"] == sum(steps)
    assert spar(capsys, tmp_path / "a", *words, "--seat", "1", "--to", one)[1]["steps"] == steps[1]
    (seat,) = {chunk.header.seat for chunk in parquet.read(one)}
    assert seat == 1
    assert spar(capsys, tmp_path / "b", "data", "import", both, "--seat", "0")[0] == 0
    with open_store(f"sqlite:///{tmp_path}/b/experience.db") as store:
        assert {chunk.header.seat for chunk in store.read(Query(GameId("duel")))} == {0}
    for seat in (-1, 2):
        code, found = spar(capsys, tmp_path / "a", *words, "--seat", seat, "--minari", tmp_path / "sets")
        assert (code, found["do"]) == (1, "Count from 0 to 1")


def test_an_import_keeps_to_the_games_spec(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = chunks_of(1, 0, 0)[0]
    wrong = Chunk(wrong.header, {**wrong.columns, "action": np.full(40, 9, np.int32)})
    with open_store(f"sqlite:///{tmp_path}/a/experience.db") as store:
        store.append([wrong])
    spar(capsys, tmp_path / "a", "data", "export", "cartpole", "--to", tmp_path / "out.parquet")
    code, found = spar(capsys, tmp_path / "b", "data", "import", tmp_path / "out.parquet")
    assert (code, found["field"]) == (1, "action")


def test_erase_takes_a_pseudonym_or_the_games_own_name(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    _, found = spar(capsys, data, "data", "erase", "cartpole", player_of(1))
    assert found["erased"][0]["chunks"] == 12
    alice = Secrets(open_identity(Config(data=str(data)))).pseudonym(GAME, "alice")
    with open_store(f"sqlite:///{data}/experience.db") as store:
        store.append(chunks_of(1, 9, 0, player=alice))
        store.append(chunks_of(1, 9, 0, seat=1, player=None, actor="script:random"))
    _, found = spar(capsys, data, "data", "erase", "alice", "--name")
    assert [(one["game"], one["chunks"], one["steps"]) for one in found["erased"]] == [("cartpole", 6, 200)]
    assert found["erased"][0]["player"] == alice


def test_erase_names_the_models_that_may_have_learned_from_the_player_and_their_children(
    capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    from sparring.games.catalogue import spec_of
    from sparring.nets.model_files import make_model
    from sparring.nets.torch_network import Network, default_network
    from sparring.registry import open_registry
    from sparring.wire.model import Lineage

    spec = spec_of(GAME)
    network = default_network(spec.seats[0], hidden=(4,))
    registry = open_registry(f"file:///{data}/models")

    def publish(seed: int, **lineage: Any) -> str:
        made = Lineage(algorithm="dqn", config={}, steps={}, seed=seed, **lineage)
        return registry.publish(make_model(spec, network, Network(network, seed).weights(), "greedy", made, 1 + seed))

    first_ms = chunks_of(1, 1, 0)[0].header.received_at_ms
    publish(0)
    publish(1, store_until_ms=first_ms - 1)
    saw = publish(2, store_until_ms=first_ms)
    child = publish(3, parents=(saw,))
    _, found = spar(capsys, data, "data", "erase", "cartpole", player_of(1))
    assert found["erased"][0]["models"] == [saw, child]


def test_verify_names_a_damaged_chunk_and_fails(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert spar(capsys, data, "data", "verify") == (0, {"chunks": 36, "damaged": []})
    file = data / "experience.db"
    raw = bytearray(file.read_bytes())
    with open_store(f"sqlite:///{file}") as store:
        body = next(iter(store.read(Query(GAME)))).body
    raw[raw.index(body[100:140])] ^= 1
    file.write_bytes(raw)
    code, found = spar(capsys, data, "data", "verify")
    assert (code, found["chunks"], len(found["damaged"])) == (1, 35, 1)


@pytest.mark.parametrize(("game", "name"), [("cartpole", "balance"), ("connect-four", "random"), ("duel", "tracker")])
def test_a_recorded_episode_replays_and_an_edited_one_says_where(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, game: str, name: str
) -> None:
    opened = open_game(game, 1)
    player = script(game, name)
    good, bad = play(opened, [player] * len(opened.spec.seats), (1, 2), np.random.default_rng(0))
    action = bad[0].columns["action"].copy()
    action[2] = (action[2] + 1) % 2
    edited = [Chunk(bad[0].header, {**bad[0].columns, "action": action}), *bad[1:]]
    with open_store(f"sqlite:///{tmp_path}/experience.db") as store:
        store.append([*good, *edited])
    code, found = spar(capsys, tmp_path, "replay", good[0].header.episode)
    assert (code, found["same"], found["game"]) == (0, True, game)
    code, found = spar(capsys, tmp_path, "replay", bad[0].header.episode, "--quiet")
    assert (code, found["same"]) == (1, False)
    assert found["mismatches"]
    code, found = spar(capsys, tmp_path, "replay", "00000000-0000-7000-8000-000000000000")
    assert (code, found["error"]) == (1, "no chunk of episode 00000000-0000-7000-8000-000000000000")


def test_a_backup_of_a_running_store_restores_every_row_and_every_file(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    (data / "runs" / "one").mkdir(parents=True)
    (data / "runs" / "one" / "metrics.jsonl").write_text('{"loss": 1}\n')
    Secrets(open_identity(Config(data=str(data))))  # makes identity.key, which only its owner may read
    writer = [sys.executable, str(Path(__file__).parent / "writer.py"), f"sqlite:///{data}/experience.db", "7", "0"]
    with subprocess.Popen(writer, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "ok 3\n":
            pass
        code, _ = spar(capsys, data, "backup", tmp_path / "b.tar.zst")
        assert code == 0
        assert process.poll() is None
        process.kill()
    assert (tmp_path / "b.tar.zst").stat().st_mode & 0o777 == 0o600
    code, found = spar(capsys, tmp_path / "new", "restore", tmp_path / "b.tar.zst")
    assert code == 0
    assert found["games"]["cartpole"] >= 1600
    assert (tmp_path / "new" / "runs" / "one" / "metrics.jsonl").read_text() == '{"loss": 1}\n'
    assert (tmp_path / "new" / "identity.key").stat().st_mode & 0o777 == 0o600
    with open_store(f"sqlite:///{tmp_path}/new/experience.db") as store:
        chunks = list(store.read(Query(GAME)))
    assert all(differences(chunk) == [] for chunk in chunks)
    assert not list(tmp_path.glob(".new*"))


def test_restore_wants_an_empty_folder(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    spar(capsys, data, "backup", tmp_path / "b.tar.zst")
    code, found = spar(capsys, data, "restore", tmp_path / "b.tar.zst")
    assert (code, found["error"]) == (1, "the data folder is not empty")
    code, found = spar(capsys, data, "backup", data / "b.tar.zst")
    assert (code, found["error"]) == (1, "it lies inside the data folder")
    code, found = spar(capsys, tmp_path / "new", "restore", tmp_path / "nothing.tar.zst")
    assert code == 1


def test_a_damaged_or_cut_backup_restores_nothing(data: Path, tmp_path: Path) -> None:
    archive = tmp_path / "b.tar.zst"
    pack(data, archive, 0)
    whole = archive.read_bytes()
    for size in (10, len(whole) // 2, len(whole) - 1):
        archive.write_bytes(whole[:size])
        with pytest.raises(Refused):
            unpack(archive, tmp_path / "new")
    archive.write_bytes(whole)
    unpack(archive, tmp_path / "true")
    true = {path.name: path.read_bytes() for path in (tmp_path / "true").iterdir()}
    refused = 0
    for at in np.random.default_rng(0).integers(0, len(whole), 60).tolist():
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        folder = tmp_path / f"flipped-{at}"
        try:
            unpack(archive, folder)
        except Refused:
            refused += 1
            assert not folder.exists()
        else:  # a bit of the manifest's date, or one that the decompressor does not read
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == true
    assert refused > 50
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/etc/evil", tarfile.REGTYPE), ("a\\..\\b", tarfile.REGTYPE), ("c:evil", b"0")]
    + [("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("pipe", tarfile.FIFOTYPE)],
)
def test_a_backup_with_a_trick_in_it_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    archive = tmp_path / "trick.tar.zst"
    with (
        archive.open("wb") as file,
        zstandard.ZstdCompressor().stream_writer(file) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|") as tar,
    ):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
        tar.addfile(info, io.BytesIO())
        manifest = msgspec.json.encode({"format": 1, "sparring": "x", "created_at_ms": 0, "members": {}})
        last = tarfile.TarInfo(MANIFEST)
        last.size = len(manifest)
        tar.addfile(last, io.BytesIO(manifest))
    with pytest.raises(Refused, match="that no backup has"):
        unpack(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()
