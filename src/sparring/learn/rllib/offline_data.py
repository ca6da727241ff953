"""The store as RLlib's offline data: read once, in parallel, through Ray Data; then in another order each epoch.

Ray's reader processes import this module for `RowMaker`, so RLlib, which takes seconds, is imported in functions only.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.errors import Missing
from sparring.games.protocol import Columns
from sparring.learn.offline.parallel_store import ParallelStore, dataset_of, in_memory, tables_of
from sparring.learn.offline.records import column_of, consecutive, final_of, has_final, legal_of
from sparring.learn.plan import Plan
from sparring.learn.rllib.environments import ActionSpace, FlatObservation
from sparring.replay.steps import SOURCES
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Array, Chunk

if TYPE_CHECKING:
    from sparring.learn.rllib.config import GameFit

SHUFFLED_STEPS = 50_000  # among which the next batch is drawn
BLOCK_STEPS = 8_192
# RLlib's names of its columns.
OBS, NEXT_OBS, ACTIONS, REWARDS = "obs", "new_obs", "actions", "rewards"
TERMINATEDS, VALUE_TARGETS = "terminateds", "value_targets"
SOURCE, RECEIVED = "source", "received_at_ms"  # our own columns, for a model's lineage


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Turns chunks into the rows that RLlib learns from: one for each step, with the observation after it.

    Ray's processes call it with the chunks of one part.
    """

    spec: str  # the hash: a spec that was pickled has another, since msgspec leaves out defaults by identity
    frame_stack: int
    observation: FlatObservation
    actions: ActionSpace
    discount: float
    whole: bool  # only episodes that were recorded from their first step to their end
    reward_clip: float = 0.0

    def __call__(self, chunks: Iterator[Chunk]) -> Iterator[Any]:
        from ray.data.block import BlockAccessor

        waiting: list[Columns] = []
        count = 0
        for run in consecutive(chunk for chunk in chunks if chunk.header.spec == self.spec):
            if (rows := self.rows(run)) is None:
                continue
            waiting.append(rows)
            count += len(rows[REWARDS])
            if count >= BLOCK_STEPS:
                yield BlockAccessor.batch_to_block(_joined(waiting))
                waiting, count = [], 0
        if waiting:
            yield BlockAccessor.batch_to_block(_joined(waiting))

    def rows(self, run: list[Chunk]) -> Columns | None:
        """The steps of consecutive chunks of one seat; None where nothing can be learned from them."""
        last = run[-1]
        ended = last.header.ending != "running"
        if self.whole and not (ended and run[0].header.first_step == 0):
            return None
        frames = {leaf: self._frames(run, leaf) for leaf in self.observation.names}
        rows = self.observation.flatten(frames, self._legal(run))
        reward = column_of(run, "reward").astype(np.float32)
        reward = np.clip(reward, -self.reward_clip, self.reward_clip) if self.reward_clip else reward
        terminated = np.zeros(len(reward), bool)
        terminated[-1] = last.header.ending == "terminated"
        steps = [chunk.header.steps for chunk in run]
        columns = {
            OBS: rows[:-1],
            NEXT_OBS: rows[1:],
            ACTIONS: self.actions.from_game(column_of(run, "action")),
            REWARDS: reward,
            TERMINATEDS: terminated,
            VALUE_TARGETS: discounted_returns(reward, self.discount),
            SOURCE: np.repeat(np.array([SOURCES.index(chunk.header.source) for chunk in run], np.uint8), steps),
            RECEIVED: np.repeat(np.array([chunk.header.received_at_ms for chunk in run], np.int64), steps),
        }
        if ended or has_final(last):
            return columns
        # The observation after the last step was not recorded.
        return {name: column[:-1] for name, column in columns.items()} if len(reward) > 1 else None

    def _frames(self, run: list[Chunk], leaf: str) -> Array:
        """[steps + 1, …]: the leaf at every step and after the last, where a true end may repeat it. Stacked frames are
        [steps + 1, stack, …]; the first frame is repeated before the first step."""
        frames = np.concatenate([column_of(run, leaf), final_of(run[-1], leaf)[None]])
        if self.frame_stack == 1:
            return frames
        places = np.arange(len(frames))[:, None] + np.arange(-self.frame_stack + 1, 1)
        return np.asarray(frames[np.maximum(places, 0)])

    def _legal(self, run: list[Chunk]) -> Array | None:
        choices = self.observation.masks
        return np.concatenate([legal_of(run, choices), np.ones((1, choices), bool)]) if choices else None


def discounted_returns(reward: Array, discount: float) -> Array:
    """float32: the discounted sum of each step's reward and all after it."""
    found = reward.astype(np.float64)
    for step in range(len(reward) - 2, -1, -1):
        found[step] += discount * found[step + 1]
    return found.astype(np.float32)


def _joined(blocks: list[Columns]) -> Columns:
    return {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}


class RllibRecords:
    """A dataset of Ray Data, handed out in batches, endlessly, in another order each epoch."""

    def __init__(self, dataset: Any, url: str, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        self.epoch = 0
        self._batches: Iterator[dict[str, Any]] = iter(())
        self._taken = 0
        self.steps: Counter[str] = Counter()
        self.until_ms: int | None = None
        for table in tables_of(dataset.select_columns([SOURCE, RECEIVED]), url):
            found, counts = np.unique(table[SOURCE].to_numpy(), return_counts=True)
            self.steps.update({SOURCES[place]: int(count) for place, count in zip(found, counts, strict=True)})
            self.until_ms = max(self.until_ms or 0, int(table[RECEIVED].to_numpy().max()))

    def batch(self, steps: int) -> Any:
        """The next batch of about so many steps, as RLlib takes it."""
        from ray.rllib.core import DEFAULT_MODULE_ID
        from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

        found = next(self._batches, None)
        if found is None:
            self._batches = self._shuffled(steps)
            found = next(self._batches)
        count = len(found.pop(SOURCE))
        del found[RECEIVED]
        self._taken += count
        make: Any = SampleBatch  # which RLlib left untyped
        columns = make({name: np.ascontiguousarray(column) for name, column in found.items()})
        return MultiAgentBatch({DEFAULT_MODULE_ID: columns}, env_steps=count)

    def taken(self) -> int:
        """Steps handed out since the last call."""
        taken, self._taken = self._taken, 0
        return taken

    def close(self) -> None:
        """Drop the batches that are read ahead, and the thread that reads them."""
        self._batches = iter(())

    def _shuffled(self, steps: int) -> Iterator[dict[str, Any]]:
        batches = self._dataset.iter_batches(
            batch_size=steps,
            batch_format="numpy",
            local_shuffle_buffer_size=max(SHUFFLED_STEPS, steps),
            local_shuffle_seed=self._seed + self.epoch,
        )
        self.epoch += 1
        return iter(batches)


def read_store(config: Any, plan: Plan, fit: "GameFit", store: Store) -> RllibRecords:
    """Configure RLlib to read the store's records of the plan's game; Missing where none can be learned from."""
    from ray.rllib.offline.offline_data import OfflineData

    assert isinstance(store, ParallelStore)
    rows = RowMaker(
        spec=plan.spec.hash,
        frame_stack=plan.spec.frame_stack,
        observation=fit.observation,
        actions=fit.actions,
        discount=plan.settings.gamma,
        whole=fit.algorithm.offer.name == "MARWIL",
        reward_clip=plan.reward_clip,
    )
    steps = store.stats(plan.spec.id).steps
    records = None
    if steps:
        dataset = in_memory(dataset_of(store, store.url, Query(plan.spec.id), rows), store.url)
        records = RllibRecords(dataset, store.url, plan.seed) if dataset.count() else None
    if records is None:
        raise Missing(
            f"the store holds {steps} steps of {plan.game}, and none that {fit.algorithm.name} can learn from",
            where="--from store",
            do=f"Collect some: `spar collect {plan.game}`",
        )
    batch = records.batch

    class StoreData(OfflineData):
        def __init__(self, config: Any) -> None:  # RLlib's own would look for files
            self.config = config
            self.iter_batches_kwargs: dict[str, Any] = {}

        def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> Any:
            return batch(num_samples)

    url = store.url.partition("?")[0]
    config.offline_data(input_=[url], offline_data_class=StoreData, dataset_num_iters_per_learner=1)
    config._is_online = False  # as BC's is; RLlib forgot it of CQL, which would otherwise ask for a simulator
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    return records
