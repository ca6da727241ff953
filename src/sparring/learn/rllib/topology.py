"""rllib: RLlib plays, or reads the store, and learns; one iteration is one iteration of RLlib's algorithm.

sim      env runners ─► RLlib's learner ─► env runners      in this process, or in --actors N of their own
store    store ─ tasks on Ray ─► records ─► RLlib's learner

The store's records are RLlib's offline data: read once, then handed out in another order each epoch.
"""

import logging
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.cql import CQL
from ray.rllib.algorithms.marwil import MARWIL
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from sparring.acting.actor import Episodes
from sparring.acting.opponents import PAST_EVERY_STEPS
from sparring.errors import ConfigError, Missing, TrainingStopped
from sparring.games.catalogue import open_game
from sparring.hosts.ray.cluster import Cluster
from sparring.learn.offline.parallel_store import LOCAL, require_node
from sparring.learn.offline.records import consecutive, has_final, of_episodes
from sparring.learn.plan import Plan
from sparring.learn.protocol import Iteration, Sources, Topology, Update
from sparring.learn.rllib.algorithm import RllibAlgorithm, default_config, no_warnings, training_arguments
from sparring.learn.rllib.environments import (
    ActionSpace,
    FlatObservation,
    RllibGame,
    action_space_of,
    flat_observation_of,
)
from sparring.learn.rllib.modules import MODULES, critic_of
from sparring.store.protocol import Query, Store
from sparring.wire.chunk import Array, Chunk
from sparring.wire.network import NetworkSpec, Weights
from sparring.wire.tree import Tree, pack, unpack

EPISODE_RETURNS = "sparring_returns"  # the metric that holds each finished episode's return
ASYNC, ASYNC_S = ("APPO", "IMPALA"), 0.2
ITERATION_STEPS = {"policy": 0, "values": 128, "soft": 128}  # played at least between two checks of the run's limits
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
        fit = fit_game(plan)
        config = algorithm_config(plan, fit)
        records = None
        if plan.source == "store":
            if store is None:
                raise Missing("no store is open", where="--from store", do="Set [store] url")
            records = read_store(config, plan, fit.observation, fit.actions, store)
        else:
            add_simulator(config, plan, fit)
        algorithm = _built(config, folder)
        opened.callback(algorithm.stop)
        return _Rllib(plan, fit, algorithm, records, opened.pop_all())


@dataclass(frozen=True, slots=True)
class GameFit:
    """How one game fits one algorithm of RLlib."""

    algorithm: RllibAlgorithm
    network: NetworkSpec
    observation: FlatObservation
    actions: ActionSpace
    several: bool  # seats


def fit_game(plan: Plan) -> GameFit:
    """How the plan's game is presented to RLlib; ConfigError where its spaces or masks do not suit."""
    algorithm = plan.algorithm
    assert isinstance(algorithm, RllibAlgorithm)
    seat, offer = algorithm.seat(plan.spec), algorithm.offer
    masked = bool(seat.action.choices) if plan.source == "store" else _is_masked(plan)
    if masked and not offer.masks:
        raise ConfigError(
            f"it says which actions are legal, and RLlib's {offer.name} cannot keep to them",
            where=f"game {plan.game}",
            do=f"Use --algo {offer.instead}",
        )
    observation = flat_observation_of(seat, plan.spec.frame_stack, masks=masked)
    network = algorithm.network(plan.spec, plan.settings)
    return GameFit(algorithm, network, observation, action_space_of(seat.action, offer), len(plan.spec.seats) > 1)


def algorithm_config(plan: Plan, fit: GameFit) -> Any:
    """RLlib's configuration, still without a source of data: see `add_simulator` and `read_store`."""
    offer = fit.algorithm.offer
    model: dict[str, Any] = {"network": fit.network, "observation": fit.observation, "seed": plan.seed}
    if offer.kind == "soft":
        model["critic"] = critic_of(fit.network)
    config = default_config(offer)
    config.framework("torch").training(**training_arguments(offer, plan.settings))
    config.learners(num_learners=0, num_gpus_per_learner=0)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=MODULES[offer.name], model_config=model))
    config.environment(
        observation_space=fit.observation.space,
        action_space=fit.actions.space,
        normalize_actions=False,  # ActionSpace converts between RLlib's numbers and the game's
        clip_actions=False,
    )
    config.debugging(seed=plan.seed, log_level="ERROR")
    return config


def add_simulator(config: Any, plan: Plan, fit: GameFit) -> None:
    """Let RLlib play: in the learner's own process where one actor is asked for."""
    offer = fit.algorithm.offer
    context = {
        "game": plan.game,
        "observation": fit.observation,
        "actions": fit.actions,
        "network": fit.network,
        "policy": plan.policy,
        "seed": plan.seed,
        "reward_clip": plan.reward_clip,
        "opponents": plan.opponents,
        "opponent_share": plan.opponent_share,
        "script_share": plan.script_share,
    }
    config.environment(env=RllibGame, env_config=context)
    config.env_runners(
        num_env_runners=plan.actors if plan.actors > 1 or offer.name in ASYNC else 0,
        num_envs_per_env_runner=plan.envs,
        num_cpus_per_env_runner=plan.cpus_per_actor,
    )
    least_s = ASYNC_S if offer.name in ASYNC else 0  # these return at once, whether there is a result or not
    config.reporting(min_time_s_per_iteration=least_s, min_sample_timesteps_per_iteration=ITERATION_STEPS[offer.kind])
    config.callbacks(callbacks_class=ReturnLogger)


class ReturnLogger(RLlibCallback):
    """Logs the return of each finished episode, before any clipping of rewards."""

    def on_episode_end(self, **about: Any) -> None:
        episode, metrics_logger = about["episode"], about["metrics_logger"]
        earned = episode.get_infos(-1).get("return", episode.get_return())
        metrics_logger.log_value(EPISODE_RETURNS, float(earned), reduce="item_series")


def _is_masked(plan: Plan) -> bool:
    """Whether a started game says which actions are legal."""
    view = open_game(plan.game, 1).reset(np.array([plan.seed], np.uint64), np.ones(1, bool))
    return any(legal is not None for legal in view.legal)


def _built(config: Any, folder: Path) -> Any:
    """RLlib's algorithm, whose log goes to `folder` alone."""

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
        self._algorithm, self.network, self.updates, self.steps = algorithm, network, 0, 0

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
        arrays = {name: value.numpy(force=True) for name, value in beside.items()}
        return pack({"state": _with_keys(parts, str), "beside": arrays})

    def load(self, state: bytes) -> None:
        algorithm, saved = self._algorithm, unpack(state)
        self._learner.set_state(_with_keys(saved["state"], lambda key: int(key) if key.isdigit() else key))
        for name, value in saved["beside"].items():
            getattr(self._learner, name)["default_policy"].data.copy_(torch.from_numpy(value.copy()))
        self.count_updates()
        if (runners := algorithm.env_runner_group) is not None:
            runners.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)


class _Rllib:
    def __init__(
        self, plan: Plan, fit: GameFit, algorithm: Any, records: "StoreRecords | None", opened: ExitStack
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
            self.position += self.records.taken
            self.records.taken = 0
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
    for game in runner.env.unwrapped.envs:
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


def _with_keys(state: Any, key: Callable[[Any], Any]) -> Any:
    """A copy of RLlib's state with other keys: a tree has text alone, and torch numbers an optimiser's parameters."""
    if isinstance(state, dict):
        return {key(name): _with_keys(value, key) for name, value in state.items()}
    return state.item() if isinstance(state, np.generic) else copy(state)


class StoreRecords:
    """Runs of consecutive chunks, handed out in batches: each step with the observation after it."""

    def __init__(self, runs: list[list[Chunk]], observation: FlatObservation, actions: ActionSpace, plan: Plan) -> None:
        self._observation, self._seed = observation, plan.seed
        self._ages = np.arange(-plan.spec.frame_stack + 1, 1)  # of the frames in a stack, the newest last
        records = of_episodes(runs)
        if plan.reward_clip:
            records = replace(records, reward=np.clip(records.reward, -plan.reward_clip, plan.reward_clip))
        run, ends = records.episode_of_step(), records.start[1:]
        # Views are the observations of a run's steps and then the one after its last step.
        self._views = {
            leaf: np.insert(records.observation[leaf], ends, records.final[leaf], axis=0) for leaf in observation.names
        }
        self._legal = None if records.legal is None else np.insert(records.legal, ends, True, axis=0)
        self._view = np.arange(records.steps) + run  # of each step
        self._first_view = records.first[run] + run  # of its run
        self._columns = {  # by RLlib's names
            "actions": actions.from_game(records.action),
            "rewards": records.reward,
            "terminateds": ~records.goes_on(),
            "value_targets": records.returns(plan.settings.gamma),
        }
        followed = np.ones(records.steps, bool)
        followed[ends - 1] = [run[-1].header.ending != "running" or has_final(run[-1]) for run in runs]
        self.rows = np.flatnonzero(followed)  # that can be learned from
        self._order = self.rows[:0]  # what is left of this epoch
        self.epoch = self.taken = 0
        headers = [chunk.header for run in runs for chunk in run]
        self.steps: Counter[str] = Counter()
        for header in headers:
            self.steps[header.source] += header.steps
        self.until_ms = max(header.received_at_ms for header in headers)

    def batch(self, steps: int) -> Any:
        """The next batch of so many steps, or of what is left of the epoch, as RLlib takes it."""
        if not len(self._order):
            self._order = np.random.default_rng([self._seed, self.epoch]).permutation(self.rows)
            self.epoch += 1
        rows, self._order = self._order[:steps], self._order[steps:]
        self.taken += len(rows)
        columns = {name: column[rows] for name, column in self._columns.items()}
        columns |= {"obs": self._observed(rows, 0), "new_obs": self._observed(rows, 1)}
        make: Any = SampleBatch  # which RLlib left untyped
        return MultiAgentBatch({DEFAULT_MODULE_ID: make(columns)}, env_steps=len(rows))

    def _observed(self, rows: Array, later: int) -> Array:
        """Flat observations at those steps, or `later`. The first frame of a run is repeated before it."""
        view = self._view[rows] + later
        frames = np.maximum(view[:, None] + self._ages, self._first_view[rows, None])
        seen = {leaf: column[frames] for leaf, column in self._views.items()}
        return self._observation.flatten(seen, None if self._legal is None else self._legal[view])


def read_store(
    config: Any, plan: Plan, observation: FlatObservation, actions: ActionSpace, store: Store
) -> StoreRecords:
    """Configure RLlib to learn from the store's records of the plan's game; Missing where there are none."""
    query = Query(plan.spec.id, complete=plan.algo == "rllib:MARWIL")  # whose targets are returns to the end
    runs = list(consecutive(chunk for chunk in store.read(query) if chunk.header.spec == plan.spec.hash))
    records = StoreRecords(runs, observation, actions, plan) if runs else None
    if records is None or not len(records.rows):
        raise Missing(
            f"the store holds {store.stats(plan.spec.id).steps} steps of {plan.game}, "
            f"and none that {plan.algo} can learn from",
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

    config.offline_data(input_=["store"], offline_data_class=StoreData, dataset_num_iters_per_learner=1)
    config._is_online = False  # as BC's is; RLlib forgot it of CQL, which would otherwise ask for a simulator
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    return records
