"""Whole recorded episodes as flat columns: what every estimator reads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sparring.errors import Missing
from sparring.games.protocol import ENDINGS, TERMINATED
from sparring.games.spec import GameSpec
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Array, Chunk

MOST_STEPS = 1_000_000
_FINAL = "final_"


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """Episodes of one seat each, laid end to end: episode e holds the steps from start[e] to start[e + 1]."""

    observation: Mapping[str, Array]  # [steps, …]
    action: Array
    reward: Array  # float32 [steps]
    legal: Array | None  # bool [steps, choices]
    logp: Array  # float32 [steps]: log μ of the action as the player recorded it; NaN where it did not
    start: Array  # int64 [episodes + 1]
    ending: Array  # uint8 [episodes]: TERMINATED or TRUNCATED
    final: Mapping[str, Array]  # [episodes, …]: the observation after the last step
    left_out: Mapping[str, int] = field(default_factory=dict)  # episodes that could not be used, by reason

    @property
    def episodes(self) -> int:
        return len(self.ending)

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def first(self) -> Array:
        """The row of each episode's first step."""
        return self.start[:-1]

    @property
    def pays_once(self) -> bool:
        """Whether no step but the last of an episode was ever rewarded."""
        early = np.ones(self.steps, bool)
        early[self.start[1:] - 1] = False
        return not self.reward[early].any()

    def episode_of_step(self) -> Array:
        """The episode of each step."""
        return np.repeat(np.arange(self.episodes), np.diff(self.start))

    def following(self) -> Array:
        """The row of the observation after each step, in the steps' rows followed by the final observations."""
        after = np.arange(1, self.steps + 1)
        after[self.start[1:] - 1] = self.steps + np.arange(self.episodes)
        return after

    def goes_on(self) -> Array:
        """Whether the episode goes on after each step: not after a true end."""
        goes = np.ones(self.steps, bool)
        goes[self.start[1:] - 1] = self.ending != TERMINATED
        return goes

    def padded(self, column: Array, fill: float = 0.0) -> Array:
        """A column of the steps as float64 [episodes, longest], `fill` behind each episode's end."""
        lengths = np.diff(self.start)
        table = np.full((self.episodes, int(lengths.max())), fill)
        table[np.arange(table.shape[1]) < lengths[:, None]] = column
        return table


def read_records(
    store: Store, game: GameSpec, query: Query | None = None, most_steps: int = MOST_STEPS
) -> RecordedEpisodes:
    """Every whole episode that fits the game, up to `most_steps` steps; Missing where there is none."""
    parts: dict[tuple[str, int], list[Chunk]] = {}
    left_out = {"another spec": 0, "incomplete": 0, "beyond the limit": 0}
    steps = 0
    for chunk in store.read(query or Query(game.id)):
        key = (chunk.header.episode, chunk.header.seat)
        if steps >= most_steps and key not in parts:
            left_out["beyond the limit"] += chunk.header.first_step == 0
        elif chunk.header.spec != game.hash:
            left_out["another spec"] += chunk.header.first_step == 0
        else:
            parts.setdefault(key, []).append(chunk)
            steps += chunk.header.steps
    whole = []
    for chunks in parts.values():
        chunks.sort(key=lambda chunk: chunk.header.first_step)
        if _is_whole(chunks):
            whole.append(chunks)
        else:
            left_out["incomplete"] += 1
    if not whole:
        why = ", ".join(f"{count} {why}" for why, count in left_out.items() if count) or "it holds none at all"
        do = f"Collect some: `spar collect {game.id}`"
        raise Missing(f"no whole episode of {game.id} fits ({why})", where="--from store", do=do)
    return of_episodes(whole, left_out)


def of_episodes(episodes: Iterable[list[Chunk]], left_out: Mapping[str, int] | None = None) -> RecordedEpisodes:
    """Whole episodes, each given by its chunks in order."""
    grouped = list(episodes)
    chunks = [chunk for one in grouped for chunk in one]
    leaves = [name for name in chunks[0].columns if name.startswith("observation/")]
    masks = any("legal" in chunk.columns for chunk in chunks)
    lengths = [sum(chunk.header.steps for chunk in one) for one in grouped]
    return RecordedEpisodes(
        observation={leaf: np.concatenate([chunk.columns[leaf] for chunk in chunks]) for leaf in leaves},
        action=np.concatenate([chunk.columns["action"] for chunk in chunks]).astype(np.int64),
        reward=np.concatenate([chunk.columns["reward"] for chunk in chunks]).astype(np.float32),
        legal=_legal(chunks) if masks else None,
        logp=np.concatenate([_logp(chunk) for chunk in chunks]),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        ending=np.array([ENDINGS.index(one[-1].header.ending) for one in grouped], np.uint8),
        final={leaf: np.stack([_final(one[-1], leaf) for one in grouped]) for leaf in leaves},
        left_out=dict(left_out or {}),
    )


def _is_whole(chunks: list[Chunk]) -> bool:
    """From the first step to an end without a gap; a truncated one must have recorded its final observation."""
    ends = np.cumsum([chunk.header.steps for chunk in chunks]).tolist()
    if [chunk.header.first_step for chunk in chunks] != [0, *ends[:-1]]:
        return False
    last = chunks[-1]
    final = any(name.startswith(_FINAL) for name in last.columns)
    return last.header.ending == "terminated" or (last.header.ending == "truncated" and final)


def _legal(chunks: list[Chunk]) -> Array:
    choices = next(chunk.columns["legal"].shape[1] for chunk in chunks if "legal" in chunk.columns)
    every = [chunk.columns.get("legal", np.ones((chunk.header.steps, choices), bool)) for chunk in chunks]
    return np.concatenate([legal.astype(bool) for legal in every])


def _logp(chunk: Chunk) -> Array:
    column = chunk.columns.get("behaviour_logp")
    return np.full(chunk.header.steps, np.nan, np.float32) if column is None else column.astype(np.float32)


def _final(chunk: Chunk, leaf: str) -> Array:
    """The last observation stands in for a final one that was not recorded: after a true end it has no value."""
    return np.asarray(chunk.columns.get(f"{_FINAL}{leaf}", chunk.columns[leaf][-1]))
