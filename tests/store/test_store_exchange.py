"""Experience leaves as Parquet or Minari and comes back as it was."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import minari
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from derived import GAME, chunks_of
from sparring.errors import ConfigError, Missing, Refused
from sparring.games.catalogue import open_game, spec_of
from sparring.games.chunk_checks import check_chunk
from sparring.games.scripts import play, script
from sparring.store import open_store
from sparring.store.exchange import minari as minari_sets
from sparring.store.exchange import parquet
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Chunk
from sparring.wire.ids import GameId


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/experience.db") as opened:
        yield opened


def mixed() -> list[Chunk]:
    """Chunks that differ in which columns they have, with everything optional in some of them."""
    chunks = [chunk for episode in range(3) for chunk in chunks_of(1, 0, episode, sample_rate=0.5)]
    for n, chunk in enumerate(chunks_of(2**64 - 1, 3, 0, player=None, lease="lease-1", actor="model:" + "a" * 64)):
        steps = chunk.header.steps
        more = {"behaviour_logp": np.full(steps, -0.5, np.float32), "state/h": np.ones((2, 3), np.float32)}
        more["legal"] = (np.arange(2 * steps).reshape(steps, 2) % 2).astype(np.uint8)
        chunks.append(replace(chunk, columns={**chunk.columns, **more}) if n else chunk)
    return chunks


def hashes(store: Store) -> list[bytes]:
    return [chunk.content_hash() for chunk in store.read(Query(GAME))]


def test_parquet_and_back_gives_identical_content_hashes(store: Store, tmp_path: Path) -> None:
    sent = mixed()
    store.append(sent)
    exported = parquet.write(store, Query(GAME), tmp_path / "out.parquet")
    assert (exported.chunks, exported.steps) == (len(sent), 400)
    with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        kept = other.append(list(parquet.read(tmp_path / "out.parquet")))
        assert {one.verdict for one in kept} == {"new"}
        assert hashes(other) == hashes(store) == [chunk.content_hash() for chunk in sent]
    assert {one.verdict for one in store.append(list(parquet.read(tmp_path / "out.parquet")))} == {"had"}


def test_a_table_has_one_row_per_step_that_other_programs_read(store: Store, tmp_path: Path) -> None:
    store.append(mixed())
    parquet.write(store, Query(GAME), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert len(table) == 400
    assert table.schema.field("action").type == pa.int32()
    assert table.schema.field("observation/state").type == pa.list_(pa.float32())
    assert table["final_observation/state"].null_count == 400 - 4
    first = chunks_of(1, 0, 0)[0]
    assert table["observation/state"][7].as_py() == first.columns["observation/state"][7].tolist()


def test_row_groups_cut_elsewhere_by_another_program_do_not_matter(store: Store, tmp_path: Path) -> None:
    store.append(mixed())
    parquet.write(store, Query(GAME), tmp_path / "out.parquet")
    pq.write_table(pq.read_table(tmp_path / "out.parquet"), tmp_path / "again.parquet", row_group_size=13)
    assert [chunk.content_hash() for chunk in parquet.read(tmp_path / "again.parquet")] == hashes(store)


def test_a_file_that_is_no_export_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"game": ["x"]}), tmp_path / "foreign.parquet")
    with pytest.raises(Refused, match="it lacks the columns version, spec, episode"):
        list(parquet.read(tmp_path / "foreign.parquet"))
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(Refused, match="it is no Parquet file"):
        list(parquet.read(tmp_path / "text.parquet"))


def test_rows_that_were_dropped_or_reordered_are_refused(store: Store, tmp_path: Path) -> None:
    store.append(mixed())
    parquet.write(store, Query(GAME), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    pq.write_table(pa.concat_tables([table.slice(0, 10), table.slice(11)]), tmp_path / "cut.parquet")
    with pytest.raises(Refused, match="its rows are not the steps of one chunk"):
        list(parquet.read(tmp_path / "cut.parquet"))


def test_one_name_with_two_dtypes_is_refused_before_anything_is_written(store: Store, tmp_path: Path) -> None:
    chunk = chunks_of(1, 0, 0)[0]
    store.append([chunk, *chunks_of(1, 1, 0)])
    other = chunks_of(1, 2, 0)[0]
    store.append([replace(other, columns={**other.columns, "action": other.columns["action"].astype(np.int64)})])
    with pytest.raises(Refused, match="action is int32 in some chunks and int64 in others"):
        parquet.write(store, Query(GAME), tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_minari_gets_whole_episodes_and_gives_them_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for episode in range(5):
        store.append(chunks_of(1, 0, episode))
    store.append(chunks_of(1, 0, 9, ended=False))
    folder = tmp_path / "sets"
    exported = minari_sets.write(store, Query(GAME), spec_of(GAME), folder, "sparring/cartpole-v0")
    assert (exported.episodes, exported.steps, exported.skipped) == (5, 500, 0)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    dataset = minari.load_dataset("sparring/cartpole-v0")
    assert dataset.storage.metadata["requirements"] == ["gymnasium"]
    env = dataset.recover_environment()
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"
    assert env.reset(seed=0)[0].shape == dataset.observation_space.shape
    episodes = list(dataset.iterate_episodes())
    assert [len(one.rewards) for one in episodes] == [100] * 5
    assert episodes[0].observations.shape == (101, 4)
    assert (episodes[0].terminations.sum(), episodes[0].truncations.sum()) == (1, 0)
    back = list(minari_sets.read(folder, "sparring/cartpole-v0", spec_of(GAME)))
    assert len(back) == 5
    for chunk in back:
        check_chunk(chunk, spec_of(GAME))
    mine = np.concatenate([chunk.columns["observation/state"] for chunk in chunks_of(1, 0, 0)])
    assert np.array_equal(back[0].columns["observation/state"], mine)
    assert {one.verdict for one in store.append(back)} == {"new"}
    again = list(minari_sets.read(folder, "sparring/cartpole-v0", spec_of(GAME)))
    assert {one.verdict for one in store.append(again)} == {"had"}


def test_minari_recovers_an_environment_with_its_options(store: Store, tmp_path: Path) -> None:
    name = "gym:Pendulum-v1(g=5,max_episode_steps=20)"
    random = script(name, "random")
    for chunks in play(open_game(name, 1), (random,), range(1), np.random.default_rng(0)):
        store.append(chunks)
    minari_sets.write(store, Query(GameId(name)), spec_of(name), tmp_path, "sparring/pendulum-v0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        env = minari.load_dataset("sparring/pendulum-v0").recover_environment()
    assert env.unwrapped.g == 5  # type: ignore[attr-defined]
    assert env.spec is not None
    assert env.spec.max_episode_steps == 20


def test_minari_takes_a_board_game_with_a_legal_mask(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = open_game("connect-four", 4)
    random = script("connect-four", "random")
    for chunks in play(game, (random, random), range(4), np.random.default_rng(0)):
        store.append(chunks)
    spec, query = spec_of("connect-four"), Query(GameId("connect-four"))
    exported = minari_sets.write(store, query, spec, tmp_path / "sets", "sparring/four-v0", seat=1)
    assert exported.episodes == 4
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    dataset = minari.load_dataset("sparring/four-v0")
    assert dataset.storage.metadata["requirements"] == ["sparring[games]"]
    env = dataset.recover_environment()
    board, info = env.reset(seed=1)
    assert board.sum() == 1, "it sits in the second seat"
    assert dataset.observation_space.contains(board)
    assert env.step(int(info["action_mask"].argmax()))[0].sum() == 3
    back = list(minari_sets.read(tmp_path / "sets", "sparring/four-v0", spec, seat=1))
    assert sum(chunk.header.steps for chunk in back) == exported.steps


@pytest.mark.parametrize("name", ["a/b-v0", "mydata", "sparring/cart pole-v0", "../cartpole-v0"])
def test_a_name_that_minari_refuses_is_refused_before_anything_is_written(
    store: Store, tmp_path: Path, name: str
) -> None:
    store.append(chunks_of(1, 0, 0))
    with pytest.raises(ConfigError, match=r"no name of a Minari dataset. Write NAMESPACE/NAME-vN"):
        minari_sets.write(store, Query(GAME), spec_of(GAME), tmp_path / "sets", name)
    assert not list((tmp_path / "sets").iterdir())


def test_an_export_that_fails_leaves_no_dataset_behind(store: Store, tmp_path: Path) -> None:
    store.append(chunks_of(1, 0, 0))

    def stop(episodes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        minari_sets.write(store, Query(GAME), spec_of(GAME), tmp_path, "sparring/cartpole-v0", progress=stop)
    assert minari_sets.write(store, Query(GAME), spec_of(GAME), tmp_path, "sparring/cartpole-v0").episodes == 1


def test_a_dataset_that_is_not_there_names_those_that_are(store: Store, tmp_path: Path) -> None:
    store.append(chunks_of(1, 0, 0))
    minari_sets.write(store, Query(GAME), spec_of(GAME), tmp_path, "sparring/cartpole-v0")
    with pytest.raises(Missing, match=r"there are: sparring/cartpole-v0"):
        list(minari_sets.read(tmp_path, "sparring/other-v0", spec_of(GAME)))
    with pytest.raises(Refused, match=r"is there already\. Choose another --dataset"):
        minari_sets.write(store, Query(GAME), spec_of(GAME), tmp_path, "sparring/cartpole-v0")
    with pytest.raises(Missing, match="no complete episode of seat 0"):
        minari_sets.write(store, Query(GAME, versions=("9",)), spec_of(GAME), tmp_path, "sparring/none-v0")
