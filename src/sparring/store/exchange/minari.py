"""Minari datasets and back: whole episodes of one seat, as other libraries' offline algorithms read them."""

import hashlib
import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparring.errors import ConfigError, Missing, Refused, SparringError
from sparring.games.catalogue import is_registered, spec_of
from sparring.games.game_state import name_and_options
from sparring.games.spec import DISCRETE, GameSpec, Leaf, SeatSpec
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import MAX_ENCODED_BYTES, MAX_HEADER_BYTES, MAX_STEPS, Array, Chunk, Header
from sparring.wire.ids import EpisodeId

BATCH_EPISODES = 256  # handed to Minari at once


@dataclass(frozen=True, slots=True)
class MinariExport:
    """What went into a dataset; skipped are whole episodes that lack their final observation."""

    episodes: int
    steps: int
    skipped: int


def write(
    store: Store,
    query: Query,
    spec: GameSpec,
    folder: Path,
    name: str,
    *,
    seat: int = 0,
    progress: Callable[[int], None] = lambda episodes: None,
) -> MinariExport:
    """Export the complete episodes of one seat as dataset `name` (such as "sparring/cartpole-v0") in `folder`."""
    with _datasets_in(folder) as minari:
        _check_name(name)
        place = folder / name
        if place.exists():
            raise Refused(f"dataset {name!r} is there already", where=str(folder), do="Choose another --dataset")
        try:
            return _write(minari, store, query, spec, name, seat, progress)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)  # Minari cannot list a folder with half a dataset
            raise


def _write(
    minari: Any,
    store: Store,
    query: Query,
    spec: GameSpec,
    name: str,
    seat: int,
    progress: Callable[[int], None],
) -> MinariExport:
    dataset, episodes, steps, skipped = None, 0, 0, 0
    found = _whole_episodes(store, query, spec, seat)
    while batch := list(itertools.islice(found, BATCH_EPISODES)):
        whole = [episode for episode in batch if episode is not None]
        ready = [_buffer(episode, episodes + number) for number, episode in enumerate(whole)]
        skipped += len(batch) - len(ready)
        episodes, steps = episodes + len(ready), steps + sum(len(buffer.rewards) for buffer in ready)
        if dataset is not None:
            dataset.storage.update_episodes(ready)
        elif ready:
            dataset = _create(minari, name, spec, seat, ready)
        progress(episodes)
    if dataset is None:
        do = "Record whole episodes with their final observation"
        raise Missing(f"no complete episode of seat {seat} ({skipped} without an end)", where=spec.id, do=do)
    dataset.storage.update_metadata({"total_episodes": episodes, "total_steps": steps})
    return MinariExport(episodes, steps, skipped)


def read(folder: Path, name: str, spec: GameSpec, *, seat: int = 0) -> Iterator[Chunk]:
    """The chunks of a Minari dataset as play of that game's seat, with source "import"."""
    with _datasets_in(folder) as minari:
        if name not in minari.list_local_datasets():
            known = ", ".join(sorted(minari.list_local_datasets())) or "none"
            raise Missing(f"no dataset {name!r}; there are: {known}", where=str(folder), do="Name one of them")
        dataset = minari.load_dataset(name)
    for episode in dataset.iterate_episodes():
        yield from _cut(episode, name, spec, seat)


def _check_name(name: str) -> None:
    """Nothing, or ConfigError for a name that Minari refuses once its folder is made."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(name)
    except (ValueError, TypeError):  # the latter where it has no version
        do = "Write NAMESPACE/NAME-vN, such as sparring/cartpole-v0: words of two letters or more, digits, - and _"
        raise ConfigError("it is no name of a Minari dataset", where=f"--dataset {name!r}", do=do) from None


@contextmanager
def _datasets_in(folder: Path) -> Iterator[Any]:
    # Minari knows its folder from the environment alone, and reads it at each call.
    before = os.environ.get("MINARI_DATASETS_PATH")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve())  # it joins a relative one twice
    try:
        import minari

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="minari")  # play has no environment
            yield minari
    except ImportError as error:
        do = "Install it: pip install 'sparring[export]'"
        raise Missing(f"the package {error.name} is not installed", where="--minari", do=do) from None
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before


Joined = tuple[dict[str, Array], str]  # columns of a whole seat with final observations appended; its ending


def _whole_episodes(store: Store, query: Query, spec: GameSpec, seat: int) -> Iterator[Joined | None]:
    leaves = [leaf.name for leaf in spec.seats[seat].observation]
    for record in store.episodes(replace(query, seats=(seat,), complete=True)):
        one = Query(query.game, episodes=(record.episode,), seats=(seat,))
        yield _joined(sorted(store.read(one), key=lambda chunk: chunk.header.first_step), leaves)


def _joined(chunks: list[Chunk], leaves: list[str]) -> Joined | None:
    if not chunks or any(f"final_{leaf}" not in chunks[-1].columns for leaf in leaves):
        return None
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in ("action", "reward")}
    for leaf in leaves:
        final = chunks[-1].columns[f"final_{leaf}"]
        columns[leaf] = np.concatenate([*(chunk.columns[leaf] for chunk in chunks), final[None]])
    return columns, chunks[-1].header.ending


def _buffer(episode: Joined, number: int) -> Any:
    from minari.data_collector import EpisodeBuffer

    columns, ending = episode
    steps = len(columns["action"])
    last = np.arange(steps) == steps - 1
    leaves = {name.removeprefix("observation/"): array for name, array in columns.items() if name.startswith("obs")}
    return EpisodeBuffer(
        id=number,
        observations=next(iter(leaves.values())) if len(leaves) == 1 else leaves,
        actions=columns["action"],
        rewards=columns["reward"].astype(np.float64),
        terminations=last & (ending == "terminated"),
        truncations=last & (ending == "truncated"),
        infos={},
    )


def _create(minari: Any, name: str, spec: GameSpec, seat: int, ready: list[Any]) -> Any:
    from gymnasium import spaces

    table: SeatSpec = spec.seats[seat]
    env, requirements = _environment(spec, seat)
    parts = {leaf.name.removeprefix("observation/"): _space(leaf) for leaf in table.observation}
    return minari.create_dataset_from_buffers(
        name,
        ready,
        env=env,
        requirements=requirements,
        observation_space=next(iter(parts.values())) if len(parts) == 1 else spaces.Dict(parts),
        action_space=_space(table.action),
        algorithm_name="sparring",
        author="sparring",
        author_email="none",
        code_permalink="none",
        description=f"{spec.id} version {spec.version}, seat {table.name}",
        data_format="arrow",
        jpeg_encoding=False,  # it would change the numbers
    )


def _environment(spec: GameSpec, seat: int) -> tuple[Any, list[str]]:
    """What Minari's `recover_environment` makes, and the package that it needs; None for a game that is not here.

    It is Gymnasium's own environment where that shows the dataset's observations; otherwise `sparring.make`.
    """
    import gymnasium

    try:
        here = spec_of(spec.id).hash == spec.hash and not is_registered(spec.id)
    except SparringError:
        here = False
    if not here:
        return None, []
    plain = all(leaf.kind == "vector" for leaf in spec.seats[seat].observation)
    env_id = "CartPole-v1" if spec.id == "cartpole" else spec.id.removeprefix("gym:") if plain else spec.id
    if env_id != spec.id:
        name, options = name_and_options(env_id, f"game {spec.id!r}")
        env: Any = gymnasium.make(name, **options)
        env.close()
        return env.spec, ["gymnasium"]
    name = "".join(c if c.isalnum() else "-" for c in spec.id)
    given = {"game": str(spec.id), "seat": seat}
    return gymnasium.envs.registration.EnvSpec(f"sparring/{name}-v0", "sparring:make", kwargs=given), [
        "sparring[games]"
    ]


def _space(leaf: Leaf) -> Any:
    from gymnasium import spaces

    dtype = np.dtype(leaf.dtype)
    if leaf.kind == "discrete" and leaf.name == "action":
        return spaces.Discrete(leaf.choices[0], dtype=dtype.type)
    if leaf.kind in DISCRETE:
        most = np.asarray(leaf.choices, dtype).reshape(leaf.shape) - 1
        return spaces.Box(np.zeros(leaf.shape, dtype), most.astype(dtype), leaf.shape, dtype.type)
    ends = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = (end if given is None else given for given, end in zip((leaf.low, leaf.high), ends, strict=True))
    return spaces.Box(low, high, leaf.shape, dtype.type)


def _cut(episode: Any, name: str, spec: GameSpec, seat: int) -> Iterator[Chunk]:
    table = spec.seats[seat]
    where = f"dataset {name!r}, episode {episode.id}"
    steps = len(episode.rewards)
    seen = _leaves(episode.observations, table.observation, where)
    actions = np.asarray(episode.actions).astype(table.action.dtype).reshape((steps, *table.action.shape))
    ending = "terminated" if bool(episode.terminations[-1]) else "truncated"
    total = float(np.asarray(episode.rewards, np.float64).sum())
    step_bytes = 64 + sum(array[0].nbytes for array in seen.values())
    room = (MAX_ENCODED_BYTES - MAX_HEADER_BYTES) // step_bytes - 1  # also if nothing compresses
    most = max(1, min(MAX_STEPS, room))
    for first in range(0, steps, most):
        part = slice(first, min(first + most, steps))
        columns = {leaf: array[part] for leaf, array in seen.items()}
        columns["action"] = actions[part]
        columns["reward"] = np.asarray(episode.rewards[part], np.float32)
        columns["tick"] = np.arange(part.start, part.stop, dtype=np.int64)
        last = part.stop == steps
        if last:
            columns |= {f"final_{leaf}": array[-1] for leaf, array in seen.items()}
        header = Header(
            game=spec.id,
            version=spec.version,
            spec=spec.hash,
            episode=_episode(name, int(episode.id)),
            seat=seat,
            first_step=first,
            steps=part.stop - part.start,
            actor="script:minari",
            source="import",
            ending=ending if last else "running",  # type: ignore[arg-type]  # a str to mypy, one of two words
            outcome=total if last else None,
            uploader="import",
        )
        yield Chunk(header, columns)


def _leaves(observations: Any, leaves: Iterable[Leaf], where: str) -> dict[str, Array]:
    wanted = list(leaves)
    if not isinstance(observations, dict):
        if len(wanted) != 1:
            raise Refused("it has one observation, the game several", where=where, do="Import a dataset of this game")
        observations = {wanted[0].name.removeprefix("observation/"): observations}
    found = {}
    for leaf in wanted:
        key = leaf.name.removeprefix("observation/")
        if key not in observations or np.shape(observations[key])[1:] != leaf.shape:
            shape = np.shape(observations[key])[1:] if key in observations else "nothing"
            raise Refused(f"{key} is {shape}, the game has {leaf.shape}", where=where, do="Import it as another game")
        found[leaf.name] = np.asarray(observations[key]).astype(leaf.dtype)
    return found


def _episode(name: str, number: int) -> EpisodeId:
    """The same UUIDv7 each time, so that importing a dataset again finds it already there."""
    bits = int.from_bytes(hashlib.sha256(f"minari\0{name}\0{number}".encode()).digest()[:8], "big")
    text = f"{0x7 << 76 | 0b10 << 62 | bits >> 2:032x}"  # of the year 1970: when it was played is not known
    return EpisodeId("-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
