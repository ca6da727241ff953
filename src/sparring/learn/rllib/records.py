"""The store as RLlib's offline data: read once, in parallel, through Ray Data; then in another order each time."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from sparring.errors import Missing
from sparring.learn.offline.parallel_store import SharedReading
from sparring.learn.offline.ray_data import dataset_of, held, rows_of
from sparring.learn.plan import Plan
from sparring.learn.rllib.config import Fitting
from sparring.learn.rllib.transitions import RECEIVED, SOURCE, Telling
from sparring.replay.steps import SOURCES
from sparring.store.protocol import Query, Store

SHUFFLED_STEPS = 50_000  # among which the next batch is drawn


class RllibRecords:
    """A dataset of Ray Data, and how much of it was handed out."""

    def __init__(self, dataset: Any, url: str, seed: int) -> None:
        self._dataset, self._url, self._seed = dataset, url, seed
        self.epoch = 0  # times that everything was seen
        self._batches: Iterator[dict[str, Any]] = iter(())
        self._taken = 0
        self.steps: Counter[str] = Counter()
        self.until_ms: int | None = None
        self._count()

    def batch(self, steps: int) -> MultiAgentBatch:
        """The next batch of about so many steps, endlessly."""
        found = next(self._batches, None)
        if found is None:
            self._batches = self._order(steps)
            found = next(self._batches)
        columns = {
            name: np.ascontiguousarray(column) for name, column in found.items() if name not in (SOURCE, RECEIVED)
        }
        count = len(found[SOURCE])
        self._taken += count
        make: Any = SampleBatch  # which RLlib left untyped
        return MultiAgentBatch({DEFAULT_MODULE_ID: make(columns)}, env_steps=count)

    def taken(self) -> int:
        """Steps handed out since this was last asked."""
        taken, self._taken = self._taken, 0
        return taken

    def close(self) -> None:
        """Let go of what is being read ahead, and of the thread that does it."""
        self._batches = iter(())

    def _order(self, steps: int) -> Iterator[dict[str, Any]]:
        batches = self._dataset.iter_batches(
            batch_size=steps,
            batch_format="numpy",
            local_shuffle_buffer_size=max(SHUFFLED_STEPS, steps),
            local_shuffle_seed=self._seed + self.epoch,
        )
        self.epoch += 1
        return iter(batches)

    def _count(self) -> None:
        for table in rows_of(self._dataset.select_columns([SOURCE, RECEIVED]), self._url):
            found, counts = np.unique(table[SOURCE].to_numpy(), return_counts=True)
            self.steps.update({SOURCES[place]: int(count) for place, count in zip(found, counts, strict=True)})
            self.until_ms = max(self.until_ms or 0, int(table[RECEIVED].to_numpy().max()))


class StoreData(OfflineData):
    """What RLlib asks for batches."""

    records: RllibRecords  # of the class that `reading` makes for one run

    def __init__(self, config: Any) -> None:  # RLlib's own would look for files
        self.config = config
        self.iter_batches_kwargs: dict[str, Any] = {}

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> MultiAgentBatch:
        return self.records.batch(num_samples)


def reading(config: Any, plan: Plan, fit: Fitting, store: Store) -> RllibRecords:
    """Let RLlib read what the store holds of the plan's game; Missing where none of it can be learned from."""
    assert isinstance(store, SharedReading)
    offer = fit.algorithm.offer
    telling = Telling(
        spec=plan.spec.hash,
        frame_stack=plan.spec.frame_stack,
        packing=fit.packing,
        actions=fit.actions,
        discount=plan.settings.gamma,
        whole=offer.name == "MARWIL",
        reward_clip=plan.reward_clip,
    )
    steps = store.stats(plan.spec.id).steps
    records = None
    if steps:
        dataset = held(dataset_of(store, store.url, Query(plan.spec.id), telling), store.url)
        records = RllibRecords(dataset, store.url, plan.seed) if dataset.count() else None
    if records is None:
        raise Missing(
            f"the store holds {steps} steps of {plan.game}, and none that {fit.algorithm.name} can learn from",
            where="--from store",
            do=f"Collect some: `spar collect {plan.game}`",
        )
    config.offline_data(
        input_=[store.url.partition("?")[0]],
        offline_data_class=type("StoreData", (StoreData,), {"records": records}),
        dataset_num_iters_per_learner=1,
    )
    config._is_online = False  # as BC's is; RLlib forgot it of CQL, which would otherwise ask for a simulator
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    return records
