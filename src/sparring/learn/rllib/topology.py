"""rllib: RLlib plays, or reads the store, and learns; one turn is one iteration of its algorithm.

sim      env runners ─► RLlib's learner ─► env runners      in this process, or in --actors N of their own
store    store ─ Ray Data ─► RLlib's learner
"""

import logging
import math
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sparring.acting.actor import Episodes
from sparring.errors import Missing, TrainingStopped
from sparring.hosts.ray.cluster import Cluster
from sparring.learn.offline.parallel_store import LOCAL, as_a_node
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Sources, Topology, Update
from sparring.learn.rllib.warnings_off import hushed
from sparring.store.protocol import Store
from sparring.wire.tree import Tree

PAST_EVERY_STEPS = 100_000  # ticks of all games between two past selves
_LOSS = "total_loss"
_PLAYED = "num_env_steps_sampled_lifetime"


def build(plan: Plan, store: Store | None) -> Topology:
    """RLlib's algorithm, ready for its first turn, with a Ray of its own unless --on names one."""
    with ExitStack() as opened:
        cluster = Cluster(plan.on if plan.on.startswith("ray:") else LOCAL)
        opened.callback(cluster.close)
        as_a_node(cluster)
        folder = Path(tempfile.mkdtemp(prefix="sparring-rllib-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        with hushed():
            from sparring.learn.rllib.config import configured, fitting, playing
            from sparring.learn.rllib.records import reading
        fit = fitting(plan)
        config = configured(plan, fit)
        if plan.source == "store":
            if store is None:
                raise Missing("no store is open", where="--from store", do="Set [store] url")
            records = reading(config, plan, fit, store)
            opened.callback(records.close)
        else:
            records = None
            playing(config, plan, fit)
        algorithm = built(config, folder)
        opened.callback(algorithm.stop)
        return _Rllib(plan, fit, algorithm, records, opened.pop_all())


def built(config: Any, folder: Path) -> Any:
    """RLlib's algorithm, whose log goes to `folder` and nowhere else."""
    from ray.rllib.algorithms.cql import CQL
    from ray.rllib.algorithms.marwil import MARWIL

    def set_up_folder(algorithm: Any) -> None:
        algorithm._logdir = str(folder)

    theirs = config.algo_class
    changed: dict[str, Any] = {"_setup_logdir": set_up_folder}
    if issubclass(theirs, CQL):  # whose own hands a batch over as if it were an iterator of them
        changed["training_step"] = MARWIL.training_step
    config.algo_class = type(theirs.__name__, (theirs,), changed)
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)
    with hushed():
        return config.build_algo(use_copy=False)


class _Rllib:
    """One turn: one iteration of RLlib's."""

    def __init__(self, plan: Plan, fit: Any, algorithm: Any, records: Any, opened: ExitStack) -> None:
        from sparring.learn.rllib.learner import RllibLearner

        self.plan, self.fit, self.algorithm, self.records = plan, fit, algorithm, records
        self.learner = RllibLearner(algorithm, fit.network)
        self.env_steps = self.position = self.episodes = 0
        self._past_kept = 0
        self._opened = opened
        self._hand()

    def iterate(self) -> Iteration:
        with hushed():
            result = self.algorithm.train()
        before = self.position
        if self.records is None:
            self.env_steps = self.position = int(result[_PLAYED])
            self._hand()
        else:
            self.position += self.records.taken()
        learned = result.get("learners", {}).get("default_policy", {})
        metrics = _numbers(learned)
        self._check(metrics)
        self.learner.count()
        update = Update(self.learner, None, metrics) if metrics else None
        return Iteration(update, None, self._ended(result), {"turn_steps": self.position - before})

    def sources(self) -> Sources:
        if self.records is None:
            return Sources({"selfplay": self.env_steps}, None)
        return Sources(dict(self.records.steps), self.records.until_ms)

    def close(self) -> None:
        with hushed():
            self._opened.close()

    def save(self) -> Tree:
        return {
            "learner": self.learner.save(),
            "position": self.position,
            "episodes": self.episodes,
            "past_kept": self._past_kept,
            "epoch": 0 if self.records is None else self.records.epoch,
        }

    def load(self, state: Tree) -> None:
        self.learner.load(state["learner"])
        self.position, self.episodes, self._past_kept = state["position"], state["episodes"], state["past_kept"]
        if self.records is not None:
            self.records.epoch = state["epoch"] + 1  # in another order than the one that was broken off
            return
        self.env_steps = self.position
        _each_runner(self.algorithm, _Sitting(self.position))
        self._hand()

    def _check(self, metrics: dict[str, float]) -> None:
        if math.isfinite(metrics.get("loss", 0.0)):
            return
        metrics.pop("loss")  # RLlib also says NaN where it measured nothing, so that the weights decide
        if not all(np.isfinite(value).all() for value in self.learner.weights().values()):
            raise TrainingStopped(
                f"the loss and the weights are no finite numbers after update {self.learner.updates}",
                where="RLlib",
                do="Lower lr; --resume goes on from the last checkpoint",
            )

    def _ended(self, result: dict[str, Any]) -> Episodes | None:
        from sparring.learn.rllib.config import EARNED

        earned = np.asarray(result.get("env_runners", {}).get(EARNED, ()), np.float32).reshape(-1)
        returns = earned[np.isfinite(earned)]  # RLlib says NaN where there was none
        if not len(returns):
            return None
        self.episodes += len(returns)
        return Episodes(returns, np.full(len(returns), self.fit.several))

    def _hand(self) -> None:
        """Let partners know what was learned, where there are any."""
        if self.records is not None or not self.fit.several:
            return
        keep = self.position // PAST_EVERY_STEPS > self._past_kept
        self._past_kept = self.position // PAST_EVERY_STEPS
        _each_runner(self.algorithm, _Handing(self.learner.weights(), keep))


class _Handing:
    """Said to each runner: whom its learner meets from now on."""

    def __init__(self, weights: Any, keep: bool) -> None:
        self.weights, self.keep = weights, keep

    def __call__(self, runner: Any) -> None:
        for game in runner.env.unwrapped.envs if runner.env is not None else ():
            game.unwrapped.hand(self.weights, self.keep)


class _Sitting:
    """Said to each runner: how far the run was when it was taken up again."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(self, runner: Any) -> None:
        if runner.env is None:
            return
        around = runner.env.unwrapped
        for game in getattr(around, "envs", [around]):
            game.unwrapped.sitting = self.position
        runner.num_env_steps_sampled_lifetime = self.position  # by which DQN's ε falls
        if runner.worker_index <= 1:  # one of them tells RLlib, which counts on from there
            runner.metrics.log_value(_PLAYED, self.position, reduce="lifetime_sum", with_throughput=True)


def _each_runner(algorithm: Any, told: Any) -> None:
    algorithm.env_runner_group.foreach_env_runner(told, local_env_runner=True)


def _numbers(learned: dict[str, Any]) -> dict[str, float]:
    """What RLlib's learner measured, by its names; the loss by ours. What is not finite is left out, but the loss."""
    found = {}
    for name, value in learned.items():
        if isinstance(value, bool | int | float | np.number) or (isinstance(value, np.ndarray) and value.size == 1):
            number = float(value)
            if name == _LOSS:
                found["loss"] = number
            elif math.isfinite(number):
                found[name] = number
    return found
