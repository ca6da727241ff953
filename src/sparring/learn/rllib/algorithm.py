"""`rllib:NAME` as the platform knows an algorithm: its settings are those of RLlib's own `training()`.

It is not fed by our tables: learn/rllib/topology.py lets RLlib play, or read, and learn.
"""

import inspect
from dataclasses import asdict, field, make_dataclass
from functools import cache
from typing import Any

from sparring.errors import ConfigError
from sparring.games.spec import GameSpec, SeatSpec
from sparring.hosts.ray.cluster import prepare
from sparring.learn.algorithms.feeds import network_for, one_seat
from sparring.learn.protocol import Batch, Learner, Update
from sparring.learn.rllib.names import PREFIX, Offer, offer_of
from sparring.learn.rllib.warnings_off import hushed
from sparring.nets.torch_network import default_heads
from sparring.wire.network import Activation, Head, NetworkSpec

FEEDS = "rllib"
# Of RLlib's older stack, or of what our modules and runs decide.
_LEFT_OUT = {
    "train_batch_size", "vf_share_layers", "use_critic", "noisy", "sigma0", "num_atoms", "v_min", "v_max",
    "store_buffer_in_checkpoints", "grad_clip", "burn_in_len", "burnin_len",
    "add_default_connectors_to_learner_pipeline",
}  # fmt: skip
_DEPRECATED = -1  # RLlib's mark of a key that is gone


class Rllib:
    """One algorithm of RLlib."""

    feeds = FEEDS

    def __init__(self, offer: Offer) -> None:
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
        raise _not_fed(self.name)

    def update(self, learner: Learner, batch: Batch) -> Update:
        raise _not_fed(self.name)

    def exploration(self, learner: Learner, env_steps: int) -> float:
        return 0.0


def open_rllib(name: str) -> Rllib:
    """The algorithm behind `rllib:NAME`; an error that says what to do where there is none, or no RLlib."""
    offer = offer_of(name)
    prepare(loopback=False)
    try:
        with hushed():
            import ray.rllib  # noqa: F401
    except ImportError:
        do = "Install it: pip install 'sparring[ray]'"
        raise ConfigError("RLlib is not installed", where="--algo", do=do) from None
    return Rllib(offer)


def default_config(offer: Offer) -> Any:
    """RLlib's own configuration of that algorithm."""
    with hushed():
        from ray.rllib.algorithms.registry import ALGORITHMS

        makers: Any = ALGORITHMS
        return makers[offer.name]()[1]


@cache
def settings_type(offer: Offer) -> type:
    """A frozen dataclass: how the network looks, then every plain key of RLlib's `training()`, by RLlib's default."""
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
    fields += [(key, type(value), field(default=value)) for key, value in rllib_keys(offer).items()]
    return make_dataclass(f"{offer.name.title()}Settings", fields, frozen=True)


@cache
def _rllib_keys(offer: Offer) -> tuple[tuple[str, Any], ...]:
    config = default_config(offer)
    found: dict[str, Any] = {}
    for owner in type(config).__mro__:
        if "training" in vars(owner):
            for key in inspect.signature(vars(owner)["training"]).parameters:
                if not key.startswith("_") and key not in _LEFT_OUT and hasattr(config, key):
                    found.setdefault(key, getattr(config, key))
    if offer.kind == "soft":
        found.pop("lr", None)  # each of its parts has its own
    plain = {key: value for key, value in found.items() if type(value) in (bool, int, float, str)}
    return tuple((key, value) for key, value in plain.items() if type(value) is bool or value != _DEPRECATED)


def rllib_keys(offer: Offer) -> dict[str, Any]:
    """RLlib's own keys that can be set here, with its defaults."""
    return dict(_rllib_keys(offer))


def training_of(offer: Offer, settings: Any) -> dict[str, Any]:
    """What RLlib's `training()` is given for these settings."""
    said = asdict(settings)
    words = {key: said[key] for key in rllib_keys(offer)}
    words["grad_clip"] = said["grad_clip"] or None
    if offer.kind == "soft":
        words["lr"] = None
    if "replay_steps" in said:
        words["training_intensity"] = said["training_intensity"] or None
        words["replay_buffer_config"] = {"type": "EpisodeReplayBuffer", "capacity": said["replay_steps"]}
    if "epsilon_last" in said:
        words["epsilon"] = [(0, 1.0), (said["epsilon_steps"], said["epsilon_last"])]
    return words


def _not_fed(name: str) -> ConfigError:
    return ConfigError(
        f"{name} plays and learns by itself, and is fed by no table of ours",
        where="--topology",
        do="Leave --topology out",
    )
