"""rllib: RLlib plays, or reads the store, and learns; one iteration is one iteration of RLlib's algorithm.

sim      env runners ─► RLlib's learner ─► env runners      in this process, or in --actors N of their own
store    store ─ Ray Data ─► RLlib's learner
"""

import logging
import math
import shutil
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sparring.acting.actor import Episodes
from sparring.errors import Missing, TrainingStopped
from sparring.hosts.ray.cluster import Cluster
from sparring.learn.offline.parallel_store import LOCAL, require_node
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Sources, Topology, Update
from sparring.learn.rllib.algorithm import no_warnings
from sparring.store.protocol import Store
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree, pack, unpack

if TYPE_CHECKING:
    from sparring.learn.rllib.config import GameFit
    from sparring.learn.rllib.offline_data import RllibRecords

PAST_EVERY_STEPS = 100_000  # ticks of all games between two additions to the past weights
_PLAYED = "num_env_steps_sampled_lifetime"
_MODULE, _OPTIMIZER, _WEIGHTS_SEQ_NO = "rl_module", "optimizer", "weights_seq_no"  # RLlib's names in a learner's state
_BESIDE = ("curr_log_alpha", "moving_avg_sqd_adv_norms_per_module")  # of SAC, of MARWIL: not in RLlib's own state


def build(plan: Plan, store: Store | None) -> Topology:
    """RLlib's algorithm, ready for its first iteration, with a Ray of its own unless --on names one."""
    with ExitStack() as opened:
        cluster = Cluster(plan.on if plan.on.startswith("ray:") else LOCAL)
        opened.callback(cluster.close)
        require_node(cluster)
        folder = Path(tempfile.mkdtemp(prefix="sparring-rllib-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        with no_warnings():
            from sparring.learn.rllib.config import add_simulator, algorithm_config, fit_game
        fit = fit_game(plan)
        config = algorithm_config(plan, fit)
        records = None
        if plan.source == "store":
            from sparring.learn.rllib.offline_data import read_store

            if store is None:
                raise Missing("no store is open", where="--from store", do="Set [store] url")
            records = read_store(config, plan, fit, store)
            opened.callback(records.close)
        else:
            add_simulator(config, plan, fit)
        algorithm = _built(config, folder)
        opened.callback(algorithm.stop)
        return _Rllib(plan, fit, algorithm, records, opened.pop_all())


def _built(config: Any, folder: Path) -> Any:
    """RLlib's algorithm, whose log goes to `folder` alone."""
    from ray.rllib.algorithms.cql import CQL
    from ray.rllib.algorithms.marwil import MARWIL

    def set_up_folder(algorithm: Any) -> None:
        algorithm._logdir = str(folder)

    theirs = config.algo_class
    changed: dict[str, Any] = {"_setup_logdir": set_up_folder}
    if issubclass(theirs, CQL):  # whose own passes a batch on as if it were an iterator of them
        changed["training_step"] = MARWIL.training_step
    config.algo_class = type(theirs.__name__, (theirs,), changed)
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)
    with no_warnings():
        return config.build_algo(use_copy=False)


class RllibLearner:
    """RLlib's learner, which is in this process, as the platform's `Learner`."""

    def __init__(self, algorithm: Any, network: NetworkSpec) -> None:
        self._algorithm, self.network, self.updates = algorithm, network, 0

    @property
    def _learner(self) -> Any:
        return self._algorithm.learner_group._learner

    @property
    def module(self) -> Any:
        """The RLModule that learns."""
        return self._learner.module["default_policy"].unwrapped()

    def count_updates(self) -> None:
        """Read `updates` from RLlib: calls of its learner, each of which may hold several epochs."""
        self.updates = int(self._learner._weights_seq_no)

    def weights(self) -> Weights:
        found: Weights = self.module.published.weights()
        return found

    def save(self) -> bytes:
        learner = self._learner
        state = learner.get_state(components=[_MODULE, _OPTIMIZER])
        parts = {name: state[name] for name in (_MODULE, _OPTIMIZER, _WEIGHTS_SEQ_NO)}
        beside = {name: getattr(learner, name)["default_policy"] for name in _BESIDE if hasattr(learner, name)}
        return pack({"state": to_tree(parts), "beside": to_tree(beside)})

    def load(self, state: bytes) -> None:
        tree, algorithm = unpack(state), self._algorithm
        self._learner.set_state(from_tree(tree["state"]))
        for name, value in from_tree(tree["beside"]).items():
            getattr(self._learner, name)["default_policy"].data.copy_(value)
        self.count_updates()
        if (runners := algorithm.env_runner_group) is not None:
            runners.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)


class _Rllib:
    def __init__(
        self, plan: Plan, fit: "GameFit", algorithm: Any, records: "RllibRecords | None", opened: ExitStack
    ) -> None:
        self.plan, self.fit, self.algorithm, self.records = plan, fit, algorithm, records
        self.learner = RllibLearner(algorithm, fit.network)
        self.env_steps = self.position = self.episodes = 0
        self._past_kept = 0
        self._opened = opened
        self._set_opponents()

    def iterate(self) -> Iteration:
        with no_warnings():
            result = self.algorithm.train()
        before = self.position
        if self.records is None:
            self.env_steps = self.position = int(result[_PLAYED])
            self._set_opponents()
        else:
            self.position += self.records.taken()
        self.learner.count_updates()
        metrics = _numbers(result.get("learners", {}).get("default_policy", {}))
        self._check(metrics)
        update = Update(self.learner, None, metrics) if metrics else None
        return Iteration(update, None, self._ended(result), {"iteration_steps": self.position - before})

    def sources(self) -> Sources:
        if self.records is None:
            return Sources({"selfplay": self.env_steps}, None)
        return Sources(dict(self.records.steps), self.records.until_ms)

    def close(self) -> None:
        with no_warnings():
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
            self.records.epoch = state["epoch"] + 1  # in another order than the one that was interrupted
            return
        self.env_steps = self.position
        self._each_runner(partial(_set_position, position=self.position))
        self._set_opponents()

    def _check(self, metrics: dict[str, float]) -> None:
        if math.isfinite(metrics.get("loss", 0.0)):
            return
        metrics.pop("loss")  # RLlib also reports NaN where it measured nothing, so that the weights decide
        if not all(np.isfinite(value).all() for value in self.learner.weights().values()):
            raise TrainingStopped(
                f"the loss and the weights are no finite numbers after update {self.learner.updates}",
                where="RLlib",
                do="Lower lr; --resume goes on from the last checkpoint",
            )

    def _ended(self, result: dict[str, Any]) -> Episodes | None:
        from sparring.learn.rllib.config import EPISODE_RETURNS

        found = np.asarray(result.get("env_runners", {}).get(EPISODE_RETURNS, ()), np.float32).reshape(-1)
        returns = found[np.isfinite(found)]  # RLlib reports NaN where there was none
        if not len(returns):
            return None
        self.episodes += len(returns)
        return Episodes(returns, np.full(len(returns), self.fit.several))

    def _set_opponents(self) -> None:
        """Give the environments the learner's weights as an opponent, in games with several seats."""
        if self.records is not None or not self.fit.several:
            return
        keep = self.position // PAST_EVERY_STEPS > self._past_kept
        self._past_kept = self.position // PAST_EVERY_STEPS
        self._each_runner(partial(_set_weights, weights=self.learner.weights(), keep=keep))

    def _each_runner(self, call: Any) -> None:
        self.algorithm.env_runner_group.foreach_env_runner(call, local_env_runner=True)


def _set_weights(runner: Any, weights: Weights, keep: bool) -> None:
    """In an env runner: play against these weights from now on."""
    for game in runner.env.unwrapped.envs if runner.env is not None else ():
        game.unwrapped.set_weights(weights, keep)


def _set_position(runner: Any, position: int) -> None:
    """In an env runner: the run's position when it was resumed."""
    if runner.env is None:
        return
    around = runner.env.unwrapped
    for game in getattr(around, "envs", [around]):
        game.unwrapped.resumed_at = position
    runner.num_env_steps_sampled_lifetime = position  # by which DQN's ε falls
    if runner.worker_index <= 1:  # one of them reports to RLlib, which counts on from there
        runner.metrics.log_value(_PLAYED, position, reduce="lifetime_sum", with_throughput=True)


def _numbers(learned: dict[str, Any]) -> dict[str, float]:
    """The metrics of RLlib's learner by its names; the loss by ours. Only the loss may be not finite."""
    found = {}
    for name, value in learned.items():
        if isinstance(value, bool | int | float | np.number) or (isinstance(value, np.ndarray) and value.size == 1):
            number = float(value)
            if name == "total_loss":
                found["loss"] = number
            elif math.isfinite(number):
                found[name] = number
    return found


def to_tree(value: Any) -> Tree:
    """RLlib's state as a tree: nested dicts with any plain keys, lists, tuples, arrays, tensors and numbers.

    RLlib's own checkpoints are pickles, which are never read here.
    """
    if isinstance(value, dict):
        return {"pairs": [[to_tree(key), to_tree(one)] for key, one in value.items()]}
    if isinstance(value, torch.Tensor):
        return {"tensor": value.detach().cpu().numpy().copy()}
    if isinstance(value, tuple):
        return {"tuple": [to_tree(one) for one in value]}
    if isinstance(value, list):
        return [to_tree(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a tree")


def from_tree(tree: Tree) -> Any:
    """The inverse of `to_tree`; arrays are copied, since a tree's are read-only."""
    if isinstance(tree, dict):
        if "pairs" in tree:
            return {from_tree(key): from_tree(one) for key, one in tree["pairs"]}
        if "tensor" in tree:
            return torch.from_numpy(np.array(tree["tensor"]))
        return tuple(from_tree(one) for one in tree["tuple"])
    if isinstance(tree, list):
        return [from_tree(one) for one in tree]
    return np.array(tree) if isinstance(tree, np.ndarray) else tree
