"""Whole recorded episodes as flat columns: what every estimator reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def returns(self, discount: float) -> Array:
        """Each step's discounted return to the end of its recorded episode; a cut one adds nothing after the cut."""
        table = self.padded(self.reward)
        for t in range(table.shape[1] - 2, -1, -1):
            table[:, t] += discount * table[:, t + 1]
        return table[np.arange(table.shape[1]) < np.diff(self.start)[:, None]].astype(np.float32)

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
    chunks: list[Chunk] = []
    taken: set[tuple[str, int]] = set()
    left_out = {"another spec": 0, "incomplete": 0, "beyond the limit": 0}
    steps = 0
    for chunk in store.read(query or Query(game.id)):
        key = (chunk.header.episode, chunk.header.seat)
        if steps >= most_steps and key not in taken:
            left_out["beyond the limit"] += chunk.header.first_step == 0
        elif chunk.header.spec != game.hash:
            left_out["another spec"] += chunk.header.first_step == 0
        else:
            chunks.append(chunk)
            taken.add(key)
            steps += chunk.header.steps
    whole = [run for run in consecutive(chunks) if _is_whole(run)]
    left_out["incomplete"] = len(taken) - len(whole)
    if not whole:
        why = ", ".join(f"{count} {why}" for why, count in left_out.items() if count) or "it holds none at all"
        do = f"Collect some: `spar collect {game.id}`"
        raise Missing(f"no whole episode of {game.id} fits ({why})", where="--from store", do=do)
    return of_episodes(whole, left_out)


def consecutive(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """The chunks of each seat in each episode, in order, cut where one is missing."""
    by_seat: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in chunks:
        by_seat.setdefault((chunk.header.episode, chunk.header.seat), []).append(chunk)
    for key in sorted(by_seat):
        run: list[Chunk] = []
        for chunk in sorted(by_seat[key], key=lambda chunk: chunk.header.first_step):
            if run and chunk.header.first_step != run[-1].header.first_step + run[-1].header.steps:
                yield run
                run = []
            run.append(chunk)
        yield run


def of_episodes(episodes: Iterable[list[Chunk]], left_out: Mapping[str, int] | None = None) -> RecordedEpisodes:
    """Whole episodes, each given by its chunks in order."""
    runs = list(episodes)
    chunks = [chunk for run in runs for chunk in run]
    leaves = [name for name in chunks[0].columns if name.startswith("observation/")]
    choices = next((chunk.columns["legal"].shape[1] for chunk in chunks if "legal" in chunk.columns), 0)
    lengths = [sum(chunk.header.steps for chunk in run) for run in runs]
    action = column_of(chunks, "action")
    return RecordedEpisodes(
        observation={leaf: column_of(chunks, leaf) for leaf in leaves},
        action=action if action.dtype.kind == "f" else action.astype(np.int64),
        reward=column_of(chunks, "reward").astype(np.float32),
        legal=legal_of(chunks, choices) if choices else None,
        logp=np.concatenate([_logp(chunk) for chunk in chunks]),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        ending=np.array([ENDINGS.index(run[-1].header.ending) for run in runs], np.uint8),
        final={leaf: np.stack([final_of(run[-1], leaf) for run in runs]) for leaf in leaves},
        left_out=dict(left_out or {}),
    )


def column_of(chunks: Sequence[Chunk], name: str) -> Array:
    """One column of consecutive chunks."""
    return np.concatenate([chunk.columns[name] for chunk in chunks])


def legal_of(chunks: Sequence[Chunk], choices: int) -> Array:
    """bool [steps, choices]: all legal in chunks that do not record it."""
    every = [chunk.columns.get("legal", np.ones((chunk.header.steps, choices), bool)) for chunk in chunks]
    return np.concatenate([legal.astype(bool) for legal in every])


def has_final(chunk: Chunk) -> bool:
    """Whether the chunk recorded the observation after its last step."""
    return any(name.startswith(_FINAL) for name in chunk.columns)


def final_of(chunk: Chunk, leaf: str) -> Array:
    """The observation after the last step; the one before it where that was not recorded, which matters only where
    the episode goes on."""
    return np.asarray(chunk.columns.get(f"{_FINAL}{leaf}", chunk.columns[leaf][-1]))


def _is_whole(run: list[Chunk]) -> bool:
    """From the first step to an end; a truncated one must have recorded its final observation."""
    ending = run[-1].header.ending
    return run[0].header.first_step == 0 and (ending == "terminated" or (ending == "truncated" and has_final(run[-1])))


def _logp(chunk: Chunk) -> Array:
    column = chunk.columns.get("behaviour_logp")
    return np.full(chunk.header.steps, np.nan, np.float32) if column is None else column.astype(np.float32)
