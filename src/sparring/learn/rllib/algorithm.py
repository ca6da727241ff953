"""`rllib:NAME` as an algorithm of the platform: which of RLlib's algorithms can be used, and their settings.

The settings are those of RLlib's own `training()`. Such an algorithm is not fed by our replay tables: in
learn/rllib/topology.py RLlib plays, or reads the store, and learns.
"""

import inspect
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import cache
from typing import Any, Literal

from sparring.errors import ConfigError, Missing
from sparring.games.game_state import did_you_mean
from sparring.games.spec import GameSpec, SeatSpec
from sparring.hosts.ray.cluster import prepare
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.protocol import Batch, Learner, Update
from sparring.nets.torch_network import default_heads
from sparring.wire.network import Activation, Head, NetworkSpec

PREFIX = "rllib:"
# RLlib's settings of its older API stack, and those that our modules and runs decide.
_LEFT_OUT = {
    "train_batch_size", "vf_share_layers", "use_critic", "noisy", "sigma0", "num_atoms", "v_min", "v_max",
    "store_buffer_in_checkpoints", "grad_clip", "burn_in_len", "burnin_len",
    "add_default_connectors_to_learner_pipeline",
}  # fmt: skip
_DEPRECATED = -1  # RLlib's mark of a removed key


@dataclass(frozen=True, slots=True)
class RllibOffer:
    """One algorithm of RLlib, as it can be used here."""

    name: str  # RLlib's own
    kind: Literal["policy", "values", "soft"]  # policy and state values, action values, or policy and action critics
    source: Literal["sim", "store"]  # it plays, or it reads records; RLlib has none that does both
    actions: tuple[str, ...]  # kinds of the spec
    masks: bool = True  # it can be kept to legal actions
    instead: str = ""  # what to use where it cannot be used


_BOTH = ("discrete", "box")
OFFERS = {
    offer.name: offer
    for offer in (
        RllibOffer("PPO", "policy", "sim", _BOTH),
        RllibOffer("APPO", "policy", "sim", _BOTH),
        RllibOffer("IMPALA", "policy", "sim", _BOTH),
        RllibOffer("DQN", "values", "sim", ("discrete",), instead="rllib:PPO"),
        RllibOffer("SAC", "soft", "sim", _BOTH, masks=False, instead="rllib:PPO"),
        RllibOffer("BC", "policy", "store", _BOTH),
        RllibOffer("MARWIL", "policy", "store", _BOTH),
        RllibOffer("CQL", "soft", "store", ("box",), masks=False, instead="cql"),
        RllibOffer("IQL", "soft", "store", ("box",), masks=False, instead="iql"),
    )
}


def offer_of(name: str) -> RllibOffer:
    """The algorithm behind `rllib:NAME`; Missing or ConfigError, which name those that exist, otherwise."""
    asked = name.removeprefix(PREFIX)
    known = ", ".join(f"{PREFIX}{one}" for one in OFFERS)
    if asked in OFFERS:
        return OFFERS[asked]
    if asked.upper() == "DREAMERV3":
        wrong = f"RLlib's {asked} plays by a world model, which no model of the registry can hold"
        raise ConfigError(wrong, where="--algo", do=f"Choose one of {known}")
    do = did_you_mean(asked.upper(), OFFERS, f"Choose one of {known}", PREFIX)
    raise Missing(f"RLlib has no algorithm {asked!r} that can be used here", where="--algo", do=do)


def check_source(name: str, source: str, game: str) -> None:
    """ConfigError where RLlib's algorithm cannot learn from that source."""
    offer = offer_of(name)
    if source == offer.source:
        return
    if source == "mix":
        wrong = "RLlib's algorithms either play or read records"
        do = f"Use `--algo ppo --from mix`, or --from {offer.source}"
    elif source == "store":
        readers = ", ".join(f"{PREFIX}{one.name}" for one in OFFERS.values() if one.source == "store")
        wrong = f"RLlib's {offer.name} learns only from what it plays itself"
        do = f"Use one of {readers}, or our own dqn"
    else:
        wrong = f"RLlib's {offer.name} learns from what others played, and nothing else"
        do = f"Use `spar train {shlex.quote(game)} --algo {PREFIX}{offer.name} --from store`"
    raise ConfigError(wrong, where=f"--from {source}", do=do)


@contextmanager
def no_warnings() -> Iterator[None]:
    """RLlib warns of its own deprecated code, on import and at work; its users cannot change that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class RllibAlgorithm:
    """One algorithm of RLlib."""

    feeds = "rllib"

    def __init__(self, offer: RllibOffer) -> None:
        self.offer, self.name = offer, f"{PREFIX}{offer.name}"
        self.policy = "greedy" if offer.kind == "values" else "categorical"
        self.settings = settings_type(offer)

    def seat(self, game: GameSpec) -> SeatSpec:
        """The seat that is learned; ConfigError where RLlib's algorithm cannot choose its actions."""
        return one_seat(game, self.name, self.offer.actions)

    def network(self, game: GameSpec, config: Any) -> NetworkSpec:
        """The network that is learned and published."""
        seat = self.seat(game)
        heads: tuple[Head, ...] = default_heads(seat.action)
        if self.offer.kind == "values":
            heads = (Head("logits", seat.action.masks, dueling=config.dueling),)
        elif self.offer.kind == "soft":
            heads = tuple(head for head in heads if head.name != "value")
        separate = self.offer.kind == "policy" and config.separate_value
        return network_for(game, seat, config, heads, separate_value=separate)

    def begin(self, game: GameSpec, config: Any, seed: int) -> Learner:
        wrong = f"{self.name} plays and learns by itself, and is fed by no replay table of ours"
        raise ConfigError(wrong, where="--topology", do="Leave --topology out")

    def update(self, learner: Learner, batch: Batch) -> Update:
        raise NotImplementedError("`begin` gives no learner")

    def exploration(self, learner: Learner, env_steps: int) -> float:
        return 0.0


def open_rllib(name: str) -> RllibAlgorithm:
    """The algorithm behind `rllib:NAME`; ConfigError where it does not exist or RLlib is not installed."""
    offer = offer_of(name)
    prepare(loopback=False)
    try:
        with no_warnings():
            import ray.rllib  # noqa: F401
    except ImportError:
        do = "Install it: pip install 'sparring[ray]'"
        raise ConfigError("RLlib is not installed", where="--algo", do=do) from None
    return RllibAlgorithm(offer)


def default_config(offer: RllibOffer) -> Any:
    """RLlib's own configuration of that algorithm."""
    with no_warnings():
        from ray.rllib.algorithms.registry import ALGORITHMS

        makers: Any = ALGORITHMS
        return makers[offer.name]()[1]


@cache
def settings_type(offer: RllibOffer) -> type:
    """A frozen dataclass: settings of the network, then every plain key of RLlib's `training()` with its default."""
    soft = offer.kind == "soft"
    ours: list[tuple[str, Any, Any]] = [
        ("network", str, ""),
        ("hidden_units", tuple[int, ...], (256, 256) if soft else (64, 64)),
        ("activation", Activation, "relu" if soft else "tanh"),
        ("image_layers", tuple[str, ...], ()),
        ("grad_clip", float, float(default_config(offer).grad_clip or 0.0)),  # 0: none
    ]
    if offer.kind == "policy":
        ours.append(("separate_value", bool, offer.name in ("PPO", "MARWIL")))
    if offer.source == "sim" and offer.kind != "policy":
        # Steps learned from per step played; 0: as RLlib would, one batch for each step of all games together.
        ours += [("replay_steps", int, 50_000), ("training_intensity", float, 0.0)]
    if offer.kind == "values":
        ours += [("epsilon_last", float, 0.05), ("epsilon_steps", int, 10_000)]
    fields = [(key, kind, field(default=default)) for key, kind, default in ours]
    fields += [(key, type(value), field(default=value)) for key, value in rllib_settings(offer)]
    return make_dataclass(f"{offer.name.title()}Settings", fields, frozen=True)


@cache
def rllib_settings(offer: RllibOffer) -> tuple[tuple[str, Any], ...]:
    """RLlib's own keys that can be set here, with its defaults."""
    config = default_config(offer)
    found: dict[str, Any] = {}
    for owner in type(config).__mro__:
        if "training" in vars(owner):
            for key in inspect.signature(vars(owner)["training"]).parameters:
                if not key.startswith("_") and key not in _LEFT_OUT and hasattr(config, key):
                    found.setdefault(key, getattr(config, key))
    if offer.kind == "soft":
        found.pop("lr", None)  # actor, critic and α each have their own
    plain = {key: value for key, value in found.items() if type(value) in (bool, int, float, str)}
    return tuple((key, value) for key, value in plain.items() if type(value) is bool or value != _DEPRECATED)


def training_arguments(offer: RllibOffer, settings: Any) -> dict[str, Any]:
    """The arguments of RLlib's `training()` for these settings."""
    given = asdict(settings)
    words = {key: given[key] for key, _ in rllib_settings(offer)} | {"grad_clip": given["grad_clip"] or None}
    if offer.kind == "soft":
        words["lr"] = None
    if "replay_steps" in given:
        words["training_intensity"] = given["training_intensity"] or None
        words["replay_buffer_config"] = {"type": "EpisodeReplayBuffer", "capacity": given["replay_steps"]}
    if "epsilon_last" in given:
        words["epsilon"] = [(0, 1.0), (given["epsilon_steps"], given["epsilon_last"])]
    return words
