"""A plan as a configuration of RLlib's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.learn.plan import Plan
from sparring.learn.rllib.algorithm import RllibAlgorithm, default_config, training_arguments
from sparring.learn.rllib.environments import (
    ActionSpace,
    FlatObservation,
    GameVector,
    MultiSeatGame,
    action_space_of,
    flat_observation_of,
)
from sparring.learn.rllib.modules import MODULES, critic_of
from sparring.wire.network import NetworkSpec

EPISODE_RETURNS = "sparring_returns"  # the metric that holds each finished episode's return
ASYNC, ASYNC_S = ("APPO", "IMPALA"), 0.2
ITERATION_STEPS = {"policy": 0, "values": 128, "soft": 128}  # played at least between two checks of the run's limits


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
    """RLlib's configuration, still without a source of data: see `add_simulator` and offline_data.py."""
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
    config.environment(env=MultiSeatGame if fit.several else GameVector, env_config=context)
    config.env_runners(
        num_env_runners=plan.actors if plan.actors > 1 or offer.name in ASYNC else 0,
        num_envs_per_env_runner=plan.envs,
        num_cpus_per_env_runner=plan.cpus_per_actor,
        gym_env_vectorize_mode="sync" if fit.several else "vector_entry_point",
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
