"""A plan of ours as a configuration of RLlib's."""

from dataclasses import dataclass
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from sparring.errors import ConfigError
from sparring.games.catalogue import open_game
from sparring.learn.plan import Plan
from sparring.learn.rllib.actions import Actions, actions_of
from sparring.learn.rllib.algorithm import Rllib, default_config, training_of
from sparring.learn.rllib.environments import GameVector, SeatAmongOthers, row_space
from sparring.learn.rllib.flat_observation import Packing, packing_of
from sparring.learn.rllib.modules import MODULES, critic_of
from sparring.wire.network import NetworkSpec

EARNED = "sparring_earned"  # the metric that holds each finished episode's return
ASYNC, ASYNC_S = ("APPO", "IMPALA"), 0.2
TURN_STEPS = {"policy": 0, "values": 128, "soft": 128}  # at least so many are played between two looks at the limits


@dataclass(frozen=True, slots=True)
class Fitting:
    """How one game fits one algorithm of RLlib."""

    algorithm: Rllib
    network: NetworkSpec
    packing: Packing
    actions: Actions
    several: bool  # seats


def fitting(plan: Plan) -> Fitting:
    """How the plan's game is told to RLlib; ConfigError where its spaces or masks do not suit."""
    algorithm = plan.algorithm
    assert isinstance(algorithm, Rllib)
    seat, offer = algorithm.seat(plan.spec), algorithm.offer
    masked = bool(seat.action.choices) if plan.source == "store" else _is_masked(plan)
    if masked and not offer.masks:
        raise ConfigError(
            f"it says which actions are legal, and RLlib's {offer.name} cannot keep to them",
            where=f"game {plan.game}",
            do=f"Use --algo {offer.instead}",
        )
    packing = packing_of(seat, plan.spec.frame_stack, masks=masked)
    network = algorithm.network(plan.spec, plan.settings)
    return Fitting(algorithm, network, packing, actions_of(seat.action, offer), len(plan.spec.seats) > 1)


def configured(plan: Plan, fit: Fitting) -> Any:
    """RLlib's configuration; what plays or reads is still to be said."""
    offer = fit.algorithm.offer
    model: dict[str, Any] = {"network": fit.network, "packing": fit.packing, "seed": plan.seed}
    if offer.kind == "soft":
        model["critic"] = critic_of(fit.network)
    config = default_config(offer)
    config.framework("torch").training(**training_of(offer, plan.settings))
    config.learners(num_learners=0, num_gpus_per_learner=0)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=MODULES[offer.name], model_config=model))
    config.environment(
        observation_space=row_space(fit.packing),
        action_space=fit.actions.space,
        normalize_actions=False,  # seats.py has its own way between RLlib's numbers and the game's
        clip_actions=False,
    )
    config.debugging(seed=plan.seed, log_level="ERROR")
    return config


def playing(config: Any, plan: Plan, fit: Fitting) -> Any:
    """The configuration with a simulator: the learner's own process plays where one actor is asked for."""
    offer = fit.algorithm.offer
    context = {
        "game": plan.game,
        "packing": fit.packing,
        "actions": fit.actions,
        "network": fit.network,
        "policy": plan.policy,
        "seed": plan.seed,
        "reward_clip": plan.reward_clip,
        "opponents": plan.opponents,
        "opponent_share": plan.opponent_share,
        "script_share": plan.script_share,
    }
    config.environment(env=SeatAmongOthers if fit.several else GameVector, env_config=context)
    runners = plan.actors if plan.actors > 1 or offer.name in ASYNC else 0
    config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=plan.envs,
        num_cpus_per_env_runner=plan.cpus_per_actor,
        gym_env_vectorize_mode="sync" if fit.several else "vector_entry_point",
    )
    waiting = ASYNC_S if offer.name in ASYNC else 0  # these return at once, whether anything came or not
    config.reporting(min_time_s_per_iteration=waiting, min_sample_timesteps_per_iteration=TURN_STEPS[offer.kind])
    return config.callbacks(callbacks_class=Earnings)


class Earnings(RLlibCallback):
    """Notes what each finished episode came to, as the game counted it."""

    def on_episode_end(self, **about: Any) -> None:
        episode, metrics_logger = about["episode"], about["metrics_logger"]
        earned = episode.get_infos(-1).get("earned", episode.get_return())
        metrics_logger.log_value(EARNED, float(earned), reduce="item_series")


def _is_masked(plan: Plan) -> bool:
    """Whether a started game says what is legal."""
    import numpy as np

    game = open_game(plan.game, 1)
    view = game.reset(np.array([plan.seed], np.uint64), np.ones(1, bool))
    return any(legal is not None for legal in view.legal)
