"""What RLlib offers, and what of it a model of ours can hold."""

import difflib
from dataclasses import dataclass
from typing import Literal

from sparring.errors import ConfigError, Missing

PREFIX = "rllib:"
# What is learned with: a policy beside its values, action values, or a policy beside critics of actions.
Kind = Literal["policy", "values", "soft"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One algorithm of RLlib, as it can be used here."""

    name: str  # RLlib's own
    kind: Kind
    source: Literal["sim", "store"]  # it plays, or it reads; RLlib has none that does both
    actions: tuple[str, ...]  # kinds of the spec
    masks: bool = True  # it keeps to what is legal
    instead: str = ""  # what to use where it cannot be


_BOTH = ("discrete", "box")
OFFERS = {
    offer.name: offer
    for offer in (
        Offer("PPO", "policy", "sim", _BOTH),
        Offer("APPO", "policy", "sim", _BOTH),
        Offer("IMPALA", "policy", "sim", _BOTH),
        Offer("DQN", "values", "sim", ("discrete",), instead="rllib:PPO"),
        Offer("SAC", "soft", "sim", _BOTH, masks=False, instead="rllib:PPO"),
        Offer("BC", "policy", "store", _BOTH),
        Offer("MARWIL", "policy", "store", _BOTH),
        Offer("CQL", "soft", "store", ("box",), masks=False, instead="cql"),
        Offer("IQL", "soft", "store", ("box",), masks=False, instead="iql"),
    )
}
_REFUSED = {"DREAMERV3": "plays by a world model, which no model of the registry can hold"}


def offer_of(name: str) -> Offer:
    """What is behind `rllib:NAME`; Missing or ConfigError with those that are there otherwise."""
    asked = name.removeprefix(PREFIX)
    known = ", ".join(f"{PREFIX}{one}" for one in OFFERS)
    if asked in OFFERS:
        return OFFERS[asked]
    if asked.upper() in _REFUSED:
        raise ConfigError(f"RLlib's {asked} {_REFUSED[asked.upper()]}", where="--algo", do=f"Choose one of {known}")
    near = difflib.get_close_matches(asked.upper(), OFFERS, n=1)
    do = f"Did you mean {PREFIX + near[0]!r}" if near else f"Choose one of {known}"
    raise Missing(f"RLlib has no algorithm {asked!r} that can be used here", where="--algo", do=do)


def check_source(offer: Offer, source: str, game: str) -> None:
    """Nothing where RLlib's algorithm can learn from there; a ConfigError that says what can otherwise."""
    if source == offer.source:
        return
    name = f"{PREFIX}{offer.name}"
    if source == "mix":
        wrong, do = (
            "RLlib's algorithms either play or read records",
            f"Use `--algo ppo --from mix`, or --from {offer.source}",
        )
    elif source == "store":
        readers = ", ".join(f"{PREFIX}{one.name}" for one in OFFERS.values() if one.source == "store")
        wrong, do = (
            f"RLlib's {offer.name} learns only from what it plays itself",
            f"Use one of {readers}, or our own dqn",
        )
    else:
        wrong = f"RLlib's {offer.name} learns from what others played, and nothing else"
        do = f"Use `spar train {game} --algo {name} --from store`"
    raise ConfigError(wrong, where=f"--from {source}", do=do)
